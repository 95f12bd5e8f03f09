/* uses.h - lines of use: short pieces of a program that are run as tests and shown on the page of `make docs`
   (src/docs/page.py). A block

       USE(flux_sum, flux_mean) { flux_tensor *s = flux_sum(x, 0); SHAPE(s, 1, 3); }

   belongs to the names in its brackets and must leave no error. What stands in a TEST before its first block is given to all of
   its blocks. SHAPE, VALUES and IS check what came out, and become comments on the page. */
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
static bool use_ends(const char *names, int line) {
    char what[200];
    snprintf(what, sizeof what, "an error in the lines of %.150s", names);
    test_check(!flux_failed(), __FILE__, line, what);
    flux_clear();
    return false;
}
#define USE(...) FLUX_SCOPE for (bool use = use_begins(); use; use = use_ends(#__VA_ARGS__, __LINE__))

#define SHAPE(t, ...) check_shape(t, FLUX_SHAPE(__VA_ARGS__), #t, __LINE__)
static void check_shape(flux_tensor *x, flux_shape want, const char *text, int line) {
    bool good = flux_ndim(x) == want.ndim;
    for (int i = 0; i < want.ndim; i++) good = good && flux_dim(x, i) == want.dim[i];
    test_check(good && flux_eval(x), __FILE__, line, text);
}
#define VALUES(t, ...) do { const double want[] = { __VA_ARGS__ }; CHECK_DATA(t, want, 1e-3); } while (0)
#define IS(value, want) test_check(test_close((double)(value), (double)(want), 1e-3), __FILE__, __LINE__, #value)
#endif
