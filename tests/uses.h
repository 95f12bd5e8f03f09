/* uses.h - lines of use: short pieces of a program that are run as tests and shown on the page of `make docs`
   (src/docs/page.py). A block

       USE(flux_sum, flux_mean) { flux_tensor *s = flux_sum(x, 0); SHAPE(s, 1, 3); }

   belongs to the names in its brackets and must leave no error. What stands in a TEST before its first block is given to all of
   its blocks. SHAPE, VALUES and IS check what came out, and become comments on the page. */
#ifndef FLUX_USES_H
#define FLUX_USES_H
#if !defined(_WIN32) && !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#include "test.h"

#ifndef _WIN32
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#endif

/* Files are written in a folder of their own, which is removed at the end. */
static char folder[400];
static void remove_files(void) {
    char path[800];
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (!strcmp(e->d_name, "pets")) unlink("pets/cats/1.pgm"), rmdir("pets/cats");
        if (unlink(path)) rmdir(path);
    }
    if (d) closedir(d), rmdir(folder);
}
static bool use_begins(void) {
    if (*folder) return true;
    snprintf(folder, sizeof folder, "%s/flux-uses-XXXXXX", test_temp());
    test_check(mkdtemp(folder) && !chdir(folder) && !atexit(remove_files), __FILE__, __LINE__, "a folder for files");
    return true;
}
#ifndef USE_FAULTS
static bool use_ends(const char *names, int line) {
    char what[200];
    snprintf(what, sizeof what, "an error in the lines of %.150s", names);
    test_check(!flux_failed(), __FILE__, line, what);
    flux_clear();
    return false;
}
#define USE(...) FLUX_SCOPE for (bool use = use_begins(); use; use = use_ends(#__VA_ARGS__, __LINE__))
#else
/* Each block is run with its first allocation failing alone, then with all failing, then from the second one on, and so on until
   none fails, when it must do what it should. Before that it may do anything but crash, leave something behind (test.h), fail
   without a word, or give another code than 0 and -1. But what
   flux_from_dlpack does not take stays the block's, and a communicator ends once. */
#define puts(text) put_line(text)
static void put_line(const char *text) { printf("%s\n", text ? text : "nothing"); }
static int use_bad, use_refused, use_wrong, use_out;
static void fault_is(double value, double want, const char *file, int line, const char *text) {
    test_check(test_close(value, want, 1e-3), file, line, text);
    if (want == 0 && value == floor(value) && value != 0 && value != -1) use_wrong++;
}
static bool fault_begins(long k) {
    const flux_device cpu = { 0, 0 };
    use_begins();
    flux_mem_trim(cpu);
    use_bad = test_bad, test_bad = 1000, use_wrong = 0;        /* it says nothing */
    fflush(stdout);
    use_out = dup(1);
    const int none = open("/dev/null", O_WRONLY);
    dup2(none, 1), close(none);
    flux_on_error(test_silent, NULL);
    if (k % 2) flux__test_memory(k / 2);
    else flux__test_memory_once(k / 2);
    return true;
}
static bool fault_ends(const char *names, int line) {
    char what[200];
    const int bad = test_bad - 1000;
    use_refused = flux__test_refused();
    flux__test_memory(-1);
    fflush(stdout);
    dup2(use_out, 1), close(use_out);
    test_bad = use_bad;
    snprintf(what, sizeof what, "with%s memory for all the lines of %.120s do %s", use_refused ? "out" : "", names,
             use_refused ? "less, and say nothing" : "not what they should");
    test_check(!bad || (use_refused && flux_failed()), __FILE__, line, what);
    if (use_wrong) test_check(false, __FILE__, line, names), test_check(false, __FILE__, line, "give a code that is not -1");
    flux_clear();
    flux_on_error(NULL, NULL);
    return false;
}
/* The number of the first allocation to fail, and of the next one, -1: none. Once nothing has failed, plans are kept, and less
   is allocated, some of it elsewhere: a second round begins. */
static bool use_again;
static long fault_first(const char *names) {
    use_again = false;
    return strstr(names, "from_dlpack") || strstr(names, "distributed_end") ? 1L << 24 : 0;
}
static long fault_next(long k) {
    if (use_refused) return k + 1 + k / 200;
    return k < 1L << 24 && (use_again = !use_again) ? 0 : -1;
}
#define USE(...) for (long use_k = fault_first(#__VA_ARGS__); use_k >= 0; use_k = fault_next(use_k)) \
    FLUX_SCOPE for (bool use = fault_begins(use_k); use; use = fault_ends(#__VA_ARGS__, __LINE__))
#endif

#define SHAPE(t, ...) check_shape(t, FLUX_SHAPE(__VA_ARGS__), #t, __LINE__)
static void check_shape(flux_tensor *x, flux_shape want, const char *text, int line) {
    bool good = flux_ndim(x) == want.ndim;
    for (int i = 0; i < want.ndim; i++) good = good && flux_dim(x, i) == want.dim[i];
    test_check(good && flux_eval(x), __FILE__, line, text);
}
#define VALUES(t, ...) do { const double want[] = { __VA_ARGS__ }; CHECK_DATA(t, want, 1e-3); } while (0)
#ifdef USE_FAULTS
#define IS(value, want) fault_is((double)(value), (double)(want), __FILE__, __LINE__, #value)
#else
#define IS(value, want) test_check(test_close((double)(value), (double)(want), 1e-3), __FILE__, __LINE__, #value)
#endif
#endif
#endif
