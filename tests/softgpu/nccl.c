/* nccl.c - NCCL and RCCL made of software: collectives between processes, each with a software GPU of its own.

   A communicator is a folder, named by the unique id; operation number k of rank r is a file "k.r" there, made in one piece:
   what the rank calls, then its elements. An operation is a part of the queue of the stream that it was called with (link.h):
   nothing is read before all that stands before it is done, and nothing is written before all ranks have come. So a
   program that forgets an event reads or sends what was not computed. As a device goes on by itself, and a program does
   not, a thread here does a rank's part when another rank has come and waits for it.

   What NCCL forbids, and what there ends in a hang, a crash or wrong sums, is told on stderr, is the communicator's error,
   and leaves bytes of 0xFF in place of a result: ranks that differ in operation, count, type, reduction, root or group;
   memory that is in no allocation of the communicator's device when it is called or when it runs; another device's stream
   or another current device; overlapping buffers; a call before the last one is no longer in progress (communicators that do not
   block), in a group that was not begun, after the end or an abort; an init with a wrong rank, another size, or a GPU that
   another rank has. What is called of a stream that is being captured is part of the graph, and done whenever that is launched;
   that a graph was captured, and when, must be the same on all ranks, and there must be none when a communicator ends or is
   aborted, as the real ones wait for its end. Minimum and maximum leave out NaN, as the real ones do.

   Environment, beside that of softgpu.h (SOFTGPU_FAIL=ncclAllReduce:2=3: the second call returns 3; "async" is an operation
   whose failure the communicator tells later):
     SOFTNCCL_FOLDER=/dev/shm   where communicators are
     SOFTNCCL_HANG=             RANK:NUMBER: this rank never does its part of operation NUMBER, counted from 0
     SOFTNCCL_TIMEOUT=60        seconds after which an init, or an end, that waits for others is given up */
#define _GNU_SOURCE
#include "softgpu.h"
#include "control.h"
#include "link.h"
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#if defined SOFT_CUDA
#define DRIVER "libcuda.so.1"
#else
#define DRIVER "libamdhip64.so.6"
#endif
#define LIVE 0x736f66746e63636cu
#define DEAD 0x646561646e63636cu

enum { SUCCESS, UNHANDLED, SYSTEM, INTERNAL, INVALID_ARGUMENT, INVALID_USAGE, REMOTE, IN_PROGRESS };
enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, TYPES };
enum { SUM, PROD, MAX, MIN, AVG, OPS };
enum { ALLREDUCE, BROADCAST, REDUCE, ALLGATHER, REDUCE_SCATTER };
static const char *const kind_names[] = { "AllReduce", "Broadcast", "Reduce", "AllGather", "ReduceScatter" };
static const char *const type_names[] = { "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16" };
static const size_t type_sizes[] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2 };
static const char *const op_names[] = { "sum", "prod", "max", "min", "avg" };

typedef struct unique_id { char text[128]; } unique_id;
typedef struct config { size_t size; unsigned magic, version; int blocking; } config;   /* how all versions of it begin */

/* What a rank calls: the head of its file. */
typedef struct head { int32_t kind, type, op, root, group, groups; int64_t count, captured; } head;     /* captured: see comm */

typedef struct comm comm;
typedef struct work {
    struct work *next;
    comm *c;
    head head;
    uint64_t number, at, send, recv;           /* of the operation; where in the stream's queue */
    void *stream;
    bool posted;
    long held;                                 /* of what was captured: captures and graphs that have it */
} work;
struct comm {
    uint64_t magic;
    comm *next;
    int rank, size, device;
    char folder[300];
    uint64_t issued, done;
    int64_t captured;                          /* operations captured so far, which are counted from 1 */
    long held;                                 /* of these, the ones that a capture or a graph still has */
    work *first, **last;                       /* queued, not done */
    int error;                                 /* what GetAsyncError gives */
    bool blocking, ready, busy, finalized, aborted;
    char text[300];
};
typedef struct start { int32_t size, physical; char host[64]; } start;       /* the file "init.r" */

static const soft_link_table *driver;
static comm *comms;                            /* all, dead ones too; the driver's lock guards what is here */
static long complaints;
static _Thread_local int depth;                /* of groups */
static _Thread_local int group_error;
static _Thread_local work *group_first, **group_last;

