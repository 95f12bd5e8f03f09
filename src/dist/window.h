#ifndef FLUX__DIST_WINDOW_H
#define FLUX__DIST_WINDOW_H
#include "../base/platform.h"
#include "../base/system.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../cpu/vectors.h"
#include "mpi_library.h"
#include "mpi.h"

#ifdef FLUX_MPI
/* ---------------------------------------------------------------------- dist/window.h
   Reductions of ranks on one machine, through a window: memory of MPI's that all
   of them can read. The data are cut into a block for each rank, and blocks into
   pieces. A rank copies a piece of each other rank's block into the window, reads
   the others' pieces of its own there, reduces them in the order of ranks, and
   puts the result into the window for the others.

   Invariant: a rank writes to its own part of the window alone, and between a
   write and a read by another there is a fence, at which all ranks meet and see
   what was written. The part has two halves, of even and odd pieces: while one
   piece is given, the one before it is reduced, and the result of the one before
   that is taken, so there is one fence a piece.

   Rejected: MPI's own allreduce and reduce_scatter, and blocks that pairs of ranks
   send to each other, by which the data are copied more often; a window of all
   the data (a container's shared memory may have 64 MB). */

FLUX__BEGIN_COLD

enum { FLUX__WINDOW_HALF = 1 << 17 };     /* bytes of half a rank's part: the second cache has it */
static size_t flux__mpi_window_used = FLUX__WINDOW_HALF;     /* of a half; tests use less */
/* Bytes from which an allreduce goes through the window; tests make it small. */
static size_t flux__mpi_window_from = 1 << 18;

typedef struct flux__mpi_window {
    flux__mpi_handle made;
    char **part;                          /* by rank; NULL: there is no window */
    int rank, ranks;
} flux__mpi_window;

/* ---------------- making one */

/* All ranks wait for each other, and see what any of them has written. */
static bool flux__mpi_window_fence(const flux__mpi_window *w, char *why, size_t n) {
#define FLUX__ARGS(h) (0, w->made.h)
    return flux__mpi_ok(FLUX__MPI_CALL(Win_fence, FLUX__ARGS), "Win_fence", why, n);
#undef FLUX__ARGS
}

/* Has MPI make the window, and finds all ranks' parts of it. */
static bool flux__mpi_window_make(flux__mpi_window *w, flux__mpi_handle c, char *why, size_t n) {
    const flux__mpi_handle info = flux__mpi.constant[FLUX__MPI_NO_INFO],
        handler = flux__mpi.constant[FLUX__MPI_RETURNS];
    void *mine;
    intptr_t bytes;
    int unit;
#define FLUX__ARGS(h) (2 * FLUX__WINDOW_HALF, 1, info.h, c.h, &mine, &w->made.h)
    bool ok = flux__mpi_ok(FLUX__MPI_CALL(Win_allocate_shared, FLUX__ARGS), "Win_allocate_shared",
                           why, n);
#undef FLUX__ARGS
#define FLUX__ARGS(h) (w->made.h, handler.h)
    ok = ok && flux__mpi_ok(FLUX__MPI_CALL(Win_set_errhandler, FLUX__ARGS), "Win_set_errhandler",
                            why, n);
#undef FLUX__ARGS
#define FLUX__ARGS(h) (w->made.h, r, &bytes, &unit, &w->part[r])
    for (int r = 0; r < w->ranks && ok; r++)
        ok = flux__mpi_ok(FLUX__MPI_CALL(Win_shared_query, FLUX__ARGS), "Win_shared_query", why, n);
#undef FLUX__ARGS
    return ok;
}

static void flux__mpi_window_free(flux__mpi_window *w, bool well) {
#define FLUX__ARGS(h) (&w->made.h)
    if (w->part && well) FLUX__MPI_CALL(Win_free, FLUX__ARGS);       /* all ranks must come */
#undef FLUX__ARGS
    flux__free(w->part);
    w->part = NULL;
}

/* Whether all ranks of c say yes. False: MPI has failed, and why is told. */
static bool flux__mpi_window_agree(flux__mpi_handle c, bool *yes, char *why, size_t n) {
    int64_t all = *yes;
    const bool ok = flux__mpi_allreduce(c, &all, 1, FLUX_I64, FLUX_MIN, NULL, why, n);
    *yes = ok && all;
    return ok;
}

/* Makes the window of the ranks of c, which are on one machine; there is none if MPI can't make it
   on some of them. That its memory suffices is asked before: if rank 0 can't make it, Open MPI 4
   has the others wait for ever. */
static bool flux__mpi_window_start(flux__mpi_window *w, flux__mpi_handle c, int rank, char *why,
                                   size_t n) {
    char text[300] = "there is too little shared memory";
    w->rank = rank, w->ranks = flux__mpi_size(c);
    w->part = (char **)flux__zalloc((size_t)w->ranks * sizeof *w->part);
    bool made = w->part && w->ranks <= FLUX__WINDOW_HALF / 64 &&
                flux__shared_memory_has((size_t)w->ranks * 4 * FLUX__WINDOW_HALF);
    if (!flux__mpi_window_agree(c, &made, why, n)) return false;
    made = made && flux__mpi_window_make(w, c, text, sizeof text);
    if (!flux__mpi_window_agree(c, &made, why, n)) return false;
    if (made) return true;
    flux__note(FLUX_LOG_DEBUG, "distributed.window", false,
               "distributed: the ranks of this machine have no window: %s", text);
    flux__mpi_window_free(w, false);
    return true;
}

/* ---------------- reducing */

