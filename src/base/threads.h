#ifndef FLUX__BASE_THREADS_H
#define FLUX__BASE_THREADS_H
#include "platform.h"

/* ---------------------------------------------------------------------- base/threads.h
   Threads: mutexes, condition variables, threads, atomics, once-only calls, a
   thread's own pointer (flux__tls_get), and what happens at a fork. Each part
   has three versions: POSIX, Windows, and FLUX_NO_THREADS, where there is one
   thread and locks do nothing; atomics also differ by compiler, down to one
   lock for all of them where the compiler has none.

   Invariant: atomics are sequentially consistent and flux__atomic_add gives the
   new value. A flux__os_thread must stay where it is until it is joined.
   flux__tls_set takes the same destructor in every call; it runs when the
   thread ends and may still call flux__tls_get. The worker threads adopt the
   floating-point mode of their caller, which flux__float_mode reads.

   At a fork the locks that guard memory shared by all threads are held, so that
   this memory is consistent in the child; the other locks are initialised again
   there. A thread that holds one of the former takes another of them only in
   the order of flux__fork_locks (device/registry.h), and calls nothing that may
   fork. */

/* hook: flux__fork_locks, device/registry.h */

FLUX__BEGIN_LEAN

#if defined(FLUX_NO_THREADS)
typedef int flux__mutex, flux__cond;
typedef struct flux__os_thread { int none; } flux__os_thread;
#  define FLUX__MUTEX_INIT 0
#  define FLUX__COND_INIT 0
FLUX__UNUSED static void flux__mutex_lock(flux__mutex *m) { (void)m; }
FLUX__UNUSED static void flux__mutex_unlock(flux__mutex *m) { (void)m; }
FLUX__UNUSED static void flux__cond_wait(flux__cond *c, flux__mutex *m) { (void)c, (void)m; }
FLUX__UNUSED static void flux__cond_signal(flux__cond *c) { (void)c; }
FLUX__UNUSED static void flux__cond_broadcast(flux__cond *c) { (void)c; }
FLUX__UNUSED static void flux__thread_yield(void) {}
FLUX__UNUSED static bool flux__thread_start(flux__os_thread *t, void (*fn)(void *), void *arg) {
    (void)t, (void)fn, (void)arg;
    return false;
}
FLUX__UNUSED static void flux__thread_join(flux__os_thread *t) { (void)t; }

#elif defined(_WIN32)
typedef SRWLOCK flux__mutex;
typedef CONDITION_VARIABLE flux__cond;
typedef struct flux__os_thread {
    HANDLE id;
    void (*fn)(void *);
    void *arg;
    fenv_t mode;                          /* the floating-point mode of its starter */
} flux__os_thread;
#  define FLUX__MUTEX_INIT SRWLOCK_INIT
#  define FLUX__COND_INIT CONDITION_VARIABLE_INIT
FLUX__UNUSED static void flux__mutex_lock(flux__mutex *m) { AcquireSRWLockExclusive(m); }
FLUX__UNUSED static void flux__mutex_unlock(flux__mutex *m) { ReleaseSRWLockExclusive(m); }
FLUX__UNUSED static void flux__cond_wait(flux__cond *c, flux__mutex *m) {
    SleepConditionVariableSRW(c, m, INFINITE, 0);
}
FLUX__UNUSED static void flux__cond_signal(flux__cond *c) { WakeConditionVariable(c); }
FLUX__UNUSED static void flux__cond_broadcast(flux__cond *c) { WakeAllConditionVariable(c); }
FLUX__UNUSED static void flux__thread_yield(void) { SwitchToThread(); }
/* Windows starts a thread with x87 arithmetic of 53 bits, while a program that MinGW made computes
   with 64 in its first thread, and MinGW's exp and pow use x87: a thread takes over its starter's
   mode, as it does on other systems, so that all threads compute the same bits. */
static unsigned __stdcall flux__thread_main(void *p) {
    flux__os_thread *t = (flux__os_thread *)p;
    fesetenv(&t->mode);
    t->fn(t->arg);
    return 0;
}
/* Runs fn(arg) in a new thread; *t must not move until it is joined. False: none was started. */
FLUX__UNUSED static bool flux__thread_start(flux__os_thread *t, void (*fn)(void *), void *arg) {
    t->fn = fn;
    t->arg = arg;
    fegetenv(&t->mode);
    t->id = (HANDLE)_beginthreadex(NULL, 0, flux__thread_main, t, 0, NULL);
    return t->id != NULL;
}
FLUX__UNUSED static void flux__thread_join(flux__os_thread *t) {
    WaitForSingleObject(t->id, INFINITE);
    CloseHandle(t->id);
}