#define EXPORT SOFT_EXPORT int
EXPORT ncclGetVersion(int *version);
EXPORT ncclGetUniqueId(unique_id *id);
EXPORT ncclCommInitRank(comm **c, int size, unique_id id, int rank);
EXPORT ncclCommInitRankConfig(comm **c, int size, unique_id id, int rank, config *how);
EXPORT ncclCommFinalize(comm *c);
EXPORT ncclCommDestroy(comm *c);
EXPORT ncclCommAbort(comm *c);
EXPORT ncclCommGetAsyncError(comm *c, int *error);
EXPORT ncclCommCount(const comm *c, int *count);
EXPORT ncclCommUserRank(const comm *c, int *rank);
EXPORT ncclAllReduce(const void *send, void *recv, size_t n, int type, int op, comm *c, void *stream);
EXPORT ncclBroadcast(const void *send, void *recv, size_t n, int type, int root, comm *c, void *stream);
EXPORT ncclReduce(const void *send, void *recv, size_t n, int type, int op, int root, comm *c, void *stream);
EXPORT ncclAllGather(const void *send, void *recv, size_t n, int type, comm *c, void *stream);
EXPORT ncclReduceScatter(const void *send, void *recv, size_t n, int type, int op, comm *c, void *stream);
EXPORT ncclGroupStart(void);
EXPORT ncclGroupEnd(void);
SOFT_EXPORT const char *ncclGetErrorString(int code);
SOFT_EXPORT const char *ncclGetLastError(comm *c);

/* ---------------- the driver, and complaints */

static bool find_driver(void) {
    Dl_info info;
    char path[4096];
    static const int here = 0;
    if (driver) return true;
    const char *slash = dladdr(&here, &info) && info.dli_fname ? strrchr(info.dli_fname, '/') : NULL;
    snprintf(path, sizeof path, "%.*s" DRIVER, slash ? (int)(slash + 1 - info.dli_fname) : 0, slash ? info.dli_fname : "");
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    driver = library ? (const soft_link_table *)dlsym(library, "soft_link") : NULL;
    if (!driver) fprintf(stderr, "softnccl: no software driver: %s\n", path);
    return driver != NULL;
}

static int complain(comm *c, int code, const char *format, ...) {
    va_list more;
    char text[300];
    va_start(more, format);
    vsnprintf(text, sizeof text, format, more);
    va_end(more);
    complaints++;
    if (c && !c->error) c->error = code;
    if (c) memcpy(c->text, text, sizeof text);
    if (!getenv("SOFTGPU_QUIET")) {
        if (c) fprintf(stderr, "softnccl: rank %d: %s\n", c->rank, text);
        else fprintf(stderr, "softnccl: %s\n", text);
    }
    return code;
}

static bool is_live(const comm *c) {
    for (const comm *d = comms; d; d = d->next)
        if (d == c) return c->magic == LIVE;
    return false;
}

long soft_live(const char *what) {
    long n = 0;
    if (!driver) return 0;
    driver->lock();
    for (comm *c = comms; c; c = c->next) {
        if (c->magic != LIVE) continue;
        if (!strcmp(what, "comms")) n++;
        if (!strcmp(what, "operations")) n += (long)(c->issued - c->done);
    }
    if (!strcmp(what, "complaints")) n = complaints;
    driver->unlock();
    return n;
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
static double patience(void) {
    const char *s = getenv("SOFTNCCL_TIMEOUT");
    return s && *s ? atof(s) : 60;
}

/* ---------------- files of a communicator */

static void path_of(const comm *c, uint64_t number, int rank, char *out, size_t n) {
    snprintf(out, n, "%s/%llu.%d", c->folder, (unsigned long long)number, rank);
}
static bool there(const comm *c, uint64_t number, int rank) {
    char path[400];
    path_of(c, number, rank, path, sizeof path);
    return access(path, R_OK) == 0;
}

static bool put_file(const char *folder, const char *path, const void *a, size_t na, const void *b, size_t nb) {
    char temporary[400];
    snprintf(temporary, sizeof temporary, "%s/new.%ld.XXXXXX", folder, (long)getpid());
    int fd = mkstemp(temporary);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "wb");
    bool ok = f && fwrite(a, 1, na, f) == na && (!nb || fwrite(b, 1, nb, f) == nb);
    if (f) ok = fclose(f) == 0 && ok;
    ok = ok && link(temporary, path) == 0;     /* fails if it is there */
    if (fd >= 0) unlink(temporary);
    return ok;
}

static bool get_file(const char *path, void *a, size_t na, void *b, size_t nb) {
    FILE *f = fopen(path, "rb");
    bool ok = f && fread(a, 1, na, f) == na && (!nb || fread(b, 1, nb, f) == nb);
    if (f) fclose(f);
    return ok;
}

