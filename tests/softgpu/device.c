/* device.c - the device process: reads batches of commands from its socket, runs them, answers.

   It is a process, so that a kernel that strays can be let die: the handler of the signal answers in the kernel's name,
   and the process ends. Blocks of a kernel run one after the other. Its threads do too, in an order that changes from
   phase to phase, each until it ends or comes to a barrier or shuffle; those that have such meetings get a stack each.
   So a kernel that lacks a barrier reads what its neighbours have not written yet. */
#define _GNU_SOURCE
#include "device.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if !defined __x86_64__ || defined SOFT_UCONTEXT
#include <ucontext.h>
#endif

#define STACK ((size_t)256 << 10)              /* touched pages count alone; below each lies one that faults. `stack` is the top */
#define PAGE ((size_t)4096)

/* Kernels find the mathematics in this program, so that it must not be left out of it. */
double (*volatile soft_mathematics)(double) = lgamma;

extern char **environ;
static uint64_t base;
static int device;
static unsigned char spoilt;                   /* what is in memory that nobody has written */
static const char *running = "";               /* the kernel, for messages */
static unsigned timeout_seconds, seconds;
static soft_answer answer;

/* ---------------- answers */

static void write_all(const void *data, size_t n) {
    const char *p = (const char *)data;
    while (n) {
        ssize_t k = send(SOFT_FD_SOCKET, p, n, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) _exit(1);                  /* nobody is left to hear it */
        p += k, n -= (size_t)k;
    }
}

static void read_all(void *data, size_t n) {
    char *p = (char *)data;
    while (n) {
        ssize_t k = recv(SOFT_FD_SOCKET, p, n, 0);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) _exit(0);                  /* the program is gone */
        p += k, n -= (size_t)k;
    }
}

/* The last words: nothing of this process's state is worth keeping after a fault. */
static _Noreturn void give_up(int status) {
    answer.status = status;
    answer.stamps = 0;
    answer.bytes = 0;
    write_all(&answer, sizeof answer);
    _exit(2);
}

static _Noreturn void fail_launch(const char *why) {
    snprintf(answer.fault, sizeof answer.fault, "kernel %.80s: %s", running, why);
    give_up(SOFT_LAUNCH_FAILED);
}

uint64_t soft_base(void) { return base; }
void soft_fault(const char *why) { fail_launch(why); }

static void on_fault(int sig, siginfo_t *info, void *context) {
    const char *what = sig == SIGSEGV || sig == SIGBUS ? "illegal address" : sig == SIGILL ? "illegal instruction"
                     : sig == SIGFPE ? "integer division by zero" : "abort";
    (void)context;
    snprintf(answer.fault, sizeof answer.fault, "kernel %.80s: %s %p", running, what, info->si_addr);
    give_up(sig == SIGSEGV || sig == SIGBUS ? SOFT_ILLEGAL_ADDRESS : sig == SIGILL ? SOFT_ILLEGAL_INSTRUCTION : SOFT_LAUNCH_FAILED);
}

/* Once a second: a kernel that does not end, or whose program has died, is ended here. */
static void on_tick(int sig) {
    struct pollfd p = { SOFT_FD_SOCKET, 0, 0 };
    (void)sig;
    if (poll(&p, 1, 0) > 0 && p.revents & (POLLHUP | POLLERR)) _exit(0);
    if (!timeout_seconds || ++seconds < timeout_seconds) return;
    snprintf(answer.fault, sizeof answer.fault, "kernel %.80s: still running after %u s", running, seconds);
    give_up(SOFT_LAUNCH_TIMEOUT);
}

static void set_tick(unsigned period) {
    struct itimerval t = { { (time_t)period, 0 }, { (time_t)period, 0 } };
    seconds = 0;
    setitimer(ITIMER_REAL, &t, NULL);
}

static void catch_faults(void) {
    static char stack[64 << 10];
    static const int fatal[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT };
    stack_t alternate = { .ss_sp = stack, .ss_size = sizeof stack };
    struct sigaction a;
    memset(&a, 0, sizeof a);
    sigaltstack(&alternate, NULL);
    a.sa_flags = SA_SIGINFO | SA_ONSTACK;
    a.sa_sigaction = on_fault;
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++) sigaction(fatal[i], &a, NULL);
    memset(&a, 0, sizeof a);
    a.sa_flags = SA_ONSTACK | SA_RESTART;
    a.sa_handler = on_tick;
    sigaction(SIGALRM, &a, NULL);
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
static long long clock_of_kernels(void) { return (long long)now(); }