#else
typedef pthread_mutex_t flux__mutex;
typedef pthread_cond_t flux__cond;
typedef struct flux__os_thread {
    pthread_t id;
    void (*fn)(void *);
    void *arg;
} flux__os_thread;
#  define FLUX__MUTEX_INIT PTHREAD_MUTEX_INITIALIZER
#  define FLUX__COND_INIT PTHREAD_COND_INITIALIZER
static FLUX__INLINE void flux__mutex_lock(flux__mutex *m) { pthread_mutex_lock(m); }
static FLUX__INLINE void flux__mutex_unlock(flux__mutex *m) { pthread_mutex_unlock(m); }
FLUX__UNUSED static void flux__cond_wait(flux__cond *c, flux__mutex *m) { pthread_cond_wait(c, m); }
FLUX__UNUSED static void flux__cond_signal(flux__cond *c) { pthread_cond_signal(c); }
FLUX__UNUSED static void flux__cond_broadcast(flux__cond *c) { pthread_cond_broadcast(c); }
FLUX__UNUSED static void flux__thread_yield(void) { sched_yield(); }
static void *flux__thread_main(void *p) {
    flux__os_thread *t = (flux__os_thread *)p;
    t->fn(t->arg);
    return NULL;
}
/* Runs fn(arg) in a new thread; *t must not move until it is joined. False: none was started. */
FLUX__UNUSED static bool flux__thread_start(flux__os_thread *t, void (*fn)(void *), void *arg) {
    t->fn = fn;
    t->arg = arg;
    return pthread_create(&t->id, NULL, flux__thread_main, t) == 0;
}
FLUX__UNUSED static void flux__thread_join(flux__os_thread *t) { pthread_join(t->id, NULL); }
#endif

/* ---- atomics, for counters and flags: sequentially consistent; add returns the new value, and cas
   says whether *p was `was` and has become v */

#if defined(FLUX_NO_THREADS)
#  define FLUX__ATOMICS(T, add, load, store, cas)                                             \
    FLUX__UNUSED static T add(T *p, T v) { return *p += v; }                                  \
    FLUX__UNUSED static T load(const T *p) { return *p; }                                     \
    FLUX__UNUSED static void store(T *p, T v) { *p = v; }                                     \
    FLUX__UNUSED static bool cas(T *p, T was, T v) {                                          \
        if (*p != was) return false;                                                          \
        *p = v;                                                                               \
        return true;                                                                          \
    }
