/* What lies beneath: files that come to be whole or not at all, threads' own pointers, the pool, instruction sets, and
   the matrix product against a plain loop, at every instruction set that this machine has. */
#define _XOPEN_SOURCE 700
#include <stdlib.h>
#define FLUX_IMPLEMENTATION
#include "test.h"

/* ---- tests/counted.h's own fences: a byte before or behind a block is noticed; what is new is no number */

TEST(blocks_are_fenced) {
    if (!flux__test_fenced()) SKIP("the address sanitizer guards blocks itself");
    for (int n = 1; n < 600; n += 13)
        for (int side = 0; side < 3; side++) {
            unsigned char *p = (unsigned char *)flux__malloc((size_t)n);
            float first, last;
            REQUIRE(p);
            memcpy(&first, p - 4, 4), memcpy(&last, p + n, 4);
            CHECK(first != first && last != last && p[0] == 0xfd);
            if (side) p[side == 1 ? -1 : n] ^= 1;
            flux__test_free(p);
            CHECK(flux__test_spoilt() == (side != 0));
        }
}

/* ---- files */

static bool holds(const char *path, const char *text) {
    size_t n = 0;
    char *data = (char *)flux__read_file(path, &n, "test");
    bool same = data && n == strlen(text) && !memcmp(data, text, n + 1);
    flux__test_free(data);
    return same;
}
static bool put(const char *path, const char *text) {
    flux__out *o = flux__out_open(path, "save");
    flux__out_write(o, text, strlen(text));
    return flux__out_commit(o);
}

#ifdef _WIN32
/* Names are UTF-8, whatever code page the system has: what is written under one is found by Windows' calls with the
   same name in UTF-16. */
TEST(names_are_utf8) {
    const char *folder = "flux-test-\xc3\xa9\xe2\x82\xac", *file = "flux-test-\xc3\xa9\xe2\x82\xac/\xce\xb1.st";
    const wchar_t *same = L"flux-test-\u00e9\u20ac\\\u03b1.st", *left = L"flux-test-\u00e9\u20ac\\.flux-\u03b1.tmp";
    int64_t stamp[2];
    flux__private den;
    flux__folder_make(folder);
    CHECK(GetFileAttributesW(L"flux-test-\u00e9\u20ac") & FILE_ATTRIBUTE_DIRECTORY);
    CHECK(flux__private_open(&den, folder) == NULL);
    CHECK(put(file, "hello") && holds(file, "hello"));
    CHECK(GetFileAttributesW(same) != INVALID_FILE_ATTRIBUTES && !flux__file_streams(file));
    CHECK(flux__file_stamp(file, stamp) && stamp[0] == 5);
    CHECK(put(file, "again") && holds(file, "again"));
    FILE *f = _wfopen(left, L"wb");
    REQUIRE(f);
    fclose(f);
    flux__folder_sweep("flux-test-\xc3\xa9\xe2\x82\xac/", -1, ".flux-\xce\xb1");
    CHECK(GetFileAttributesW(left) == INVALID_FILE_ATTRIBUTES);
    flux__file_remove(file);
    CHECK(GetFileAttributesW(same) == INVALID_FILE_ATTRIBUTES && flux__file_streams(file));
    CHECK(RemoveDirectoryW(L"flux-test-\u00e9\u20ac"));
    wchar_t *w = flux__wide("caf\xe9");    /* as argv has it in western code pages: no UTF-8 */
    CHECK(w && wcsncmp(w, L"caf", 3) == 0 && w[3] != 0xfffd && wcslen(w) == 4);
    flux__test_free(w);
}

TEST(folders_are_not_read) {
    size_t n;
    CHECK_ERROR(flux__read_file(".", &n, "load"), "load: cannot open .: Is a directory");
    CHECK_ERROR(put(".", "x"), "save: cannot write .: Is a directory");
}

/* The name that a link leads to, by a handle; where links can be made, saving through one keeps it. */
TEST(link_stays_a_link) {
    CHECK(put("flux-test-real", "old"));
    char *end = flux__link_end("flux-test-real");
    CHECK(end && strstr(end, "flux-test-real") && flux__is_absolute(end) && put(end, "new") && holds("flux-test-real", "new"));
    flux__test_free(end);
    CHECK(flux__link_end("flux-test-none") == NULL && errno == ENOENT);
    CreateSymbolicLinkW(L"flux-test-link", L"flux-test-real", 2);      /* 2: by whoever may where developers work */
    DWORD a = GetFileAttributesW(L"flux-test-link");
    if (a != INVALID_FILE_ATTRIBUTES && (a & FILE_ATTRIBUTE_REPARSE_POINT)) {
        CHECK(put("flux-test-link", "through") && holds("flux-test-real", "through"));
        CHECK(GetFileAttributesW(L"flux-test-link") & FILE_ATTRIBUTE_REPARSE_POINT);
        flux__file_remove("flux-test-link");
    }
    flux__file_remove("flux-test-real");
}
#else
#include <dirent.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[100];
static char *in_folder(const char *name) {
    static char path[4][400];
    static int n;
    n = (n + 1) % 4;
    snprintf(path[n], sizeof path[n], "%s/%s", folder, name);
    return path[n];
}
static int entries(void) {                /* files in the folder: nothing may be left behind */
    int n = 0;
    DIR *d = opendir(folder);
    struct dirent *e;
    while (d && (e = readdir(d)) != NULL) n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
    if (d) closedir(d);
    return n;
}
static void start(void) {
    snprintf(folder, sizeof folder, "%s/flux-test-XXXXXX", test_temp());
    if (!mkdtemp(folder)) exit(2);
}
static void finish(void) {
    DIR *d = opendir(folder);
    struct dirent *e;
    while (d && (e = readdir(d)) != NULL) remove(in_folder(e->d_name));
    if (d) closedir(d);
    rmdir(folder);
}
static int put_times(flux__out *o, const char *data, size_t bytes, int times) {
    int good = 0;
    while (times-- > 0) good += flux__out_write(o, data, bytes);
    return good;
}

TEST(written_file_reads_back) {
    start();
    CHECK(put(in_folder("a"), "hello"));
    CHECK(holds(in_folder("a"), "hello"));
    CHECK(put(in_folder("a"), ""));
    CHECK(holds(in_folder("a"), ""));
    CHECK(entries() == 1);
    finish();
}

/* A signal may end a write to a pipe with a part of the bytes, or with none. */
static void noticed(int number) { (void)number; }
static int reads_on(const char *path, size_t want) {
    unsigned char part[3000];
    const int f = open(path, O_RDONLY);
    size_t at = 0, bad = 0;
    for (ssize_t n; (n = read(f, part, sizeof part)) > 0; kill(getppid(), SIGUSR1))
        for (ssize_t i = 0; i < n; i++, at++)
            bad += part[i] != (unsigned char)(at % 251);
    return at != want || bad > 0;
}
TEST(a_pipe_gets_all_bytes_between_signals) {
    static char data[1 << 20];
    struct sigaction notice, was;
    int status = -1;
    start();
    for (size_t i = 0; i < sizeof data; i++) data[i] = (char)(i % 251);
    memset(&notice, 0, sizeof notice);
    notice.sa_handler = noticed;
    REQUIRE(mkfifo(in_folder("pipe"), 0600) == 0 && sigaction(SIGUSR1, &notice, &was) == 0);
    pid_t child = fork();
    if (child == 0) _exit(reads_on(in_folder("pipe"), sizeof data));
    flux__out *o = flux__out_open(in_folder("pipe"), "save");
    CHECK(o && flux__out_write(o, data, sizeof data) && flux__out_commit(o));
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    sigaction(SIGUSR1, &was, NULL);
    finish();
}

