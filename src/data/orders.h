#ifndef FLUX__DATA_ORDERS_H
#define FLUX__DATA_ORDERS_H
#include "../base/platform.h"
#include "../base/threads.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../base/text.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/leaves.h"
#include "../graph/views.h"
#include "../graph/reductions.h"
#include "../schedule/looking.h"

/* ---------------------------------------------------------------------- data/orders.h
   The types of the data loader, and what decides the order of observations:
   keys, random orders (flux__new_order), weighted draws, one-hot labels. A
   flux_loader is a description: arrays or a data set, how they are cut into
   batches, and the stages (transform, function, move to a device) that each
   batch passes. An epoch under way is a flux__epoch (data/epoch.h). A loader
   changes nothing but its count of epochs, so one loader can be walked any
   number of times, nested too.

   Invariant: batch i depends on the loader, the epoch's key and i, never on who
   makes it: random numbers drawn while it is made are keyed by (epoch, i).
   Workers claim batches in order and put batch i into slot i mod depth, so they
   come out in order; what crosses threads is computed and carries no graph, and
   a batch is freed by its last owner. Labels are looked at when they are
   encoded: a wrong one is an error with its place.

   Rejected: an unordered queue (a run would not repeat), and one buffer for all
   batches (one that is kept would change under its owner). */

FLUX__BEGIN_LEAN

typedef enum { FLUX__STAGE_TRANSFORM, FLUX__STAGE_MAP, FLUX__STAGE_MOVE } flux__stage_kind;
typedef struct flux__stage {
    flux__stage_kind kind;
    flux_batch (*transform)(flux_batch b, void *user);
    void *user;
    flux_fn map;
    flux_device device;
    bool keep_f64;                        /* a move to a device keeps f64; else f64 becomes f32 */
} flux__stage;

struct flux_loader {
    flux__head head;
    flux_tensor **array;                  /* arrays of equal last dimension; none with a data set */
    const char **host;                    /* their elements in host memory; NULL for an array on a
                                             device */
    int arrays;                           /* how many arrays; 0 with a data set */
    flux_dataset set;                     /* .get is NULL if there are arrays */
    int64_t total, dealt, share;          /* in observations: all, how many of them the ranks share
                                             (more than all: the first come twice), and how many
                                             this rank has */
    int64_t batch, batches;               /* observations a batch, batches an epoch */
    double *until;                        /* of weighted sampling: sums of the weights up to each
                                             observation, itself included; else NULL */
    bool single, shuffle, partial;        /* single: batchsize -1, an observation without the last
                                             dimension */
    flux_collate collate;
    int workers, rank, ranks;
    flux_comm *comm;                      /* told the weight of each batch, or NULL */
    uint64_t seed;
    bool seeded;                          /* false: each epoch draws its key from the thread's
                                             stream */
    int64_t epoch;
    flux__stage *stage;
    int stages;
    flux_tensor **first;                  /* the array of items that flux_first gave last */
    struct flux__epoch *run;              /* the epoch under way, if this is a cursor, which has
                                             nothing else */
};

typedef struct flux__made {               /* a batch, its items retained */
    flux_tensor **item;
    int count, capacity;                  /* items, and capacity of the array of items */
    int64_t index, size;                  /* the batch's number, and how many observations it has */
    int stage;                            /* the next one to be applied */
    bool ready;                           /* in the ring: read and set under the lock only */
    char error[1024];                     /* why there is no batch; "": no error */
} flux__made;

typedef struct flux__epoch {
    flux_loader *loader;
    int64_t *order;                       /* the share's observations in the order of the epoch;
                                             NULL: as they stand */
    uint64_t key;
    int64_t next;                         /* the batch to be handed out next */
    flux__made now, ahead;                /* the batch handed out, and the one prepared ahead */
    flux__block scope;                    /* the scope of the iteration */
    struct flux__progress *bar;
    flux__made *ring;                     /* batch i, made by a worker, is in slot i mod depth */
    int depth, threads;                   /* slots of the ring, and workers that were started */
    flux__os_thread *thread;
    int forks;                            /* the count of forks (flux__forks) when the threads
                                             were started */
    int64_t failures;                     /* the thread's count of failures when the epoch began:
                                             a later failure ends it */
    flux__mutex lock;                     /* guards what follows, and .ready in the ring */
    flux__cond changed;
    int64_t claimed, taken;               /* batches that workers have claimed, and that have been
                                             taken out of the ring */
    bool stop;
} flux__epoch;

/* ---- orders: random numbers of a key */