/* This rank leaves the folder; the last one removes it, since others may still read what this one has there. */
static void leave_files(const comm *c) {
    char path[600];
    snprintf(path, sizeof path, "%s/left.%d", c->folder, c->rank);
    put_file(c->folder, path, "", 0, NULL, 0);
    for (int r = 0; r < c->size; r++) {
        snprintf(path, sizeof path, "%s/left.%d", c->folder, r);
        if (access(path, R_OK)) return;
    }
    DIR *d = opendir(c->folder);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        snprintf(path, sizeof path, "%.299s/%.255s", c->folder, e->d_name);
        if (*e->d_name != '.') unlink(path);
    }
    if (d) closedir(d);
    rmdir(c->folder);
}

/* ---------------- arithmetic: folded in the order of ranks, so that all have the same bits */

static float from_half(uint16_t h) {
    const int e = h >> 10 & 31, m = h & 1023;
    float x = e == 31 ? (m ? __builtin_nanf("") : __builtin_inff()) : e ? (float)(1024 + m) : (float)m;
    for (int i = e ? e : 1; e != 31 && i < 25; i++) x *= 0.5f;
    for (int i = 25; e != 31 && i < e; i++) x *= 2;
    return h & 0x8000 ? -x : x;
}
/* Rounds to the nearest, ties to even. */
static uint16_t to_half(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    const uint32_t sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (a >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    const int e = (int)(a >> 23) - 127, shift = e < -14 ? 13 + (-14 - e) : 13;
    if (shift > 24) return (uint16_t)sign;
    const uint32_t m = (a & 0x7fffff) | 0x800000, half = 1u << (shift - 1), low = m & ((1u << shift) - 1);
    uint32_t r = m >> shift;
    if (low > half || (low == half && (r & 1))) r++;
    return (uint16_t)(sign | (e < -14 ? r : r - 1024 + ((uint32_t)(e + 15) << 10)));
}
static float from_bf16(uint16_t h) {
    const uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, 4);
    return x;
}
static uint16_t to_bf16(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 64);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

#define REAL(T, a, b) (op == SUM || op == AVG ? (T)((a) + (b)) : op == PROD ? (T)((a) * (b)) :                    \
                       (a) != (a) ? (b) : (b) != (b) ? (a) : op == MAX ? ((a) > (b) ? (a) : (b)) : ((a) < (b) ? (a) : (b)))
#define WHOLE(T, U, a, b) (op == SUM || op == AVG ? (T)(U)((U)(a) + (U)(b)) : op == PROD ? (T)(U)((U)(a) * (U)(b)) : \
                           op == MAX ? ((a) > (b) ? (a) : (b)) : ((a) < (b) ? (a) : (b)))
#define FOLD_REAL(T) for (size_t i = 0; i < n; i++) ((T *)to)[i] = REAL(T, ((T *)to)[i], ((const T *)from)[i])
#define FOLD_WHOLE(T, U) for (size_t i = 0; i < n; i++) ((T *)to)[i] = WHOLE(T, U, ((T *)to)[i], ((const T *)from)[i])
#define FOLD_HALF(name)                                                                                           \
    for (size_t i = 0; i < n; i++) {                                                                              \
        const float a = from_##name(((uint16_t *)to)[i]), b = from_##name(((const uint16_t *)from)[i]);          \
        ((uint16_t *)to)[i] = to_##name(REAL(float, a, b));                                                       \
    }
static void fold(int type, int op, void *to, const void *from, size_t n) {
    switch (type) {
    case INT8: FOLD_WHOLE(int8_t, uint8_t); break;
    case UINT8: FOLD_WHOLE(uint8_t, unsigned); break;
    case INT32: FOLD_WHOLE(int32_t, uint32_t); break;
    case UINT32: FOLD_WHOLE(uint32_t, uint32_t); break;
    case INT64: FOLD_WHOLE(int64_t, uint64_t); break;
    case UINT64: FOLD_WHOLE(uint64_t, uint64_t); break;
    case FLOAT32: FOLD_REAL(float); break;
    case FLOAT64: FOLD_REAL(double); break;
    case FLOAT16: FOLD_HALF(half); break;
    default: FOLD_HALF(bf16); break;
    }
}
static void divide(int type, void *to, size_t n, int by) {
    for (size_t i = 0; i < n; i++)
        switch (type) {
        case FLOAT32: ((float *)to)[i] /= (float)by; break;
        case FLOAT64: ((double *)to)[i] /= by; break;
        case FLOAT16: ((uint16_t *)to)[i] = to_half(from_half(((uint16_t *)to)[i]) / (float)by); break;
        case BFLOAT16: ((uint16_t *)to)[i] = to_bf16(from_bf16(((uint16_t *)to)[i]) / (float)by); break;
        case INT32: ((int32_t *)to)[i] /= by; break;
        case INT64: ((int64_t *)to)[i] /= by; break;
        case UINT8: ((uint8_t *)to)[i] = (uint8_t)(((uint8_t *)to)[i] / by); break;
        default: break;
        }
}

