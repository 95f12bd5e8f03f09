/* control.c - counts of calls, and faults and delays on request. */
#define _GNU_SOURCE
#include "softgpu.h"
#include "control.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct fault { char name[64]; int nth, code; } fault;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static soft_point *points;
static fault faults[64];
static int nfaults, have_read_environment, late;

static void add_fault(const char *name, size_t n, int nth, int code) {
    if (nfaults == 64 || n >= sizeof faults->name) return;
    memcpy(faults[nfaults].name, name, n);
    faults[nfaults].name[n] = 0;
    faults[nfaults].nth = nth < 1 ? 1 : nth;
    faults[nfaults++].code = code;
}

/* SOFTGPU_LATE=microseconds, SOFTGPU_FAIL=function:nth=code,... */
static void read_environment(void) {
    const char *p = getenv("SOFTGPU_FAIL"), *l = getenv("SOFTGPU_LATE");
    have_read_environment = 1;
    late = l ? atoi(l) : 0;
    while (p && *p) {
        size_t n = strcspn(p, ":=,");
        const char *name = p;
        int nth = 1, code = 0;
        p += n;
        if (*p == ':') nth = (int)strtol(p + 1, (char **)&p, 10);
        if (*p == '=') code = (int)strtol(p + 1, (char **)&p, 10);
        if (code) add_fault(name, n, nth, code);
        p += strcspn(p, ",");
        p += *p == ',';
    }
}

static int take_fault(const char *name) {
    int code = 0;
    for (int i = 0; i < nfaults; i++) {
        if (strcmp(faults[i].name, name) || --faults[i].nth) continue;
        code = faults[i].code;
        faults[i--] = faults[--nfaults];
    }
    return code;
}

int soft_enter(soft_point *p) {
    int code = 0;
    pthread_mutex_lock(&lock);
    if (!have_read_environment) read_environment();
    if (!p->calls) {                           /* first seen, or first since a reset */
        soft_point *q = points;
        while (q && q != p) q = q->next;
        if (!q) p->next = points, points = p;
    }
    p->calls++;
    if (nfaults) code = take_fault(p->name);
    pthread_mutex_unlock(&lock);
    if (late) usleep((useconds_t)late);
    return code;
}

void softgpu_fail(const char *function, int nth, int code) {
    pthread_mutex_lock(&lock);
    if (!have_read_environment) read_environment();
    add_fault(function, strlen(function), nth, code);
    pthread_mutex_unlock(&lock);
}

long softgpu_calls(const char *function) {
    long n = 0;
    pthread_mutex_lock(&lock);
    for (soft_point *p = points; p; p = p->next)
        if (!strcmp(p->name, function)) n += p->calls;
    pthread_mutex_unlock(&lock);
    return n;
}

void softgpu_reset_counts(void) {              /* and forgets faults that have not come up */
    pthread_mutex_lock(&lock);
    if (!have_read_environment) read_environment();
    for (soft_point *p = points; p; p = p->next) p->calls = 0;
    nfaults = 0;
    pthread_mutex_unlock(&lock);
}

long softgpu_live(const char *what) {
    if (late) usleep((useconds_t)late);        /* what a test sees is as late as what it calls */
    return soft_live(what);
}
