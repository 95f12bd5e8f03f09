#ifndef FLUX__BASE_SYSTEM_H
#define FLUX__BASE_SYSTEM_H
#include "platform.h"
#include "threads.h" /* flux__atomic_load32, flux__atomic_store32, flux__atomic_cas32 */

/* ---------------------------------------------------------------------- base/system.h
   What the program asks of the system besides threads and files: the monotonic
   clock, environment variables, the terminal, shared libraries, the number of
   processors, and the instruction set in use (flux__simd). And the version of
   this implementation, flux_version.

   Invariant: shared libraries are opened when they are wanted and never closed,
   since drivers do not survive that. A function's address is copied into a
   pointer to function (flux__library_symbol), as ISO C has no cast between
   pointers to objects and to functions. Names are UTF-8 everywhere; Windows'
   calls get them as UTF-16 (flux__wide). flux__processors is how many processors
   this process may use: those online, those in its affinity mask, or its
   container's quota, whichever is smallest. flux__simd is 0 base, 1 AVX2 with
   FMA, 2 AVX-512 (F, BW, DQ, VL), 3 AVX-512 with BF16, 4 these and AMX with
   BF16; it is detected once, and FLUX_SIMD can lower it.

   Rejected: the compilers' own test for processor features: it needs a library
   that some systems' linkers do not find. */

FLUX__BEGIN_LEAN

FLUX_DEF int flux_version(void) { return FLUX_VERSION; }

