#ifndef FLUX__SCHEDULE_KERNEL_H
#define FLUX__SCHEDULE_KERNEL_H
#include "../base/platform.h"
#include "../base/backend.h"

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

FLUX__BEGIN_LEAN

/* The kinds of kernels. Only fused kernels and matrix products run a program of lines; the others
   are done as a whole. */
enum {
    FLUX__K_FUSED, FLUX__K_MATMUL, FLUX__K_GATHER, FLUX__K_SCATTER,
    FLUX__K_STRIDED_SCATTER, FLUX__K_CAT, FLUX__K_INTERPOLATE, FLUX__K_ATTEND, FLUX__K_SORT,
    FLUX__K_MOVE, FLUX__K_CALL            /* run by schedule/dispatch.h, not by a back end */
};

enum flux__value_kind {
    FLUX__V_LOAD, FLUX__V_NUMBER, FLUX__V_IOTA, FLUX__V_RANDOM, FLUX__V_OP, FLUX__V_CONVERT,
    FLUX__V_ROUND, FLUX__V_WRAP, FLUX__V_REDUCE, FLUX__V_ARGREDUCE, FLUX__V_PRODUCT
};

/* Coordinates of an image whose padding is not stored: element (i, j, ...) of its windows is zero
   where first + step[0] i + step[1] j + ... is none of 0 ... n - 1. */
typedef struct flux__bound { int64_t first, n, step[FLUX_MAX_DIMS]; } flux__bound;
typedef struct flux__bounds { int n; flux__bound of[3]; } flux__bounds;

/* An image that a product pads itself: the plan's node that would be the padded image, and what is
   padded: where it lies in its tensor, along its own dims. */
typedef struct flux__padding {
    int node;
    int64_t offset, stride[FLUX_MAX_DIMS];
    flux_shape shape;
} flux__padding;

typedef struct flux__operand {            /* a tensor that a kernel reads */
    int src;                              /* its slot: leaves come first, then the plan's nodes;
                                             -1: none */
    uint8_t dtype;
    int64_t offset, stride[FLUX_MAX_DIMS];/* in elements, along the kernel's dims; for operands
                                             of a whole-tensor kernel along their own dims */
    flux_shape shape;                     /* the dims of the tensor */
    bool gather;                          /* a matrix product reads it as windows, copied only
                                             while packing; shape and stride are the windows' */
    uint8_t owner[FLUX_MAX_DIMS];         /* by dim of the windows: the dim of the product's
                                             operand that it is a part of */
    const flux__bounds *bounds;           /* of windows that reach beyond the image, or NULL */
    /* NULL, or src is padded first, and offset and stride are those in the padded image */
    const flux__padding *padding;
} flux__operand;

/* A line of a kernel's program, and the value that it computes. */
typedef struct flux__value {
    uint8_t kind, op, ctype, dtype;       /* op: row of the elementwise table, or the kind of
                                             reduction; ctype: compute type; dtype: as stored */
    bool outer;                           /* one value for each outer point, not for every point */
    int16_t a, b, c;                      /* numbers of the values used, -1: none */
    int16_t operand;                      /* LOAD, IOTA, RANDOM: number of the operand, which
                                             gives the strides */
    int16_t phase;                        /* how many reductions in a chain must be complete
                                             before this line runs */
    int node;                             /* NUMBER, RANDOM: the node that holds the arguments */
    int out;                              /* slot that the value is stored to, or -1 */
} flux__value;

typedef struct flux__kernel {
    int kind, node;                       /* node: the plan's node that is not fused (a product,
                                             gather, ...), or -1 */
    int64_t full[FLUX_MAX_DIMS];          /* the index space; dims past the last are 1 */
    unsigned reduced;                     /* mask of the dims that are reduced away */
    flux__value *value;
    int nvalue, value_capacity;
    flux__operand *operand;
    int noperand, operand_capacity;
    int *outs, nouts;                     /* nodes that the kernel stores */
    int *frees, nfrees;                   /* nodes that no later kernel reads and that are not
                                             kept: their buffers are free after it */
    int64_t mnk[3];                       /* arguments of the node; of a product m, n and the
                                             inner size k */
    flux_device device;                   /* device that it runs on */
    size_t scratch;                       /* bytes of scratch memory that it needs on its device */
    void *scratch_at;                     /* address of that scratch memory in the current run */
    const flux__backend *by;              /* the back end that runs it; NULL: none does, as it is a
                                             move, a call or idle */
    void *ready;                          /* what that back end made of the kernel */
    const flux__plan_call *call;          /* of a FLUX__K_CALL */
    int read_at;                          /* of a call: the first kernel that reads its result; the
                                             number of kernels if none does */
    bool started;                         /* of a call: to be finished in the current run */
    bool waits;                           /* it reads the result of a call, see read_at */
    bool idle;                            /* all that it stores is empty, so it is not run: its
                                             loops might go over other dims, to no end */
} flux__kernel;

/* What a plan knows of a node. out_kernel computes the node, last_kernel is the last that reads it.
   donated: leaf whose buffer the node takes over, or -1. inside: node in whose buffer it lies, from
   byte `at` on, or -1: an operand of a call that is in place, or what a product pads. size_class:
   that of its bytes, see flux__size_class. stored: the node has a buffer; keep: it has it after the
   run, too. */
typedef struct flux__slot_info {
    flux_device device;
    int64_t bytes;
    int out_kernel, last_kernel, donated, inside, size_class;
    int64_t at;
    bool keep, stored;
} flux__slot_info;

/* A piece of a plan's memory; its bytes follow the header. */
typedef struct flux__chunk {
    struct flux__chunk *next;
    size_t used, capacity;
} flux__chunk;

typedef struct flux__plan {
    uint64_t hash;
    flux__chunk *chunk;                   /* memory for the kernels' lines and operands and for
                                             what the CPU makes of them */
    int64_t bytes;                        /* size of all chunks and of all else that grows with
                                             the graph */
    int64_t *key;
    int key_words;
    int nleaf, nnode, nkernel, ncall;     /* ncall: how many of the kernels are calls */
    flux__kernel *kernel;
    flux__slot_info *slot;                /* by node number */
    int *out, nout;                       /* nodes that kernels store, ascending */
    void *replay;                         /* of its calls, to run it at once: flux__plan_call */
    struct flux__plan *next;              /* next plan of the same hash bucket */
    uint32_t used;                        /* reading of the clock of flux__plans at the last use */
} flux__plan;

#define FLUX__BUCKETS 256
#define FLUX__PLANS_MOST ((int64_t)1 << 28)   /* most bytes of plans that a thread keeps */

/* hook: flux__load, cpu/casts.h */
static void flux__load(int ctype, void *dst, int dtype, const void *src, int64_t stride, int64_t n);

FLUX__END_LEAN

#endif /* FLUX__SCHEDULE_KERNEL_H */
