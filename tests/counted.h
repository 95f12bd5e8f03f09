/* Memory that is counted, for the end of a test program, when none may be held: to be included before the implementation. */
#ifndef FLUX_COUNTED_H
#define FLUX_COUNTED_H
#include <stdlib.h>

static long counted_live;                 /* allocations that were not freed */
#if defined(__GNUC__) && !defined(__TINYC__)
#  define COUNTED(n) __atomic_fetch_add(&counted_live, n, __ATOMIC_RELAXED)
#else
#  define COUNTED(n) 0L                   /* threads allocate, so counting needs atomics */
#endif
static inline void *counted_realloc(void *p, size_t n) {
    void *q = realloc(p, n);
    if (q && !p) (void)COUNTED(1);
    return q;
}
static inline void counted_free(void *p) {
    if (p) (void)COUNTED(-1);
    free(p);
}
#ifndef FLUX_MALLOC
#  define FLUX_MALLOC(n) counted_realloc(NULL, n)
#  define FLUX_REALLOC(p, n) counted_realloc(p, n)
#  define FLUX_FREE(p) counted_free(p)
#endif
#endif