TEST(many_writes_of_all_sizes) {
    start();
    size_t sizes[] = { 1, 16383, 0, 16384, 2, 16385, 70000, 3, 200000 }, total = 0, n, at = 0;
    unsigned char *want = (unsigned char *)malloc(400000), *got;
    REQUIRE(want);
    flux__out *o = flux__out_open(in_folder("b"), "save");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (size_t j = 0; j < sizes[i]; j++) want[total + j] = (unsigned char)((total + j) * 2654435761u >> 24);
        CHECK(flux__out_write(o, want + total, sizes[i]));
        total += sizes[i];
    }
    CHECK(flux__out_commit(o));
    got = (unsigned char *)flux__read_file(in_folder("b"), &n, "load");
    CHECK(got && n == total);
    while (got && at < n && got[at] == want[at]) at++;
    CHECK(at == total);
    flux__test_free(got);
    free(want);
    finish();
}

TEST(old_file_keeps_its_mode) {
    struct stat s;
    start();
    CHECK(put(in_folder("m"), "old"));
    CHECK(chmod(in_folder("m"), 0640) == 0);
    CHECK(put(in_folder("m"), "new"));
    CHECK(stat(in_folder("m"), &s) == 0 && (s.st_mode & 07777) == 0640);
    CHECK(holds(in_folder("m"), "new"));
    finish();
}

TEST(link_stays_a_link) {
    struct stat s;
    start();
    CHECK(put(in_folder("real"), "old"));
    CHECK(symlink("real", in_folder("link")) == 0);
    CHECK(put(in_folder("link"), "new"));
    CHECK(lstat(in_folder("link"), &s) == 0 && S_ISLNK(s.st_mode));
    CHECK(holds(in_folder("real"), "new"));
    CHECK(symlink("later", in_folder("first")) == 0 && symlink("first", in_folder("second")) == 0);
    CHECK(put(in_folder("second"), "made"));               /* links to what is not there yet */
    CHECK(lstat(in_folder("second"), &s) == 0 && S_ISLNK(s.st_mode) && lstat(in_folder("first"), &s) == 0 && S_ISLNK(s.st_mode));
    CHECK(holds(in_folder("later"), "made") && entries() == 5);
    CHECK(mkdir(in_folder("below"), 0700) == 0 && symlink(in_folder("below/x"), in_folder("third")) == 0);
    CHECK(put(in_folder("third"), "there") && holds(in_folder("below/x"), "there"));
    CHECK(symlink("round", in_folder("round")) == 0);
    CHECK_ERROR(put(in_folder("round"), "x"), "Too many levels of symbolic links");
    CHECK(remove(in_folder("below/x")) == 0);
    finish();
}

