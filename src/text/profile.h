#ifndef FLUX__TEXT_PROFILE_H
#define FLUX__TEXT_PROFILE_H
#include "../base/platform.h"
#include "../base/threads.h"
#include "../base/errors.h"
#include "../base/memory.h"
#include "../base/text.h"
#include "../schedule/profile.h"
#include "tensors.h"

/* ---------------------------------------------------------------------- text/profile.h
   flux_profile: the table of what schedule/profile.h has measured.

   Invariant: rows are sorted by their time, and at most FLUX__PROFILE_ROWS are
   shown; what is left out, and the time that an evaluation takes beside its
   kernels, have a line at the end, so that the shares add up. */

FLUX__BEGIN_COLD

enum { FLUX__PROFILE_ROWS = 40 };

/* The longest first. Rows of the same time, as a coarse clock has them, are ordered by what they
   are of, so that a table that is printed twice is the same: qsort keeps no order of equals. */
static int flux__profile_order(const void *a, const void *b) {
    const flux__profile_row *x = (const flux__profile_row *)a, *y = (const flux__profile_row *)b;
    if (x->seconds != y->seconds) return x->seconds > y->seconds ? -1 : 1;
    if (x->origin != y->origin) return x->origin < y->origin ? -1 : 1;
    return strcmp(x->what, y->what);
}

/* Writes a row: time, share of `all` seconds, count, Gmac/s, GB/s, result, and what it is. */
static void flux__put_profile_row(flux__sink *s, const flux__profile_row *row, double all) {
    char bytes[48], who[100];
    const double took = row->seconds > 0 ? row->seconds : 1e-9;    /* the clock stood still */
    flux_format_bytes(row->stored, bytes, sizeof bytes);
    flux__origin_text(row->origin, who, sizeof who);
    flux__putf(s, "%10.3f %5.1f %% %8lld", row->seconds * 1e3, 100 * row->seconds / all,
               (long long)row->count);
    if (row->madds) flux__putf(s, " %8.2f", (double)row->madds / took * 1e-9);
    else flux__putf(s, " %8s", "");
    flux__putf(s, " %7.2f  %10s  %s%s%s\n", (double)row->moved / took * 1e-9, bytes, who,
               *who ? ": " : "", row->what);
}

/* Writes the table. The rows are sorted in place, which changes nothing that others see. */
static void flux__put_profile(flux__sink *s) {
    flux__mutex_lock(&flux__profile_lock);
    flux__profile_row *row = flux__profile.row;
    const int n = flux__profile.nrow;
    double kernels = 0, rest = 0;
    int64_t count = 0;
    if (n) qsort(row, (size_t)n, sizeof *row, flux__profile_order);
    for (int i = 0; i < n; i++) {
        kernels += row[i].seconds, count += row[i].count;
        if (i >= FLUX__PROFILE_ROWS) rest += row[i].seconds;
    }
    /* a clock that does not tell times apart is not divided by */
    double all = flux__profile.evaluations > kernels ? flux__profile.evaluations : kernels;
    if (!(all > 0)) all = 1e-9;
    flux__putf(s, "profile: %.3f ms in %lld evaluations of %lld kernels\n", all * 1e3,
               (long long)flux__profile.count, (long long)count);
    flux__put(s, "        ms   share    times   Gmac/s    GB/s      result  layer: kernel\n");
    for (int i = 0; i < n && i < FLUX__PROFILE_ROWS; i++) flux__put_profile_row(s, &row[i], all);
    if (n > FLUX__PROFILE_ROWS)
        flux__putf(s, "%10.3f %5.1f %%  %d more rows\n", rest * 1e3, 100 * rest / all,
                   n - FLUX__PROFILE_ROWS);
    flux__putf(s, "%10.3f %5.1f %%  beside kernels: memory, launches, waiting\n",
               (all - kernels) * 1e3, 100 * (all - kernels) / all);
    flux__mutex_unlock(&flux__profile_lock);
}

FLUX_DEF void flux_profile_start(void) {
    (void)flux__profiling();              /* FLUX_PROFILE is asked for once, before this decides */
    flux__profile_clear();
    flux__atomic_store32(&flux__profile_on, 1);
}

FLUX_DEF void flux_profile_stop(void) { flux__atomic_store32(&flux__profile_on, 0); }

FLUX_DEF size_t flux_profile_text(char *out, size_t n) {
    flux__sink s = flux__sink_to(out, n);
    flux__put_profile(&s);
    return flux__sink_end(&s);
}

FLUX_DEF void flux_print_profile(void) {
    flux__sink s = flux__sink_stdout();
    flux__put_profile(&s);
}

FLUX_DEF void flux_profile(void (*f)(void *user), void *user) {
    if (!f) {
        flux__fail("profile: the function is NULL");
        return;
    }
    flux_profile_start();
    f(user);
    flux_profile_stop();
    flux_print_profile();
}

/* At the end of the program: prints what FLUX_PROFILE asked for, and frees all. */
static void flux__profile_end(void) {
    if (flux__profile.at_end && flux__profile.count) {
        const size_t n = flux_profile_text(NULL, 0);
        char *all = (char *)flux__malloc(n + 1);
        if (all) flux_profile_text(all, n + 1), fputs(all, stderr);
        flux__free(all);
    }
    flux__profile_free();
}

FLUX__END_COLD

#endif /* FLUX__TEXT_PROFILE_H */
