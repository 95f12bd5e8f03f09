/* Memory that is counted, so that a test program can say at its end that none is held, that runs out
   when a test wants it, and whose blocks are fenced: to be included before the implementation.
   tests/impl.c has it for all programs that it is linked to. Limits that a test makes small are here,
   too. */
#ifndef FLUX_COUNTED_H
#define FLUX_COUNTED_H
#include "inside.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__unix__) || defined(__APPLE__)
#  include <pthread.h>
#endif

static long memory_live, memory_asked;    /* allocations that were not freed; those asked for */
static long memory_fails = -1;            /* the number of the first that fails; -1: none does */
static int memory_once, memory_refused;   /* whether it alone fails; how many have failed */
static size_t memory_large = SIZE_MAX;    /* of so many bytes and more all fail */
static unsigned inflate_piece = 1u << 30; /* as src/files/gzip.h has it */
#define FLUX__INFLATE_PIECE inflate_piece
/* An array that grows is as long as what it holds, and what a plan has is in a block of its own, so that whoever reads
   past it finds the fence; not while allocations fail, as there would be several times as many that can. */
#define FLUX__EXACT_BLOCKS (COUNTED_NOW(memory_fails) < 0)
/* While allocations fail, those of nodes fail as they would in a fresh process. */
#define FLUX__SPARE_NODES (COUNTED_NOW(memory_fails) < 0 ? 4096 : 0)
static int gpu_blocks = 1 << 20;          /* of a launch: more are done in turns */
#define FLUX__GPU_BLOCKS gpu_blocks
#if defined(__GNUC__) && !defined(__TINYC__)
#  define COUNTED(what, n) __atomic_fetch_add(&(what), n, __ATOMIC_RELAXED)
#  define COUNTED_NOW(what) __atomic_load_n(&(what), __ATOMIC_RELAXED)
#else
#  define COUNTED_NOW(what) (what)
#  define COUNTED(what, n) ((what) += (n), (what) - (n))       /* from several threads about right */
#endif
static inline bool counted_refuses(void) {
    const long k = COUNTED(memory_asked, 1), first = COUNTED(memory_fails, 0);
    const bool refused = first >= 0 && (COUNTED(memory_once, 0) ? k == first : k >= first);
    if (refused) (void)COUNTED(memory_refused, 1);
    return refused;
}

/* A block has FENCE bytes before it, the size and then NaNs of any dtype, and BEHIND bytes of NaNs behind it.
   They are compared when it is freed. What is new, and what is freed, begins with such NaNs as well, so
   that whoever reads it does not find what it hoped for: as integers they are large, as addresses none.
   The address sanitizer does that itself. */
#if defined(__SANITIZE_ADDRESS__)
#  define COUNTED_PLAIN
#elif defined(__has_feature)
#  if __has_feature(address_sanitizer)
#    define COUNTED_PLAIN
#  endif
#endif
static long memory_spoilt;                /* blocks whose fences were written to */
#ifdef COUNTED_PLAIN
INSIDE bool flux__test_fenced(void) { return false; }
static inline void *guarded_realloc(void *p, size_t n) { return realloc(p, n); }
static inline void guarded_free(void *p) { free(p); }
#else
INSIDE bool flux__test_fenced(void) { return true; }
enum { FENCE = 16, BEHIND = 128, FRESH = 256 };
#define FENCE_8 0xfd, 0x7f, 0xfd, 0x7f, 0xfd, 0x7f, 0xfd, 0x7f
#define FENCE_64 FENCE_8, FENCE_8, FENCE_8, FENCE_8, FENCE_8, FENCE_8, FENCE_8, FENCE_8
static const unsigned char fence[FRESH] = { FENCE_64, FENCE_64, FENCE_64, FENCE_64 };
static inline void fence_off(unsigned char *at, size_t n) { memcpy(at, fence, n); }
static inline bool fence_holds(const unsigned char *at, size_t n) { return memcmp(at, fence, n) == 0; }
static inline size_t guarded_size(const unsigned char *block) {
    size_t n;
    memcpy(&n, block, sizeof n);
    if (!fence_holds(block + 8, FENCE - 8) || !fence_holds(block + FENCE + n, BEHIND))
        (void)COUNTED(memory_spoilt, 1);
    return n;
}
static inline size_t guarded_head(size_t n) { return n < FRESH ? n : FRESH; }
static inline void *guarded_realloc(void *p, size_t n) {
    unsigned char *old = p ? (unsigned char *)p - FENCE : NULL;
    const size_t had = p ? guarded_size(old) : 0;
    unsigned char *block = n < SIZE_MAX - FENCE - BEHIND ? (unsigned char *)malloc(n + FENCE + BEHIND) : NULL;
    if (!block) return NULL;
    if (p) {                              /* it moves, so that an address of before finds NaNs */
        memcpy(block + FENCE, p, had < n ? had : n);
        fence_off((unsigned char *)p, guarded_head(had));
        free(old);
    }
    memcpy(block, &n, sizeof n);
    fence_off(block + 8, FENCE - 8);
    if (n > had) fence_off(block + FENCE + had, guarded_head(n - had));
    fence_off(block + FENCE + n, BEHIND);
    return block + FENCE;
}
static inline void guarded_free(void *p) {
    unsigned char *block = p ? (unsigned char *)p - FENCE : NULL;
    if (p) fence_off(block + FENCE, guarded_head(guarded_size(block)));
    free(block);
}
#endif
static inline void *counted_realloc(void *p, size_t n) {
    void *q = counted_refuses() || n >= memory_large ? NULL : guarded_realloc(p, n);
    if (q && !p) (void)COUNTED(memory_live, 1);
    return q;
}
static inline void counted_free(void *p) {
    if (p) (void)COUNTED(memory_live, -1);
    guarded_free(p);
}
#ifndef FLUX_MALLOC
#  define FLUX_MALLOC(n) counted_realloc(NULL, n)
#  define FLUX_REALLOC(p, n) counted_realloc(p, n)
#  define FLUX_FREE(p) counted_free(p)
#endif

/* A lock is held by whoever gives it up: one that is forgotten seldom shows where threads meet by
   chance. (A lock that is not given up shows: the next who wants it waits for ever.) */
static long locks_free;                   /* locks given up that nobody held */
#if defined(__unix__) || defined(__APPLE__)
static inline int counted_unlock(pthread_mutex_t *m) {
    if (pthread_mutex_trylock(m) == 0) (void)COUNTED(locks_free, 1);
    return pthread_mutex_unlock(m);
}
#  define pthread_mutex_unlock counted_unlock
#endif
INSIDE long flux__test_locks_free(void) { return COUNTED(locks_free, 0); }

/* tests/inside.h's questions about memory */
INSIDE long flux__test_spoilt(void) {
    const long n = COUNTED(memory_spoilt, 0);
    (void)COUNTED(memory_spoilt, -n);
    return n;
}
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
INSIDE void *flux__test_realloc(void *p, size_t n) { return counted_realloc(p, n); }
INSIDE void flux__test_memory_large(size_t bytes) { memory_large = bytes; }
INSIDE void flux__test_inflate_piece(unsigned bytes) { inflate_piece = bytes; }
INSIDE void flux__test_gpu_blocks(int n) { gpu_blocks = n; }
#endif
