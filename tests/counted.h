/* Memory that is counted, so that a test program can say at its end that none is held, and that runs
   out when a test wants it: to be included before the implementation. tests/impl.c has it for all
   programs that it is linked to. */
#ifndef FLUX_COUNTED_H
#define FLUX_COUNTED_H
#include "inside.h"
#include <stdint.h>
#include <stdlib.h>

static long memory_live, memory_asked;    /* allocations that were not freed; those asked for */
static long memory_fails = -1;            /* the number of the first that fails; -1: none does */
static int memory_once, memory_refused;   /* whether it alone fails; how many have failed */
static size_t memory_large = SIZE_MAX;    /* of so many bytes and more all fail */
static unsigned inflate_piece = 1u << 30; /* as src/files/gzip.h has it */
#define FLUX__INFLATE_PIECE inflate_piece
#if defined(__GNUC__) && !defined(__TINYC__)
#  define COUNTED(what, n) __atomic_fetch_add(&(what), n, __ATOMIC_RELAXED)
#else
#  define COUNTED(what, n) ((what) += (n), (what) - (n))       /* from several threads about right */
#endif
static inline bool counted_refuses(void) {
    const long k = COUNTED(memory_asked, 1), first = COUNTED(memory_fails, 0);
    const bool refused = first >= 0 && (COUNTED(memory_once, 0) ? k == first : k >= first);
    if (refused) (void)COUNTED(memory_refused, 1);
    return refused;
}
static inline void *counted_realloc(void *p, size_t n) {
    void *q = counted_refuses() || n >= memory_large ? NULL : realloc(p, n);
    if (q && !p) (void)COUNTED(memory_live, 1);
    return q;
}
static inline void counted_free(void *p) {
    if (p) (void)COUNTED(memory_live, -1);
    free(p);
}
#ifndef FLUX_MALLOC
#  define FLUX_MALLOC(n) counted_realloc(NULL, n)
#  define FLUX_REALLOC(p, n) counted_realloc(p, n)
#  define FLUX_FREE(p) counted_free(p)
#endif

/* tests/inside.h's questions about memory */
INSIDE long flux__test_live(void) { return COUNTED(memory_live, 0); }
INSIDE long flux__test_asked(void) { return COUNTED(memory_asked, 0); }
INSIDE int flux__test_refused(void) { return COUNTED(memory_refused, 0); }
static inline void counted_fail(long left, int once) {
    const long first = left < 0 ? -1 : COUNTED(memory_asked, 0) + left;
    (void)COUNTED(memory_refused, -COUNTED(memory_refused, 0));
    (void)COUNTED(memory_once, once - COUNTED(memory_once, 0));
    (void)COUNTED(memory_fails, first - COUNTED(memory_fails, 0));
}
INSIDE void flux__test_memory(long left) { counted_fail(left, 0); }
INSIDE void flux__test_memory_once(long left) { counted_fail(left, 1); }
INSIDE void flux__test_free(void *p) { counted_free(p); }
INSIDE void flux__test_memory_large(size_t bytes) { memory_large = bytes; }
INSIDE void flux__test_inflate_piece(unsigned bytes) { inflate_piece = bytes; }
#endif
