#ifndef FLUX__SCHEDULE_TRACE_H
#define FLUX__SCHEDULE_TRACE_H
#include "../base/platform.h"
#include "../base/threads.h"
#include "../base/system.h"
#include "../base/errors.h"
#include "../base/sinks.h"

/* ---------------------------------------------------------------------- schedule/trace.h
   FLUX_TRACE=file.json: what ran when, one event a kernel, in the format of
   chrome://tracing, which ui.perfetto.dev reads.

   Invariant: the file is written under flux__trace_lock, and after the first
   question flux__tracing costs one atomic load where no trace is asked for.
   Numbers are written without the locale's decimal point. The closing bracket,
   which readers do not insist on, is written at shutdown only, so that the file
   of a program that crashed shows how far it came. A forked child writes no
   trace: the file is its parent's. */

FLUX__BEGIN_COLD

static flux__mutex flux__trace_lock = FLUX__MUTEX_INIT;
static struct { FILE *file; bool known, started; int rank; } flux__trace;
static int flux__trace_no;                /* 1: it is known that FLUX_TRACE asks for nothing */

static void flux__trace_warn(const char *what) {
    const char *path = flux__env("FLUX_TRACE");
    flux__note(FLUX_LOG_WARN, "trace", true, "FLUX_TRACE=%s %s", path ? path : "", what);
}

/* Opens the file; that of a rank other than 0 has its number behind the name. */
static void flux__trace_open(const char *path) {
    char own[1024];
    const int n = flux__trace.rank
        ? snprintf(own, sizeof own, "%s.%d", path, flux__trace.rank) : 0;
    flux__trace.file = n < (int)sizeof own ? flux__fopen(n ? own : path, "wb") : NULL;
    flux__trace.started = false;
    if (flux__trace.file) fputs("[", flux__trace.file);
}

static bool flux__tracing(void) {
    if (flux__atomic_load32(&flux__trace_no)) return false;
    flux__mutex_lock(&flux__trace_lock);
    const char *path = flux__trace.known ? NULL : flux__env("FLUX_TRACE");
    flux__trace.known = true;
    if (path && *path) flux__trace_open(path);
    bool on = flux__trace.file != NULL, failed = path && *path && !on;
    flux__atomic_store32(&flux__trace_no, !on);
    flux__mutex_unlock(&flux__trace_lock);
    if (failed) flux__trace_warn("cannot be written: nothing is traced");
    return on;
}

/* Says which of several processes this is: each writes a file of its own, under its own number. */
FLUX__UNUSED static void flux__trace_rank(int rank) {
    flux__mutex_lock(&flux__trace_lock);
    flux__trace.rank = rank;
    const bool anew = flux__trace.file && rank;
    if (anew) {                           /* it was opened before ranks were known: rank 0's now */
        fclose(flux__trace.file);
        flux__trace_open(flux__env("FLUX_TRACE"));
    }
    const bool failed = anew && !flux__trace.file;
    flux__mutex_unlock(&flux__trace_lock);
    if (failed) flux__trace_warn("cannot be written: nothing is traced");
}

/* Ends the file. A full disk is seen here, if not before. */
static void flux__trace_close(void) {
    bool good = true;
    flux__mutex_lock(&flux__trace_lock);
    if (flux__trace.file) {
        fputs("\n]\n", flux__trace.file);
        good = !ferror(flux__trace.file);
        good = fclose(flux__trace.file) == 0 && good;
    }
    flux__trace.file = NULL;
    flux__mutex_unlock(&flux__trace_lock);
    if (!good) flux__trace_warn("could not be written to its end");
}

#if !defined(FLUX_NO_THREADS) && !defined(_WIN32)
static void flux__trace_fork(int when) {
    flux__fork_lock(&flux__trace_lock, when);
    if (when != FLUX__FORK_CHILD) return;
    /* the file belongs to the parent process */
    flux__trace_no = flux__trace_no || flux__trace.file;
    flux__trace.file = NULL;
}
#endif

/* Writes an event that lasted from `start` to `end` (flux__now, in seconds) as one of the row
   `track` of its process. Microseconds are written from integers, so that the locale's decimal
   point does not get in. */
static void flux__trace_span(const char *kind, const char *name, double start, double end,
                             int64_t bytes, const char *device, unsigned track) {
    int64_t at = (int64_t)(start * 1e9), ns = (int64_t)((end - start) * 1e9);
    flux__mutex_lock(&flux__trace_lock);
    if (flux__trace.file) {
        fprintf(flux__trace.file,
                "%s\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%u,\"cat\":\"%s\",\"name\":\"%s\","
                "\"ts\":%lld.%03d,\"dur\":%lld.%03d,"
                "\"args\":{\"bytes\":%lld,\"device\":\"%s\"}}",
                flux__trace.started ? "," : "", flux__trace.rank + 1, track, kind, name,
                (long long)(at / 1000), (int)(at % 1000), (long long)(ns / 1000), (int)(ns % 1000),
                (long long)bytes, device);
        flux__trace.started = true;
    }
    flux__mutex_unlock(&flux__trace_lock);
}

/* The same of this thread, until now. */
static void flux__trace_event(const char *kind, const char *name, double start, int64_t bytes,
                              const char *device) {
    unsigned thread = (unsigned)((uintptr_t)flux__self() >> 6 & 0xffff);
    flux__trace_span(kind, name, start, flux__now(), bytes, device, thread);
}

FLUX__END_COLD

#endif /* FLUX__SCHEDULE_TRACE_H */