static uint64_t processor_time(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---------------- modules: loaded once for each content, and kept */

typedef struct loaded {
    soft_module *module;
    uint64_t hash;
    char *names;
    size_t bytes;
    char *text;                                /* its C, of text_bytes, until it is compiled again; or NULL */
    size_t text_bytes;
    uint64_t spent;                            /* nanoseconds of the processor in its kernels */
} loaded;
static loaded *modules;
static unsigned nmodules;

static void barrier(void);

static void take_path(char *path, size_t n, const char *end) {
    static unsigned count;
    const char *folder = getenv("TMPDIR");
    snprintf(path, n, "%s/softgpu-%ld-%d-%u.%s", folder && *folder ? folder : "/tmp", (long)getpid(), device, count++, end);
}

static int write_file(const char *path, const void *data, size_t n) {
    FILE *f = fopen(path, "wb");
    const int good = f && fwrite(data, 1, n, f) == n;
    return f && !fclose(f) && good;
}

/* The module of the shared library at `path`, which is removed; or NULL. */
static soft_module *open_library(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) snprintf(answer.fault, sizeof answer.fault, "module: %.200s", dlerror());
    unlink(path);
    return library ? (soft_module *)dlsym(library, "softgpu_module") : NULL;
}

/* The kernels' names and the sizes of their parameters, a line each; first the module's number and shared memory. */
static void describe(loaded *l) {
    FILE *f = open_memstream(&l->names, &l->bytes);
    if (!f) exit(3);
    fprintf(f, "%u %u %u\n", (unsigned)(l - modules), (unsigned)(l->module->shared_end - l->module->shared) - 16, l->module->kernels);
    for (unsigned k = 0; k < l->module->kernels; k++) {
        const soft_kernel *kernel = &l->module->kernel[k];
        fprintf(f, "%s %u", kernel->name, kernel->count);
        for (unsigned i = 0; i < kernel->count; i++) fprintf(f, " %u", kernel->size[i]);
        fputc('\n', f);
    }
    fclose(f);
}

static void unseal(const soft_module *m) {
    uintptr_t start = (uintptr_t)m->shared / PAGE * PAGE, end = soft_round((uintptr_t)m->shared_end, PAGE);
    if (m->sealed && mprotect((void *)start, end - start, PROT_READ | PROT_WRITE | PROT_EXEC)) perror("softgpu: mprotect");
}

static void take_module(loaded *l, soft_module *m) {
    m->barrier = barrier, m->shuffle = soft_shuffle, m->clock = clock_of_kernels;
    unseal(m);
    l->module = m;
}

static loaded *load(const soft_command *c) {
    char path[4096];
    for (unsigned i = 0; i < nmodules; i++)
        if (modules[i].hash == c->to) return &modules[i];
    take_path(path, sizeof path, "so");
    soft_module *m = write_file(path, c + 1, c->bytes - c->from) ? open_library(path) : NULL;
    if (!m) return NULL;
    loaded *grown = (loaded *)realloc(modules, (nmodules + 1) * sizeof *modules);
    if (!grown) exit(3);
    modules = grown;
    loaded *l = &modules[nmodules++];
    memset(l, 0, sizeof *l);
    l->hash = c->to;
    if (c->from && (l->text = (char *)malloc(c->from)) != NULL)
        memcpy(l->text, (const char *)(c + 1) + c->bytes - c->from, l->text_bytes = c->from);
    take_module(l, m);
    describe(l);
    return l;
}

