#ifndef FLUX__SCHEDULE_KERNEL_H
#define FLUX__SCHEDULE_KERNEL_H
#include "../base/platform.h"

/* ---------------------------------------------------------------------- schedule/kernel.h
   The types of the scheduler. When somebody looks at tensors, their unfinished
   graph becomes a plan, a list of kernels in order. A kernel is one pass over
   an index space full, some of whose dims (mask reduced) are reduced away, and
   runs a small program of values. A value is inner (one for each point) or
   outer (one for each point that is left without the reduced dims); a reduction
   turns inner into outer, and inner values may use outer ones again, so that
   softmax, its gradient and what surrounds them are one kernel. The program of
   a matrix product is its epilogue.

   Invariant: a plan depends on shapes, dtypes and connections, not on
   addresses, numbers or seeds; it is cached under the graph's description, the
   key, and found again at the next step. Nodes are grouped from results to
   operands: a node joins the kernel of its users if it is used point by point
   there and no cycle results. What other kernels use is stored.

   Rejected: grouping from operands to results, which computes cheap masks early
   and then has to store them. */

FLUX__LEAN

enum { FLUX__K_FUSED, FLUX__K_MATMUL, FLUX__K_GATHER, FLUX__K_SCATTER, FLUX__K_SPREAD, FLUX__K_CAT, FLUX__K_MOVE, FLUX__K_ATTEND };
enum flux__value_kind { FLUX__V_LOAD, FLUX__V_NUMBER, FLUX__V_IOTA, FLUX__V_RANDOM, FLUX__V_OP, FLUX__V_CONVERT, FLUX__V_ROUND,
                        FLUX__V_WRAP, FLUX__V_REDUCE, FLUX__V_ARGREDUCE, FLUX__V_PRODUCT };

typedef struct flux__operand {            /* a tensor that a kernel reads */
    int src;                              /* its slot: leaves first, then the plan's nodes */
    uint8_t dtype;
    int64_t offset, stride[FLUX_MAX_DIMS];/* over the kernel's dims; of a whole-tensor kernel, over its own */
    flux_shape shape;                     /* its own */
    bool gather;                          /* a product's, and a copy of windows that is never made: shape and stride are those */
    uint8_t owner[FLUX_MAX_DIMS];         /* of the windows, and these the product's dims that they belong to */
} flux__operand;

typedef struct flux__value {              /* a line of a kernel's program */
    uint8_t kind, op, cls, dtype;         /* op: of the table, or the reduction; dtype: as stored */
    bool outer;
    int16_t a, b, c;                      /* values used, -1: none */
    int16_t operand;                      /* LOAD, IOTA, RANDOM: which operand (for its strides) */
    int16_t phase;                        /* how many reductions must be complete before it */
    int node;                             /* NUMBER, RANDOM: whose arguments; REDUCE: whose mask */
    int out;                              /* slot that it is stored to, or -1 */
} flux__value;

typedef struct flux__kernel {
    int kind, node;                       /* node: the plan's node that gave it its kind */
    int64_t full[FLUX_MAX_DIMS];          /* all 8: 1 past the last */
    unsigned reduced;
    flux__value *value;
    int nvalue, value_room;
    flux__operand *operand;
    int noperand, operand_room;
    int *outs, nouts;                     /* nodes that it stores */
    int *frees, nfrees;                   /* nodes that nobody reads after it */
    int64_t mnk[3];
    flux_device device;                   /* where it runs */
    size_t scratch;                       /* bytes of the device's memory that it needs for itself */
    void *scratch_at;                     /* and where they are in this run */
    void *ready;                          /* what the back end made of it */
    void (*drop)(void *ready);
} flux__kernel;

typedef struct flux__slot_info {          /* cls: its size's class, see flux__size_class */
    flux_device device;
    int64_t bytes;
    int out_kernel, last_kernel, donor, cls;
    bool keep, stored;
} flux__slot_info;

typedef struct flux__chunk {              /* of a plan's memory; what it has lies behind */
    struct flux__chunk *next;
    size_t used, room;
} flux__chunk;

typedef struct flux__plan {
    uint64_t hash;
    flux__chunk *chunk;                   /* where its kernels' lines and operands lie, and what the CPU makes of these */
    int64_t bytes;                        /* of all chunks, and of what else grows with the graph */
    int64_t *key;
    int key_words;
    int nleaf, nnode, nkernel;
    flux__kernel *kernel;
    flux__slot_info *slot;                /* of the nodes, by number */
    int *out, nout;                       /* those that kernels store, in order */
    struct flux__plan *next;              /* in its bucket */
    uint32_t used;                        /* when last, for throwing old ones away */
} flux__plan;

#define FLUX__BUCKETS 256
#define FLUX__PLANS_MOST ((int64_t)1 << 28)   /* bytes of plans that a thread keeps */

/* hook: flux__load, cpu/casts.h */
static void flux__load(int cls, void *dst, int dtype, const void *src, int64_t stride, int64_t n);

#endif /* FLUX__SCHEDULE_KERNEL_H */
