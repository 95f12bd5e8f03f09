#ifndef FLUX__BASE_OBJECT_H
#define FLUX__BASE_OBJECT_H
#include "platform.h"
#include "threads.h" /* flux__atomic_load */

/* ---------------------------------------------------------------------- base/object.h
   The types that the rooms share: the head of every handle, buffers, tensors
   (nodes of the graph), scopes, and flux__thread, which holds all state that is
   not shared between threads. It also declares the error and allocation calls
   that base/errors.h and base/memory.h define.

   Invariant: every handle starts with a flux__head, which says what kind of
   object it is and counts its references. A reference is held by a scope, by
   the user (flux_retain), by another object, or by an edge of the graph. The
   lower 32 bits of refs count all references and the upper 32 bits the edges
   among them, so one atomic addition of FLUX__EDGE counts both. A tensor that
   has no references but edges is hidden (flux__visible is false): no program
   can read its value, and it may be fused away. A view's base is never a view
   itself. */

FLUX__BEGIN_LEAN

enum { FLUX__TENSOR = 0x7e01, FLUX__LAYER, FLUX__LOADER, FLUX__STATE, FLUX__GRADS, FLUX__COMM,
    FLUX__BOX, FLUX__FREED
};

enum { FLUX__KEPT_NOT, FLUX__KEPT_MAKING, FLUX__KEPT_MADE };
/* A copy of elements of a buffer in the order in which an operation reads them, kept for as long as
   they do not change (cpu/kept_operands.h). The lock of the buffer's pool guards it. Who reads the
   copy has a reference to it. */
typedef struct flux__kept {
    struct flux__kept *next;              /* the next one of the same buffer */
    int64_t what[16];                     /* which elements, in which order */
    int uses;                             /* how often it was asked for before there was a copy */
    int state;                            /* FLUX__KEPT_NOT (no copy), _MAKING or _MADE */
    struct flux__buffer *copy;            /* NULL: none yet */
} flux__kept;

typedef struct flux__buffer {             /* memory on a device, shared by the tensors in it */
    int64_t refs;                         /* atomic; of a spare buffer: the next one's address */
    flux_device device;
    size_t bytes;                         /* as asked for; the pool may have given more */
    size_t capacity;                      /* bytes that were allocated */
    int size_class;                       /* its size class in the pool */
    void *ptr;
    bool borrowed;                        /* the user's own: never written, never freed */
    void (*done)(void *user);             /* of a borrowed one: called at its end; may be NULL */
    void *user;
    flux__kept *kept;                     /* copies of its elements in other orders */
    struct flux__buffer *before, *after;  /* neighbours in the device's list of live buffers */
    int64_t dim[FLUX_MAX_DIMS];           /* shape of the tensor that it was made for */
    int16_t ndim, dtype;                  /* ndim -1: made for no tensor */
} flux__buffer;

FLUX__SHOWN(flux__kept *, flux__see_kept, flux__show_kept)

/* The beginning of a handle of any other kind, which says itself how it is freed: of the last
   reference, by flux__quarantine in the end. */
typedef struct flux__box {
    flux__head head;
    void (*free)(struct flux__box *box);
} flux__box;

struct flux_tensor {                      /* a node of the graph; with buf set, also its value */
    flux__head head;
    uint16_t op;
    uint8_t dtype, ndim, nin, flags;
    uint16_t maker;                       /* number of the thread that recorded it; 0: not known */
    uint32_t origin;                      /* the layer that recorded it, see schedule/profile.h */
    uint32_t mark, walk_mark;             /* id of the last traversal that visited the node, by the
                                             scheduler (mark) and for gradients (walk_mark) */
    int32_t index, walk_index;            /* the node's number in that traversal */
    flux_tensor **in, *slot[3];           /* operands: in points to slot, or to memory of its own */
    flux__buffer *buf;                    /* the value: contiguous elements, dim 0 fastest */
    flux_tensor *base;                    /* of a view: the tensor, no view, whose elements it
                                             shows, from offset by stride */
    flux_device device;                   /* the fields up to here are those that traversals of the
                                             graph read, kept together for the cache */
    int64_t dim[FLUX_MAX_DIMS];
    int64_t offset, stride[FLUX_MAX_DIMS];   /* of a view, in elements of base */
    int64_t rel;                          /* FLUX__AS_STRIDED and its scatter: the offset to the
                                             strides in arg.i, both as if the operand were
                                             contiguous */
    union {
        double num; int64_t i[FLUX_MAX_DIMS]; uint64_t u[FLUX_MAX_DIMS];
    } arg;                                /* the operation's own parameters */
    intptr_t dense;                       /* atomic, a flux_tensor * or 0: the contiguous copy in
                                             host memory that flux_data made */
};
enum {                                    /* flags of a tensor */
    FLUX__WEAK = 1, FLUX__SEED = 2,       /* a bare number; the 1 that a gradient starts from */
    FLUX__CONSUMED = 4,                   /* flux_update used up its graph or took its memory */
    FLUX__FIXED = 8,                      /* recorded under FLUX_NOGRAD: its graph is not kept */
    FLUX__WIDENED = 16,                   /* half format computed as float32, see flux__widened */
    FLUX__LASTING = 32                    /* stored by the first look that computes it: others need
                                             it, which would read all of its operand again */
};