/* What a process that is killed while it writes leaves behind goes with the next save to that name, and nothing else does. */
TEST(left_by_a_kill) {
    int status, ready[2], go[2];
    char byte = 0;
    start();
    CHECK(put(in_folder("a"), "old"));
    pid_t killed = fork();
    if (killed == 0) {
        flux__out_write(flux__out_open(in_folder("a"), "save"), "half", 4);
        raise(SIGKILL);
    }
    CHECK(waitpid(killed, &status, 0) == killed && WIFSIGNALED(status));
    CHECK(entries() == 2 && holds(in_folder("a"), "old"));
    CHECK(put(in_folder("b"), "other"));                   /* another name */
    CHECK(entries() == 3);
    REQUIRE(pipe(ready) == 0 && pipe(go) == 0);
    pid_t busy = fork();
    if (busy == 0) {                                       /* one that lives, and writes as well */
        flux__out *o = flux__out_open(in_folder("a"), "save");
        flux__out_write(o, "later", 5);
        if (write(ready[1], "r", 1) != 1 || read(go[0], &byte, 1) != 1) _exit(2);
        _exit(!flux__out_commit(o));
    }
    CHECK(read(ready[0], &byte, 1) == 1);
    CHECK(entries() == 3);                                 /* it has swept, and has its own */
    CHECK(put(in_folder("a"), "new") && holds(in_folder("a"), "new") && entries() == 3);
    CHECK(write(go[1], "g", 1) == 1);
    CHECK(waitpid(busy, &status, 0) == busy && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(holds(in_folder("a"), "later") && entries() == 2);
    close(ready[0]), close(ready[1]), close(go[0]), close(go[1]);
    finish();
}

TEST(names_that_are_too_long) {
    char name[300], path[9000];
    start();
    memset(name, 'n', sizeof name);
    name[255] = 0;                                         /* the longest that there can be */
    CHECK(put(in_folder(name), "long") && holds(in_folder(name), "long") && entries() == 1);
    name[255] = 'n', name[256] = 0;
    CHECK_ERROR(put(in_folder(name), "x"), "File name too long");
    memset(path, '/', sizeof path);
    snprintf(path, sizeof path, "%s", folder);
    for (size_t n = strlen(path); n < 8000; n += 2) memcpy(path + n, "/.", 3);
    memcpy(path + 8000, "/a", 3);
    CHECK_ERROR(put(path, "x"), "File name too long");
    CHECK(entries() == 1);
    finish();
}

TEST(abort_leaves_the_old_file) {
    start();
    CHECK(put(in_folder("a"), "old"));
    flux__out *o = flux__out_open(in_folder("a"), "save");
    CHECK(flux__out_write(o, "new", 3));
    CHECK(entries() == 2);
    flux__out_abort(o);
    CHECK(entries() == 1 && holds(in_folder("a"), "old"));
    finish();
}

TEST(full_disk_leaves_the_old_file) {
    struct rlimit was, small;
    char big[5000];
    start();
    memset(big, 'x', sizeof big);
    CHECK(put(in_folder("w.npy"), "old"));
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    REQUIRE(getrlimit(RLIMIT_FSIZE, &was) == 0);
    small = was;
    small.rlim_cur = 50000;
    REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
    flux__out *o = flux__out_open(in_folder("w.npy"), "save");
    int good = 0;
    CHECK_ERROR((void)(good = put_times(o, big, sizeof big, 20)), "w.npy: File too large");
    CHECK(good >= 9 && good < 20);
    CHECK(!flux__out_commit(o) && !flux_failed());         /* one error, one message */
    /* small enough to wait in the buffer until the end: the error comes then */
    small.rlim_cur = 1000;
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    o = flux__out_open(in_folder("w.npy"), "save");
    CHECK(flux__out_write(o, big, sizeof big));
    CHECK_ERROR(CHECK(!flux__out_commit(o)), "save: cannot write");
    CHECK(setrlimit(RLIMIT_FSIZE, &was) == 0);
    signal(SIGXFSZ, handler);
    CHECK(entries() == 1 && holds(in_folder("w.npy"), "old"));
    finish();
}

TEST(device_is_written_as_it_is) {
    struct stat s;
    if (stat("/dev/full", &s) != 0) SKIP("no /dev/full");
    flux__out *o = flux__out_open("/dev/full", "save");
    CHECK(flux__out_write(o, "text", 4));
    CHECK_ERROR(flux__out_commit(o), "save: cannot write /dev/full: No space left on device");
    CHECK(stat("/dev/full", &s) == 0 && S_ISCHR(s.st_mode));
    CHECK(put("/dev/null", "gone"));
}

TEST(paths_that_cannot_be_written) {
    start();
    CHECK_ERROR(flux__out_open(folder, "save"), "Is a directory");
    CHECK_ERROR(flux__out_open(in_folder("none/a"), "save"), "none/a: No such file or directory");
    CHECK_ERROR(flux__out_open(NULL, "save"), "save: the path is NULL");
    CHECK_ERROR(flux__out_open("", "save"), "save: the path is empty");
    CHECK(!flux__out_write(NULL, "x", 1) && !flux__out_commit(NULL));
    flux__out_abort(NULL);
    CHECK(!flux_failed());
    CHECK(put(in_folder("a"), "old") && chmod(in_folder("a"), 0444) == 0);
    if (geteuid() != 0) CHECK_ERROR(flux__out_open(in_folder("a"), "save"), "Permission denied");
    CHECK(entries() == 1);
    finish();
}

TEST(files_that_cannot_be_read) {
    size_t n = 1;
    start();
    CHECK_ERROR(CHECK(!flux__read_file(in_folder("none"), &n, "load")), "none: No such file or directory");
    CHECK(n == 0);
    CHECK_ERROR(flux__read_file(folder, &n, "load"), "Is a directory");
    CHECK_ERROR(flux__read_file(NULL, &n, "load"), "load: the path is NULL");
    finish();
}

TEST(environment_caps_the_instruction_set) {
    int best = flux__simd_detect(), was = flux__simd_known;
    const char *names[] = { "base", "avx2", "avx512", "avx512_bf16", "nonsense", "" };
    int want[] = { 0, best < 1 ? best : 1, best < 2 ? best : 2, best < 3 ? best : 3, best, best };
    CHECK(best >= 0 && best <= 4);
    for (int i = 0; i < 6; i++) {
        setenv("FLUX_SIMD", names[i], 1);
        flux__simd_known = 0;
        CHECK(flux__simd() == want[i]);
    }
    unsetenv("FLUX_SIMD");
    flux__simd_known = was;
}

/* Bits as in Intel's Software Developer's Manual, volume 2, CPUID, and volume 1, 13.3. Without one that a level needs the next
   lower one is left; the other bits do not matter. */
TEST(instruction_set_of_any_processor) {
    static const struct { int word, bit, left; } needed[] = {
        { 0, 12, 0 }, { 0, 27, 0 }, { 0, 28, 0 }, { 0, 29, 0 },     /* leaf 1, ecx: FMA, OSXSAVE, AVX, F16C */
        { 1, 1, 0 }, { 1, 2, 0 }, { 1, 5, 1 }, { 1, 6, 1 }, { 1, 7, 1 },     /* XCR0: SSE, AVX; opmask, upper halves, ZMM16 and on */
        { 2, 5, 0 }, { 2, 16, 1 }, { 2, 17, 1 }, { 2, 30, 1 }, { 2, 31, 1 },     /* leaf 7, ebx: AVX2; AVX512 F, DQ, BW, VL */
        { 3, 5, 2 },                                            /* leaf 7, part 1, eax: AVX512_BF16 */
        { 4, 22, 3 }, { 4, 24, 3 }, { 1, 17, 3 }, { 1, 18, 3 },  /* leaf 7, edx: AMX BF16, TILE; XCR0: their state */
    };
    enum { NEEDED = sizeof needed / sizeof *needed };
    for (int word = 0; word < 5; word++)
        for (int bit = 0; bit < 32; bit++) {
            unsigned one[4] = { ~0u, ~0u, ~0u, ~0u }, saved = ~0u, seven[4] = { 1, ~0u, ~0u, ~0u }, more[4] = { ~0u, ~0u, ~0u, ~0u };
            unsigned *const in[] = { &one[2], &saved, &seven[1], &more[0], &seven[3] };
            int want = 4;
            *in[word] &= ~(1u << bit);
            for (int i = 0; i < NEEDED; i++)
                if (needed[i].word == word && needed[i].bit == bit) want = needed[i].left;
            CHECK(flux__simd_of(one, saved, seven, more) == want);
            unsigned none[4] = { 0, 0, 0, 0 };
            for (int i = 0; i < 5; i++) *in[i] = 0;
            for (int i = 0; i < NEEDED; i++) *in[needed[i].word] |= 1u << needed[i].bit;
            CHECK(flux__simd_of(one, saved, seven, more) == 4);
            seven[0] = 0;                 /* there is no part 1 */
            CHECK(flux__simd_of(one, saved, seven, more) == 2);
            CHECK(flux__simd_of(none, 0, none, none) == 0);
        }
}

/* Leaf 4 of an Intel Sapphire Rapids, leaf 0x8000001D of an AMD Zen 4 (48 KB of 12 ways, 32 KB of 8), an instruction cache, a second level, none. */
TEST(ways_of_the_first_level_cache) {
    static const unsigned leaves[5][4] = { { 0xfc004121u, 0x02c0003fu, 63, 0 }, { 0x00004121u, 0x01c0003fu, 63, 0 },
                                           { 0xfc004122u, 0x01c0003fu, 63, 0 }, { 0xfc004141u, 0x01c0003fu, 63, 0 }, { 0, 0, 0, 0 } };
    static const int ways[5] = { 12, 8, 4, 4, 4 };
    for (int i = 0; i < 5; i++) CHECK(flux__ways_of(leaves[i]) == ways[i]);
    CHECK(flux__l1_ways() >= 1 && flux__l1_ways() == flux__l1_ways());
}
/* A product has the same bits whether its right operand, whose columns fall into one set of a cache, is copied or not. */
TEST(products_do_not_depend_on_the_ways_of_a_cache) {
    ONLY_ON_CPU();
    static const int64_t rows[] = { 33, 49, 64, 200, 300 };
    const int was = flux__l1_ways();
    for (int i = 0; i < 10; i++) FLUX_SCOPE {
        const flux_dtype dtype = i < 5 ? FLUX_F32 : FLUX_F64;
        const int64_t m = rows[i % 5], k = i < 5 ? 1024 : 512, n = 70;
        flux_tensor *a = flux_eval(flux_randn_with(FLUX_SHAPE(m, k), dtype)), *b = flux_eval(flux_randn_with(FLUX_SHAPE(k, n), dtype));
        flux__atomic_store32(&flux__l1_known, 4);
        flux_tensor *copied = flux_eval(flux_matmul(a, b));
        flux__atomic_store32(&flux__l1_known, 16);
        flux_tensor *there = flux_eval(flux_matmul(a, b));
        CHECK(copied && there && !memcmp(flux_data(copied), flux_data(there), (size_t)(m * n) * flux_dtype_size(dtype)));
    }
    flux__atomic_store32(&flux__l1_known, was);
}

#if defined __linux__ && FLUX__X86
TEST(instruction_set_is_what_the_system_says) {
    static const char *const flag[] = { " avx2 ", " avx512dq ", " avx512_bf16 ", " amx_bf16 " };
    char line[8192] = "";
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f) && strncmp(line, "flags", 5)) {}
    if (f) fclose(f);
    if (strncmp(line, "flags", 5)) SKIP("the system does not say");
    line[strcspn(line, "\n")] = ' ';
    int level = 0;
    while (level < 4 && strstr(line, flag[level])) level++;
    if (level == 4 && !flux__tiles_granted()) level = 3;
    CHECK(flux__simd_detect() == level);
}
#endif