typedef struct flux__reduction {
    const flux__mpi_window *w;
    flux__mpi_handle type, op;
    char *data, *out;                     /* out: where this rank's block goes; NULL: all go to
                                             data, on all ranks */
    int64_t count, share, part;           /* elements: of data, a block, a piece of a block */
    size_t size, slot;                    /* bytes: of an element, and for a piece in the window */
    bool adds;                            /* it is a sum of f32 */
} flux__reduction;

/* Piece k of a rank's block, and how many elements it has: the last ones have fewer, or none. */
static char *flux__piece_at(const flux__reduction *f, int rank, int64_t k, int *n) {
    const int64_t last = f->share * (rank + 1) < f->count ? f->share * (rank + 1) : f->count,
                  at = f->share * rank + f->part * k, begin = at < last ? at : last;
    *n = (int)(last - begin < f->part ? last - begin : f->part);
    return f->data + (size_t)begin * f->size;
}

/* Where in the window rank `by` has piece k of rank `of`'s block: of its own, the result. */
static char *flux__piece_slot(const flux__reduction *f, int by, int of, int64_t k) {
    return f->w->part[by] + (k % 2) * FLUX__WINDOW_HALF + (size_t)of * f->slot;
}

/* Gives piece k of the other ranks' blocks to them. */
static void flux__piece_give(const flux__reduction *f, int64_t k) {
    const int rank = f->w->rank, ranks = f->w->ranks;
    int n;
    for (int s = 1; s < ranks; s++) {
        const int to = (rank + s) % ranks;
        const char *piece = flux__piece_at(f, to, k, &n);
        memcpy(flux__piece_slot(f, rank, to, k), piece, (size_t)n * f->size);
    }
}

/* Takes piece k of the other ranks' blocks, reduced. */
static void flux__piece_take(const flux__reduction *f, int64_t k) {
    const int rank = f->w->rank, ranks = f->w->ranks;
    int n;
    for (int s = 1; s < ranks; s++) {
        const int of = (rank + s) % ranks;
        char *piece = flux__piece_at(f, of, k, &n);
        memcpy(piece, flux__piece_slot(f, of, of, k), (size_t)n * f->size);
    }
}

/* inout = in op inout, of n elements. Sums of f32, the most frequent, are by our own loop: by
   MPICH's the whole exchange takes up to a quarter longer. */
static bool flux__piece_fold(const flux__reduction *f, const char *in, char *inout, int n,
                             char *why, size_t most) {
    if (f->adds) {
        flux__section_now()->add_rows((float *)(void *)inout, (const float *)(const void *)in, n,
                                      1);
        return true;
    }
#define FLUX__ARGS(h) (in, inout, n, f->type.h, f->op.h)
    return flux__mpi_ok(FLUX__MPI_CALL(Reduce_local, FLUX__ARGS), "Reduce_local", why, most);
#undef FLUX__ARGS
}

/* Reduces piece k of this rank's block where it lies: what comes before it in the order of ranks is
   reduced in the window, unless it is one rank's. */
static bool flux__piece_reduce(const flux__reduction *f, int64_t k, char *why, size_t most) {
    const int rank = f->w->rank;
    int n;
    char *mine = flux__piece_at(f, rank, k, &n), *own = flux__piece_slot(f, rank, rank, k);
    const char *before = rank > 1 ? own : flux__piece_slot(f, 0, rank, k);
    bool ok = true;
    if (rank > 1) memcpy(own, flux__piece_slot(f, 0, rank, k), (size_t)n * f->size);
    for (int r = 1; r < rank && ok; r++)
        ok = flux__piece_fold(f, flux__piece_slot(f, r, rank, k), own, n, why, most);
    if (rank > 0) ok = ok && flux__piece_fold(f, before, mine, n, why, most);
    for (int r = rank + 1; r < f->w->ranks && ok; r++)
        ok = flux__piece_fold(f, flux__piece_slot(f, r, rank, k), mine, n, why, most);
    memcpy(f->out ? f->out + (size_t)(f->part * k) * f->size : own, mine, (size_t)n * f->size);
    return ok;
}

/* Reduces `count` elements of data over all ranks, in the order of ranks. out NULL: data become the
   result; else out gets this rank's block of it, and data are destroyed. */
static bool flux__mpi_window_reduce(const flux__mpi_window *w, void *data, void *out, int64_t count,
                                flux_dtype t, flux_agg agg, char *why, size_t n) {
    FLUX__ZEROED(flux__reduction, f);
    f.w = w, f.type = flux__mpi_type(t);
    f.data = (char *)data, f.out = (char *)out, f.adds = t == FLUX_F32 && agg == FLUX_SUM;
    f.size = flux__dtypes[t].size, f.slot = flux__mpi_window_used / (size_t)w->ranks / 64 * 64;
    f.count = count, f.share = (count + w->ranks - 1) / w->ranks;
    f.part = (int64_t)(f.slot / f.size);
    const int64_t pieces = (f.share + f.part - 1) / f.part, steps = pieces + (out ? 1 : 2);
    bool ok = flux__mpi_op(t, agg, &f.op, why, n);
    for (int64_t k = 0; k < steps && ok; k++) {
        if (k > 1 && !out) flux__piece_take(&f, k - 2);
        if (k > 0 && k <= pieces) ok = flux__piece_reduce(&f, k - 1, why, n);
        if (k < pieces) flux__piece_give(&f, k);
        if (k <= pieces) ok = ok && flux__mpi_window_fence(w, why, n);
    }
    return ok;
}

FLUX__END_COLD
#endif /* FLUX_MPI */

#endif /* FLUX__DIST_WINDOW_H */