#elif (defined(__GNUC__) || defined(__clang__)) && !defined(__TINYC__)
#  define FLUX__ATOMICS(T, add, load, store, cas)                                             \
    static FLUX__INLINE T add(T *p, T v) { return __atomic_add_fetch(p, v, __ATOMIC_SEQ_CST); } \
    static FLUX__INLINE T load(const T *p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }   \
    static FLUX__INLINE void store(T *p, T v) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }   \
    static FLUX__INLINE bool cas(T *p, T was, T v) {                                          \
        return __atomic_compare_exchange_n(p, &was, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    }
#elif defined(_MSC_VER)
#  define FLUX__ATOMICS(T, add, load, store, cas)                                             \
    static T add(T *p, T v) {                                                                 \
        return (sizeof(T) == 8 ? (T)_InterlockedExchangeAdd64((volatile __int64 *)p, v)       \
                               : (T)_InterlockedExchangeAdd((volatile long *)p, (long)v)) + v; \
    }                                                                                         \
    static bool cas(T *p, T was, T v) {                                                       \
        return (sizeof(T) == 8                                                                \
                    ? (T)_InterlockedCompareExchange64((volatile __int64 *)p, v, was)         \
                    : (T)_InterlockedCompareExchange((volatile long *)p, (long)v, (long)was)) == was; \
    }                                                                                         \
    static T load(const T *p) { return add((T *)p, 0); }                                      \
    static void store(T *p, T v) {                                                            \
        while (!cas(p, load(p), v)) {}                                                        \
    }
#else
static flux__mutex flux__atomic_lock = FLUX__MUTEX_INIT;   /* without atomics: one for all */
#  define FLUX__ATOMIC_LOCK 1
#  define FLUX__ATOMICS(T, add, load, store, cas)                                             \
    static T add(T *p, T v) {                                                                 \
        flux__mutex_lock(&flux__atomic_lock);                                                 \
        v = *p += v;                                                                          \
        flux__mutex_unlock(&flux__atomic_lock);                                               \
        return v;                                                                             \
    }                                                                                         \
    static bool cas(T *p, T was, T v) {                                                       \
        bool same;                                                                            \
        flux__mutex_lock(&flux__atomic_lock);                                                 \
        same = *p == was;                                                                     \
        if (same) *p = v;                                                                     \
        flux__mutex_unlock(&flux__atomic_lock);                                               \
        return same;                                                                          \
    }                                                                                         \
    static T load(const T *p) { return add((T *)p, 0); }                                      \
    static void store(T *p, T v) {                                                            \
        while (!cas(p, load(p), v)) {}                                                        \
    }
#endif
FLUX__ATOMICS(int64_t, flux__atomic_add, flux__atomic_load, flux__atomic_store, flux__atomic_cas)
FLUX__ATOMICS(intptr_t, flux__atomic_add_place, flux__atomic_load_place, flux__atomic_store_place,
              flux__atomic_cas_place)
FLUX__ATOMICS(int, flux__atomic_add32, flux__atomic_load32, flux__atomic_store32,
              flux__atomic_cas32)

/* What a thread wrote before it shows a value in *p is there for a thread that sees the value. */
#if (defined(__GNUC__) || defined(__clang__)) && !defined(__TINYC__)
#  define FLUX__SHOWN(T, see, show)                                                           \
    FLUX__UNUSED static FLUX__INLINE T see(T const *p) {                                      \
        return __atomic_load_n(p, __ATOMIC_ACQUIRE);                                          \
    }                                                                                         \
    FLUX__UNUSED static FLUX__INLINE void show(T *p, T v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
#else                                     /* without these, for processors that keep the order */
#  define FLUX__SHOWN(T, see, show)                                                           \
    FLUX__UNUSED static FLUX__INLINE T see(T const *p) { return *(T const volatile *)p; }     \
    FLUX__UNUSED static FLUX__INLINE void show(T *p, T v) { *(T volatile *)p = v; }
#endif
FLUX__SHOWN(uint32_t, flux__see32, flux__show32)
FLUX__SHOWN(int, flux__see_int, flux__show_int)

/* Tells the processor, within a spinning loop, that this thread waits. */
FLUX__UNUSED static void flux__relax(void) {
#if FLUX__X86 && defined(_MSC_VER)
    _mm_pause();
#elif FLUX__X86
    __builtin_ia32_pause();
#elif defined(__aarch64__) && defined(__GNUC__)
    __asm__ volatile("yield");
#endif
}

/* The floating-point mode of this thread: how it rounds, and whether results below the smallest
   normal number become 0 (FLUX__FLUSH); x86 processors may take a hundred times as long for such
   subnormal numbers. The value is x86's MXCSR, of which FLUX__ROUNDING are the bits that change
   results; it is 0 on other processors. */
enum { FLUX__FLUSH = 0x8000, FLUX__ROUNDING = FLUX__FLUSH | 0x6040 };
static FLUX__INLINE unsigned flux__float_mode(void) {
#if FLUX__X86 && defined(_MSC_VER) && !defined(__clang__)
    return _mm_getcsr();
#elif FLUX__X86
    return __builtin_ia32_stmxcsr();
#else
    return 0;
#endif
}
static FLUX__INLINE void flux__set_float_mode(unsigned mode) {
#if FLUX__X86 && defined(_MSC_VER) && !defined(__clang__)
    _mm_setcsr(mode);
#elif FLUX__X86
    __builtin_ia32_ldmxcsr(mode);
#else
    (void)mode;
#endif
}

/* ---- a thread-local pointer with a destructor
   flux__tls_set's at_thread_end, the same function in every call, runs when a thread ends that has
   set the pointer, and may still call flux__tls_get. It does not run for the main thread, which
   ends by exit. */

#if defined(FLUX_NO_THREADS)
#  define FLUX__THREAD_LOCAL
static void *flux__tls_value;
static FLUX__INLINE void *flux__tls_get(void) { return flux__tls_value; }
static bool flux__tls_set(void *p, void (*at_thread_end)(void *)) {
    (void)at_thread_end;
    flux__tls_value = p;
    return true;
}
static void flux__tls_forget(void) {}

#else
static flux__mutex flux__tls_lock = FLUX__MUTEX_INIT;
static int flux__tls_ready;               /* atomic: the key exists; read as threads end */
static void (*flux__tls_end)(void *);
#  if defined(_WIN32)
typedef DWORD flux__tls_key;
#    define FLUX__TLS_CREATE(key, end) (((key) = FlsAlloc(end)) != FLS_OUT_OF_INDEXES)
#    define FLUX__TLS_STORE(key, p) (FlsSetValue(key, p) != 0)
#    define FLUX__TLS_LOAD(key) FlsGetValue(key)
#    define FLUX__TLS_DELETE(key) FlsFree(key)
#    define FLUX__TLS_CALL WINAPI
#  else
typedef pthread_key_t flux__tls_key;
#    define FLUX__TLS_CREATE(key, end) (pthread_key_create(&(key), end) == 0)
#    define FLUX__TLS_STORE(key, p) (pthread_setspecific(key, p) == 0)
#    define FLUX__TLS_LOAD(key) pthread_getspecific(key)
#    define FLUX__TLS_DELETE(key) pthread_key_delete(key)
#    define FLUX__TLS_CALL
#  endif
static flux__tls_key flux__tls_slot;

/* The system's key is what calls the destructor when a thread ends. The pointer is read from a
   thread-local variable, which is faster, where the compiler has these. */
#  if defined(__TINYC__)
#    define FLUX__THREAD_LOCAL
static int flux__tls_made;
static FLUX__INLINE void *flux__tls_get(void) {
    return flux__atomic_load32(&flux__tls_made) ? FLUX__TLS_LOAD(flux__tls_slot) : NULL;
}
static bool flux__tls_put(void *p) {
    flux__atomic_store32(&flux__tls_made, 1);
    return FLUX__TLS_STORE(flux__tls_slot, p);
}
#  else
#    if defined(_MSC_VER)
#      define FLUX__THREAD_LOCAL __declspec(thread)
#    else
#      define FLUX__THREAD_LOCAL __thread
#    endif
static FLUX__THREAD_LOCAL void *flux__tls_value;
static FLUX__INLINE void *flux__tls_get(void) { return flux__tls_value; }
static bool flux__tls_put(void *p) {
    if (!FLUX__TLS_STORE(flux__tls_slot, p)) return false;
    flux__tls_value = p;
    return true;
}
#  endif

/* The system's destructor of the key. The system has cleared the pointer; it is set again while the
   destructor proper runs. */
static void FLUX__TLS_CALL flux__tls_ended(void *p) {
    if (!p || !flux__atomic_load32(&flux__tls_ready) || !flux__tls_put(p)) return;
    flux__tls_end(p);
    flux__tls_put(NULL);
}

static bool flux__tls_set(void *p, void (*at_thread_end)(void *)) {
    bool ready;
    flux__mutex_lock(&flux__tls_lock);
    if (!flux__tls_ready) {
        flux__tls_end = at_thread_end;
        flux__atomic_store32(&flux__tls_ready, FLUX__TLS_CREATE(flux__tls_slot, flux__tls_ended));
    }
    ready = flux__tls_ready != 0;
    flux__mutex_unlock(&flux__tls_lock);
    return ready && flux__tls_put(p);
}

/* Deletes the key, since this code may be unloaded before the other threads end: their
   destructors then don't run, and their state is not freed. */
static void flux__tls_forget(void) {
    flux__mutex_lock(&flux__tls_lock);
    if (flux__tls_ready) {
        flux__atomic_store32(&flux__tls_ready, 0);
        FLUX__TLS_DELETE(flux__tls_slot);
    }
    flux__mutex_unlock(&flux__tls_lock);
}
#endif

/* ---- forks
   A child process has only the thread that forked. flux__fork_locks takes the locks that guard
   memory shared by all threads before the fork and releases them after it in both processes; in the
   child it initialises the other locks again (flux__mutex_anew). See the head of this room. */

enum { FLUX__FORK_BEFORE, FLUX__FORK_PARENT, FLUX__FORK_CHILD };
static int flux__forks;                   /* forks between the program's start and this process */
#if !defined(FLUX_NO_THREADS) && !defined(_WIN32)
static void flux__fork_locks(int when);
/* Takes a lock before the fork and releases it after it, in the parent and in the child. */
static void flux__fork_lock(flux__mutex *m, int when) {
    if (when == FLUX__FORK_BEFORE) flux__mutex_lock(m);
    else flux__mutex_unlock(m);
}
/* Initialises n locks again, in the child, whatever thread of the parent held them. */
static void flux__mutex_anew(flux__mutex *m, int n) {
    static const flux__mutex fresh = FLUX__MUTEX_INIT;
    while (n-- > 0) memcpy(&m[n], &fresh, sizeof fresh);
}
static void flux__before_fork(void) { flux__fork_locks(FLUX__FORK_BEFORE); }
static void flux__fork_parent(void) { flux__fork_locks(FLUX__FORK_PARENT); }
static void flux__fork_child(void) {
    flux__forks++;
    flux__fork_locks(FLUX__FORK_CHILD);
}
static void flux__on_forks(void) {
    pthread_atfork(flux__before_fork, flux__fork_parent, flux__fork_child);
}
#else
static void flux__on_forks(void) {}
#endif

FLUX__END_LEAN

#endif /* FLUX__BASE_THREADS_H */