/* ---------------- an operation in its stream's turn */

static size_t bytes_of(const head *h) { return (size_t)h->count * type_sizes[h->type]; }
/* Bytes that a rank reads and writes. */
static size_t sent(const comm *c, const head *h, int rank) {
    if (h->kind == BROADCAST && rank != h->root) return 0;
    return bytes_of(h) * (h->kind == REDUCE_SCATTER ? (size_t)c->size : 1);
}
static size_t received(const comm *c, const head *h) {
    if (h->kind == REDUCE && c->rank != h->root) return 0;
    return bytes_of(h) * (h->kind == ALLGATHER ? (size_t)c->size : 1);
}

static void say(const head *h, char *out, size_t n) {
    const bool folds = h->kind == ALLREDUCE || h->kind == REDUCE || h->kind == REDUCE_SCATTER;
    char captured[60] = "";
    if (h->captured) snprintf(captured, sizeof captured, ", captured as number %lld", (long long)h->captured);
    snprintf(out, n, "%s %s of %lld %s, root %d, number %d of a group of %d%s", kind_names[h->kind], folds ? op_names[h->op] : "",
             (long long)h->count, type_names[h->type], h->root, h->group, h->groups, captured);
}

static void spoil(work *w) {
    const size_t n = received(w->c, &w->head);
    void *bad = malloc(n + 1);
    if (bad && n && driver->holds(w->c->device, w->recv, n)) memset(bad, 0xFF, n), driver->write(w->c->device, w->recv, bad, n);
    free(bad);
}

static bool in_memory(work *w) {
    const size_t s = sent(w->c, &w->head, w->c->rank), r = received(w->c, &w->head);
    return (!s || driver->holds(w->c->device, w->send, s)) && (!r || driver->holds(w->c->device, w->recv, r));
}

/* Puts this rank's part where the others find it. */
static bool post(work *w) {
    comm *c = w->c;
    char path[400];
    const size_t n = sent(c, &w->head, c->rank);
    const char *hang = getenv("SOFTNCCL_HANG"), *colon = hang ? strchr(hang, ':') : NULL;
    if (colon && atoi(hang) == c->rank && strtoull(colon + 1, NULL, 10) == w->number) return false;
    if (!in_memory(w)) {
        complain(c, INVALID_ARGUMENT, "%s: its memory was freed before it ran", kind_names[w->head.kind]);
        return w->posted = true;
    }
    char *data = (char *)malloc(n + 1);
    path_of(c, w->number, c->rank, path, sizeof path);
    if (!data || (n && !driver->read(c->device, data, w->send, n)) || !put_file(c->folder, path, &w->head, sizeof w->head, data, n))
        complain(c, SYSTEM, "%s: %s", path, strerror(errno));
    free(data);
    return w->posted = true;
}

/* Computes the result of all ranks' parts, which are there. */
static bool collect(work *w, char *out, char *part) {
    comm *c = w->c;
    const head *h = &w->head;
    const size_t n = bytes_of(h);
    for (int r = 0; r < c->size; r++) {
        char path[400], ours[220], theirs[220];
        head other;
        path_of(c, w->number, r, path, sizeof path);
        if (!get_file(path, &other, sizeof other, NULL, 0)) return complain(c, SYSTEM, "%s: %s", path, strerror(errno)), false;
        if (memcmp(&other, h, sizeof other)) {
            say(h, ours, sizeof ours), say(&other, theirs, sizeof theirs);
            return complain(c, INVALID_USAGE, "calls %s (operation %llu), where rank %d calls %s", ours,
                            (unsigned long long)w->number, r, theirs), false;
        }
        if (!sent(c, h, r) || !received(c, h)) continue;
        if (!get_file(path, &other, sizeof other, part, sent(c, h, r))) return complain(c, SYSTEM, "%s is too short", path), false;
        const char *from = h->kind == REDUCE_SCATTER ? part + (size_t)c->rank * n : part;
        if (h->kind == ALLGATHER) memcpy(out + (size_t)r * n, part, n);
        else if (h->kind == BROADCAST || r == 0) memcpy(out, from, n);
        else fold(h->type, h->op, out, from, (size_t)h->count);
    }
    if (h->op == AVG) divide(h->type, out, (size_t)h->count, c->size);
    return true;
}

