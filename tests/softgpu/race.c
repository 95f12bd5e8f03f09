/* race.c - the device process: who wrote and read each byte, for kernels that tell.

   A kernel that is compiled with -fsanitize=thread, without that sanitizer's library, calls the functions below before
   each access to memory (SOFTGPU_RACES). For each byte of shared memory and of the
   devices stand the last writer and the last two readers: thread, block, and phase, which counts the barriers. The launch
   fails where two threads of a block meet at a byte in one phase, two blocks of a launch at all, and one of both writes;
   where a byte of shared memory is read that no thread of the block has written; and where an access is no multiple
   of its size. An asynchronous copy writes twice, where it begins and where its thread has waited for it: in between nobody
   may touch its bytes. Atomic operations are left out. */
#define _GNU_SOURCE
#include "device.h"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

typedef struct trace {
    uint32_t time, block;                      /* of the launch, for shared memory of the block; + 1, of the last writer */
    uint32_t read_block;
    uint16_t writer, written, reader[2], seen[2];      /* threads and phases, both + 1; 0: none */
} trace;

enum { UNDER_WAY = 0x8000 };                   /* in `writer`: an asynchronous copy of that thread's has not landed */

static trace *traces[SOFT_MAX_DEVICES + 1];    /* of devices, then of shared memory */
static uint32_t launches, blocks;
static uint16_t phase;
static int watched;                            /* the kernels of this process tell */

static trace *room(size_t bytes) {
    void *p = mmap(NULL, bytes * sizeof(trace), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) soft_fault("no memory to watch memory");
    return (trace *)p;
}

void soft_race_launch(void) { launches++; }
void soft_race_block(void) { blocks++, phase = 1; }
void soft_race_barrier(void) { phase++; }

static _Noreturn void tell(const char *what, int shared, const trace *g, unsigned thread) {
    char text[160];
    snprintf(text, sizeof text, "%s in %s memory, thread %u, phase %u; before: writer %d, readers %d and %d", what,
             shared ? "shared" : "device", thread, phase - 1, (g->writer & ~UNDER_WAY) - 1, g->reader[0] - 1, g->reader[1] - 1);
    soft_fault(text);
}

/* One byte. Another block's access is a race whatever the phase. */
static void touch(trace *g, int shared, int how, uint16_t t, uint32_t block) {
    const int writes = how != SOFT_READS;
    const uint32_t time = shared ? blocks : launches;
    if (g->time != time) {
        memset(g, 0, sizeof *g);
        g->time = time;
        if (shared && !writes) tell("nobody has written what is read", shared, g, t - 1u);
    }
    if (g->writer & UNDER_WAY) {
        if (how != SOFT_LANDS) tell("an asynchronous copy has not landed in what is touched", shared, g, t - 1u);
        g->writer ^= UNDER_WAY;
    }
    if (g->block && (g->block != block || (g->writer != t && g->written == phase)))
        tell(writes ? "two threads write" : "one thread reads what another writes", shared, g, t - 1u);
    if (!writes) {
        if (g->read_block == block && g->reader[0] != t && g->seen[0] == phase) g->reader[1] = t, g->seen[1] = phase;
        else g->read_block = block, g->reader[0] = t, g->seen[0] = phase;
        return;
    }
    if (g->read_block && g->read_block != block) tell("one block writes what another reads", shared, g, t - 1u);
    for (int i = 0; i < 2; i++)
        if (g->reader[i] && g->reader[i] != t && g->seen[i] == phase) tell("one thread writes what another reads", shared, g, t - 1u);
    g->block = block, g->writer = how == SOFT_BEGINS ? t | UNDER_WAY : t, g->written = phase;
}

/* Makes room for traces of the shared memory of a module, whose kernels have theirs side by side. */
static void watch_shared(size_t bytes) {
    static size_t watched_bytes;
    trace **list = &traces[SOFT_MAX_DEVICES];
    if (bytes <= watched_bytes) return;
    if (*list) munmap(*list, watched_bytes * sizeof **list);
    *list = room(watched_bytes = 2 * bytes);
}

void soft_race(const void *p, size_t n, int how) {
    if (!watched) return;
    const uint64_t a = (uint64_t)(uintptr_t)p, base = soft_base();
    const soft_module *m = soft_now;
    const int shared = (const char *)p >= m->shared && (const char *)p < m->shared_end;
    uint64_t which = SOFT_MAX_DEVICES, offset = shared ? (uint64_t)((const char *)p - m->shared) : 0;
    if (!shared) {
        if (a < base || a >= SOFT_ADDRESS(base, SOFT_MAX_DEVICES)) return;
        which = (a - base) / SOFT_SPAN, offset = (a - base) % SOFT_SPAN;
    }
    if (shared) watch_shared((size_t)(m->shared_end - m->shared));
    else if (!traces[which]) traces[which] = room(SOFT_SPAN);
    const unsigned *t = m->thread, *b = m->block, *in = m->block_size, *of = m->grid_size;
    const uint16_t thread = (uint16_t)(1 + t[0] + in[0] * (t[1] + in[1] * t[2]));
    const uint32_t block = 1 + b[0] + of[0] * (b[1] + of[1] * b[2]);
    if (n > 1 && !(n & (n - 1)) && n <= 16 && a % n) {
        trace none = { 0, 0, 0, 0, 0, { 0, 0 }, { 0, 0 } };
        tell("an access that is not aligned", shared, &none, thread - 1u);
    }
    for (size_t i = 0; i < n; i++) touch(&traces[which][offset + i], shared, how, thread, block);
}

/* ---------------- what the compiler calls */

#define CALL(name, parameters) void name parameters; void name parameters
#define ACCESS(n)                                                                     \
    CALL(__tsan_read##n, (void *p)) { soft_race(p, n, 0); }                           \
    CALL(__tsan_write##n, (void *p)) { soft_race(p, n, 1); }                          \
    CALL(__tsan_unaligned_read##n, (void *p)) { soft_race(p, n, 0); }                 \
    CALL(__tsan_unaligned_write##n, (void *p)) { soft_race(p, n, 1); }                \
    CALL(__tsan_volatile_read##n, (void *p)) { (void)p; }                             \
    CALL(__tsan_volatile_write##n, (void *p)) { (void)p; }
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)
CALL(__tsan_read_range, (void *p, unsigned long n)) { soft_race(p, n, 0); }
CALL(__tsan_write_range, (void *p, unsigned long n)) { soft_race(p, n, 1); }
CALL(__tsan_func_entry, (void *from)) { (void)from, watched = 1; }
CALL(__tsan_func_exit, (void)) { }
CALL(__tsan_init, (void)) { }