typedef struct flux__pending {            /* the errors of a thread since flux_clear */
    char text[1024], more[1024], *now;    /* first error's sentence, a later one's, the latest */
    bool set, unsaid;                     /* set: there was one; unsaid: flux__tell reports it */
    int64_t failures, first, repeated;    /* failures ever; the number of the first since
                                             flux_clear; how many had a sentence that was known
                                             already */
    uint64_t said[32];                    /* ring of hashes of the sentences reported */
    int nsaid;                            /* how many there are; from 32 on it stays in 32 ... 63 */
} flux__pending;
typedef struct flux__unsaid {             /* a message that waits for flux__tell */
    int level; bool waits, once; char id[40], text[600];
} flux__unsaid;

typedef struct flux__watch flux__watch;

typedef struct flux__pair { const void *key; void *value; } flux__pair;
typedef struct flux__hashmap {            /* a hash map keyed by address, see base/memory.h */
    flux__pair *at; size_t capacity, count;   /* capacity: a power of two or 0 */
} flux__hashmap;

typedef struct flux__scope {              /* an open scope */
    int start;                            /* index in owned of the first object that it owns */
    int line;                             /* where it was opened; 0: not known */
    const char *file;
    bool turn;                            /* an iteration of flux_times or flux_each */
} flux__scope;

/* a freed handle, and the scope whose end freed it */
typedef struct flux__freed_handle {
    void *object; const char *file; int line, kind;
} flux__freed_handle;

typedef struct flux__thread {             /* a thread's own state */
    int64_t products;                     /* multiply-adds of all matrix products recorded so far */
    flux__watch *watch;                   /* of the flux_summary that runs now, or NULL */
    struct flux__streams *streams;        /* of the flux_export_c that runs now, or NULL */
    flux__pending error;
    int (*where)(const void *place, char *out, size_t n);   /* writes what errors begin with,
                                                               returns its length; or NULL */
    const void *place;                    /* the first argument of where */
    void **owned;                         /* stack of what the open scopes own, oldest first */
    int nowned, capacity;                 /* its length and capacity */
    flux__scope *scope;                   /* open scopes; the first is the program's or thread's */
    int nscopes, scope_capacity;
    int nograd;                           /* depth of FLUX_NOGRAD */
    uint32_t origin;                      /* that of the nodes it records, and the layer that is */
    const flux_layer *calling;            /* called now, while a profile is taken; else 0 */
    struct flux__training *training;      /* models in training, whose test mode is overruled now */
    int as_one;                           /* depth of flux__as_one, within which FLUX_EAGER waits */
    uint64_t seed, draws;                 /* random numbers: key, and how many tensors were drawn */
    uint16_t number;                      /* maker of its nodes; 0 if there were 65535 before it */
    bool ahead;                           /* it makes a batch ahead of need: copies to a device go
                                             beside the device's work */
    flux_tensor *spare;                   /* freed nodes to be used again, linked by base */
    int nspare;
    flux__freed_handle *freed;            /* FLUX__DEBUG: a ring of the handles freed last */
    int64_t nfreed;                       /* how many were ever put there */
    flux__scope closing;                  /* FLUX__DEBUG: the scope that closes now */
    struct flux__plans *plans;            /* cached plans */
    /* The thread calls between(between_of) between the parts of kernels, so that collectives go
       on; NULL: nothing. */
    void (*between)(void *of);
    void *between_of;
    void *scratch;                        /* scratch memory of the kernels that it runs */
    size_t scratch_bytes;
    bool look;                            /* memory has grown: flux__scopes_look is due */
    struct flux__progress *bar;           /* the innermost progress bar */
    int held;                             /* depth of flux__hold: messages wait for flux__tell */
    int64_t held_at;                      /* error.failures when the outermost flux__hold began */
    int hidden;                           /* 0, or 1 + the scopes around the outermost flux__hide */
    int64_t hidden_at;                    /* error.failures when it began */
    const char *hiding;                   /* the call that began it, where errors are to name that
                                             (flux__hide_in); else NULL */
    bool quiet;                           /* errors are recorded only: the caller withdraws them,
                                             and reports them where they matter */
    flux__unsaid later;                   /* the message that waits while held */
} flux__thread;
FLUX__SHOWN(flux__buffer *, flux__see_buffer, flux__show_buffer)

/* hook: flux__threads_stop, base/workers.h */
static void flux__threads_stop(void);

#define FLUX__BACKWARD 0x80000000u        /* in an origin: the node is part of a gradient */
#define FLUX__EDGE (((int64_t)1 << 32) + 1)   /* one edge, which also is a reference */
#define FLUX__REFS(refs) ((int32_t)(refs))    /* all references, edges included */
/* Whether a node has a reference that is no edge of the graph, so that its value may be asked
   for. One atomic read gives both counts, so other threads may change theirs at the same time. */
static FLUX__INLINE bool flux__visible(const flux_tensor *t) {
    const int64_t refs = flux__atomic_load(&t->head.refs);
    return FLUX__REFS(refs) > refs >> 32;
}

FLUX__END_LEAN

#endif /* FLUX__BASE_OBJECT_H */