TEST(environment_sets_the_level_and_asks_for_schedules) {
    static const struct { const char *words; int level, schedules; } said[] = {
        { "", FLUX_LOG_INFO, 0 },         { "nonsense", FLUX_LOG_INFO, 0 },         { "error", FLUX_LOG_ERROR, 0 },
        { "warn", FLUX_LOG_WARN, 0 },     { "debug", FLUX_LOG_DEBUG, 0 },           { "schedule", FLUX_LOG_INFO, 1 },
        { "sched", FLUX_LOG_INFO, 0 },    { "schedule,error", FLUX_LOG_ERROR, 1 },  { "debug schedule", FLUX_LOG_DEBUG, 1 },
    };
    const flux_level was = (flux_level)flux__set.level;
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        setenv("FLUX_LOG", said[i].words, 1);
        flux__set.level = -1;
        CHECK(flux__log_schedules() == (said[i].schedules != 0));
        CHECK(flux__set.level == said[i].level);
    }
    unsetenv("FLUX_LOG");
    flux__set.level = -1;
    CHECK(!flux__log_schedules() && flux__set.level == FLUX_LOG_INFO);
    if ((int)was >= 0) flux_log_level(was);
}

#ifndef FLUX_NO_THREADS
TEST(environment_sets_the_threads) {
    const char *text[] = { "3", "1", "100000" };
    int want[] = { 3, 1, FLUX__MAX_THREADS };
    for (int i = 0; i < 3; i++) {
        setenv("FLUX_NUM_THREADS", text[i], 1);
        flux__pool.wanted = 0;
        CHECK(flux__num_threads() == want[i]);
    }
    flux_silence("threads");
    setenv("FLUX_NUM_THREADS", "many", 1);
    flux__pool.wanted = 0;
    CHECK(flux__num_threads() == flux__processors());
    unsetenv("FLUX_NUM_THREADS");
    flux_threads(0);
    CHECK(flux__num_threads() == flux__processors());
}
#endif
#endif

/* ---- threads */

TEST(clock_and_machine) {
    double t = flux__now();
    CHECK(flux__now() >= t);
    CHECK(flux__processors() >= 1);
    CHECK(flux__terminal_width(stdout) > 0);
    FILE *f = tmpfile();
    if (f) CHECK(!flux__is_terminal(f));
    if (f) fclose(f);
}

#if !defined(_WIN32) && defined(TIOCSWINSZ)
/* A terminal of so many columns in place of a stream, and what stood there before. */
typedef struct terminal { int master, stream, before; } terminal;
static bool terminal_open(terminal *t, int stream, int columns) {
    struct winsize size = { 24, (unsigned short)columns, 0, 0 };
    t->master = posix_openpt(O_RDWR | O_NOCTTY);
    const char *name = t->master >= 0 && !grantpt(t->master) && !unlockpt(t->master) ? ptsname(t->master) : NULL;
    const int slave = name ? open(name, O_RDWR | O_NOCTTY) : -1;
    t->stream = stream, t->before = slave < 0 ? -1 : dup(stream);
    bool there = slave >= 0 && ioctl(slave, TIOCSWINSZ, &size) == 0 && dup2(slave, stream) == stream;
    if (slave >= 0) close(slave);
    return there;
}
static void terminal_close(terminal *t) {
    if (t->before >= 0) dup2(t->before, t->stream), close(t->before);
    if (t->master >= 0) close(t->master);
}
TEST(terminals_are_known_by_their_stream) {
    terminal out, errors;
    int wide[2] = { 0 };
    bool is[4] = { 0 };
    fflush(stdout), fflush(stderr);
    const bool first = terminal_open(&out, 1, 33), there = terminal_open(&errors, 2, 44) && first;
    if (there) wide[0] = flux__terminal_width(stdout), wide[1] = flux__terminal_width(stderr);
    is[0] = flux__is_terminal(stdout), is[1] = flux__is_terminal(stderr), is[2] = flux__is_terminal(stdin);
    terminal_close(&errors);
    is[3] = flux__is_terminal(stdout);
    terminal_close(&out);
    if (!there) SKIP("no terminals of one's own here");
    CHECK(wide[0] == 33 && wide[1] == 44);
    CHECK(is[0] && is[1] && !is[2] && is[3]);
}
#endif

TEST(libraries) {
    size_t (*length)(const char *);
    int other;
    CHECK(flux__library_open("libflux-there-is-none.so.1") == NULL);
    void *self = flux__library_open(NULL);
    REQUIRE(self);
    CHECK(!flux__library_symbol(self, "flux_no_such_symbol", &length, sizeof length));
#ifndef _WIN32
    REQUIRE(flux__library_symbol(self, "strlen", &length, sizeof length));
    CHECK(length("four") == 4);
    CHECK(!flux__library_symbol(self, "strlen", &other, sizeof(char)));
#endif
    (void)other;
}

#ifndef FLUX_NO_THREADS
static int ended, mine_seen;
static int64_t total;
static void at_end(void *p) {             /* flux's own pointer is set in these threads, and still there when they end */
    flux__thread *t = (flux__thread *)p;
    flux__atomic_add32(&mine_seen, flux__tls_get() == (void *)t);
    flux__atomic_add32(&ended, 1);
}
static void (*flux_end)(void *);
static void end_both(void *p) {
    at_end(p);
    flux_end(p);
}
static void work(void *arg) {
    for (int i = 0; i < 10000; i++) flux__atomic_add(&total, (int64_t)1 << 33);
    if (arg) flux_seed(1);                /* makes the thread's state */
}

TEST(threads_atomics) {
    flux__os_thread t[4];
    int x = 5;
    flux__self();
    flux_end = flux__tls_end;
    flux__tls_end = end_both;
    for (int i = 0; i < 4; i++) REQUIRE(flux__thread_start(&t[i], work, i < 3 ? &x : NULL));
    for (int i = 0; i < 4; i++) flux__thread_join(&t[i]);
    flux__tls_end = flux_end;
    CHECK(total == 40000 * ((int64_t)1 << 33));
    CHECK(ended == 3 && mine_seen == 3);  /* the fourth had nothing to free */
    CHECK(!flux__atomic_cas32(&x, 4, 6) && x == 5);
    CHECK(flux__atomic_cas32(&x, 5, 6) && x == 6);
}

#ifndef _WIN32
/* A thread that still runs when the library is unloaded keeps its state: the code that would free it
   may be gone when the thread ends. */
static int has_state, may_end;
static void outlive(void *arg) {
    (void)arg;
    flux_seed(1);
    flux__atomic_store32(&has_state, 1);
    while (!flux__atomic_load32(&may_end)) flux__thread_yield();
}
TEST(threads_that_outlive_the_library) {
    int status = -1;
    flux__threads_stop();                 /* with other threads a child of fork may start none */
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        flux__os_thread t;
        flux__self();
        ended = 0, flux__tls_end = at_end;
        if (!flux__thread_start(&t, outlive, NULL)) _exit(2);
        while (!flux__atomic_load32(&has_state)) flux__thread_yield();
        flux__at_exit();
        flux__atomic_store32(&may_end, 1);
        flux__thread_join(&t);
        _exit(ended != 0);
    }
    REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(status == 0);
}
#endif
#endif