static double flux__now(void) {           /* seconds since a fixed time; never goes back */
#if defined(_WIN32)
    LARGE_INTEGER count, rate;
    QueryPerformanceCounter(&count);
    QueryPerformanceFrequency(&rate);
    return (double)count.QuadPart / (double)rate.QuadPart;
#else
    struct timespec t;
    clock_gettime(FLUX__CLOCK, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
#endif
}

#if defined(_WIN32)
/* A name as UTF-16, for Windows' calls; the caller frees it with flux__free. Names are UTF-8; one
   that is not is in the system's code page, as those of getenv and argv are. NULL, with errno
   set: the name can't be converted. */
static wchar_t *flux__wide(const char *name) {
    UINT page = CP_UTF8;
    DWORD flags = MB_ERR_INVALID_CHARS;
    int n = MultiByteToWideChar(page, flags, name, -1, NULL, 0);
    if (n <= 0) page = CP_ACP, flags = 0, n = MultiByteToWideChar(page, flags, name, -1, NULL, 0);
    wchar_t *w = n > 0 ? (wchar_t *)FLUX_MALLOC((size_t)n * sizeof(wchar_t)) : NULL;
    if (w) MultiByteToWideChar(page, flags, name, -1, w, n);
    else errno = n > 0 ? ENOMEM : EINVAL;
    return w;
}
/* Writes a UTF-16 name as UTF-8 to out, which has n bytes; returns how many it takes, with the
   final 0; 0: n is too few, or the name can't be converted. n = 0 writes nothing. */
static size_t flux__from_wide(const wchar_t *w, char *out, size_t n) {
    int bytes = WideCharToMultiByte(CP_UTF8, 0, w, -1, out, n < INT_MAX ? (int)n : INT_MAX, NULL,
                                    NULL);
    return bytes > 0 ? (size_t)bytes : 0;
}
#endif

/* Whether the program has rights that the user who started it lacks (setuid, setgid,
   capabilities). The environment is that user's, and then not to be trusted. */
static bool flux__privileged(void) {
#if defined(_WIN32)
    return false;
#elif defined(__linux__) && defined(AT_SECURE)
    return getauxval(AT_SECURE) != 0;
#else
    return getuid() != geteuid() || getgid() != getegid();
#endif
}
/* The value of an environment variable; NULL if it is unset, empty, or not to be trusted. */
static const char *flux__env(const char *name) {
    const char *s = getenv(name);
    return s && *s && !flux__privileged() ? s : NULL;
}

/* Whether stdout or stderr is a terminal; false for any other file. */
FLUX__UNUSED static bool flux__is_terminal(FILE *f) {
    int fd = f == stdout ? 1 : f == stderr ? 2 : -1;
#if defined(_WIN32)
    return fd > 0 && _isatty(fd) != 0;
#else
    return fd > 0 && isatty(fd) != 0;
#endif
}

/* Columns of the terminal at stdout or stderr, else COLUMNS, else 80. */
FLUX__UNUSED static int flux__terminal_width(FILE *f) {
    const char *s = flux__env("COLUMNS");
    int width = s ? atoi(s) : 0;
#if defined(_WIN32)
    CONSOLE_SCREEN_BUFFER_INFO info;
    HANDLE console = GetStdHandle(f == stderr ? STD_ERROR_HANDLE : STD_OUTPUT_HANDLE);
    if (GetConsoleScreenBufferInfo(console, &info))
        width = info.srWindow.Right - info.srWindow.Left + 1;
#elif defined(TIOCGWINSZ)
    struct winsize size;
    if (ioctl(f == stderr ? 2 : 1, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        width = size.ws_col;
#else
    (void)f;
#endif
    return width > 0 ? width : 80;
}

/* ---- shared libraries: opened when wanted, never closed (drivers do not survive it) */

/* Writes why flux__library_open failed just now for a file that a user named by an environment
   variable, as in "no NVRTC: FLUX_NVRTC: x.so: file too short". */
FLUX__UNUSED static void flux__library_why(char *why, size_t n, const char *what,
                                           const char *variable) {
#if defined(_WIN32)
    snprintf(why, n, "no %s: %s: it can't be opened (error %lu)", what, variable,
             (unsigned long)GetLastError());
#else
    const char *text = dlerror();
    snprintf(why, n, "no %s: %s: %.200s", what, variable, text ? text : "it can't be opened");
#endif
}
/* Opens a shared library, or the program itself if name is NULL; NULL: it can't be opened. */
FLUX__UNUSED static void *flux__library_open(const char *name) {
#if defined(_WIN32)
    if (!name) return (void *)GetModuleHandleW(NULL);
    wchar_t *w = flux__wide(name);
    HMODULE library = w ? LoadLibraryW(w) : NULL;
    DWORD why = GetLastError();           /* freeing may change it; flux__library_why tells it */
    flux__free(w);
    SetLastError(why);
    return (void *)library;
#else
    return dlopen(name, RTLD_NOW | RTLD_LOCAL);
#endif
}

/* The same, with its symbols visible to the libraries that it opens itself. */
FLUX__UNUSED static void *flux__library_open_global(const char *name) {
#if defined(_WIN32)
    return flux__library_open(name);
#else
    return dlopen(name, RTLD_NOW | RTLD_GLOBAL);
#endif
}

/* Opens the newest version of a library, from 40 down to 0 (libNAME.so.12), else the file without a
   version: where only the library's runtime package is installed, the file without a version is
   missing. `open` opens a file of this name, or returns NULL. */
FLUX__UNUSED static void *flux__library_numbered(void *(*open)(const char *file),
                                                 const char *name) {
    void *library = NULL;
    for (int version = 40; version >= -1 && !library; version--) {
        char file[80];
#if defined(_WIN32)
        if (version >= 0) snprintf(file, sizeof file, "%s64_%d.dll", name, version);
        else snprintf(file, sizeof file, "%s.dll", name);
#else
        if (version >= 0) snprintf(file, sizeof file, "lib%s.so.%d", name, version);
        else snprintf(file, sizeof file, "lib%s.so", name);
#endif
        library = open(file);
    }
    return library;
}

/* Copies the address of a library's function into *fn, a pointer to function of `size` bytes;
   false: the library has no such function. Bytes are copied, as ISO C has no cast from void * to
   such a pointer. */
FLUX__UNUSED static bool flux__library_symbol(void *library, const char *name, void *fn,
                                              size_t size) {
#if defined(_WIN32)
    FARPROC p = GetProcAddress((HMODULE)library, name);
#else
    void *p = dlsym(library, name);
#endif
    if (!p || size != sizeof p) return false;
    memcpy(fn, &p, sizeof p);
    return true;
}

/* Writes the path of the library that contains a function; fn points to a pointer to that function.
   False: the path is not known, or has n bytes or more. */
FLUX__UNUSED static bool flux__library_file(const void *fn, char *file, size_t n) {
#if defined(_WIN32)
    HMODULE library;
    DWORD flags = GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS |
                  GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT, used;
    wchar_t path[MAX_PATH];
    LPCWSTR at;
    memcpy(&at, fn, sizeof at);
    if (!GetModuleHandleExW(flags, at, &library)) return false;
    used = GetModuleFileNameW(library, path, MAX_PATH);
    return used > 0 && used < MAX_PATH && flux__from_wide(path, file, n) > 0;
#else
    /* The struct is Dl_info, which the C library hides from ISO C, as it does dladdr. */
    struct { const char *file; void *base; const char *name; void *place; } found;
    int (*dladdr_)(const void *at, void *found);
    const void *at;
    memcpy(&at, fn, sizeof at);
    memset(&found, 0, sizeof found);
    if (!flux__library_symbol(flux__library_open(NULL), "dladdr", &dladdr_, sizeof dladdr_) ||
        !dladdr_(at, &found) || !found.file) return false;
    return strlen(found.file) < n && snprintf(file, n, "%s", found.file) > 0;
#endif
}

/* ---- shared memory */

/* Whether so many bytes can be had as memory that processes share, as far as that is known. */
FLUX__UNUSED static bool flux__shared_memory_has(uint64_t bytes) {
#if defined(__linux__)
    struct statvfs s;
    return statvfs("/dev/shm", &s) != 0 || (uint64_t)s.f_bavail * s.f_frsize >= bytes;
#else
    return bytes > 0;
#endif
}

/* ---- processors */

#if defined(__linux__)
/* Reads up to two numbers from the start of a file; returns how many there are. */
static int flux__file_numbers(const char *path, long *a, long *b) {
    FILE *f = fopen(path, "r");
    int n = f ? fscanf(f, "%ld %ld", a, b) : 0;
    if (f) fclose(f);
    return n;
}

/* How many processors' time a container may use, rounded up; 0: no limit is known. More threads
   than that would only wait for each other. cgroup v2 has one file for quota and period, v1 has
   two, and -1 for no quota. */
static int flux__cgroup_processors(void) {
    long quota = 0, period = 0, none;
    if (flux__file_numbers("/sys/fs/cgroup/cpu.max", &quota, &period) < 2 &&
        (flux__file_numbers("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", &quota, &none) < 1 ||
         flux__file_numbers("/sys/fs/cgroup/cpu/cpu.cfs_period_us", &period, &none) < 1))
        return 0;
    return quota > 0 && period > 0 ? (int)((quota + period - 1) / period) : 0;
}

/* How many processors are in this process's affinity mask; 0: not known. sched_getaffinity is
   looked up at run time, since the C library declares it only with _GNU_SOURCE. */
static int flux__allowed_processors(void) {
    unsigned char mask[1024];
    int (*affinity)(int pid, size_t bytes, void *mask);
    int n = 0;
    size_t i;
    memset(mask, 0, sizeof mask);
    if (!flux__library_symbol(flux__library_open(NULL), "sched_getaffinity", &affinity,
                              sizeof affinity)) return 0;
    if (affinity(0, sizeof mask, mask) != 0) return 0;
    for (i = 0; i < 8 * sizeof mask; i++) n += mask[i / 8] >> i % 8 & 1;
    return n;
}
#endif

static int flux__processors(void) {
    int n;
#if defined(_WIN32)
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    n = (int)info.dwNumberOfProcessors;
#else
    n = (int)sysconf(FLUX__SC_PROCESSORS);
#endif
#if defined(__linux__)
    {
        int allowed = flux__allowed_processors(), share = flux__cgroup_processors();
        if (allowed > 0 && allowed < n) n = allowed;
        if (share > 0 && share < n) n = share;
    }
#endif
    return n > 0 ? n : 1;
}

/* ---- the instruction set */

/* CPUID's eax, ebx, ecx, edx in r[0 ... 3] for a leaf and its subleaf `part`; zeros if there is
   no such leaf. */
static void flux__cpuid(unsigned leaf, unsigned part, unsigned *r) {
    r[0] = r[1] = r[2] = r[3] = 0;
#if FLUX__X86 && defined(_MSC_VER) && !defined(__clang__)
    int v[4];
    __cpuidex(v, (int)(leaf & 0x80000000u), 0);
    if ((unsigned)v[0] < leaf) return;
    __cpuidex(v, (int)leaf, (int)part);
    memcpy(r, v, sizeof v);
#elif FLUX__X86
    if ((unsigned)__get_cpuid_max(leaf & 0x80000000u, NULL) >= leaf)
        __cpuid_count(leaf, part, r[0], r[1], r[2], r[3]);
#else
    (void)leaf, (void)part;
#endif
}

/* Register XCR0: which vector registers the system saves. Call it only if CPUID has OSXSAVE. */
static unsigned flux__xcr0(void) {
#if FLUX__X86 && defined(_MSC_VER) && !defined(__clang__)
    return (unsigned)_xgetbv(0);
#elif FLUX__X86
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
#else
    return 0;
#endif
}

/* The highest level of flux__simd by what CPUID says in leaf 1 and in leaf 7, parts 0 and 1, and by
   XCR0. */
static int flux__simd_of(const unsigned *one, unsigned saved, const unsigned *seven,
                         const unsigned *more) {
    /* FMA, OSXSAVE, AVX, F16C */
    const unsigned basic = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29;
    const unsigned avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;     /* F, DQ, BW, VL */
    if ((one[2] & basic) != basic || (saved & 6) != 6 || !(seven[1] & 1u << 5)) return 0;
    if ((saved & 0xe6) != 0xe6 || (seven[1] & avx512) != avx512) return 1;
    if (seven[0] == 0 || !(more[0] & 1u << 5)) return 2;
    const unsigned amx = 1u << 22 | 1u << 24, tiles = 3u << 17;     /* BF16, TILE; their state */
    return (seven[3] & amx) == amx && (saved & tiles) == tiles ? 4 : 3;
}

/* Whether this process may use AMX's tiles, 8 KB of state a thread, which Linux gives whoever asks
   for it; its threads and children may, too. */
static bool flux__tiles_granted(void) {
#if FLUX__AMX
    enum { ARCH_PRCTL = 158, ASK = 0x1023, TILE_DATA = 18 };
    long rc = ARCH_PRCTL;
    __asm__ volatile("syscall" : "+a"(rc) : "D"((long)ASK), "S"((long)TILE_DATA)
                     : "rcx", "r11", "memory");
    return rc == 0;
#else
    return false;
#endif
}

/* The same of this machine. It asks CPUID itself, since the compilers' own test needs a library
   that some linkers do not find. */
static int flux__simd_detect(void) {
    unsigned one[4], seven[4], more[4];
    flux__cpuid(1, 0, one);
    flux__cpuid(7, 0, seven);
    flux__cpuid(7, 1, more);
    const int level = flux__simd_of(one, one[2] & 1u << 27 ? flux__xcr0() : 0, seven, more);
    return level > 3 && !flux__tiles_granted() ? 3 : level;
}

static int flux__simd_known;              /* atomic: level + 1, or 0 before it was detected */

/* The instruction set in use, see above. The environment variable FLUX_SIMD (base, avx2, avx512,
   avx512_bf16) lowers it. */
FLUX__UNUSED static int flux__simd(void) {
    int level = flux__atomic_load32(&flux__simd_known) - 1;
    if (level < 0) {
        const char *cap = flux__env("FLUX_SIMD");
        level = flux__simd_detect();
        if (cap && !strcmp(cap, "avx512_bf16") && level > 3) level = 3;
        if (cap && !strcmp(cap, "avx512") && level > 2) level = 2;
        if (cap && !strcmp(cap, "avx2") && level > 1) level = 1;
        if (cap && !strcmp(cap, "base")) level = 0;
        flux__atomic_store32(&flux__simd_known, level + 1);
    }
    return level;
}

/* The ways of the first-level data cache, by CPUID's description of it: how many lines with the
   same lower address bits it keeps. 4 if this describes another cache or none. */
FLUX__UNUSED static int flux__ways_of(const unsigned *leaf) {
    return (leaf[0] & 31) == 1 && (leaf[0] >> 5 & 7) == 1 ? (int)(leaf[1] >> 22) + 1 : 4;
}

static int flux__l1_known;                /* atomic: flux__l1_ways, or 0 before it was asked */

/* The same of this machine. */
FLUX__UNUSED static int flux__l1_ways(void) {
    int ways = flux__atomic_load32(&flux__l1_known);
    if (ways) return ways;
    unsigned leaf[4];
    flux__cpuid(4, 0, leaf);                                    /* Intel's; AMD's is zeros */
    if (!(leaf[0] & 31)) flux__cpuid(0x8000001du, 0, leaf);     /* AMD's, of the same form */
    ways = flux__ways_of(leaf);
    flux__atomic_store32(&flux__l1_known, ways);
    return ways;
}

/* ---------------- signals */

static volatile sig_atomic_t flux__signalled;

static void flux__on_signal(int number) {
    flux__signalled = 1;
    signal(number, SIG_DFL);              /* the next one ends the program */
}

/* Whether SIGTERM or SIGINT has come; the first call installs their handlers. */
static bool flux__interrupted(void) {
    static int installed;
    if (flux__atomic_cas32(&installed, 0, 1)) {
        signal(SIGTERM, flux__on_signal);
        signal(SIGINT, flux__on_signal);
    }
    return flux__signalled != 0;
}

FLUX__END_LEAN

#endif /* FLUX__BASE_SYSTEM_H */
