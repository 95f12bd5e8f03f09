#ifndef FLUX__BASE_PLATFORM_H
#define FLUX__BASE_PLATFORM_H
#include "../api/macros.h"

/* ---------------------------------------------------------------------- base/platform.h
   The platform's compile-time side: system headers, compiler attributes,
   optimisation modes, and which vector instructions the compiler can emit
   (FLUX__X86, FLUX__AVX2, FLUX__AVX512, FLUX__NEON). Locks and threads are in
   base/threads.h, clock, terminal and shared libraries in base/system.h, files
   in base/sinks.h. Systems: POSIX and Windows; compilers: gcc, clang, MSVC and
   tcc (which has no intrinsics, no atomics and no thread-local variables).

   Invariant: differences between systems are confined to these four rooms;
   above them only code for forked processes and huge pages tests which system
   it is compiled for. With -std=c11 a C library hides functions that ISO C
   lacks, and a feature macro can come too late, since the user may have included
   system headers before this one: the few POSIX functions that are hidden so
   are declared here. A room's optimisation mode (FLUX__BEGIN_LEAN, ...)
   ends with the room.

   Rejected: C11's <threads.h> and <stdatomic.h>, which C++11, tcc and older
   MSVC do not have. */

#if defined(_WIN32)
#  ifndef WIN32_LEAN_AND_MEAN
#    define WIN32_LEAN_AND_MEAN
#  endif
#  ifndef NOMINMAX
#    define NOMINMAX
#  endif
#  include <windows.h>
#  undef near                             /* windows.h defines these words as macros, a relic */
#  undef far
#  undef small
#  undef interface
#  include <fcntl.h>
#  include <io.h>
#  include <fenv.h>
#  include <process.h>
#  include <sys/stat.h>
#else
#  include <dirent.h>
#  include <dlfcn.h>
#  include <fcntl.h>
#  include <pthread.h>
#  include <sched.h>
#  include <sys/file.h>
#  include <sys/ioctl.h>
#  if defined(__linux__)
#    include <sys/auxv.h>
#    include <sys/mman.h>
#  endif
#  include <sys/stat.h>
#  include <sys/statvfs.h>
#  include <sys/types.h>
#  include <time.h>
#  include <unistd.h>
#endif
#include <signal.h>
#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#if defined(_MSC_VER)
#  pragma warning(disable : 4996 4200 4127 4324)  /* "deprecated" ISO C functions, and others */
#  include <intrin.h>
#endif

#if defined(CLOCK_MONOTONIC)
#  define FLUX__CLOCK CLOCK_MONOTONIC
#elif defined(__APPLE__)
#  define FLUX__CLOCK 6
#else
#  define FLUX__CLOCK 1
#endif
#if !defined(_WIN32) && !defined(CLOCK_MONOTONIC)   /* strict ISO C: declares what <time.h> hides */
extern int clock_gettime(int clock, struct timespec *t);
extern int fsync(int fd);
extern int fchmod(int fd, mode_t mode);
extern int renameat(int folder, const char *from, int folder2, const char *to);
extern char *realpath(const char *path, char *out);
#elif defined(__linux__) && !defined(_DEFAULT_SOURCE) && !defined(_GNU_SOURCE) && !defined(_BSD_SOURCE) && \
      (!defined(_XOPEN_SOURCE) || _XOPEN_SOURCE + 0 < 500)
extern char *realpath(const char *path, char *out);    /* hidden where only POSIX was asked for */
#endif
#if !defined(_WIN32) && !defined(AT_FDCWD)            /* a C library hides it and these together */
extern ssize_t readlink(const char *path, char *out, size_t n);
extern int openat(int folder, const char *name, int flags, ...);
extern int fstatat(int folder, const char *name, struct stat *out, int flags);
extern int renameat(int folder, const char *from, int folder2, const char *to);
extern int unlinkat(int folder, const char *name, int flags);
#endif
#if defined(__APPLE__)                    /* an enumerator elsewhere; hidden here in strict POSIX */
#  define FLUX__SC_PROCESSORS 58
#else
#  define FLUX__SC_PROCESSORS _SC_NPROCESSORS_ONLN
#endif
#if defined(MADV_HUGEPAGE)
#  define FLUX__HUGE_PAGES MADV_HUGEPAGE
#elif defined(__linux__)                  /* <sys/mman.h> may hide this and madvise */
#  define FLUX__HUGE_PAGES 14
extern int madvise(void *at, size_t bytes, int advice);
#endif