static int hits[3000], crooked;           /* crooked: scratch memory off its line, or missing; CHECK is for one thread */
static int64_t outer_sum;
static void hit(void *ctx, int64_t i) {
    void *p = flux__scratch(1000 + (size_t)i);
    if (!p || (uintptr_t)p % 64) flux__atomic_add32(&crooked, 1);
    if (p) memset(p, 1, 1000 + (size_t)i);
    flux__scratch_done(p);
    flux__atomic_add32((int *)ctx + i, 1);
}
static void nest(void *ctx, int64_t i) {
    flux__parallel(10, hit, (int *)ctx + 10 * i);
    flux__atomic_add(&outer_sum, i);
}
static bool all_once(int n) {
    for (int i = 0; i < n; i++)
        if (hits[i] != 1) return false;
    return true;
}

TEST(parallel_runs_each_once) {
    for (int threads = 1; threads <= 5; threads++) {
        flux_threads(threads);
        for (int n = 0; n < 300; n = n * 3 / 2 + 1) {
            memset(hits, 0, sizeof hits);
            flux__parallel(n, hit, hits);
            CHECK(all_once(n) && hits[n] == 0);
        }
        memset(hits, 0, sizeof hits);
        flux__parallel(100, nest, hits);
        CHECK(all_once(1000));
        flux__threads_stop();
        flux__threads_stop();
    }
    CHECK(outer_sum == 5 * 99 * 50 && crooked == 0);
    CHECK_ERROR(flux_threads(-1), "threads: -1");
    flux_threads(0);
}

#ifndef FLUX_NO_THREADS
static void user(void *arg) {
    for (int r = 0; r < 50; r++) flux__parallel(60, hit, (int *)arg);
}
TEST(parallel_from_several_threads) {
    flux__os_thread t[3];
    memset(hits, 0, sizeof hits);
    flux_threads(3);
    for (int i = 0; i < 3; i++) REQUIRE(flux__thread_start(&t[i], user, hits + 60 * i));
    flux_threads(2);                      /* while they are at it */
    for (int i = 0; i < 3; i++) flux__thread_join(&t[i]);
    for (int i = 0; i < 180; i++) CHECK(hits[i] == 50);
    flux_threads(0);
}

/* The first number waits until another thread has begun; that one finds a share of its own, the second half. */
static int first_of_other, taken;
static void share(void *ctx, int worker, int64_t i) {
    (void)ctx;
    if (worker > 0) flux__atomic_cas32(&first_of_other, -1, (int)i);
    for (double until = flux__now() + 10; worker == 0 && i == 0 && flux__atomic_load32(&first_of_other) < 0 && flux__now() < until;) flux__thread_yield();
    flux__atomic_add32(&taken, 1);
}
TEST(parallel_shares_lie_together) {
    flux_threads(2);
    for (int n = 2; n < 200; n += 11) {
        first_of_other = -1, taken = 0;
        flux__parallel_workers(n, share, NULL);
        CHECK(first_of_other == n / 2 && taken == n);
    }
    flux_threads(0);
}

/* Whoever works adopts the arithmetic of the job's caller, and of the next caller after that. */
static int modes_met;
static void meet_mode(void *ctx, int worker, int64_t i) {
    share(NULL, worker, i);
    if (((flux__float_mode() ^ *(unsigned *)ctx) & FLUX__ROUNDING) == 0) flux__atomic_add32(&modes_met, 1);
}
TEST(parallel_has_the_callers_arithmetic) {
    const unsigned own = flux__float_mode();
    if (!own) SKIP("no word of this processor's says how its arithmetic rounds");
    flux_threads(2);
    for (int n = 0; n < 6; n++) {
        unsigned mode = n % 2 ? own : own | FLUX__FLUSH;
        flux__set_float_mode(mode);
        first_of_other = -1, taken = modes_met = 0;
        flux__parallel_workers(2, meet_mode, &mode);
        flux__set_float_mode(own);
        CHECK(first_of_other == 1 && modes_met == 2);
    }
    flux_threads(0);
}

/* A share that was in none of the jobs until their numbers come again is whole then. */
static void parallel_job(int64_t number, int n) {
    flux__pool.job = number - 1;
    memset(hits, 0, sizeof hits);
    flux__parallel(n, hit, hits);
    CHECK(all_once(n));
}
TEST(parallel_numbers_of_jobs_come_again) {
    const int64_t end = (int64_t)1 << (63 - FLUX__SHARE_BITS);
    flux_threads(3);
    flux__parallel(3, hit, hits);
    for (int64_t number = end - 3; number < end + 3; number++) parallel_job(number < end ? number : number - end + 1, 3);
    parallel_job(5, 3);
    parallel_job(end, 2);
    CHECK(flux__pool.job == 1);
    parallel_job(5, 3);
    flux_threads(0);
}
#endif

/* ---- matrix product */