static bool finished(work *w) {
    comm *c = w->c;
    char path[400];
    for (work **p = &c->first; *p; p = &(*p)->next)
        if (*p == w) { *p = w->next; break; }
    for (c->last = &c->first; *c->last;) c->last = &(*c->last)->next;
    c->done = w->number + 1;
    /* all ranks have come to this one, so they are through with the one before */
    if (w->number) path_of(c, w->number - 1, c->rank, path, sizeof path), unlink(path);
    free(w);
    return true;
}

static bool poll_work(void *data) {
    static soft_point point = { "async", 0, NULL };
    work *w = (work *)data;
    comm *c = w->c;
    if (c->aborted) return finished(w);
    if (!c->ready || c->first != w) return false;
    if (!w->posted && !post(w)) return false;
    for (int r = 0; r < c->size; r++)
        if (!there(c, w->number, r)) return false;
    const size_t n = received(c, &w->head), most = bytes_of(&w->head) * (size_t)c->size;
    char *out = (char *)malloc(n + most + 1);
    const int code = soft_enter(&point);
    if (code) complain(c, code, "an operation failed, as asked for");
    if (!out) complain(c, SYSTEM, "out of memory");
    if (out && !c->error && !in_memory(w)) complain(c, INVALID_ARGUMENT, "%s: its memory was freed before it ran", kind_names[w->head.kind]);
    if (out && !c->error && collect(w, out, out + n) && n) driver->write(c->device, w->recv, out, n);
    if (c->error) spoil(w);
    free(out);
    return finished(w);
}

/* Does this rank's part of what others wait for. */
static void *go_on(void *none) {
    (void)none;
    for (;;) {
        usleep(1000);
        driver->lock();
        for (comm *c = comms; c; c = c->next) {
            work *w = c->magic == LIVE ? c->first : NULL;
            bool wanted = false;
            for (int r = 0; w && r < c->size; r++) wanted = wanted || (r != c->rank && there(c, w->number, r));
            if (wanted) driver->advance(w->stream, w->at);
        }
        driver->unlock();
    }
    return NULL;
}
static void start_thread(void) {               /* lost to a child by fork, as all else here */
    static bool started;
    pthread_t thread;
    if (!started && pthread_create(&thread, NULL, go_on, NULL) == 0) started = true, pthread_detach(thread);
}

/* ---------------- joining and leaving */

int ncclGetVersion(int *version) {
    SOFT_ENTER(ncclGetVersion);
    if (!version) return INVALID_ARGUMENT;
    *version = 22809;
    return SUCCESS;
}

int ncclGetUniqueId(unique_id *id) {
    static int count;
    SOFT_ENTER(ncclGetUniqueId);
    if (!id) return INVALID_ARGUMENT;
    const char *folder = getenv("SOFTNCCL_FOLDER");
    memset(id, 0, sizeof *id);
    snprintf(id->text, sizeof id->text, "%.80s/softnccl-%ld-%d-XXXXXX", folder && *folder ? folder : "/dev/shm", (long)getpid(), count++);
    return mkdtemp(id->text) ? SUCCESS : complain(NULL, SYSTEM, "%s: %s", id->text, strerror(errno));
}

/* Whether all ranks are here; an error if they do not fit. */
static bool all_here(comm *c) {
    start mine, other;
    char path[400];
    for (int r = c->size - 1; r >= 0 && !c->ready; r--) {
        snprintf(path, sizeof path, "%s/init.%d", c->folder, r);
        if (access(path, R_OK)) return false;
    }
    if (c->ready) return true;
    snprintf(path, sizeof path, "%s/init.%d", c->folder, c->rank);
    if (!get_file(path, &mine, sizeof mine, NULL, 0)) complain(c, SYSTEM, "%s can't be read", path);
    for (int r = 0; r < c->size && !c->error; r++) {
        snprintf(path, sizeof path, "%s/init.%d", c->folder, r);
        if (!get_file(path, &other, sizeof other, NULL, 0)) complain(c, SYSTEM, "%s can't be read", path);
        else if (other.size != c->size) complain(c, INVALID_USAGE, "init of %d ranks, where rank %d has %d", c->size, r, other.size);
        else if (r != c->rank && other.physical == mine.physical && !strcmp(other.host, mine.host))
            complain(c, INVALID_USAGE, "duplicate GPU: rank %d has GPU %d, too", r, mine.physical);
    }
    return c->ready = true;
}

static comm *new_comm(const char *folder, int size, int rank, bool blocking) {
    comm *c = (comm *)calloc(1, sizeof *c);
    if (!c) return NULL;
    c->magic = LIVE;
    c->rank = rank, c->size = size, c->device = driver->device();
    c->blocking = blocking;
    snprintf(c->folder, sizeof c->folder, "%s", folder);
    c->last = &c->first;
    c->next = comms;
    comms = c;
    return c;
}

