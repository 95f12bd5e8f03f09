#ifndef FLUX__CPU_SORTING_H
#define FLUX__CPU_SORTING_H
#include "../base/platform.h"
#include "../base/dtypes.h"
#include "../base/workers.h"
#include "../schedule/kernel.h"
#include "../schedule/dispatch.h"

/* ---------------------------------------------------------------------- cpu/sorting.h
   The kernel behind argsort: each column of a matrix of float64 or int64 is
   merged, runs of 1, 2, 4, ... indices, between the result and scratch memory.

   Invariant: merging takes the left run's index unless the right one's key
   comes before it, so that equal keys keep their order. NaN is the largest key,
   the last ascending and the first descending. Columns are tasks of their own. */

FLUX__BEGIN_LEAN

typedef struct flux__sort_job {
    bool real, descending;
    int64_t n;
    const char *key;                      /* n keys a column, 8 bytes each */
    int64_t step, column;                 /* from key to key and from column to column */
    int64_t *order, *spare;               /* n indices a column */
} flux__sort_job;

/* Whether the key at index b of a column comes before that at index a. */
static FLUX__INLINE bool flux__comes_before(const flux__sort_job *j, const char *column, int64_t b,
                                            int64_t a) {
    const char *left = column + (ptrdiff_t)(j->descending ? b : a) * (ptrdiff_t)j->step * 8,
               *right = column + (ptrdiff_t)(j->descending ? a : b) * (ptrdiff_t)j->step * 8;
    if (!j->real)
        return *(const int64_t *)(const void *)left > *(const int64_t *)(const void *)right;
    double x = *(const double *)(const void *)left, y = *(const double *)(const void *)right;
    return x > y || (x != x && y == y);
}

static FLUX__O2 void flux__sort_task(void *ctx, int64_t task) {
    const flux__sort_job *j = (const flux__sort_job *)ctx;
    const char *column = j->key + (ptrdiff_t)task * (ptrdiff_t)j->column * 8;
    int64_t n = j->n, *from = j->order + task * n, *to = j->spare + task * n, *swap;
    for (int64_t i = 0; i < n; i++) from[i] = i;
    for (int64_t run = 1; run < n; run *= 2, swap = from, from = to, to = swap)
        for (int64_t start = 0; start < n; start += 2 * run) {
            int64_t middle = n - start < run ? n : start + run,
                    end = n - middle < run ? n : middle + run, a = start, b = middle;
            for (int64_t i = start; i < end; i++) {
                bool right = a == middle ||
                             (b < end && flux__comes_before(j, column, from[b], from[a]));
                to[i] = from[right ? b++ : a++];
            }
        }
    if (from != j->order + task * n) memcpy(j->order + task * n, from, (size_t)n * sizeof *from);
}

static int flux__run_sort(flux__run *run, flux__kernel *k) {
    const flux_tensor *t = run->g->node[k->node];
    const flux__operand *x = &k->operand[0];
    flux__sort_job j = { flux__dtypes[x->dtype].real, t->arg.i[0] != 0, t->dim[0],
                         flux__operand_ptr(run, x), x->stride[0], x->stride[1],
                         (int64_t *)run->ptr[run->plan->nleaf + k->node],
                         (int64_t *)(void *)k->scratch_at };
    if (flux__size(t)) flux__parallel(t->dim[1], flux__sort_task, &j);
    return 0;
}

FLUX__END_LEAN

#endif /* FLUX__CPU_SORTING_H */