static uint64_t state = 88172645463325252u;
static int64_t below(int64_t n) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (int64_t)(state % (uint64_t)n);
}
typedef struct product {                  /* a random one; elements as double, the job's own in f32 or f64 */
    bool f64, pairs;                      /* pairs: of bf16 numbers */
    flux__gemm_job job;
    char *a, *b, *c;
    double *want, *seen;
    int64_t na, nb, nc, calls;
} product;
static double element(const product *p, const char *x, int64_t i) {
    return p->f64 ? ((const double *)(const void *)x)[i] : (double)((const float *)(const void *)x)[i];
}
/* An element of A or B: of a pair, one of the two. */
static double part(const product *p, const char *x, int64_t i, int half) {
    return p->pairs ? (double)flux__from_bits((uint32_t)((const uint16_t *)(const void *)x)[2 * i + half] << 16) : element(p, x, i);
}
static char *numbers(const product *p, int64_t n) {    /* exactly n of them, so that a sanitizer sees a step too far */
    size_t size = p->f64 ? 8 : 4;
    char *x = (char *)malloc((size_t)n * size + 1);
    for (int64_t i = 0; x && i < n; i++) {
        double v = (double)(below(201) - 100) / 100, w = (double)(below(201) - 100) / 100;
        if (p->f64) ((double *)(void *)x)[i] = v;
        else if (!p->pairs) ((float *)(void *)x)[i] = (float)v;
        else ((uint16_t *)(void *)x)[2 * i] = flux__bf16_of((float)v), ((uint16_t *)(void *)x)[2 * i + 1] = flux__bf16_of((float)w);
    }
    return x;
}
static void see(void *ctx, int worker, int64_t i0, int64_t j0, int64_t mb, int64_t nb, void *block, int64_t ld) {
    product *p = (product *)ctx;
    (void)worker;
    for (int64_t j = 0; j < nb; j++)
        for (int64_t i = 0; i < mb; i++) p->seen[i0 + i + (j0 + j) * p->job.m] += element(p, (char *)block, i + j * ld);
    flux__atomic_add(&p->calls, mb * nb);
}
static int64_t extent(int64_t n, int64_t step, int64_t m, int64_t other) {
    return n > 0 && m > 0 ? (n - 1) * step + (m - 1) * other + 1 : 0;
}
/* want = A B, m x n, column by column of A; the halves of pairs are two steps of k. */
static void multiply(product *p, int64_t m, int64_t n, int64_t k) {
    const flux__gemm_job *g = &p->job;
    double *column = (double *)malloc((size_t)m * sizeof *column + 1);
    REQUIRE(column && p->want);
    for (int64_t q = 0; q < k; q++)
        for (int half = 0; half <= p->pairs; half++) {
            for (int64_t i = 0; i < m; i++) column[i] = part(p, p->a, i * g->a_row + q * g->a_col, half);
            for (int64_t j = 0; j < n; j++) {
                double b = part(p, p->b, q * g->b_row + j * g->b_col, half), *to = p->want + j * m;
                for (int64_t i = 0; i < m; i++) to[i] += column[i] * b;
            }
        }
    free(column);
}
static void make(product *p, int64_t m, int64_t n, int64_t k, int how_a, int how_b) {
    flux__gemm_job *g = &p->job;
    int64_t gap = below(2) * below(9), ra[] = { 1, k + gap, 2 }, ca[] = { m + gap, 1, 2 * m + 3 };
    int64_t rb[] = { 1, n + gap, 3, 0 }, cb[] = { k + gap, 1, 3 * k + 1, 1 };
    memset(g, 0, sizeof *g);
    g->m = m, g->n = n, g->k = k, g->ldc = m + gap;
    g->a_row = ra[how_a], g->a_col = ca[how_a], g->b_row = rb[how_b], g->b_col = cb[how_b];
    p->na = extent(m, g->a_row, k, g->a_col), p->nb = extent(k, g->b_row, n, g->b_col);
    p->nc = extent(m, 1, n, g->ldc), p->calls = 0;
    g->a = p->a = numbers(p, p->na), g->b = p->b = numbers(p, p->nb), p->c = numbers(p, p->nc);
    g->c = p->c, g->ctx = p, g->pairs = p->pairs;
    p->want = (double *)calloc((size_t)(m * n) + 1, 8), p->seen = (double *)calloc((size_t)(m * n) + 1, 8);
    multiply(p, m, n, k);
}
static void drop(product *p) {
    free(p->a), free(p->b), free(p->c), free(p->want), free(p->seen);
}
static bool near_enough(const product *p, const double *want, double got, int64_t i) {
    return fabs(got - want[i]) <= (p->f64 ? 1e-14 : 1e-6) * (double)(p->job.k + 10);
}
static void check_product(int64_t m, int64_t n, int64_t k) {
    product p;
    int how_a = (int)below(3), how_b = (int)below(4), show = (int)below(3);
    p.f64 = below(2) != 0;
    p.pairs = !p.f64 && flux__simd() > 2 && below(2);
    make(&p, m, n, k, how_a, how_b);
    int64_t wrong = 0, gap_wrong = 0, gap = p.job.ldc - m;
    char *before = (char *)malloc((size_t)p.nc * 8 + 1);
    memcpy(before, p.c, (size_t)p.nc * (p.f64 ? 8 : 4));
    if (show > 0) p.job.epilogue = see;
    if (show == 2) p.job.c = NULL;
    CHECK(flux__gemm(p.f64, &p.job) == 0);
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < m; i++) {
            if (show != 2) wrong += !near_enough(&p, p.want, element(&p, p.c, i + j * p.job.ldc), i + j * m);
            if (show > 0) wrong += !near_enough(&p, p.want, p.seen[i + j * m], i + j * m);
        }
    for (int64_t j = 0; j + 1 < n && m > 0; j++)           /* what lies between the columns of C is not ours */
        for (int64_t i = 0; i < gap; i++)
            gap_wrong += element(&p, p.c, m + i + j * p.job.ldc) != element(&p, before, m + i + j * p.job.ldc);
    if (!CHECK(wrong == 0 && gap_wrong == 0 && p.calls == (show > 0 ? m * n : 0)))
        fprintf(stderr, "    f64 %d, pairs %d, %dx%dx%d, how %d %d, epilogue %d\n", p.f64, p.pairs, (int)m, (int)n, (int)k, how_a, how_b, show);
    free(before);
    drop(&p);
}
static int64_t some(void) {
    int64_t kind = below(6);
    return kind == 0 ? below(4) : kind == 1 ? 1 + below(20) : kind == 2 ? 16 * (1 + below(8)) : 1 + below(kind == 3 ? 200 : 70);
}

TEST(products_of_all_shapes) {
    int best = flux__simd_detect();
    for (int level = 0; level <= best; level++) {
        flux__simd_known = level + 1;
        flux_threads(level + 1);
        for (int i = 0; i < 250; i++) check_product(some(), some(), some());
        check_product(600, 40, 5);        /* more than a block, more than a chunk, strides that crowd the cache */
        check_product(40, 600, 5);
        check_product(33, 17, 2100);
        check_product(64, 40, 1024);
        check_product(1024, 70, 40);
        check_product(9, 8, 784);         /* less than a vector, and a little more */
        check_product(1029, 20, 530);
        check_product(35, 11, 1100);
        check_product(1, 500, 300);
        check_product(500, 1, 300);
        for (int i = 0; i < 12; i++) check_product(10, 64 + i, 256), check_product(64 + i, 3 + i, 301);   /* few columns, in many ways */
    }
    flux__simd_known = 0;
    flux_threads(0);
}

TEST(products_do_not_depend_on_the_threads) {
    int64_t shape[][3] = { { 150, 130, 700 }, { 10, 400, 600 }, { 700, 12, 90 }, { 1, 900, 900 }, { 513, 514, 515 },
                          { 1029, 70, 1100 }, { 9, 130, 784 }, { 535, 40, 30 }, { 520, 700, 300 } };
    for (int s = 0; s < (int)(sizeof shape / sizeof *shape); s++)
        for (int how = 0; how < 3; how++) {
            product p;
            p.f64 = how == 1, p.pairs = how == 2;
            if (p.pairs && flux__simd() < 3) continue;
            make(&p, shape[s][0], shape[s][1], shape[s][2], how % 2, 1 - how % 2);
            size_t bytes = (size_t)p.nc * (p.f64 ? 8 : 4);
            char *first = (char *)malloc(bytes);
            for (int threads = 1; threads <= 4; threads++) {
                flux_threads(threads);
                CHECK(flux__gemm(p.f64, &p.job) == 0);
                if (threads == 1) memcpy(first, p.c, bytes);
                else CHECK(memcmp(first, p.c, bytes) == 0);
            }
            free(first);
            drop(&p);
        }
    flux_threads(0);
}

/* Rows `at` ... at+n-1 of the longer side, made alone, are those of the whole product. */
static void check_rows_alone(product *p, int64_t at, int64_t n) {
    const int64_t size = p->f64 ? 8 : 4;
    const bool wide = p->job.inner_kernel > 2;
    flux__gemm_job part = p->job;
    char *c = (char *)malloc((size_t)(p->nc * size));
    int64_t wrong = 0, rows = wide ? p->job.m : n, columns = wide ? n : p->job.n;
    if (wide) part.b = (const char *)p->b + at * part.b_col * size, part.n = n;
    else part.a = (const char *)p->a + at * part.a_row * size, part.m = n;
    part.c = c;
    CHECK(flux__gemm(p->f64, &part) == 0);
    for (int64_t j = 0; j < columns; j++) {
        const char *whole = (const char *)p->c + (wide ? (at + j) * p->job.ldc : at + j * p->job.ldc) * size;
        wrong += memcmp(c + j * part.ldc * size, whole, (size_t)(rows * size)) != 0;
    }
    CHECK(wrong == 0);
    free(c);
}