/* Compiles the file of C to the file `to` so that it runs fast; 0: that cannot be done. */
static int compile_fast(const char *from, const char *to) {
    char words[] = "cc -O1 -w -shared -x c " SOFT_CC_FLAGS, *arg[40];
    posix_spawn_file_actions_t a;
    pid_t pid;
    int status = 0, n = 0;
    for (char *rest, *p = strtok_r(words, " ", &rest); p; p = strtok_r(NULL, " ", &rest)) arg[n++] = p;
    arg[n++] = (char *)(uintptr_t)from, arg[n++] = (char *)(uintptr_t)"-o", arg[n++] = (char *)(uintptr_t)to, arg[n] = NULL;
    posix_spawn_file_actions_init(&a);
    posix_spawn_file_actions_addopen(&a, 0, "/dev/null", O_RDWR, 0);
    posix_spawn_file_actions_adddup2(&a, 0, 1), posix_spawn_file_actions_adddup2(&a, 0, 2);
    const int failed = posix_spawnp(&pid, arg[0], &a, NULL, arg, environ);
    posix_spawn_file_actions_destroy(&a);
    while (!failed && waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    return !failed && WIFEXITED(status) && !WEXITSTATUS(status);
}

/* A module whose kernels have run, or will in this launch, for about twice as long as an optimising compiler takes is
   compiled by one, and goes on by that; the one before stays loaded. */
#define MICROSECONDS_A_CHARACTER 8
static void improve(loaded *l, uint64_t to_come) {
    char from[4096], to[4096];
    if (!l->text || l->spent + to_come < MICROSECONDS_A_CHARACTER * 1000 * l->text_bytes) return;
    take_path(from, sizeof from, "c"), take_path(to, sizeof to, "so");
    soft_module *m = write_file(from, l->text, l->text_bytes) && compile_fast(from, to) ? open_library(to) : NULL;
    unlink(from), unlink(to);
    answer.fault[0] = 0;
    if (m) take_module(l, m);
    free(l->text);
    l->text = NULL;
    seconds = 0;
}

/* ---------------- threads of a block that meet */

enum { FRESH, READY, AT_BARRIER, AT_WARP, AT_NAMED, WAITS, ENDED };      /* WAITS: it looks again when others have run */
typedef struct thread {
    int state, kind, lane, width;
    unsigned at[3];                            /* threadIdx */
    unsigned long long mask, value, result;
    void *stack, *sp;
} thread;

static thread threads[1024];
static thread *current;

/* The turns that threads, warps or blocks have: at, at + step, ... modulo n, so that each has one. Another order is taken
   each time, so that none can be relied on. */
typedef struct order { uint64_t n, step, at, left; } order;
static uint64_t orders;                        /* what the next is made of: begins with SOFTGPU_ORDER */

static int has_common_divisor(uint64_t a, uint64_t b) {
    while (b) { const uint64_t c = a % b; a = b, b = c; }
    return a > 1;
}
static order take_order(uint64_t n) {
    uint64_t z = orders += 0x9e3779b97f4a7c15u;                                 /* splitmix64, of Steele, Lea and Flood */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    order o = { n, 1, (z ^ z >> 31) % n, n };
    if (n > 2) o.step = (z >> 32) % n | 1;
    while (has_common_divisor(n, o.step)) o.step += 2;
    o.step %= n;
    return o;
}
static void next_turn(order *o) {
    o->left--, o->at += o->step;
    if (o->at >= o->n) o->at -= o->n;
}
static unsigned nthreads;
static void *stacks[1024];
static unsigned nstacks;
soft_module *soft_now;
static const soft_kernel *kernel_now;
static void **args_now;

#if defined __x86_64__ && !defined SOFT_UCONTEXT
/* What a function may not change goes on the stack, and the stack is changed. */
void soft_switch(void **save, void *load);
__asm__(".text\n.globl soft_switch\n.type soft_switch,@function\nsoft_switch:\n"
        "  push %rbp\n  push %rbx\n  push %r12\n  push %r13\n  push %r14\n  push %r15\n"
        "  mov %rsp, (%rdi)\n  mov %rsi, %rsp\n"
        "  pop %r15\n  pop %r14\n  pop %r13\n  pop %r12\n  pop %rbx\n  pop %rbp\n  ret\n"
        ".size soft_switch,.-soft_switch\n");
static void *scheduler;
static void to_scheduler(thread *t) { soft_switch(&t->sp, scheduler); }
static void to_thread(thread *t) { soft_switch(&scheduler, t->sp); }
static void to_next(thread *t, thread *next) { soft_switch(&t->sp, next->sp); }
static void prepare(thread *t, void (*entry)(void)) {
    void **top = (void **)t->stack;
    *--top = NULL;                             /* where entry would return to; keeps the alignment that calls leave */
    memcpy(--top, &entry, sizeof entry);
    for (int i = 0; i < 6; i++) *--top = NULL;
    t->sp = top;
}
#else
static ucontext_t scheduler, contexts[1024];
static void to_scheduler(thread *t) { swapcontext(&contexts[t - threads], &scheduler); }
static void to_thread(thread *t) { swapcontext(&scheduler, &contexts[t - threads]); }
static void to_next(thread *t, thread *next) { swapcontext(&contexts[t - threads], &contexts[next - threads]); }
static void prepare(thread *t, void (*entry)(void)) {
    ucontext_t *c = &contexts[t - threads];
    getcontext(c);
    c->uc_stack.ss_sp = (char *)t->stack - STACK + PAGE;
    c->uc_stack.ss_size = STACK - PAGE;
    c->uc_link = NULL;
    makecontext(c, entry, 0);
}
#endif

static void thread_entry(void) {
    for (;;) {                                 /* a stack is used again without a new start */
        kernel_now->run(args_now);
        current->state = ENDED;
        to_scheduler(current);
    }
}

/* Stacks begin at different places of their pages, as equal ones would share a few lines of the cache. */
static void *take_stack(void) {
    static unsigned count;
    if (nstacks) return stacks[--nstacks];
    char *p = (char *)mmap(NULL, STACK + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || mprotect(p, PAGE, PROT_NONE)) fail_launch("no memory for stacks");
    return p + PAGE + STACK - count++ % 31 * 128;
}

/* The warp whose threads have their turns, and those to come. */
static thread *warp_now;
static order turn;

/* The thread that has the next turn, ready to be switched to; NULL: all had theirs. */
static thread *next_thread(void) {
    while (turn.left) {
        thread *t = &warp_now[turn.at];
        next_turn(&turn);
        if (t->state != FRESH && t->state != READY) continue;
        if (t->state == FRESH) {
            t->stack = take_stack();
            prepare(t, thread_entry);
        }
        t->state = READY;
        memcpy(soft_now->thread, t->at, sizeof t->at);
        return current = t;
    }
    return NULL;
}

/* The thread has come to where it waits: the next goes on, without a way by the scheduler. */
static void wait_as(thread *t, int state) {
    t->state = state;
    thread *next = next_thread();
    if (next) to_next(t, next);
    else to_scheduler(t);
}

static void barrier(void) {
    if (!current) fail_launch("a barrier in a kernel whose source seems to have none");
    wait_as(current, AT_BARRIER);
}

unsigned long long soft_shuffle(int kind, unsigned long long mask, unsigned long long value, int lane, int width) {
    thread *t = current;
    if (!t) fail_launch("a shuffle in a kernel whose source seems to have none");
    t->kind = kind, t->mask = mask, t->value = value, t->lane = lane, t->width = width;
    wait_as(t, AT_WARP);
    return t->result;
}

void soft_yield(void) {
    if (!current) fail_launch("a wait in a kernel whose source seems to have none");
    wait_as(current, WAITS);
}

/* bar.sync of a number and so many threads */
void softptx_named_barrier(int number, int count);
void softptx_named_barrier(int number, int count) {
    if (number < 1 || number > 15 || count < 32 || count % 32) fail_launch("a barrier that can't be");
    current->lane = number, current->width = count;
    wait_as(current, AT_NAMED);
}

/* The lane that `lane` takes its value from. Beyond its segment's ends that is itself. */
static int source_lane(const thread *t, int lane) {
    int width = t->width, in = lane & (width - 1), start = lane - in, from;
    switch (t->kind) {
    case SOFT_SHFL_INDEX: return start + (t->lane & (width - 1));
    case SOFT_SHFL_UP:    return in - t->lane < 0 ? lane : lane - t->lane;
    case SOFT_SHFL_DOWN:  return in + t->lane >= width ? lane : lane + t->lane;
    case SOFT_SHFL_XOR:   return from = lane ^ t->lane, from >= start + width ? lane : from;
    default:              return lane;
    }
}

static unsigned long long result_of(thread *warp, int n, int lane, unsigned long long here) {
    thread *t = &warp[lane];
    unsigned long long votes = 0;
    int from = source_lane(t, lane);
    if (t->kind == SOFT_SHFL_BALLOT) {
        for (int i = 0; i < n; i++)
            if (here >> i & 1 && warp[i].value) votes |= 1ull << i;
        return votes;
    }
    return from < n && here >> from & 1 ? warp[from].value : 0x0101010101010101u * spoilt;
}

/* Who must be at the same shuffle before lane i may go on. Where masks say it, all of those that have not ended; where
   nothing does, those that came are the ones that are active. */
static unsigned long long needed(const thread *warp, int i, unsigned long long alive) {
    unsigned long long need = soft_now->masks ? warp[i].mask & alive : 1ull << i;
    if (!(need >> i & 1)) fail_launch("a shuffle whose mask leaves out the thread that calls it");
    return need;
}

static int is_same_meeting(const thread *a, const thread *b) {
    return b->state == AT_WARP && a->kind == b->kind && (!soft_now->masks || a->mask == b->mask);
}

/* What exchange() does, where all lanes are in one meeting, as mostly; false if they are not. */
static int exchange_all(thread *warp, int n) {
    const unsigned long long all = n < 64 ? (1ull << n) - 1 : ~0ull;
    if (soft_now->masks && all & ~warp->mask) return 0;
    for (int i = 0; i < n; i++)
        if (!is_same_meeting(warp, &warp[i])) return 0;
    for (int i = 0; i < n && warp->kind != SOFT_SYNC_WARP; i++) warp[i].result = result_of(warp, n, i, all);
    for (int i = 0; i < n; i++) warp[i].state = READY;
    return 1;
}

/* One exchange of the lanes of a warp that wait for one; false if none may go on. */
static int exchange(thread *warp, int n) {
    if (exchange_all(warp, n)) return 1;
    unsigned long long alive = 0, waiting = 0, go = 0, here = 0;
    const thread *last = NULL;                 /* whose companions `here` are; mostly all are in one meeting */
    for (int i = 0; i < n; i++) {
        if (warp[i].state != ENDED) alive |= 1ull << i;
        if (warp[i].state == AT_WARP) waiting |= 1ull << i;
    }
    for (int i = 0; i < n && waiting; i++) {
        if (!(waiting >> i & 1)) continue;
        if (!last || !is_same_meeting(last, &warp[i])) {
            here = 0;
            for (int k = 0; k < n; k++)
                if (waiting >> k & 1 && is_same_meeting(&warp[i], &warp[k])) here |= 1ull << k;
            last = &warp[i];
        }
        if (needed(warp, i, alive) & ~here) continue;
        warp[i].result = result_of(warp, n, i, soft_now->masks ? here & warp[i].mask : here);
        go |= 1ull << i;
    }
    for (int i = 0; i < n && go; i++)
        if (go >> i & 1) warp[i].state = READY;
    return go != 0;
}

/* Runs the threads of a warp until each has ended or waits for more than the warp, so that no other warp has moved when
   it does: only a barrier makes one wait for another. */
static void run_warp(thread *warp, unsigned n) {
    do {
        warp_now = warp, turn = take_order(n);
        while (next_thread()) {
            to_thread(current);
            if (current->state != ENDED) continue;
            stacks[nstacks++] = current->stack;
            current->stack = NULL;
        }
    } while (exchange(warp, (int)n));
}

/* Lets threads go on whose named barrier has all of its own. */
static void meet_by_number(void) {
    int came[16] = { 0 };
    for (unsigned i = 0; i < nthreads; i++)
        if (threads[i].state == AT_NAMED) came[threads[i].lane]++;
    for (unsigned i = 0; i < nthreads; i++)
        if (threads[i].state == AT_NAMED && came[threads[i].lane] == threads[i].width) threads[i].state = READY, soft_progress++;
}

/* Every thread has ended or waits. Lets those at the barrier go on, or lets a copy land and those look again that wait for
   one; false once all have ended. */
static int meet(void) {
    static unsigned before, idle;
    unsigned at_barrier = 0, at_named = 0, ended = 0, waits = 0, ready = 0;
    meet_by_number();
    for (unsigned i = 0; i < nthreads; i++) {
        const int state = threads[i].state;
        at_barrier += state == AT_BARRIER, at_named += state == AT_NAMED, ended += state == ENDED, waits += state == WAITS, ready += state == READY;
        if (state == WAITS) threads[i].state = READY;
    }
    if (ended == nthreads) return 0;
    if (waits + ready) {
        const unsigned now_at = soft_progress + ended;
        idle = !ready && !soft_async_step() && now_at == before ? idle + 1 : 0;
        before = now_at;
        if (idle > 3) fail_launch("threads wait for a phase, or registers, that nobody gives them");
        return 1;
    }
    if (at_named) fail_launch("a barrier with a number that too few threads reach");
    if (at_barrier + ended < nthreads) fail_launch("a shuffle that not all threads of its mask reach");
    if (ended) fail_launch("a barrier that not all threads of the block reach");
    for (unsigned i = 0; i < nthreads; i++) threads[i].state = READY;
    soft_race_barrier();
    return 1;
}

static void number_threads(const unsigned n[3]) {
    unsigned i = 0;
    for (unsigned z = 0; z < n[2]; z++)
        for (unsigned y = 0; y < n[1]; y++)
            for (unsigned x = 0; x < n[0]; x++, i++) threads[i].at[0] = x, threads[i].at[1] = y, threads[i].at[2] = z;
}

static void run_meeting_block(void) {
    unsigned size = (unsigned)soft_now->warp, warps = (nthreads + size - 1) / size;
    for (unsigned i = 0; i < nthreads; i++) threads[i].state = FRESH;
    do {
        for (order o = take_order(warps); o.left; next_turn(&o)) {
            const unsigned first = (unsigned)o.at * size;
            run_warp(threads + first, nthreads - first < size ? nthreads - first : size);
        }
    } while (meet());
    current = NULL;
}

/* The threads do not meet, so that each runs to its end on the process's own stack. */
static void run_plain_block(void) {
    for (order o = take_order(nthreads); o.left; next_turn(&o)) {
        memcpy(soft_now->thread, threads[o.at].at, sizeof threads->at);
        kernel_now->run(args_now);
    }
}

/* ---------------- kernels */

static void spoil_shared(const soft_module *m, unsigned dynamic) {
    memset(m->shared, spoilt, (size_t)(m->shared_end - m->shared));
    for (unsigned i = 0; i < m->dynamics; i++) memset(m->dynamic[i], spoilt, dynamic + PAGE);
}

static void check_shared(const soft_module *m, unsigned dynamic) {
    for (unsigned i = 0; i < m->dynamics; i++) {
        const char *end = m->dynamic[i] + dynamic;
        if ((unsigned char)*end != spoilt || memcmp(end, end + 1, PAGE - 1)) fail_launch("writes past the end of its dynamic shared memory");
    }
}

static void run_block(uint64_t block, const soft_command *c) {
    soft_module *m = soft_now;
    m->block[0] = (unsigned)(block % c->grid[0]);
    m->block[1] = (unsigned)(block / c->grid[0] % c->grid[1]);
    m->block[2] = (unsigned)(block / c->grid[0] / c->grid[1]);
    spoil_shared(m, c->shared);
    soft_matrices_start();
    soft_async_start();
    soft_race_block();
    if (m->meets) run_meeting_block();
    else run_plain_block();
    soft_async_end();
    check_shared(m, c->shared);
}

/* What the module is now has the launch's kernel, and is told of its blocks. */
static void take_kernel(const loaded *l, const soft_command *c) {
    soft_now = l->module;
    kernel_now = &soft_now->kernel[c->kernel];
    running = kernel_now->name;
    memcpy(soft_now->block_size, c->block, sizeof c->block);
    memcpy(soft_now->grid_size, c->grid, sizeof c->grid);
}

/* After the first block, the second, the fourth, ...: whether the others had better be run by faster code. */
static void look_ahead(loaded *l, const soft_command *c, uint64_t done, uint64_t blocks, uint64_t start) {
    if (!l->text || done & (done - 1)) return;
    const uint64_t spent = processor_time() - start;
    const soft_module *was = l->module;
    improve(l, spent + (uint64_t)((double)spent / (double)done * (double)(blocks - done)));
    if (l->module != was) take_kernel(l, c);
}

static void launch(soft_command *c) {
    void *args[1024];
    char *p = (char *)(c + 1);
    loaded *l = &modules[c->module];
    const uint64_t start = processor_time();
    take_kernel(l, c);
    for (unsigned i = 0; i < kernel_now->count && i < 1024; i++) args[i] = p, p += soft_round(kernel_now->size[i], 16);
    args_now = args;
    nthreads = c->block[0] * c->block[1] * c->block[2];
    number_threads(c->block);
    soft_race_launch();
    const uint64_t blocks = (uint64_t)c->grid[0] * c->grid[1] * c->grid[2];
    for (order o = take_order(blocks); o.left; next_turn(&o)) {
        run_block(o.at, c);
        look_ahead(l, c, blocks + 1 - o.left, blocks, start);
    }
    l->spent += processor_time() - start;
    running = "";
}

/* ---------------- memory and commands */

static void *at(uint64_t address) { return (void *)(uintptr_t)address; }

static void map(int fd, int which, int access) {
    uint64_t start = SOFT_ADDRESS(base, which);
    if (mmap(at(start), SOFT_SPAN, access, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) == MAP_FAILED) {
        perror("softgpu: device process: mmap");
        exit(3);
    }
}

static void allow_peer(const soft_command *c) {
    int peer = (int)c->to;
    if (c->from) map(SOFT_FD_MEMORY + peer, peer, PROT_READ | PROT_WRITE);
    else mmap(at(SOFT_ADDRESS(base, peer)), SOFT_SPAN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

static uint64_t *stamps;
static size_t stamps_room;
static void stamp(void) {
    if (answer.stamps == stamps_room) {
        stamps_room = stamps_room ? 2 * stamps_room : 64;
        stamps = (uint64_t *)realloc(stamps, stamps_room * sizeof *stamps);
        if (!stamps) exit(3);
    }
    stamps[answer.stamps++] = now();
}

static void run_command(soft_command *c, loaded **module) {
    running = c->kind == SOFT_LAUNCH ? "" : "(copy)";
    switch (c->kind) {
    case SOFT_ACCESS:
        if (mprotect(at(c->to), c->bytes, c->from ? PROT_READ | PROT_WRITE : PROT_NONE)) fail_launch("mprotect");
        break;
    case SOFT_LAUNCH: launch(c); break;
    case SOFT_COPY:   memmove(at(c->to), at(c->from), c->bytes); break;
    case SOFT_WRITE:  memcpy(at(c->to), c + 1, c->bytes); break;
    case SOFT_SET:    memset(at(c->to), (int)c->value, c->bytes); break;
    case SOFT_STAMP:  stamp(); break;
    case SOFT_PEER:   allow_peer(c); break;
    case SOFT_LOAD:
        *module = load(c);
        if (!*module) answer.status = SOFT_INVALID_IMAGE;
        break;
    default: fail_launch("an unknown command");
    }
}

static void serve(void) {
    static char *buffer;
    static size_t room;
    soft_batch b;
    loaded *module = NULL;
    read_all(&b, sizeof b);
    if (b.bytes > room) {
        free(buffer);
        room = b.bytes;
        buffer = (char *)aligned_alloc(64, soft_round(room, 64));
        if (!buffer) exit(3);
    }
    read_all(buffer, b.bytes);
    memset(&answer, 0, sizeof answer);
    timeout_seconds = b.timeout;
    set_tick(1);
    char *p = buffer;
    for (uint32_t i = 0; i < b.count; i++) {
        soft_command *c = (soft_command *)(void *)p;
        run_command(c, &module);
        p += c->head;
    }
    set_tick(0);
    answer.bytes = module ? module->bytes : 0;
    write_all(&answer, sizeof answer);
    if (answer.stamps) write_all(stamps, answer.stamps * sizeof *stamps);
    if (module) write_all(module->names, module->bytes);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "%s: started by the software GPU's driver, not by hand\n", argv[0]);
        return 1;
    }
    base = strtoull(argv[1], NULL, 16);
    device = atoi(argv[2]);
    /* nobody else may take the addresses of devices that are not mapped yet */
    mmap(at(base), (SOFT_MAX_DEVICES + 1) * SOFT_SPAN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    map(SOFT_FD_MEMORY + device, device, PROT_NONE);
    map(SOFT_FD_PINNED, SOFT_MAX_DEVICES, PROT_READ | PROT_WRITE);
    spoilt = soft_spoilt();
    orders = strtoull(getenv("SOFTGPU_ORDER") ? getenv("SOFTGPU_ORDER") : "0", NULL, 10);
    setvbuf(stdout, NULL, _IOLBF, 0);          /* what kernels print */
    catch_faults();
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);     /* the program's thread may have blocked some */
    for (;;) serve();
}