static void wait_a_bit(void) {
    driver->unlock();
    usleep(500);
    driver->lock();
}

static int join(comm **out, int size, const unique_id *id, int rank, bool blocking) {
    char path[400];
    start mine = { .size = size, .host = "" };
    if (!out || size < 1 || rank < 0 || rank >= size) return complain(NULL, INVALID_ARGUMENT, "init of rank %d of %d", rank, size);
    if (depth) return complain(NULL, INVALID_USAGE, "init within a group is not known here");
    if (driver->device() < 0) return complain(NULL, UNHANDLED, "init without a current device");
    if (!memchr(id->text, 0, sizeof id->text) || !strstr(id->text, "softnccl-") || access(id->text, W_OK))
        return complain(NULL, INVALID_ARGUMENT, "init with an id that ncclGetUniqueId has not made");
    mine.physical = driver->physical(driver->device());
    gethostname(mine.host, sizeof mine.host - 1);
    snprintf(path, sizeof path, "%s/init.%d", id->text, rank);
    if (!put_file(id->text, path, &mine, sizeof mine, NULL, 0))
        return complain(NULL, INVALID_USAGE, "init of rank %d, which is there already (%s)", rank, strerror(errno));
    comm *c = new_comm(id->text, size, rank, blocking);
    if (!c) return SYSTEM;
    start_thread();
    *out = c;
    if (!blocking) return c->busy = true, IN_PROGRESS;
    for (double end = seconds() + patience(); !all_here(c); wait_a_bit())
        if (seconds() > end) return complain(c, SYSTEM, "init: not all ranks have come");
    if (c->error) {                            /* there is none, then */
        leave_files(c);
        c->magic = DEAD;
        *out = NULL;
    }
    return c->error;
}

#define LOCKED(call) do { int r_; if (!find_driver()) return SYSTEM; driver->lock(); r_ = (call); driver->unlock(); return r_; } while (0)

int ncclCommInitRank(comm **c, int size, unique_id id, int rank) {
    SOFT_ENTER(ncclCommInitRank);
    LOCKED(join(c, size, &id, rank, true));
}
int ncclCommInitRankConfig(comm **c, int size, unique_id id, int rank, config *how) {
    SOFT_ENTER(ncclCommInitRankConfig);
    if (how && (how->magic != 0xcafebeef || how->size < sizeof *how || how->version < 2140))
        return complain(NULL, INVALID_ARGUMENT, "init with a config that was not initialised");
    LOCKED(join(c, size, &id, rank, !how || how->blocking != 0));
}

static bool step(comm *c);
static int async_error(comm *c, int *error) {
    if (!error) return INVALID_ARGUMENT;
    if (!is_live(c)) return complain(NULL, INVALID_ARGUMENT, "GetAsyncError of a communicator that has ended");
    if (!c->ready && !all_here(c)) return *error = IN_PROGRESS, SUCCESS;
    if (c->busy) return c->busy = false, *error = c->error ? c->error : IN_PROGRESS, SUCCESS;
    if (c->finalized && c->first && !c->error) {
        step(c);
        return *error = c->first ? IN_PROGRESS : c->error, SUCCESS;
    }
    *error = c->error;
    return SUCCESS;
}
int ncclCommGetAsyncError(comm *c, int *error) {
    SOFT_ENTER(ncclCommGetAsyncError);
    LOCKED(async_error(c, error));
}

/* Goes on with the first operation as far as that goes; one whose device is lost is dropped. */
static bool step(comm *c) {
    work *w = c->first;
    if (!driver->advance(w->stream, w->at)) return false;
    if (c->first != w) return true;
    if (!c->error) complain(c, UNHANDLED, "%s: the device is lost", kind_names[w->head.kind]);
    return finished(w);
}

/* Waits until a communicator's operations are done. */
static int flush(comm *c) {
    for (double end = seconds() + patience(); c->first && !c->error; ) {
        step(c);
        if (c->first && seconds() > end) return complain(c, SYSTEM, "operations are not done, and the communicator is to end");
        if (c->first) wait_a_bit();
    }
    return c->error;
}

static int finalize(comm *c) {
    if (!is_live(c)) return complain(NULL, INVALID_ARGUMENT, "Finalize of a communicator that has ended");
    if (c->finalized) return complain(c, INVALID_USAGE, "Finalize for the second time");
    if (depth) return complain(c, INVALID_USAGE, "Finalize within a group");
    c->finalized = true;
    return c->error ? c->error : c->blocking ? flush(c) : IN_PROGRESS;
}
int ncclCommFinalize(comm *c) { SOFT_ENTER(ncclCommFinalize); LOCKED(finalize(c)); }