#ifndef FLUX_MALLOC
#  define FLUX_MALLOC(bytes) malloc(bytes)
#  define FLUX_REALLOC(p, bytes) realloc(p, bytes)
#  define FLUX_FREE(p) free(p)
#endif

#if defined(__GNUC__) || defined(__clang__)
#  define FLUX__UNUSED __attribute__((unused))
#  define FLUX__NOINLINE __attribute__((noinline))
#  define FLUX__INLINE inline __attribute__((always_inline))
#  if defined(__MINGW32__) && !defined(__clang__)
/* MinGW: format(printf) would mean the printf of Microsoft's old library. */
#    define FLUX__PRINTF(a, b) __attribute__((format(gnu_printf, a, b)))
#  else
#    define FLUX__PRINTF(a, b) __attribute__((format(printf, a, b)))
#  endif
#elif defined(_MSC_VER)
#  define FLUX__UNUSED
#  define FLUX__NOINLINE __declspec(noinline)
#  define FLUX__INLINE __forceinline
#  define FLUX__PRINTF(a, b)
#else
#  define FLUX__UNUSED
#  define FLUX__NOINLINE
#  define FLUX__INLINE inline
#  define FLUX__PRINTF(a, b)
#endif

#if (defined(__GNUC__) || defined(__clang__)) && !defined(__TINYC__)
#  define FLUX__PREFETCH(p) __builtin_prefetch(p);
#  define FLUX__PREFETCH_LATER(p) __builtin_prefetch(p, 0, 2);   /* into the L2 cache */
#  define FLUX__PREFETCH_WRITE(p) __builtin_prefetch(p, 1);
#else
#  define FLUX__PREFETCH(p) (void)(p);
#  define FLUX__PREFETCH_LATER(p) (void)(p);
#  define FLUX__PREFETCH_WRITE(p) (void)(p);
#endif

/* Debug checks: asked for, or a build without optimisation and NDEBUG. This stands before the
   pragmas below, which set gcc's options and with them __OPTIMIZE__. */
#if defined(FLUX_DEBUG) || (!defined(NDEBUG) && !defined(__OPTIMIZE__) && \
                            (defined(__GNUC__) || defined(__TINYC__) || defined(_DEBUG)))
#  define FLUX__DEBUG 1
#else
#  define FLUX__DEBUG 0
#endif

/* Optimisation modes: how much gcc optimises a room, whatever -O the user's build has, and what
   clang leaves out. They keep compile time low, which every build of a program pays. A room that
   defines functions has one mode: FLUX__BEGIN_X stands before its first function, FLUX__END_X is
   its last line.
   - LEAN is for code that every training step runs through or that moves data: -O1 less the
     passes that cost more than a third of the compile time and change no measured figure.
     (ira-algorithm=priority is not used: matrix products by AVX2 would take 1.4 times as long.)
   - HOT is for code that runs for every tensor and at every evaluation: all of -O1, and functions
     are inlined. Evaluating a small matrix product takes a fifth less.
   - COLD is for code that runs once or waits for a person, and for code that only records nodes,
     once a layer or less often: layers, losses, texts.
   - NUMBERS is for loops over the elements of tensors (cpu/loops.h to cpu/random.h): -O1 with the
     passes that loops over vectors need, and the same arithmetic in a program that is built with
     -ffast-math. It guesses the probability of branches, without which gcc aligns no loop: one that
     crosses a cache line takes up to twice as long.
   Inner loops may state more (FLUX__O2, cpu/gemm_kernels.h), and a function that runs rarely less:
   FLUX__COLD compiles it as a COLD room's, so it is not inlined. A function that is called from two
   modes is inlined into neither, unless it is FLUX__INLINE. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__TINYC__)
#  define FLUX__COLD __attribute__((optimize("O0", "omit-frame-pointer", "tree-ter", \
      "tree-coalesce-vars")))
#  define FLUX__O1 __attribute__((optimize("O1")))
#  define FLUX__O2 __attribute__((optimize("O2", "tree-ch", "tree-ccp", "tree-copy-prop")))
#  define FLUX__PRAGMA(text) _Pragma(#text)
#  define FLUX__MODE(...) _Pragma("GCC push_options") FLUX__PRAGMA(GCC optimize(__VA_ARGS__))
/* passes that neither LEAN nor NUMBERS needs */
#  define FLUX__FEWER "no-tree-pta", "no-tree-dominator-opts", "no-tree-sink", \
      "no-if-conversion2", "no-cprop-registers", "no-compare-elim", \
      "no-combine-stack-adjustments", "no-shrink-wrap", "no-ipa-pure-const", \
      "no-reorder-blocks", "no-tree-builtin-call-dce", "no-ipa-modref", "no-ipa-icf", \
      "no-printf-return-value", "ira-region=one", "no-tree-ccp", "no-tree-copy-prop", \
      "no-tree-reassoc"
