/* What a test may ask of the implementation that is linked to it, tests/impl.c. A test that asks for
   more says `#define FLUX_IMPLEMENTATION` and brings its own, which takes a compiler half a minute
   when sanitizers are on: so `make` links those that set nothing of it to one whose functions are
   not static, and has them read their declarations alone (TEST_OPENED, tests/opened.awk). */
#ifndef FLUX_INSIDE_H
#define FLUX_INSIDE_H
#include <stdbool.h>
#include <stddef.h>
#if defined(FLUX_IMPLEMENTATION) && !defined(FLUX_IMPL_C) && !defined(TEST_OPENED)
/* each such program has these for itself */
#  define INSIDE static inline
#elif defined(__cplusplus)
#  define INSIDE extern "C"
#else
#  define INSIDE
#endif
INSIDE long flux__test_live(void);                /* blocks of memory that were not freed */
INSIDE bool flux__test_fenced(void);              /* whether blocks have fences */
INSIDE long flux__test_spoilt(void);              /* blocks written past since it was asked (tests/counted.h) */
INSIDE long flux__test_locks_free(void);          /* locks that were given up and nobody held */
INSIDE long flux__test_asked(void);               /* allocations so far */
INSIDE void flux__test_memory(long left);         /* all fail after so many; -1: none does */
INSIDE void flux__test_memory_once(long left);    /* the one after so many fails, and no other */
INSIDE void flux__test_free(void *p);             /* what the implementation has allocated */
INSIDE void *flux__test_realloc(void *p, size_t bytes);        /* what it frees */
INSIDE void flux__test_memory_large(size_t bytes);     /* those of so many bytes and more fail */
INSIDE void flux__test_inflate_piece(unsigned bytes);  /* what zlib gets at a time */
INSIDE void flux__test_gpu_blocks(int n);         /* the most of a launch along x */
INSIDE int flux__test_refused(void);              /* how many have failed since either was called */
INSIDE const char *flux__test_open(int scopes);   /* what this thread has begun and not ended, NULL: nothing but
                                                     so many scopes, of which the first is its own */
INSIDE const char *flux__test_at_work(void);      /* what the library counts as under way, NULL: nothing */
INSIDE bool flux__test_workers_rest(void);        /* whether it counts no worker and no job */
INSIDE bool flux__test_workers_asleep(void);      /* whether all its workers have started and wait for a job */

#if !defined(FLUX_IMPLEMENTATION) || defined(FLUX_IMPL_C) || defined(TEST_OPENED)
INSIDE void flux__test_eager(bool eager);         /* what FLUX_EAGER says */
INSIDE void flux__test_part_nodes(int n);         /* a graph is planned in parts of so many nodes */
INSIDE void flux__test_planes(double least);      /* float32 goes by planes from so many products on, with GPUs */
INSIDE bool flux__test_neon(void);                /* whether loops and products are NEON's, whose tables each file has for itself */
INSIDE void *flux__test_thread(void (*run)(void *), void *arg);        /* starts one; NULL: it can't */
INSIDE void flux__test_join(void *thread);        /* waits for its end */
#endif
#endif
