#ifndef FLUX__CPU_RANDOM_H
#define FLUX__CPU_RANDOM_H
#include "../base/platform.h"
#include "loops.h"
#include "float32.h"
#include "vectors.h"

/* ---------------------------------------------------------------------- cpu/random.h
   Random numbers for a kernel: flux__philox_run makes the elements of a stream
   from any position on, in blocks of FLUX__RANDOM_BLOCK, flux__philox those of
   any indices.

   Invariant: an element depends on key, stream and its index alone, so any part
   of a tensor can be made by any thread in any order, with the same bits. Kind
   0 is uniform in [0, 1) with 24 bits, kind 1 standard normal. Indices are not
   negative; runs of consecutive ones are made together. */

FLUX__BEGIN_NUMBERS

/* Makes the elements first ... first+n-1 of a stream. */
static void flux__philox_run(uint64_t key, uint64_t stream, int64_t first, int64_t n, float *out,
                             int kind) {
    const flux__random_fn make = flux__section_now()->random;
    float part[FLUX__RANDOM_BLOCK];
    while (n > 0) {
        const int64_t skip = first % FLUX__RANDOM_BLOCK, blocks = skip ? 0 : n / FLUX__RANDOM_BLOCK;
        int64_t m = blocks ? blocks * FLUX__RANDOM_BLOCK : FLUX__RANDOM_BLOCK - skip;
        if (m > n) m = n;
        make(key, stream, (uint64_t)(first - skip) / 4, blocks ? blocks : 1, blocks ? out : part,
             kind);
        if (!blocks) memcpy(out, part + skip, (size_t)m * sizeof *out);
        first += m, n -= m, out += m;
    }
}

/* Makes the elements index[i] of a stream, none negative, in any order. */
FLUX__UNUSED static void flux__philox(uint64_t key, uint64_t stream, const int64_t *index,
                                      int64_t n, float *out, int kind) {
    for (int64_t i = 0, m; i < n; i += m) {
        for (m = 1; i + m < n && index[i + m] == index[i] + m;) m++;
        flux__philox_run(key, stream, index[i], m, out + i, kind);
    }
}

FLUX__END_NUMBERS

#endif /* FLUX__CPU_RANDOM_H */