static int leave(comm *c, bool abort) {
    if (!is_live(c)) return complain(NULL, INVALID_ARGUMENT, "%s of a communicator that has ended", abort ? "Abort" : "Destroy");
    if (depth) return complain(c, INVALID_USAGE, "Destroy or Abort within a group");
    int code = abort ? SUCCESS : flush(c);
    if (c->held)                               /* the real ones wait for these graphs, an abort, too */
        complain(c, INVALID_USAGE, "%s, while graphs have %ld of the operations that were captured", abort ? "Abort" : "Destroy", c->held);
    c->aborted = true;                         /* what is queued still does nothing */
    while (c->first && step(c)) {}
    leave_files(c);
    c->magic = DEAD;
    return code;
}
int ncclCommDestroy(comm *c) { SOFT_ENTER(ncclCommDestroy); LOCKED(leave(c, false)); }
int ncclCommAbort(comm *c) { SOFT_ENTER(ncclCommAbort); LOCKED(leave(c, true)); }

int ncclCommCount(const comm *c, int *count) {
    SOFT_ENTER(ncclCommCount);
    if (!count || !is_live(c)) return INVALID_ARGUMENT;
    *count = c->size;
    return SUCCESS;
}
int ncclCommUserRank(const comm *c, int *rank) {
    SOFT_ENTER(ncclCommUserRank);
    if (!rank || !is_live(c)) return INVALID_ARGUMENT;
    *rank = c->rank;
    return SUCCESS;
}

/* ---------------- calls of operations */

static bool overlap(uint64_t a, size_t n, uint64_t b, size_t m) { return n && m && a < b + m && b < a + n; }

/* Whether the buffers are apart, or one, as an operation in place wants them. */
static bool placed_well(const comm *c, const work *w) {
    const size_t s = sent(c, &w->head, c->rank), r = received(c, &w->head), n = bytes_of(&w->head), mine = (size_t)c->rank * n;
    if (!overlap(w->send, s, w->recv, r)) return true;
    if (w->head.kind == ALLGATHER) return w->send == w->recv + mine;
    if (w->head.kind == REDUCE_SCATTER) return w->recv == w->send + mine;
    return w->send == w->recv;
}

static int check(comm *c, work *w) {
    const char *name = kind_names[w->head.kind];
    if (!is_live(c)) return complain(NULL, INVALID_ARGUMENT, "%s after the communicator's end", name);
    if (c->error) return c->error;
    if (!c->ready || c->busy) return complain(c, INVALID_USAGE, "%s while an earlier call is in progress", name);
    if (c->finalized) return complain(c, INVALID_USAGE, "%s after Finalize", name);
    if (w->head.type < 0 || w->head.type >= TYPES || w->head.op < 0 || w->head.op >= OPS)
        return complain(c, INVALID_ARGUMENT, "%s of type %d and operation %d", name, w->head.type, w->head.op);
    if (w->head.root < 0 || w->head.root >= c->size) return complain(c, INVALID_ARGUMENT, "%s with root %d of %d", name, w->head.root, c->size);
    if (w->head.count < 0) return complain(c, INVALID_ARGUMENT, "%s of %lld elements", name, (long long)w->head.count);
    if (driver->device() != c->device)
        return complain(c, INVALID_USAGE, "%s: device %d is current, the communicator's is %d", name, driver->device(), c->device);
    if (driver->device_of(w->stream) != c->device)
        return complain(c, INVALID_USAGE, "%s: the stream is none of device %d", name, c->device);
    if (!in_memory(w)) return complain(c, INVALID_ARGUMENT, "%s: a buffer is not in memory of device %d", name, c->device);
    if (!placed_well(c, w)) return complain(c, INVALID_ARGUMENT, "%s: its buffers overlap", name);
    return SUCCESS;
}

/* A graph that has this operation is launched: a new one in the stream's queue. */
static void *again(void *data, void *stream, uint64_t number) {
    const work *w = (const work *)data;
    comm *c = w->c;
    if (!is_live(c) || c->error || c->finalized) {
        complain(is_live(c) ? c : NULL, INVALID_USAGE, "a graph with a captured %s is launched after the communicator's end or an error",
                 kind_names[w->head.kind]);
        return NULL;
    }
    if (!stream) return data;
    work *copy = (work *)malloc(sizeof *copy);
    if (!copy) return NULL;
    *copy = *w;
    copy->stream = stream, copy->at = number, copy->number = c->issued++;
    *c->last = copy;
    c->last = &copy->next;
    return copy;
}
static void hold(void *data, int change) {
    work *w = (work *)data;
    w->held += change;
    if (w->held > 0) return;
    w->c->held--;
    free(w);
}