TEST(sums_along_k_are_the_same_in_any_part) {
    static const int few[] = { 4, 6, 10, 13 };
    int best = flux__simd_detect();
    for (int level = 0; level <= best; level++)
        for (int how = 0; how < 16; how++) {
            product p;
            const int64_t n = few[how / 4], m = n + 20 + below(40), k = 40 + below(90);
            const bool wide = how % 2 != 0;
            flux__simd_known = level + 1;
            p.f64 = how / 2 % 2 != 0, p.pairs = false;
            make(&p, wide ? n : m, wide ? m : n, k, 1, 0);
            p.job.inner_kernel = wide ? 3 : 2;
            CHECK(flux__gemm(p.f64, &p.job) == 0);
            for (int64_t at = 0, some; at < m; at += some) some = flux__gemm_min(1 + below(9), m - at), check_rows_alone(&p, at, some);
            drop(&p);
        }
    flux__simd_known = 0;
}

/* The last vectors along k begin within those before: an infinity there counts once, and is not multiplied by zeros. */
TEST(sums_along_k_with_infinities) {
    enum { M = 24, N = 10, K = 37 };
    static float a[M * K], b[K * N], c[M * N];
    int best = flux__simd_detect();
    for (int i = 0; i < M * K; i++) a[i] = 1;
    for (int i = 0; i < K * N; i++) b[i] = 1;
    for (int level = 0; level <= best; level++)
        for (int dots = 2; dots <= 3; dots++)
            for (int at = 0; at < K; at++) {
                flux__simd_known = level + 1;
                flux__gemm_job g;
                int64_t wrong = 0, m = dots == 2 ? M : N, n = dots == 2 ? N : M;
                memset(&g, 0, sizeof g);
                g.m = m, g.n = n, g.k = K, g.a = dots == 2 ? a : b, g.b = dots == 2 ? b : a, g.c = c, g.ldc = m, g.inner_kernel = dots;
                g.a_row = K, g.a_col = 1, g.b_row = 1, g.b_col = K;
                a[5 * K + at] = INFINITY, b[3 * K + at] = 2;
                CHECK(flux__gemm(false, &g) == 0);
                for (int i = 0; i < M; i++)
                    for (int j = 0; j < N; j++) wrong += c[dots == 2 ? i + j * M : j + i * N] != (i == 5 ? INFINITY : (float)(j == 3 ? K + 1 : K));
                a[5 * K + at] = 1;
                b[3 * K + at] = INFINITY;
                CHECK(flux__gemm(false, &g) == 0);
                for (int i = 0; i < M; i++)
                    for (int j = 0; j < N; j++) wrong += c[dots == 2 ? i + j * M : j + i * N] != (j == 3 ? INFINITY : (float)K);
                b[3 * K + at] = 1;
                CHECK(wrong == 0);
            }
    flux__simd_known = 0;
}

TEST(product_without_memory) {
    product p;
    p.f64 = p.pairs = false;
    make(&p, 100, 90, 500, 1, 2);         /* must be copied */
    for (int threads = 1; threads <= 2; threads++) {
        flux_threads(threads);
        flux__threads_stop();             /* nor is there any memory kept from before */
        flux__test_memory_large(65536);
        CHECK_ERROR(CHECK(flux__gemm(false, &p.job) == -1), "matmul: out of memory for a product of 100x500 by 500x90");
        flux__test_memory_large(SIZE_MAX);
        CHECK(flux__gemm(false, &p.job) == 0);
    }
    drop(&p);
    p.f64 = true;
    make(&p, 10, 50, 1000, 2, 0);         /* as sums along k, for which A's rows must be copied */
    flux__threads_stop();
    flux__test_memory_large(65536);
    flux__gemm_plan plan;
    flux__gemm_plan_for(&plan, true, &p.job);
    if (flux__gemm_by_inner(&plan, &p.job) > 1) /* not with the shortest vectors */
        CHECK_ERROR(CHECK(flux__gemm(true, &p.job) == -1), "matmul: out of memory for a product of 10x1000 by 1000x50");
    flux__test_memory_large(SIZE_MAX);
    drop(&p);
    flux_threads(0);
}
/* The number and the text of the version say the same. */
TEST(version) {
    char text[40];
    snprintf(text, sizeof text, "%d.%d.%d", FLUX_VERSION / 10000, FLUX_VERSION / 100 % 100, FLUX_VERSION % 100);
    CHECK_STR(text, FLUX_VERSION_STRING);
    CHECK(flux_version() == FLUX_VERSION && FLUX_VERSION >= 100);
}

#ifdef __linux__
/* Those online, in the affinity mask and in the container's share, whichever is smallest. */
TEST(processors_that_may_be_used) {
    unsigned char mask[1024] = { 0 }, one[1024] = { 0 };
    int (*get)(int pid, size_t bytes, void *mask), (*set)(int pid, size_t bytes, const void *mask);
    void *library = flux__library_open(NULL);
    int want = (int)sysconf(_SC_NPROCESSORS_ONLN), share = flux__cgroup_processors(), n = 0;
    if (!flux__library_symbol(library, "sched_getaffinity", &get, sizeof get) ||
        !flux__library_symbol(library, "sched_setaffinity", &set, sizeof set) ||
        get(0, sizeof mask, mask) != 0) SKIP("no affinity mask here");
    for (int i = 0; i < 8 * 1024; i++) {
        if (!(mask[i / 8] >> i % 8 & 1)) continue;
        if (!n++) one[i / 8] = (unsigned char)(1 << i % 8);
    }
    CHECK(flux__allowed_processors() == n);
    want = n < want ? n : want;
    CHECK(flux__processors() == (share > 0 && share < want ? share : want));
    if (set(0, sizeof one, one) == 0) CHECK(flux__processors() == 1);
    CHECK(set(0, sizeof mask, mask) == 0);
}

/* What /sys/fs/cgroup/cpu.max may hold: "quota period" or "max period". */
TEST(numbers_of_a_file) {
    static const struct { const char *text; int n; long a, b; } cases[] = {
        { "300000 100000\n", 2, 300000, 100000 }, { "-1\n", 1, -1, 7 }, { "max 100000\n", 0, 7, 7 }, { "", 0, 7, 7 },
    };
    char path[300];
    snprintf(path, sizeof path, "%s/flux_numbers_%ld", test_temp(), (long)clock());
    for (int i = 0; i < 4; i++) {
        long a = 7, b = 7;
        FILE *f = fopen(path, "w");
        REQUIRE(f && fputs(cases[i].text, f) >= 0 && fclose(f) == 0);
        const int n = flux__file_numbers(path, &a, &b);
        CHECK((n == cases[i].n || (n < 0 && !cases[i].n)) && a == cases[i].a && b == cases[i].b);
    }
    remove(path);
    long a = 7, b = 7;
    CHECK(flux__file_numbers(path, &a, &b) == 0 && a == 7 && b == 7);
}
#endif

/* The inner dimension is cut into as few chunks of 2 KiB as it needs, all about as long; what is not longer than 3200 bytes is one. */
TEST(chunks_of_an_inner_dimension) {
    for (int f64 = 0; f64 < 2; f64++)
        for (int64_t k = 1; k < 5000; k++) {
            const int64_t size = f64 ? 8 : 4, need = k * size <= 3200 ? 1 : (k * size + 2047) / 2048, even = (k + need - 1) / need;
            flux__gemm_job g;
            flux__gemm_plan p;
            memset(&g, 0, sizeof g);
            memset(&p, 0, sizeof p);
            g.m = 100, g.n = 100, g.k = k, g.a_row = 1, g.a_col = 100, g.b_row = 1, g.b_col = k, g.ldc = 100;
            flux__gemm_plan_for(&p, f64 != 0, &g);
            if (!CHECK(p.chunk == (need == 1 ? k : (even + 7) / 8 * 8))) return;
        }
}