#  define FLUX__BEGIN_LEAN FLUX__MODE("O1", FLUX__FEWER, "no-tree-loop-optimize", \
      "no-if-conversion", "no-forward-propagate", "no-dse", "no-dce", \
      "no-move-loop-invariants", "no-guess-branch-probability", "no-split-wide-types", \
      "no-tree-ch")
#  define FLUX__BEGIN_HOT FLUX__MODE("O1", "inline-small-functions", "inline-functions", \
      "align-functions=16")
#  define FLUX__BEGIN_COLD FLUX__MODE("O0", "omit-frame-pointer", "tree-ter", \
      "tree-coalesce-vars")
#  define FLUX__BEGIN_NUMBERS FLUX__MODE("O1", FLUX__FEWER, "no-thread-jumps", "align-loops=64", \
      "no-fast-math", "fp-contract=off", "tree-ch")
#  define FLUX__END_LEAN _Pragma("GCC pop_options")
#  define FLUX__END_HOT _Pragma("GCC pop_options")
#  define FLUX__END_COLD _Pragma("GCC pop_options")
#  define FLUX__END_NUMBERS _Pragma("GCC pop_options")
#else
#  define FLUX__O1
#  define FLUX__O2
#  define FLUX__BEGIN_HOT
#  define FLUX__END_HOT
/* clang, which spends most of its time on inlining and on what grows by it: a COLD room is not
   optimised, and calls from and to functions of a LEAN room are inlined where they are small. */
#  if defined(__clang__) && __clang_major__ >= 6 && !defined(__OPTIMIZE_SIZE__)
#    define FLUX__COLD __attribute__((optnone, noinline))
#    define FLUX__BEGIN_COLD _Pragma("clang optimize off")
#    define FLUX__END_COLD _Pragma("clang optimize on")
#    define FLUX__BEGIN_LEAN _Pragma("clang diagnostic push") \
         _Pragma("clang diagnostic ignored \"-Wpragma-clang-attribute\"") /* a room may be empty */ \
         _Pragma("clang attribute push(__attribute__((cold)), apply_to = function)")
#    define FLUX__END_LEAN _Pragma("clang attribute pop") _Pragma("clang diagnostic pop")
#  else
#    define FLUX__COLD
#    define FLUX__BEGIN_LEAN
#    define FLUX__BEGIN_COLD
#    define FLUX__END_LEAN
#    define FLUX__END_COLD
#  endif
#  if defined(__clang__) && (defined(__x86_64__) || __clang_major__ >= 16) /* older: x86 alone */
#    define FLUX__BEGIN_NUMBERS _Pragma("float_control(push)") _Pragma("float_control(precise, on)") \
                                _Pragma("clang fp contract(off)")
#    define FLUX__END_NUMBERS _Pragma("float_control(pop)")
#  elif defined(__clang__)
#    define FLUX__BEGIN_NUMBERS _Pragma("clang fp contract(off)")
#    define FLUX__END_NUMBERS
#  else
#    define FLUX__BEGIN_NUMBERS
#    define FLUX__END_NUMBERS
#  endif
#endif

/* Vector code for x86-64, chosen at run time: FLUX__X86 says whether the compiler can make it. A
   function that uses it is marked FLUX__AVX2 or FLUX__AVX512, so that no -m option is needed. */
#if (defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__)) && !defined(__TINYC__)) || \
    (defined(_M_X64) && defined(_MSC_VER))