static uint64_t flux__scramble(uint64_t z) {  /* SplitMix64's finaliser (Steele, Lea, Flood 2014) */
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Draws a key from the thread's stream of random numbers, which advances by one. */
static uint64_t flux__draw_key(void) {
    flux__thread *t = flux__self();
    return t ? flux__scramble(t->seed ^ flux__scramble(0x5EED + t->draws++)) : 0;
}

/* A number below `bound` (at most 2^32), each as likely as the others: Lemire 2019, a
   multiplication in place of a division. */
static uint64_t flux__below(uint64_t bound, uint64_t *key) {
    uint64_t m = (flux__scramble((*key)++) >> 32) * bound;
    if ((m & 0xFFFFFFFFu) < bound) {
        uint64_t least = (((uint64_t)1 << 32) - bound) % bound;
        while ((m & 0xFFFFFFFFu) < least) m = (flux__scramble((*key)++) >> 32) * bound;
    }
    return m >> 32;
}

/* Room for n observations. NULL: an error was told, also where n is too large to be counted in
   bytes. */
static int64_t *flux__new_places(int64_t n) {
    return (int64_t *)flux__malloc((size_t)flux__times(n, (int64_t)sizeof(int64_t)));
}

/* Whether n observations can be put in random order. False: an error that names `call`. */
static bool flux__can_order(const char *call, int64_t n) {
    return n < (int64_t)1 << 32 ||
           FLUX__REFUSE("%s: %lld observations to shuffle; 4294967295 are possible", call,
                        (long long)n);
}

/* Writes the integers from 0 to n - 1 in the order that belongs to the key (Fisher and Yates). */
static void flux__write_order(int64_t *order, int64_t n, uint64_t key) {
    for (int64_t i = 0; i < n; i++) order[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = (int64_t)flux__below((uint64_t)i + 1, &key), old = order[i];
        order[i] = order[j];
        order[j] = old;
    }
}

/* The same in memory of its own. NULL: out of memory, or n is 2^32 or more. */
static int64_t *flux__new_order(const char *call, int64_t n, uint64_t key) {
    int64_t *order = flux__can_order(call, n) ? flux__new_places(n) : NULL;
    if (order) flux__write_order(order, n, key);
    return order;
}

/* n observations, each drawn from all with a chance in proportion to its weight, so that some come
   several times. NULL: out of memory. */
static int64_t *flux__new_draws(const flux_loader *l, int64_t n, uint64_t key) {
    int64_t *draw = flux__new_places(n);
    const double sum = l->total > 0 ? l->until[l->total - 1] : 0;
    for (int64_t k = 0; k < n && draw; k++) {
        const double u = (double)(flux__scramble(key++) >> 11) / 9007199254740992.0 * sum;
        int64_t lo = 0, hi = l->total - 1;
        while (lo < hi) {                 /* the first whose sum is above u */
            const int64_t mid = lo + (hi - lo) / 2;
            if (l->until[mid] > u) hi = mid;
            else lo = mid + 1;
        }
        /* u may round up to the sum of all, which observations of weight 0 at the end have too */
        while (lo > 0 && l->until[lo] == l->until[lo - 1]) lo--;
        draw[k] = lo;
    }
    return draw;
}

/* n observations in the order of an epoch: of weighted sampling they are drawn. */
static int64_t *flux__epoch_order(const flux_loader *l, int64_t n, uint64_t key) {
    return l->until ? flux__new_draws(l, n, key) : flux__new_order("dataloader", n, key);
}

/* Where observation i of this rank's share stands among all of them. Each rank takes its part of
   the first ranks * batch observations, of the next, and so on, and of what is left at the end, so
   that batch i of all ranks together is batch i of one process whose batchsize is their sum. */
static int64_t flux__share_place(const flux_loader *l, int64_t i) {
    const int64_t whole = l->dealt / (l->batch * l->ranks) * l->batch,
                  left = l->dealt - whole * l->ranks, least = left / l->ranks,
                  over = left % l->ranks,
                  before = l->rank * least + (l->rank < over ? l->rank : over);
    return i < whole ? (i / l->batch * l->ranks + l->rank) * l->batch + i % l->batch
                     : whole * l->ranks + before + i - whole;
}

/* The observations of this rank's share in the order of an epoch. With a key they are shuffled: all
   observations in one order, if the loader has a seed, which other ranks then have too; else those
   of the share among themselves. NULL: an error was told. */
static int64_t *flux__share_order(const flux_loader *l, const uint64_t *key) {
    if (key && l->ranks == 1) return flux__epoch_order(l, l->total, *key);
    const bool together = key && l->seeded;
    if (key && l->until && !together) return flux__new_draws(l, l->share, *key);
    int64_t *order = key ? flux__epoch_order(l, together ? l->total : l->share, *key) : NULL,
            *share = key && !order ? NULL : flux__new_places(l->share);
    for (int64_t i = 0; i < l->share && share; i++)
        share[i] = together ? order[flux__share_place(l, i) % l->total]
                            : flux__share_place(l, order ? order[i] : i) % l->total;
    flux__free(order);
    return share;
}

/* ---- one-hot */

static int64_t flux__integer_at(const void *p, flux_dtype t, int64_t i) {
    if (t == FLUX_U8) return ((const uint8_t *)p)[i];
    if (t == FLUX_I32) return ((const int32_t *)p)[i];
    return ((const int64_t *)p)[i];
}

/* Writes the index of element i of x: "(3)" or "(1, 2)". */
static void flux__place_text(const flux_tensor *x, int64_t i, char *out, size_t n) {
    flux__sink s = flux__sink_to(out, n);
    int64_t place[FLUX_MAX_DIMS];
    flux__place_at(x->dim, x->ndim, i, place);
    flux__put(&s, "(");
    flux__put_dims(&s, place, x->ndim);
    flux__put(&s, ")");
    flux__sink_end(&s);
}

/* Checks that labels are at least `least` and below `end`, or equal to *ignored. Labels are data,
   so they are evaluated here: a wrong one is an error with its place, not a column of zeros. */
static bool flux__labels_good(const char *call, const char *what, flux_tensor *labels,
                              int64_t least, int64_t end, const int64_t *ignored) {
    char place[200];
    const void *p = flux_data(labels);
    int64_t n = flux_len(labels);
    if (!p && n > 0) return false;
    for (int64_t i = 0; i < n; i++) {
        int64_t v = flux__integer_at(p, (flux_dtype)labels->dtype, i);
        if ((v >= least && v < end) || (ignored && v == *ignored)) continue;
        flux__place_text(labels, i, place, sizeof place);
        return FLUX__REFUSE("%s: %s %lld at %s is not one of 0 to %lld", call, what, (long long)v,
                            place, (long long)(end - 1));
    }
    return true;
}

/* Compares the labels, reshaped to 1 x dims, with the column 0, 1, ..., classes - 1, by
   broadcasting. */
FLUX_DEF flux_tensor *flux_onehot(flux_tensor *labels, int64_t classes) {
    if (!labels) return (flux_tensor *)flux__null("onehot", "labels", labels);
    if (labels->dtype != FLUX_U8 && labels->dtype != FLUX_I32 && labels->dtype != FLUX_I64)
        return (flux_tensor *)flux__fail(
            "onehot: labels are %s, not integers; flux_to_dtype converts them",
            flux_dtype_name((flux_dtype)labels->dtype));
    if (classes < 1 || classes > 1 << 24)      /* arange counts in f32, which is exact up to 2^24 */
        return (flux_tensor *)flux__fail("onehot: %lld classes; 1 to 16777216 are possible",
                                         (long long)classes);
    if (labels->ndim == FLUX_MAX_DIMS)
        return (flux_tensor *)flux__fail("onehot: labels have %d dimensions already",
                                         FLUX_MAX_DIMS);
    if (!flux__labels_good("onehot", "label", labels, 0, classes, NULL)) return NULL;
    flux_shape row = flux_shape_of(labels);
    memmove(row.dim + 1, row.dim, sizeof row.dim - sizeof row.dim[0]);
    row.dim[0] = 1;
    row.ndim++;
    int s = flux__hide_in("onehot");
    flux_tensor *column = flux_to_dtype(flux_arange(0, (double)classes, 1), FLUX_I32);
    column = flux_to_tensor(labels->device, column);
    return flux__reveal(s, (flux_eq)(column, flux_reshape_with(labels, row)));
}

FLUX_DEF flux_tensor *flux_onecold(flux_tensor *y) {
    if (!y) return (flux_tensor *)flux__null("onecold", "y", y);
    if (y->op == FLUX__TUPLE)
        return (flux_tensor *)flux__fail("onecold: y is a tuple; take one tensor with flux_nth");
    if (y->ndim < 1 || y->dim[0] < 1)
        return (flux_tensor *)flux__fail("onecold: y has no %s",
                                         y->ndim ? "classes" : "dimension of classes");
    flux_shape rest = flux_shape_of(y);
    rest.ndim--;
    memmove(rest.dim, rest.dim + 1, sizeof rest.dim - sizeof rest.dim[0]);
    int s = flux__hide();
    flux_tensor *number = y->dtype == FLUX_BOOL ? flux_to_dtype(y, FLUX_U8) : y;
    flux_tensor *at = number ? flux__argreduce_node(number, true, 1, number->ndim) : NULL;
    return flux__reveal(s, at ? flux_reshape_with(at, rest) : NULL);
}

/* An i64 tensor on device d: the n integers of order, or without an order those from `begin` on. */
static flux_tensor *flux__index_tensor(const int64_t *order, int64_t begin, int64_t n,
                                       flux_device d) {
    flux_device cpu = { 0, 0 };
    flux_shape s = flux__shape(&n, 1);
    flux_tensor *index = flux__leaf(s, FLUX_I64, cpu);
    if (!index) return NULL;
    int64_t *p = (int64_t *)index->buf->ptr;
    for (int64_t i = 0; i < n; i++) p[i] = order ? order[i] : begin + i;
    return flux_to_tensor(d, index);
}

FLUX__END_LEAN

#endif /* FLUX__DATA_ORDERS_H */