/* All strides of a reshape are given, and by them each element is found where it was, wherever dims of size 1 stand. */
TEST(strides_of_a_reshape) {
    static const int64_t dims[][3] = { { 12, 1, 1 }, { 3, 4, 1 }, { 2, 3, 2 }, { 6, 2, 1 }, { 2, 2, 3 } };
    int shown = 0;
    for (int i = 0; i < 5 * 5 * 64; i++) {
        flux_shape s[2];                  /* those dims with a 1 before, between or behind some of them */
        int64_t have[FLUX_MAX_DIMS], want[2][FLUX_MAX_DIMS], step = 1 + i % 2;
        for (int k = 0, ones = i % 64, row = i / 64; k < 2; k++, ones /= 8, row /= 5) {
            s[k] = flux__shape(NULL, 0);
            for (int d = 0; d < 3; d++) {
                if (ones >> d & 1) s[k].dim[s[k].ndim++] = 1;
                if (dims[row % 5][d] > 1) s[k].dim[s[k].ndim++] = dims[row % 5][d];
            }
        }
        for (int d = 0; d < s[0].ndim; d++) have[d] = step, step = (step + (i % 3 == 1)) * s[0].dim[d];      /* with gaps, or not */
        memset(want[0], 0x11, sizeof want[0]), memset(want[1], 0x77, sizeof want[1]);
        const bool can = flux__reshape_strides(&s[0], have, &s[1], want[0]), again = flux__reshape_strides(&s[0], have, &s[1], want[1]);
        CHECK(can == again && (can || i % 3 == 1));
        if (!can) continue;
        shown++;
        for (int d = 0; d < s[1].ndim; d++) CHECK(want[0][d] == want[1][d]);
        for (int64_t n = 0; n < 12; n++) {
            int64_t at[2] = { 0, 0 }, left[2] = { n, n };
            for (int d = 0; d < s[0].ndim; d++) at[0] += left[0] % s[0].dim[d] * have[d], left[0] /= s[0].dim[d];
            for (int d = 0; d < s[1].ndim; d++) at[1] += left[1] % s[1].dim[d] * want[0][d], left[1] /= s[1].dim[d];
            CHECK(at[0] == at[1]);
        }
    }
    CHECK(shown > 1000);
}

/* The parts of a direct convolution: together all positions, each a tile's or more; the tiles read nothing but the copy of windows two apart. */
TEST(parts_of_a_direct_convolution) {
    int planned[2] = { 0, 0 }, several = 0;
    for (int i = 0; i < 4000; i++) {
        const int64_t r[8] = { i * 7 % 90 + 1, i * 13 % 70 + 1, i % 5 + 1, i / 5 % 4 + 1, i / 20 % 6 + 1, i % 2 + 1, i / 2 % 3 + 1, i % 30 + 1 };   /* wide, high, window, channels, along, down, columns */
        const int64_t wide = i % 9 ? r[0] : r[0] * 100, high = i % 9 ? r[1] : 1, along = r[5], turn = i / 7 % 2 ? -1 : 1, line = along * wide + r[2];
        const flux__axes positions = { high > 1 ? 2 : 1, { wide, high }, { along, r[6] * line } }, taps = { 3, { r[2], r[3], r[4] }, { turn, turn * line, 1 << 20 } };
        flux__gemm_job g;
        flux__direct d;
        memset(&g, 0, sizeof g);
        g.m = wide * high, g.n = r[7], g.k = r[2] * r[3] * r[4];
        if (!flux__direct_plan(&d, &g, false, &positions, &taps)) continue;
        int64_t at = 0, i0, bad = 0, room = flux__direct_copy(&d);
        for (int64_t p = 0; p < d.parts; at += flux__direct_positions(&d, p++, &i0)) {
            const int64_t n = flux__direct_positions(&d, p, &i0), span = flux__direct_span(&d, p);
            bad += i0 != at || n < 1 || span < n || span < 2 * d.set->lanes || span > d.most;
            for (int64_t t = 0; t < d.runs && along == 2; t++) bad += d.start + d.at[t] < 0 || d.start + d.at[t] + span > room;
        }
        CHECK(!bad && at == g.m && g.n > 1 && d.runs * d.run == g.k && (along == 2) == (room > 0));
        planned[along - 1]++, several += d.parts > 1;
    }
    CHECK(planned[0] > 100 && planned[1] > 100 && several > 50);
}

/* Each rule and each number that it does not have, beside its first one. */
TEST(a_rule_refuses_each_number_that_it_has_not) {
    int refused = 0;
    for (int kind = 1; kind < FLUX__RULE_ROWS; kind++)
        for (int h = FLUX__ETA; h < FLUX__HYPERS; h++) {
            const flux__rule_row *row = &flux__rule_rows[kind];
            flux_rule_part part = flux_adam().part[0];
            if (flux__row_has(row, h) || !row->has[0].hyper) continue;
            part.kind = kind, part.o.n = FLUX__NO_INT;
            for (int i = FLUX__ETA; i < FLUX__HYPERS; i++)
                if (i != FLUX__EVERY) flux__hyper_set(&part.o, i, FLUX__NO_NUMBER);
            flux__hyper_set(&part.o, row->has[0].hyper, 1);
            flux__hyper_set(&part.o, h, 1);
            CHECK_ERROR((void)flux__resolve(&part), "has no");
            refused++;
        }
    CHECK(refused > 300);
}

#ifndef FLUX_NO_THREADS
/* As many as are asked for; 0: one for each processor. */
TEST(threads_are_as_many_as_are_asked_for) {
    for (int n = 3; n > 0; n--) {
        flux_threads(n);
        CHECK(flux__num_threads() == n);
    }
    flux_threads(0);
    CHECK(flux__num_threads() == flux__processors());
}
#endif

TEST(what_is_no_dtype_has_no_bytes) { CHECK(flux_dtype_size((flux_dtype)FLUX_NUM_DTYPES) == 0); }

/* Each kind of image, by its name. */
TEST(names_of_images) {
    static const char *const kinds[] = { "png", "jpg", "jpeg", "bmp", "tga", "gif", "psd", "pgm", "ppm", "pnm" };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char name[20];
        snprintf(name, sizeof name, "a.%s", kinds[i]);
        CHECK(flux__image_name(name));
        snprintf(name, sizeof name, "a.%sx", kinds[i]);
        CHECK(!flux__image_name(name));
    }
}

/* Times as a bar shows them: to the nearest second, hours from 3600 on, and 0 for what is none. */
TEST(times_of_a_bar) {
    static const struct { double s; const char *text; } rows[] = {
        { 0, "0:00" }, { 0.49, "0:00" }, { 0.5, "0:01" }, { 59.4, "0:59" }, { 59.5, "1:00" }, { 600, "10:00" }, { 3599.4, "59:59" }, { 3599.5, "1:00:00" },
        { 3661, "1:01:01" }, { 86399, "23:59:59" }, { 99999999, "27777:46:39" }, { 1e8, "0:00" }, { -1, "0:00" }, { -1e9, "0:00" }, { INFINITY, "0:00" }, { NAN, "0:00" } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[40];
        flux__time_text(rows[i].s, text, sizeof text);
        CHECK_STR(text, rows[i].text);
    }
}

TEST_MAIN()
