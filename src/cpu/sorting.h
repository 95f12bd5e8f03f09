#ifndef FLUX__CPU_SORTING_H
#define FLUX__CPU_SORTING_H
#include "../base/platform.h"
#include "../base/dtypes.h"
#include "../base/workers.h"
#include "../schedule/kernel.h"
#include "../schedule/dispatch.h"

/* ---------------------------------------------------------------------- cpu/sorting.h
   The kernel behind argsort: the columns of a matrix of float64 or int64 are
   sorted by radix, from the lowest digit to the highest.

   A key becomes an unsigned number of the same order. Only the bits from the
   lowest to the highest in which keys differ are sorted by, in digits of 8 bits,
   or of 11 in long columns: float32 that was widened takes four or five passes.
   Keys and their numbers move together. Few keys are sorted by insertion.

   Invariant: equal keys keep their order. -0 equals 0, and NaN is the largest
   key, the last ascending and the first descending. Columns are tasks of their
   own.

   Rejected: merging runs of indices, which looks keys up at random places and
   took five times as long for columns of a thousand. */

FLUX__BEGIN_LEAN

enum { FLUX__RADIX_FEW = 64, FLUX__RADIX_LONG = 1 << 13, FLUX__RADIX_DIGITS = 1 << 11 };

typedef struct flux__sort_job {
    bool real, descending;
    int64_t n;                            /* keys a column, less than 2^32 */
    const char *key;                      /* of 8 bytes each */
    int64_t step, column;                 /* from key to key and from column to column */
    int64_t *order;                       /* n indices a column */
    uint64_t *scratch;                    /* 2 n words a column */
} flux__sort_job;

/* n keys, as numbers, and where in the column they were. */
typedef struct flux__sort_keys { uint64_t *key; uint32_t *at; } flux__sort_keys;

/* The bits of a float64 or int64 as a number: a key that comes later has a greater one. */
static FLUX__INLINE uint64_t flux__sort_number(const flux__sort_job *j, uint64_t bits) {
    const uint64_t sign = (uint64_t)1 << 63, infinity = (uint64_t)0x7ff << 52;
    uint64_t number = bits ^ sign;
    if (j->real && (bits & ~sign) > infinity) number = ~(uint64_t)0;
    else if (j->real) number = bits > sign ? ~bits : bits | sign;
    return j->descending ? ~number : number;
}

static void flux__sort_few(flux__sort_keys x, int64_t n) {
    for (int64_t i = 1, k; i < n; i++) {
        const uint64_t key = x.key[i];
        const uint32_t at = x.at[i];
        for (k = i; k > 0 && x.key[k - 1] > key; k--)
            x.key[k] = x.key[k - 1], x.at[k] = x.at[k - 1];
        x.key[k] = key, x.at[k] = at;
    }
}

/* Moves n keys to *to, in the order of their digits, so many bits from bit `shift` on. */
static FLUX__O2 void flux__sort_by_digit(flux__sort_keys to, flux__sort_keys from, int64_t n,
                                         int shift, int bits) {
    uint32_t first[FLUX__RADIX_DIGITS], sum = 0;
    const uint64_t mask = ((uint64_t)1 << bits) - 1;
    memset(first, 0, sizeof *first << bits);
    for (int64_t i = 0; i < n; i++) first[from.key[i] >> shift & mask]++;
    for (uint64_t d = 0; d <= mask; d++) {
        const uint32_t count = first[d];
        first[d] = sum, sum += count;
    }
    for (int64_t i = 0; i < n; i++) {
        const uint32_t place = first[from.key[i] >> shift & mask]++;
        to.key[place] = from.key[i], to.at[place] = from.at[i];
    }
}

/* Sorts a column. Its 32-bit indices lie in either half of the result's memory, from which they are
   widened where they are. */
static FLUX__O2 void flux__sort_task(void *ctx, int64_t task) {
    const flux__sort_job *j = (const flux__sort_job *)ctx;
    const int64_t n = j->n;
    const char *column = j->key + (ptrdiff_t)task * (ptrdiff_t)j->column * 8;
    int64_t *order = j->order + task * n;
    uint32_t *half = (uint32_t *)(void *)order;
    flux__sort_keys from = { j->scratch + task * 2 * n, half }, to = { from.key + n, half + n };
    flux__sort_keys old;
    uint64_t differ = 0;
    int shift = 0, top = 64, bits = n < FLUX__RADIX_LONG ? 8 : 11;
    for (int64_t i = 0; i < n; i++) {
        uint64_t key;
        memcpy(&key, column + (ptrdiff_t)i * (ptrdiff_t)j->step * 8, sizeof key);
        from.key[i] = flux__sort_number(j, key), from.at[i] = (uint32_t)i;
        differ |= from.key[i] ^ from.key[0];
    }
    if (n <= FLUX__RADIX_FEW) flux__sort_few(from, n), differ = 0;
    while (differ && !(differ >> shift & 1)) shift++;
    while (differ && !(differ >> (top - 1) & 1)) top--;
    for (; differ && shift < top; shift += bits, old = from, from = to, to = old)
        flux__sort_by_digit(to, from, n, shift, top - shift < bits ? top - shift : bits);
    if (from.at == half)
        for (int64_t i = n - 1; i >= 0; i--) order[i] = half[i];
    else
        for (int64_t i = 0; i < n; i++) order[i] = half[n + i];
}

static int flux__run_sort(flux__run *run, flux__kernel *k) {
    const flux_tensor *t = run->g->node[k->node];
    const flux__operand *x = &k->operand[0];
    flux__sort_job j = { flux__dtypes[x->dtype].real, t->arg.i[0] != 0, t->dim[0],
                         flux__operand_ptr(run, x), x->stride[0], x->stride[1],
                         (int64_t *)run->ptr[run->plan->nleaf + k->node],
                         (uint64_t *)(void *)k->scratch_at };
    if (flux__size(t)) flux__parallel(t->dim[1], flux__sort_task, &j);
    return 0;
}

FLUX__END_LEAN

#endif /* FLUX__CPU_SORTING_H */