static int submit_captured(work *w) {
    comm *c = w->c;
    w->head.captured = ++c->captured;
    c->held++;
    const int code = driver->capture(w->stream, poll_work, again, hold, w);
    return code ? complain(c, UNHANDLED, "the capture gives %d", code) : SUCCESS;
}

static int submit(work *w) {
    comm *c = w->c;
    if (driver->captures(w->stream)) return submit_captured(w);
    w->number = c->issued++;
    const int code = driver->queue(w->stream, poll_work, w, &w->at);
    if (code) {
        c->issued--;
        free(w);
        return complain(c, UNHANDLED, "the driver's queue gives %d", code);
    }
    *c->last = w;
    c->last = &w->next;
    return SUCCESS;
}

static int operation(head h, const void *send, void *recv, comm *c, void *stream) {
    work *w = (work *)calloc(1, sizeof *w);
    if (!w) return SYSTEM;
    w->c = c, w->head = h, w->stream = stream;
    w->send = (uint64_t)(uintptr_t)send, w->recv = (uint64_t)(uintptr_t)recv;
    int code = check(c, w);
    if (code || !depth) {
        if (code) free(w);
        else if ((code = submit(w)) == SUCCESS && !c->blocking) c->busy = true, code = IN_PROGRESS;
        if (code && code != IN_PROGRESS && depth && !group_error) group_error = code;
        return code;
    }
    *group_last = w;
    group_last = &w->next;
    return SUCCESS;
}
#define OPERATION(kind, op, root) do {                                                            \
        const head h = { kind, type, op, root, 0, 0, (int64_t)n, 0 };                                \
        LOCKED(operation(h, send, recv, c, stream));                                              \
    } while (0)
int ncclAllReduce(const void *send, void *recv, size_t n, int type, int op, comm *c, void *stream) {
    SOFT_ENTER(ncclAllReduce);
    OPERATION(ALLREDUCE, op, 0);
}
int ncclBroadcast(const void *send, void *recv, size_t n, int type, int root, comm *c, void *stream) {
    SOFT_ENTER(ncclBroadcast);
    OPERATION(BROADCAST, 0, root);
}
int ncclReduce(const void *send, void *recv, size_t n, int type, int op, int root, comm *c, void *stream) {
    SOFT_ENTER(ncclReduce);
    OPERATION(REDUCE, op, root);
}
int ncclAllGather(const void *send, void *recv, size_t n, int type, comm *c, void *stream) {
    SOFT_ENTER(ncclAllGather);
    OPERATION(ALLGATHER, 0, 0);
}
int ncclReduceScatter(const void *send, void *recv, size_t n, int type, int op, comm *c, void *stream) {
    SOFT_ENTER(ncclReduceScatter);
    OPERATION(REDUCE_SCATTER, op, 0);
}

int ncclGroupStart(void) {
    SOFT_ENTER(ncclGroupStart);
    if (!depth++) group_first = NULL, group_last = &group_first, group_error = SUCCESS;
    return SUCCESS;
}

static int end_group(void) {
    int n = 0, i = 0, code = group_error;
    if (!depth) return complain(NULL, INVALID_USAGE, "GroupEnd without GroupStart");
    if (--depth) return SUCCESS;
    for (work *w = group_first; w; w = w->next) n++;
    for (work *w = group_first, *next; w; w = next) {
        next = w->next;
        w->next = NULL;
        w->head.group = i++, w->head.groups = n;
        comm *c = w->c;
        if (code && code != IN_PROGRESS) { free(w); continue; }
        const int submitted = submit(w);
        if (submitted) code = submitted;
        else if (!c->blocking) c->busy = true, code = IN_PROGRESS;
    }
    group_first = NULL;
    return code;
}
int ncclGroupEnd(void) {
    SOFT_ENTER(ncclGroupEnd);
    LOCKED(end_group());
}

/* ---------------- words */

const char *ncclGetErrorString(int code) {
    static const char *const texts[] = { "no error", "unhandled cuda error", "unhandled system error", "internal error",
        "invalid argument", "invalid usage", "remote process exited or there was a network error", "NCCL operation in progress" };
    return code >= 0 && code < 8 ? texts[code] : "unknown result code";
}
const char *ncclGetLastError(comm *c) { return is_live(c) ? c->text : ""; }
