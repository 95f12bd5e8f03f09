/* Memory that is counted, for the end of a test program, when none may be held, and that runs out when a test wants it: to be
   included before the implementation. */
#ifndef FLUX_COUNTED_H
#define FLUX_COUNTED_H
#include <stdbool.h>
#include <stdlib.h>

static long memory_live;                  /* allocations that were not freed */
static long memory_left = -1;             /* allocations until all fail; negative: none does */
#if defined(__GNUC__) && !defined(__TINYC__)
#  define COUNTED(what, n) __atomic_fetch_add(&(what), n, __ATOMIC_RELAXED)
#else
#  define COUNTED(what, n) ((what) += (n), (what) - (n))       /* from several threads about right */
#endif
static inline bool counted_refuses(void) {
    const long left = COUNTED(memory_left, 0);
    if (left > 0) (void)COUNTED(memory_left, -1);
    return left == 0;
}
static inline void *counted_realloc(void *p, size_t n) {
    void *q = counted_refuses() ? NULL : realloc(p, n);
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
#endif