#  define FLUX__X86 1
#else
#  define FLUX__X86 0
#endif
/* NEON, which every 64-bit ARM processor has. */
#if defined(__aarch64__) && defined(__ARM_NEON) && !defined(__ARM_BIG_ENDIAN) && !defined(__TINYC__)
#  define FLUX__NEON 1
#else
#  define FLUX__NEON 0
#endif
#if FLUX__X86 && !defined(_MSC_VER)
#  define FLUX__AVX2 __attribute__((target("avx2,fma,f16c")))
#  define FLUX__AVX512 __attribute__((target("avx512f,avx2,fma,f16c")))
#else
#  define FLUX__AVX2
#  define FLUX__AVX512
#endif
/* Matrix products of bf16 use the instructions of AVX512-BF16 where the compiler knows them. */
#if FLUX__X86 && defined(__clang__) && __clang_major__ >= 12
#  define FLUX__BF16 1
#  define FLUX__AVX512_BF16 __attribute__((target("avx512bf16,avx512f,avx2,fma,f16c")))
#elif FLUX__X86 && !defined(__clang__) && defined(__GNUC__) && __GNUC__ >= 10
#  define FLUX__BF16 1
#  define FLUX__AVX512_BF16 FLUX__AVX512   /* it is inline assembler, which needs no option */
#else
#  define FLUX__BF16 0
#endif
/* And those of AMX's tiles, for which Linux must be asked. */
#if FLUX__BF16 && defined(__linux__) && defined(__LP64__) && \
    (defined(__clang__) || __GNUC__ >= 11)
#  define FLUX__AMX 1
#  if defined(FLUX__AMX_FN)              /* a test has tiles of its own, see cpu/gemm_amx.h */
#  elif defined(__clang__)
#    define FLUX__AMX_FN __attribute__((target("amx-tile,amx-bf16,avx512bw,avx512f,avx2,fma,f16c")))
#  else
#    define FLUX__AMX_FN __attribute__((target("avx512bw,avx512f,avx2,fma,f16c")))
#  endif
#else
#  define FLUX__AMX 0
#endif

#if FLUX__X86 && !(defined(_MSC_VER) && !defined(__clang__))
#  include <cpuid.h>
#endif

/* FLUX__ASAN: the address sanitizer is on. Then freed handles go back to the allocator at once,
   so that it reports their use (see flux__quarantine). Of the CPU's buffers and of scratch memory,
   what nobody asked for is poisoned: what is spare, and what a block has more than it needs. */
#if defined(__has_feature)
#  if __has_feature(address_sanitizer)
#    define FLUX__ASAN 1
#  endif
#elif defined(__SANITIZE_ADDRESS__)
#  define FLUX__ASAN 1
#endif

FLUX__BEGIN_LEAN

/* An invariant, which a debug build stops at if it is broken: then the library itself has an
   error, whatever its user did. */
#if FLUX__DEBUG
static void flux__broken(const char *what, const char *file, int line) {
    fprintf(stderr, "flux: %s:%d: broken invariant: %s\n", file, line, what);
    abort();
}
#  define FLUX__ASSERT(what) ((what) ? (void)0 : flux__broken(#what, __FILE__, __LINE__))
#else
#  define FLUX__ASSERT(what) ((void)0)
#endif

#ifdef FLUX__ASAN
#  ifdef __cplusplus
extern "C" {
#  endif
void __asan_poison_memory_region(void const volatile *p, size_t n);
void __asan_unpoison_memory_region(void const volatile *p, size_t n);
#  ifdef __cplusplus
}
#  endif
#  define FLUX__POISON(p, n) __asan_poison_memory_region(p, n)
#  define FLUX__UNPOISON(p, n) __asan_unpoison_memory_region(p, n)
#else
#  define FLUX__ASAN 0
#  define FLUX__POISON(p, n) (void)(p)
#  define FLUX__UNPOISON(p, n) (void)(p)
#endif

#ifdef FLUX_STATIC
#  define FLUX_DEF static FLUX__UNUSED
#else
#  define FLUX_DEF
#endif

/* Declares a struct of type T that is zero in all its bytes. ({ 0 } draws warnings, and the options
   of the API have other values in C++ by default.) */
#define FLUX__ZEROED(T, name) T name; memset((void *)&name, 0, sizeof name)

/* Frees what FLUX_MALLOC gave; p may be NULL, which a user's FLUX_FREE need not take. */
static FLUX__INLINE void flux__free(const void *p) {
    if (p) FLUX_FREE((void *)(intptr_t)p);
}

FLUX__END_LEAN

#endif /* FLUX__BASE_PLATFORM_H */
