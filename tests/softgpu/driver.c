/* driver.c - the program's side of a software GPU: memory, queues, events, modules, captures.

   Nothing that is queued is done until somebody waits for it, and then no more than that needs: a wait for a stream or
   event walks the stream's operations up to it, and for an event that these wait for, the other stream's first. What
   comes up is gathered into a batch for the device process, which is sent when the walk ends or turns to another
   device. So a program that forgets to wait, or waits for the wrong stream, finds nothing done.

   One lock holds over all of it, also while a device computes. Handles are addresses of structs with a magic number;
   destroyed ones are kept, marked, so that a stale handle is an error and not a crash. */
#define _GNU_SOURCE
#include "driver.h"
#include "link.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE ((uint64_t)4096)
#define GUARD ((uint64_t)65536)                /* between two blocks at least */
#define TRIES 3                                /* a query finds the work unfinished so often */
#define STREAM_MAGIC   0x736f667473747265u
#define EVENT_MAGIC    0x736f667465766e74u
#define MODULE_MAGIC   0x736f66746d6f6475u
#define FUNCTION_MAGIC 0x736f667466756e63u
#define GRAPH_MAGIC    0x736f667467726170u
#define NODE_MAGIC     0x736f66746e6f6465u
#define DEAD           0x646561646465616eu

/* ---------------- what there is */

typedef struct block { uint64_t at, n, start, end; } block;      /* the bytes asked for; the pages they lie on */

typedef struct arena {                         /* a span of addresses, its file, and the blocks in it, by address */
    uint64_t base, cursor, used, limit;
    int fd;
    block *blocks;
    size_t count, room;
} arena;

enum { COMMAND, WAIT, RECORD, PEER, OTHER, CHILD };

typedef struct op {
    struct op *next;
    uint64_t seq;
    int what;
    soft_stream *stream;                       /* WAIT: for this one's operation number `until` */
    uint64_t until;
    soft_event *event;                         /* RECORD */
    soft_device *to, *from;                    /* PEER */
    soft_poll *poll;                           /* OTHER: see link.h; the next two are NULL but in a graph */
    soft_again *again;
    soft_held *held;
    void *data;
    struct op **ops;                           /* CHILD: a graph's within another, in order */
    size_t count;
    soft_function *function;                   /* COMMAND: a launch's */
    soft_command command;                      /* what follows it follows the struct */
} op;

typedef struct kernel_info { char *name; unsigned *size; unsigned count; } kernel_info;

typedef struct content {                       /* what a device process has loaded */
    struct content *next;
    uint64_t hash;
    unsigned number, shared, nkernels;
    kernel_info *kernel;
} content;

enum { CONTENTS = 1024 };

typedef struct capture {
    struct capture *next;
    soft_stream *origin;
    int mode;
    pthread_t thread;
    bool broken;
    op *first, **last;
    size_t count;
} capture;

struct soft_device {
    int index, physical;
    char arch[56];
    arena memory;
    int socket, lost;
    pid_t pid;
    bool peer[SOFT_MAX_DEVICES];
    char *control;                             /* commands that go before the next batch */
    size_t control_bytes, control_room;
    uint32_t control_count;
    soft_stream *null_stream, *streams;
    content *contents[CONTENTS];               /* by their hashes */
};

struct soft_stream {
    uint64_t magic;
    soft_stream *next;
    soft_device *device;
    bool blocking;                             /* ordered with the null stream */
    int polls;
    uint64_t queued, done;
    op *first, **last;
    capture *capture;
    size_t captured, joined;                   /* operations captured from here; of these, waited for by the origin */
};

struct soft_event {
    uint64_t magic;
    soft_event *next;
    soft_device *device;
    bool timing;
    int polls;
    soft_stream *stream;                       /* NULL: never recorded */
    uint64_t seq, stamp;
    capture *capture;                          /* recorded while capturing, after so many operations of its stream */
    size_t captured;
};

struct soft_loaded { uint64_t magic; soft_loaded *next; soft_device *device; content *content; soft_function *functions; };
struct soft_function { uint64_t magic; soft_loaded *module; unsigned kernel; int most_dynamic; };
/* Of a graph that was captured the operations stay in their order. One that is made node by node has nodes, each with those
   that it comes after, and no other order. */
struct soft_node { uint64_t magic; soft_node *next; soft_graph *graph; soft_node **after; size_t nafter, number; };
struct soft_graph {
    uint64_t magic;
    soft_graph *next, *of;                     /* of: an executable one's, whose nodes it has */
    soft_device *device;
    bool exec;
    op **ops;
    size_t count, *order;                      /* order: an executable one's; NULL: as they stand */
    soft_node **nodes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool ready;
static bool forked;                            /* the devices are the parent's */
static soft_device devices[SOFT_MAX_DEVICES];
static int ndevices, physical_devices;
static arena pinned;
static capture *captures;
static soft_stream *dead_streams;              /* kept, see above */
static soft_event *events, *dead_events;
static soft_loaded *modules, *dead_modules;
static soft_graph *graphs, *dead_graphs;
static soft_node *dead_nodes;
static long live_streams, live_events, live_modules, live_graphs, overruns;

void soft_lock(void) { pthread_mutex_lock(&lock); }
void soft_unlock(void) { pthread_mutex_unlock(&lock); }
static bool ended;                             /* exit() has come to the driver's own end */
static void end_of_driver(void) {
    soft_lock();
    ended = true;
    soft_unlock();
}
void soft_end_last(void) { atexit(end_of_driver); }
bool soft_ready(void) {
    if (ended && !forked) {
        fprintf(stderr, "softgpu: called after the driver's end\n");
        _exit(97);
    }
    return ready;
}
int soft_count(void) { return ndevices; }
soft_device *soft_device_at(int i) { return i >= 0 && i < ndevices ? &devices[i] : NULL; }
int soft_index(const soft_device *d) { return d->index; }
int soft_physical(const soft_device *d) { return d->physical; }
const char *soft_arch(const soft_device *d) { return d->arch; }
uint64_t soft_total(const soft_device *d) { return d->memory.limit; }
int soft_check(soft_device *d) { return d ? d->lost : SOFT_INVALID_CONTEXT; }

long soft_live(const char *what) {
    long n = 0;
    soft_lock();
    for (int i = 0; i < ndevices; i++) {
        if (!strcmp(what, "memory")) n += (long)devices[i].memory.count;
        if (!strcmp(what, "bytes")) n += (long)devices[i].memory.used;
        if (!strcmp(what, "lost")) n += devices[i].lost != 0;
    }
    if (!strcmp(what, "pinned")) n = (long)pinned.count;
    if (!strcmp(what, "streams")) n = live_streams;
    if (!strcmp(what, "events")) n = live_events;
    if (!strcmp(what, "modules")) n = live_modules;
    if (!strcmp(what, "graphs")) n = live_graphs;
    if (!strcmp(what, "overruns")) n = overruns;
    soft_unlock();
    return n;
}

static void *allocate(size_t n) {
    void *p = calloc(1, n);
    if (!p) fprintf(stderr, "softgpu: out of host memory\n"), abort();
    return p;
}
static _Noreturn void stop(const char *what) {
    fprintf(stderr, "softgpu: %s: %s\n", what, strerror(errno));
    abort();
}
static void tell(const char *format, int device, const char *text) {
    if (!getenv("SOFTGPU_QUIET")) fprintf(stderr, format, device, text);
}

/* ---------------- starting */

static int high(int fd) {                      /* out of the way of the numbers that the device process gets */
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, 64);
    if (fd < 0 || moved < 0) stop("file");
    close(fd);
    return moved;
}

static void *address(uint64_t at) { return (void *)(uintptr_t)at; }

static void open_arena(arena *a, int index, uint64_t limit, const char *name) {
    a->base = SOFT_ADDRESS(soft_base, index);
    a->limit = limit;
    a->cursor = GUARD;
    a->fd = high(memfd_create(name, MFD_CLOEXEC));
    if (ftruncate(a->fd, (off_t)SOFT_SPAN)) stop("memory");
    if (mmap(address(a->base), SOFT_SPAN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) != address(a->base))
        stop("addresses");
}

static uint64_t number_from(const char *name, uint64_t otherwise) {
    const char *s = getenv(name);
    return s && *s ? strtoull(s, NULL, 0) : otherwise;
}

static void add_device(int physical) {
    soft_device *d = &devices[ndevices];
    const char *arch = getenv("SOFTGPU_ARCH");
    uint64_t limit = number_from("SOFTGPU_MEMORY", 256u << 20);
    d->index = ndevices;
    d->physical = physical;
    d->socket = -1;
    snprintf(d->arch, sizeof d->arch, "%s", arch && soft_arch_is_ours(arch) ? arch : soft_default_arch);
    open_arena(&d->memory, ndevices, limit < 3 * SOFT_SPAN / 4 ? limit : 3 * SOFT_SPAN / 4, "softgpu");
    d->null_stream = (soft_stream *)allocate(sizeof *d->null_stream);
    d->null_stream->magic = STREAM_MAGIC;
    d->null_stream->device = d;
    d->null_stream->last = &d->null_stream->first;
    ndevices++;
}

/* As with the real ones, what a program had is lost to its children. */
static void after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    forked = ready || forked;
    ready = false;
}

int soft_init(void) {
    const char *visible = getenv(soft_visible);   /* HIP's own; CUDA's is heard by both */
    if (!visible) visible = getenv("CUDA_VISIBLE_DEVICES");
    bool seen[SOFT_MAX_DEVICES] = { false };
    if (ready) return SOFT_OK;
    if (forked) return SOFT_NOT_INITIALIZED;
    uint64_t n = number_from("SOFTGPU_DEVICES", 1);
    physical_devices = (int)(n < SOFT_MAX_DEVICES ? n : SOFT_MAX_DEVICES);
    for (int i = 0; !visible && i < physical_devices; i++) add_device(i);
    for (const char *p = visible; p && *p; p += *p == ',') {   /* up to the first that is none */
        char *end;
        long i = strtol(p, &end, 10);
        if (end == p || (*end && *end != ',') || i < 0 || i >= physical_devices || seen[i]) break;
        seen[i] = true;
        add_device((int)i);
        p = end;
    }
    if (!ndevices) return SOFT_NO_DEVICE;
    open_arena(&pinned, SOFT_MAX_DEVICES, SOFT_SPAN / 2, "softgpu-pinned");
    pthread_atfork(NULL, NULL, after_fork);
    soft_end_last();
    return ready = true, SOFT_OK;
}

/* The device process lies beside the library that this is, unless SOFTGPU_PROCESS says where it is. */
static void find_process(char *path, size_t n) {
    Dl_info info;
    const char *asked = getenv("SOFTGPU_PROCESS"), *slash = NULL;
    static const int here = 0;
    if (asked && *asked) { snprintf(path, n, "%s", asked); return; }
    if (dladdr(&here, &info) && info.dli_fname) slash = strrchr(info.dli_fname, '/');
    if (slash) snprintf(path, n, "%.*s/softgpu-device", (int)(slash - info.dli_fname), info.dli_fname);
    else snprintf(path, n, "./softgpu-device");
}

static bool start_process(soft_device *d) {
    extern char **environ;
    char path[4096], where[32], index[16];
    char *argv[] = { path, where, index, NULL };
    int pair[2];
    posix_spawn_file_actions_t a;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) return false;
    pair[0] = high(pair[0]), pair[1] = high(pair[1]);
    find_process(path, sizeof path);
    snprintf(where, sizeof where, "%llx", (unsigned long long)soft_base);
    snprintf(index, sizeof index, "%d", d->index);
    posix_spawn_file_actions_init(&a);
    posix_spawn_file_actions_adddup2(&a, pair[1], SOFT_FD_SOCKET);
    posix_spawn_file_actions_adddup2(&a, pinned.fd, SOFT_FD_PINNED);
    for (int i = 0; i < ndevices; i++) posix_spawn_file_actions_adddup2(&a, devices[i].memory.fd, SOFT_FD_MEMORY + i);
    int failed = posix_spawn(&d->pid, path, &a, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&a);
    close(pair[1]);
    if (failed) {
        fprintf(stderr, "softgpu: %s: %s\n", path, strerror(failed));
        close(pair[0]);
        return false;
    }
    d->socket = pair[0];
    return true;
}

/* Device processes go when the program does; here they are also waited for. */
#if defined __GNUC__
__attribute__((destructor))
#endif
static void end_processes(void) {
    for (int i = 0; i < ndevices; i++) {
        int status;
        if (devices[i].pid <= 0 || forked) continue;
        kill(devices[i].pid, SIGKILL);
        while (waitpid(devices[i].pid, &status, 0) < 0 && errno == EINTR) {}
        devices[i].pid = 0;
    }
}

/* ---------------- batches */

static struct {
    soft_device *device;
    char *at;
    size_t bytes, room;
    uint32_t count;
    struct { soft_event *event; uint64_t seq; } *stamps;
    size_t nstamps, stamps_room;
} batch;

static void append(char **at, size_t *bytes, size_t *room, const void *data, size_t n) {
    if (*bytes + n > *room) {
        *room = 2 * (*bytes + n);
        *at = (char *)realloc(*at, *room);
        if (!*at) stop("memory");
    }
    memcpy(*at + *bytes, data, n);
    *bytes += n;
}

static void lose(soft_device *d, int code, const char *fault) {
    if (d->lost) return;
    d->lost = code;
    tell("softgpu: device %d is lost: %s\n", d->index, fault && *fault ? fault : "its process has ended");
    if (d->socket >= 0) close(d->socket);
    d->socket = -1;
    if (d->pid > 0) {                          /* it ends by itself now, if it has not yet */
        int status;
        while (waitpid(d->pid, &status, 0) < 0 && errno == EINTR) {}
    }
    d->pid = 0;
}

static bool receive(int fd, void *data, size_t n) {
    char *p = (char *)data;
    while (n) {
        ssize_t k = recv(fd, p, n, 0);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        p += k, n -= (size_t)k;
    }
    return true;
}

static bool send_parts(int fd, struct iovec *part, int n) {
    struct msghdr m;
    memset(&m, 0, sizeof m);
    m.msg_iov = part;
    m.msg_iovlen = (size_t)n;
    while (m.msg_iovlen) {
        ssize_t k = sendmsg(fd, &m, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        for (; m.msg_iovlen && (size_t)k >= m.msg_iov->iov_len; m.msg_iov++, m.msg_iovlen--) k -= (ssize_t)m.msg_iov->iov_len;
        if (!m.msg_iovlen) break;
        m.msg_iov->iov_base = (char *)m.msg_iov->iov_base + k;
        m.msg_iov->iov_len -= (size_t)k;
    }
    return true;
}

static void take_stamps(const uint64_t *stamp, size_t n) {
    for (size_t i = 0; i < n && i < batch.nstamps; i++)
        if (batch.stamps[i].event->seq == batch.stamps[i].seq) batch.stamps[i].event->stamp = stamp[i];
}

/* Sends what is gathered and waits for the answer. `text`, if given, gets what a loaded module says of itself. */
static int finish(char **text) {
    soft_device *d = batch.device;
    soft_answer answer = { .status = SOFT_LAUNCH_FAILED };
    int status = SOFT_OK;
    if (!d || !batch.count) return SOFT_OK;
    soft_batch head = { d->control_bytes + batch.bytes, d->control_count + batch.count, (uint32_t)number_from("SOFTGPU_TIMEOUT", 120) };
    struct iovec part[3] = { { &head, sizeof head }, { d->control, d->control_bytes }, { batch.at, batch.bytes } };
    if (!d->lost && d->socket < 0 && !start_process(d)) lose(d, SOFT_OPERATING_SYSTEM, "no device process");
    if (!d->lost) {
        uint64_t *stamps = NULL;
        bool good = send_parts(d->socket, part, 3) && receive(d->socket, &answer, sizeof answer);
        if (good && answer.stamps) {
            stamps = (uint64_t *)allocate(answer.stamps * sizeof *stamps);
            good = receive(d->socket, stamps, answer.stamps * sizeof *stamps);
            if (good) take_stamps(stamps, answer.stamps);
            free(stamps);
        }
        if (good && answer.bytes && text) {
            *text = (char *)allocate(answer.bytes + 1);
            good = receive(d->socket, *text, answer.bytes);
        }
        if (!good) answer.status = SOFT_LAUNCH_FAILED;
        status = answer.status;
        if (status == SOFT_INVALID_IMAGE) tell("softgpu: device %d: %s\n", d->index, answer.fault);
        else if (status) lose(d, status, answer.fault);
    }
    d->control_bytes = d->control_count = 0;
    batch.device = NULL;
    batch.bytes = batch.nstamps = batch.count = 0;
    return status ? status : d->lost;
}

static void use_batch(soft_device *d) {
    if (batch.device && batch.device != d) finish(NULL);
    batch.device = d;
}

static void send_command(soft_device *d, const soft_command *c) {
    use_batch(d);
    append(&batch.at, &batch.bytes, &batch.room, c, c->head);
    batch.count++;
}

static void control(soft_device *d, int kind, uint64_t at, uint64_t bytes, uint64_t on) {
    soft_command c = { .kind = (uint32_t)kind, .head = sizeof c, .bytes = bytes, .to = at, .from = on };
    append(&d->control, &d->control_bytes, &d->control_room, &c, sizeof c);
    d->control_count++;
}

/* ---------------- memory */

static block *block_of(const arena *a, uint64_t at, uint64_t n) {    /* that holds all of it */
    size_t low = 0, top = a->count;
    while (low < top) {
        size_t middle = (low + top) / 2;
        if (a->blocks[middle].at + a->blocks[middle].n <= at) low = middle + 1;
        else top = middle;
    }
    block *b = low < a->count ? &a->blocks[low] : NULL;
    return b && at >= b->at && n <= b->n && at - b->at <= b->n - n ? b : NULL;
}

/* Where `n` bytes of pages fit at `from` or after, with guards; blocks lie at `base` + that. 0 if nowhere. */
static uint64_t find_room(const arena *a, uint64_t from, uint64_t n, size_t *before) {
    uint64_t at = from;
    size_t i = 0;
    for (; i < a->count; i++) {
        uint64_t start = a->blocks[i].start - a->base, end = a->blocks[i].end - a->base;
        if (end + GUARD <= at) continue;
        if (at + n + GUARD <= start) break;
        at = end + GUARD;
    }
    *before = i;
    return at + n + GUARD <= SOFT_SPAN ? at : 0;
}

static void fill(const arena *a, uint64_t start, uint64_t end, int value) {
    static char bytes[1 << 16];
    memset(bytes, value, sizeof bytes);
    for (uint64_t at = start; at < end;) {
        size_t n = end - at < sizeof bytes ? (size_t)(end - at) : sizeof bytes;
        ssize_t k = pwrite(a->fd, bytes, n, (off_t)(at - a->base));
        if (k <= 0 && errno != EINTR) stop("memory");
        if (k > 0) at += (uint64_t)k;
    }
}

/* A block ends where its last page does, but for what aligns it: writing on past it is a fault. Addresses are not used
   again until the span has been. */
static block *take(arena *a, uint64_t n) {
    size_t i;
    uint64_t whole = soft_round(n, 256), pages = soft_round(whole, PAGE);
    if (n > a->limit || a->used + whole > a->limit) return NULL;
    uint64_t at = find_room(a, a->cursor, pages, &i);
    if (!at) at = find_room(a, GUARD, pages, &i);
    if (!at) return NULL;
    if (a->count == a->room) {
        a->room = a->room ? 2 * a->room : 64;
        a->blocks = (block *)realloc(a->blocks, a->room * sizeof *a->blocks);
        if (!a->blocks) stop("memory");
    }
    memmove(a->blocks + i + 1, a->blocks + i, (a->count - i) * sizeof *a->blocks);
    block *b = &a->blocks[i];
    b->start = a->base + at;
    b->end = b->start + pages;
    b->at = b->end - whole;
    b->n = n;
    a->count++;
    a->used += whole;
    a->cursor = at + pages + GUARD;
    fill(a, b->start, b->end, soft_spoilt());
    return b;
}

/* The bytes around a block, to the ends of its pages, are as they were filled. */
static bool untouched(const arena *a, uint64_t start, uint64_t end) {
    unsigned char bytes[PAGE], spoilt = soft_spoilt();
    for (; start < end; start += PAGE) {
        size_t n = end - start < PAGE ? (size_t)(end - start) : PAGE;
        if (pread(a->fd, bytes, n, (off_t)(start - a->base)) != (ssize_t)n) return true;
        for (size_t i = 0; i < n; i++)
            if (bytes[i] != spoilt) return false;
    }
    return true;
}

static void give(arena *a, block *b, int device) {
    if (!untouched(a, b->start, b->at) || !untouched(a, b->at + b->n, b->end)) {
        overruns++;
        tell("softgpu: device %d: something was written just outside %s\n", device, a == &pinned ? "a pinned block" : "an allocation");
    }
    fallocate(a->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(b->start - a->base), (off_t)(b->end - b->start));
    a->used -= soft_round(b->n, 256);
    a->count--;
    memmove(b, b + 1, (size_t)(a->blocks + a->count - b) * sizeof *b);
}

static bool in_span(uint64_t at) { return at >= soft_base && at < SOFT_ADDRESS(soft_base, SOFT_MAX_DEVICES); }
static bool is_host(const void *p) { return p && !in_span((uint64_t)(uintptr_t)p); }
static bool is_pinned(const void *p, uint64_t n) { return block_of(&pinned, (uint64_t)(uintptr_t)p, n) != NULL; }

static int check_range(soft_device *d, uint64_t at, uint64_t n) {
    if (block_of(&d->memory, at, n)) return SOFT_OK;
    for (int i = 0; i < ndevices; i++)
        if (block_of(&devices[i].memory, at, n)) return SOFT_INVALID_CONTEXT;
    return SOFT_INVALID_VALUE;
}

static int file_read(const arena *a, uint64_t from, void *to, uint64_t n) {
    for (char *p = (char *)to; n;) {
        ssize_t k = pread(a->fd, p, n, (off_t)(from - a->base));
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return SOFT_OPERATING_SYSTEM;
        p += k, from += (uint64_t)k, n -= (uint64_t)k;
    }
    return SOFT_OK;
}
static int file_write(const arena *a, uint64_t to, const void *from, uint64_t n) {
    for (const char *p = (const char *)from; n;) {
        ssize_t k = pwrite(a->fd, p, n, (off_t)(to - a->base));
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return SOFT_OPERATING_SYSTEM;
        p += k, to += (uint64_t)k, n -= (uint64_t)k;
    }
    return SOFT_OK;
}

/* ---------------- running what is queued */

static void peer_copy(soft_device *d, const op *o) {
    static char bytes[1 << 16];
    uint64_t to = o->command.to, from = o->command.from, n = o->command.bytes;
    finish(NULL);
    if (o->to->lost || o->from->lost) return;
    if (!block_of(&o->to->memory, to, n) || !block_of(&o->from->memory, from, n)) {
        lose(d, SOFT_ILLEGAL_ADDRESS, "a copy between devices comes after its memory was freed");
        return;
    }
    for (uint64_t k; n; n -= k, to += k, from += k) {
        k = n < sizeof bytes ? n : sizeof bytes;
        if (file_read(&o->from->memory, from, bytes, k) || file_write(&o->to->memory, to, bytes, k)) stop("peer copy");
    }
}

static void record(soft_stream *s, const op *o) {
    static const soft_command c = { .kind = SOFT_STAMP, .head = sizeof c };
    if (!o->event->timing || o->event->seq != o->seq) return;
    use_batch(s->device);
    if (batch.nstamps == batch.stamps_room) {
        batch.stamps_room = batch.stamps_room ? 2 * batch.stamps_room : 64;
        void *grown = realloc(batch.stamps, batch.stamps_room * sizeof *batch.stamps);
        if (!grown) stop("memory");
        memcpy(&batch.stamps, &grown, sizeof grown);
    }
    batch.stamps[batch.nstamps].event = o->event;
    batch.stamps[batch.nstamps++].seq = o->seq;
    send_command(s->device, &c);
}

static void execute(soft_device *d, const op *o) {
    static soft_point point = { "execute", 0, NULL };
    int code = o->command.kind == SOFT_LAUNCH ? soft_enter(&point) : 0;
    if (code) finish(NULL), lose(d, code, "a kernel failed, as asked for");
    if (!d->lost) send_command(d, &o->command);
}

/* Whether the other library has done its part; if not, and with `wait`, some time passes without the lock. */
static bool other_is_done(soft_device *d, const op *o, bool wait, uint64_t *waited) {
    finish(NULL);                              /* it reads what was computed before it */
    if (d->lost || o->poll(o->data)) return true;
    if (!wait) return false;
    if (number_from("SOFTGPU_TIMEOUT", 120) && *waited > number_from("SOFTGPU_TIMEOUT", 120) * 10000)
        return lose(d, SOFT_LAUNCH_TIMEOUT, "a collective was not finished in time"), true;
    ++*waited;
    soft_unlock();
    usleep(100);
    soft_lock();
    return false;
}

/* False: a part that another library does is not done yet, which comes up without `wait` only. With `wait` the lock is
   given up at times, so that another thread may have run a part of the queue. */
static bool run_until(soft_stream *s, uint64_t seq, bool wait) {
    uint64_t waited = 0;
    while (s->first && s->first->seq <= seq) {
        op *o = s->first;
        if (o->what == WAIT && o->stream->done < o->until) {
            if (!run_until(o->stream, o->until, wait)) return false;
            continue;
        }
        if (o->what == OTHER && !other_is_done(s->device, o, wait, &waited)) {
            if (!wait) return false;
            continue;
        }
        s->first = o->next;
        if (!s->first) s->last = &s->first;
        if (s->device->lost) {}
        else if (o->what == COMMAND) execute(s->device, o);
        else if (o->what == RECORD) record(s, o);
        else if (o->what == PEER) peer_copy(s->device, o);
        s->done = o->seq;
        free(o);
    }
    return true;
}

static int flush_stream(soft_stream *s) {
    run_until(s, s->queued, true);
    finish(NULL);
    s->polls = 0;
    return s->device->lost;
}

/* All streams, one after the other: an order between them comes of events alone, so it differs each time. */
static int flush_device(soft_device *d, bool blocking_only) {
    static unsigned count;
    soft_stream *list[256];
    size_t n = 0;
    if (d->null_stream->first) list[n++] = d->null_stream;
    for (soft_stream *s = d->streams; s && n < 256; s = s->next)
        if (s->first && (s->blocking || !blocking_only)) list[n++] = s;
    unsigned backwards = n > 1 ? count++ & 1 : 0;
    for (size_t i = 0; i < n; i++) {
        soft_stream *s = list[backwards ? n - 1 - i : i];
        run_until(s, s->queued, true);
    }
    finish(NULL);
    for (soft_stream *s = d->streams; s; s = s->next)          /* more than the list holds */
        if (s->first && (s->blocking || !blocking_only)) flush_stream(s);
    return d->lost;
}

/* ---------------- captures */

static void break_capture(capture *c) { c->broken = true; }

/* Calls that would have to wait for the device, or may: an error while a capture is on that forbids them. */
static int unsafe(void) {
    for (capture *c = captures; c; c = c->next) {
        bool mine = pthread_equal(c->thread, pthread_self());
        if (c->mode == 0 || (c->mode == 1 && mine)) return break_capture(c), SOFT_CAPTURE_UNSUPPORTED;
    }
    return SOFT_OK;
}

static op *new_op(int what, size_t payload) {
    op *o = (op *)malloc(sizeof *o + payload);
    if (!o) stop("memory");
    memset(o, 0, sizeof *o);
    o->what = what;
    o->command.head = (uint32_t)(sizeof o->command + payload);
    return o;
}

/* One that is part of a capture or of a graph. */
static void drop_op(op *o) {
    if (o->held) o->held(o->data, -1);
    for (size_t i = 0; i < o->count; i++) drop_op(o->ops[i]);
    free(o->ops);
    free(o);
}

static void push(soft_stream *s, op *o) {
    o->seq = ++s->queued;
    o->next = NULL;
    *s->last = o;
    s->last = &o->next;
}
static void push_wait(soft_stream *s, soft_stream *on, uint64_t until) {
    if (on->done >= until) return;
    op *o = new_op(WAIT, 0);
    o->stream = on;
    o->until = until;
    push(s, o);
}

/* The null stream and the blocking ones wait for each other. */
static void order_with_null(soft_stream *s) {
    soft_device *d = s->device;
    if (s == d->null_stream) {
        for (soft_stream *t = d->streams; t; t = t->next)
            if (t->blocking) push_wait(s, t, t->queued);
    } else if (s->blocking) push_wait(s, d->null_stream, d->null_stream->queued);
}

static int capture_op(soft_stream *s, op *o) {
    capture *c = s->capture;
    if (c->broken) {
        drop_op(o);
        return SOFT_CAPTURE_INVALIDATED;
    }
    o->next = NULL;
    *c->last = o;
    c->last = &o->next;
    c->count++;
    s->captured++;
    return SOFT_OK;
}

static int put(soft_stream *s, op *o) {
    if (s->capture) return capture_op(s, o);
    if (s == s->device->null_stream) {
        for (capture *c = captures; c; c = c->next)
            if (c->origin->device == s->device && c->origin->blocking) {
                free(o);
                return break_capture(c), SOFT_CAPTURE_IMPLICIT;
            }
    }
    order_with_null(s);
    push(s, o);
    return SOFT_OK;
}

static int check_stream(soft_device *d, soft_stream **s) {
    int code = soft_check(d);
    if (code) return code;
    if (!*s) *s = d->null_stream;
    if ((*s)->magic != STREAM_MAGIC) return SOFT_INVALID_HANDLE;
    return (*s)->device == d ? SOFT_OK : SOFT_INVALID_CONTEXT;
}

int soft_capture_begin(soft_device *d, soft_stream *s, int mode) {
    int code = check_stream(d, &s);
    if (code) return code;
    if (mode < 0 || mode > 2) return SOFT_INVALID_VALUE;
    if (s == d->null_stream) return SOFT_CAPTURE_UNSUPPORTED;
    if (s->capture) return SOFT_INVALID_VALUE;
    capture *c = (capture *)allocate(sizeof *c);
    c->origin = s;
    c->mode = mode;
    c->thread = pthread_self();
    c->last = &c->first;
    c->next = captures;
    captures = c;
    s->capture = c;
    s->captured = s->joined = 0;
    return SOFT_OK;
}

static void end_capture(capture *c) {          /* nothing knows of it any more */
    for (int i = 0; i < ndevices; i++)
        for (soft_stream *s = devices[i].streams; s; s = s->next)
            if (s->capture == c) s->capture = NULL;
    for (soft_event *e = events; e; e = e->next)
        if (e->capture == c) e->capture = NULL;
    for (capture **p = &captures; *p; p = &(*p)->next)
        if (*p == c) { *p = c->next; break; }
    free(c);
}

static void drop_capture(soft_stream *s) {     /* one of its streams is destroyed */
    capture *c = s->capture;
    break_capture(c);
    s->capture = NULL;
    if (c->origin != s) return;
    for (op *o = c->first, *next; o; o = next) next = o->next, drop_op(o);
    end_capture(c);
}

static bool is_joined(const capture *c) {
    for (int i = 0; i < ndevices; i++)
        for (soft_stream *s = devices[i].streams; s; s = s->next)
            if (s->capture == c && s != c->origin && s->joined < s->captured) return false;
    return true;
}

static soft_graph *new_graph(soft_device *d, op **ops, size_t count, bool exec) {
    soft_graph *g = (soft_graph *)allocate(sizeof *g);
    g->magic = GRAPH_MAGIC;
    g->device = d;
    g->exec = exec;
    g->ops = ops;
    g->count = count;
    g->next = graphs;
    graphs = g;
    live_graphs++;
    return g;
}

int soft_capture_end(soft_device *d, soft_stream *s, soft_graph **out) {
    int code = check_stream(d, &s);
    if (code) return code;
    capture *c = s->capture;
    if (!out) return SOFT_INVALID_VALUE;
    if (!c) return SOFT_INVALID_VALUE;
    if (c->origin != s) return break_capture(c), SOFT_CAPTURE_UNMATCHED;
    if (c->mode != 2 && !pthread_equal(c->thread, pthread_self())) return SOFT_WRONG_THREAD;
    code = c->broken ? SOFT_CAPTURE_INVALIDATED : is_joined(c) ? SOFT_OK : SOFT_CAPTURE_UNJOINED;
    op **ops = (op **)allocate((c->count + 1) * sizeof *ops), *o = c->first;
    for (size_t i = 0; i < c->count; i++, o = o->next) ops[i] = o;
    for (size_t i = 0; code && i < c->count; i++) drop_op(ops[i]);
    *out = code ? NULL : new_graph(d, ops, c->count, false);
    if (code) free(ops);
    end_capture(c);
    return code;
}

static int new_launch(soft_device *d, soft_function *f, const unsigned grid[3], const unsigned threads[3], unsigned shared, void **args,
                      void **extra, op **out);

static op *copy_of(const op *o) {
    size_t payload = o->command.head - sizeof o->command;
    op *copy = new_op(o->what, payload);
    memcpy(copy, o, sizeof *o + payload);
    if (o->held) o->held(o->data, 1);
    if (o->what == CHILD) copy->ops = (op **)allocate((o->count + 1) * sizeof *copy->ops);
    for (size_t i = 0; i < o->count; i++) copy->ops[i] = copy_of(o->ops[i]);
    return copy;
}

static bool good_graph(const soft_graph *g, bool exec) { return g && g->magic == GRAPH_MAGIC && g->exec == exec; }

int soft_graph_create(soft_device *d, soft_graph **g) {
    int code = soft_check(d);
    if (!code && !g) code = SOFT_INVALID_VALUE;
    if (!code) *g = new_graph(d, NULL, 0, false);
    return code;
}

/* Whether a node that comes after these can be added. */
static bool can_follow(soft_node *const *out, const soft_graph *g, soft_node *const *after, size_t n) {
    if (!out || !good_graph(g, false) || (n && !after) || (g->count && !g->nodes)) return false;
    for (size_t i = 0; i < n; i++) {
        if (!after[i] || after[i]->magic != NODE_MAGIC || after[i]->graph != g) return false;
        for (size_t k = 0; k < i; k++)
            if (after[k] == after[i]) return false;
    }
    return true;
}

static int add_node(soft_node **out, soft_graph *g, soft_node *const *after, size_t n, op *o) {
    soft_node *node = (soft_node *)allocate(sizeof *node);
    node->magic = NODE_MAGIC;
    node->graph = g;
    node->number = g->count;
    node->after = (soft_node **)allocate((n + 1) * sizeof *after);
    node->nafter = n;
    for (size_t i = 0; i < n; i++) node->after[i] = after[i];
    g->ops = (op **)realloc(g->ops, (g->count + 1) * sizeof *g->ops);
    g->nodes = (soft_node **)realloc(g->nodes, (g->count + 1) * sizeof *g->nodes);
    if (!g->ops || !g->nodes) stop("memory");
    g->ops[g->count] = o;
    g->nodes[g->count++] = node;
    *out = node;
    return SOFT_OK;
}

int soft_graph_add(soft_device *d, soft_node **out, soft_graph *g, soft_node *const *after, size_t n, soft_function *f, const unsigned grid[3],
                   const unsigned threads[3], unsigned shared, void **args, void **extra) {
    op *o = NULL;
    if (!can_follow(out, g, after, n)) return SOFT_INVALID_VALUE;
    int code = new_launch(d, f, grid, threads, shared, args, extra, &o);
    return code ? code : add_node(out, g, after, n, o);
}

/* An order in which every node comes after those it names; which of several is chosen differs from one to the next. */
static size_t *order_of(const soft_graph *g) {
    static unsigned turn;
    size_t *order = (size_t *)allocate((g->count + 1) * sizeof *order), done = 0;
    bool *placed = (bool *)allocate(g->count + 1);
    for (turn++; done < g->count;) {
        size_t pick = g->count;
        for (size_t k = 0; k < g->count; k++) {
            size_t i = turn & 1 ? g->count - 1 - k : k;
            bool free_now = !placed[i];
            for (size_t a = 0; a < g->nodes[i]->nafter && free_now; a++) free_now = placed[g->nodes[i]->after[a]->number];
            if (free_now) { pick = i; break; }
        }
        placed[pick] = true;                   /* there is one: a node can only name older ones */
        order[done++] = pick;
    }
    free(placed);
    return order;
}

/* All of another graph, as it is now. */
int soft_graph_add_child(soft_device *d, soft_node **out, soft_graph *g, soft_node *const *after, size_t n, soft_graph *child) {
    int code = soft_check(d);
    if (code) return code;
    if (!can_follow(out, g, after, n) || !good_graph(child, false) || child == g) return SOFT_INVALID_VALUE;
    size_t *order = child->nodes ? order_of(child) : NULL;
    op *o = new_op(CHILD, 0);
    o->ops = (op **)allocate((child->count + 1) * sizeof *o->ops);
    for (; o->count < child->count; o->count++) o->ops[o->count] = copy_of(child->ops[order ? order[o->count] : o->count]);
    free(order);
    return add_node(out, g, after, n, o);
}

static int check_event(soft_device *d, const soft_event *e) {
    int code = soft_check(d);
    if (code) return code;
    if (!e || e->magic != EVENT_MAGIC) return SOFT_INVALID_HANDLE;
    return e->device->lost;
}

/* Each launch of the graph records the event anew. */
int soft_graph_add_event(soft_device *d, soft_node **out, soft_graph *g, soft_node *const *after, size_t n, soft_event *e) {
    int code = soft_check(d);
    if (!code) code = check_event(d, e);
    if (code) return code;
    if (!can_follow(out, g, after, n)) return SOFT_INVALID_VALUE;
    op *o = new_op(RECORD, 0);
    o->event = e;
    return add_node(out, g, after, n, o);
}

int soft_graph_instantiate(soft_device *d, soft_graph **exec, soft_graph *g) {
    int code = soft_check(d);
    if (code) return code;
    if (!exec || !good_graph(g, false)) return SOFT_INVALID_VALUE;
    op **ops = (op **)allocate((g->count + 1) * sizeof *ops);
    for (size_t i = 0; i < g->count; i++) ops[i] = copy_of(g->ops[i]);
    *exec = new_graph(g->device, ops, g->count, true);
    (*exec)->of = g;
    if (g->nodes) (*exec)->order = order_of(g);
    return SOFT_OK;
}

/* For launches to come; what was launched before runs as it was. The kernel may be another one of the same device. */
int soft_graph_set(soft_device *d, soft_graph *exec, soft_node *node, soft_function *f, const unsigned grid[3], const unsigned threads[3],
                   unsigned shared, void **args, void **extra) {
    op *o = NULL;
    if (!good_graph(exec, true) || !node || node->magic != NODE_MAGIC || node->graph != exec->of) return SOFT_INVALID_VALUE;
    int code = new_launch(d, f, grid, threads, shared, args, extra, &o);
    if (code) return code;
    drop_op(exec->ops[node->number]);
    exec->ops[node->number] = o;
    return SOFT_OK;
}

int soft_graph_set_event(soft_device *d, soft_graph *exec, soft_node *node, soft_event *e) {
    int code = soft_check(d);
    if (!code) code = check_event(d, e);
    if (code) return code;
    if (!good_graph(exec, true) || !node || node->magic != NODE_MAGIC || node->graph != exec->of) return SOFT_INVALID_VALUE;
    if (exec->ops[node->number]->what != RECORD) return SOFT_INVALID_VALUE;
    exec->ops[node->number]->event = e;
    return SOFT_OK;
}

/* Whether what a graph needs is still there: unloading a module leaves its kernels without code. */
static bool can_launch(const op *o) {
    bool can = (!o->function || o->function->magic == FUNCTION_MAGIC) && (!o->event || o->event->magic == EVENT_MAGIC) &&
               (!o->again || o->again(o->data, NULL, 0));
    for (size_t i = 0; i < o->count && can; i++) can = can_launch(o->ops[i]);
    return can;
}

/* Queues an operation of a graph, or has the capture take it. */
static int put_again(soft_stream *s, const op *o) {
    int code = SOFT_OK;
    if (o->what == CHILD && !s->capture) {
        for (size_t i = 0; i < o->count && !code; i++) code = put_again(s, o->ops[i]);
        return code;
    }
    op *copy = copy_of(o);
    if (s->capture) return put(s, copy);
    if (o->held) o->held(o->data, -1), copy->held = NULL, copy->again = NULL;
    code = put(s, copy);
    if (!code && o->again) copy->data = o->again(o->data, s, copy->seq);
    if (!code && o->what == RECORD) o->event->capture = NULL, o->event->stream = s, o->event->seq = copy->seq, o->event->polls = 0;
    return code;
}

int soft_graph_launch(soft_device *d, soft_graph *g, soft_stream *s) {
    int code = check_stream(d, &s);
    if (code) return code;
    if (!good_graph(g, true)) return SOFT_INVALID_VALUE;
    if (g->device != d) return SOFT_INVALID_CONTEXT;
    for (size_t i = 0; i < g->count; i++)
        if (!can_launch(g->ops[i])) return SOFT_INVALID_HANDLE;
    for (size_t i = 0; i < g->count && !code; i++) code = put_again(s, g->ops[g->order ? g->order[i] : i]);
    return code;
}

static void kill_nodes(soft_graph *g) {
    for (size_t i = 0; g->nodes && i < g->count; i++) {
        soft_node *n = g->nodes[i];
        free(n->after);
        n->after = NULL;
        n->magic = DEAD;
        n->next = dead_nodes;
        dead_nodes = n;
    }
    free(g->nodes);
    g->nodes = NULL;
}

int soft_graph_destroy(soft_graph *g, bool exec) {
    if (!good_graph(g, exec)) return SOFT_INVALID_VALUE;
    for (soft_graph **p = &graphs; *p; p = &(*p)->next)
        if (*p == g) { *p = g->next; break; }
    kill_nodes(g);
    for (size_t i = 0; i < g->count; i++) drop_op(g->ops[i]);
    free(g->ops);
    free(g->order);
    g->magic = DEAD;
    g->ops = NULL;
    g->order = NULL;
    g->next = dead_graphs;
    dead_graphs = g;
    live_graphs--;
    return SOFT_OK;
}

/* ---------------- memory, as a program asks for it */

int soft_alloc(soft_device *d, uint64_t *p, uint64_t n) {
    int code = soft_check(d);
    if (!code) code = unsafe();
    if (code) return code;
    if (!p || !n) return SOFT_INVALID_VALUE;
    block *b = take(&d->memory, n);
    if (!b) return SOFT_OUT_OF_MEMORY;
    control(d, SOFT_ACCESS, b->start, b->end - b->start, 1);
    *p = b->at;
    return SOFT_OK;
}

int soft_free(soft_device *d, uint64_t p) {
    if (!d) return SOFT_INVALID_CONTEXT;
    int code = d->lost ? 0 : unsafe();
    block *b = block_of(&d->memory, p, 1);
    if (code) return code;
    if (!b || b->at != p) return d->lost ? d->lost : check_range(d, p, 1) == SOFT_INVALID_CONTEXT ? SOFT_INVALID_CONTEXT : SOFT_INVALID_VALUE;
    code = flush_device(d, false);             /* as drivers do; it may have been in use */
    b = block_of(&d->memory, p, 1);            /* the lock may have been given up */
    if (!b || b->at != p) return SOFT_INVALID_VALUE;
    control(d, SOFT_ACCESS, b->start, b->end - b->start, 0);
    give(&d->memory, b, d->index);
    return code;
}

int soft_memory(soft_device *d, size_t *free_bytes, size_t *total) {
    int code = soft_check(d);
    if (code) return code;
    if (!free_bytes || !total) return SOFT_INVALID_VALUE;
    *free_bytes = d->memory.limit - d->memory.used;
    *total = d->memory.limit;
    return SOFT_OK;
}

int soft_alloc_host(soft_device *d, void **p, size_t n) {
    int code = soft_check(d);
    if (!code) code = unsafe();
    if (code) return code;
    if (!p || !n) return SOFT_INVALID_VALUE;
    block *b = take(&pinned, n);
    if (!b) return SOFT_OUT_OF_MEMORY;
    void *start = address(b->start);
    if (mmap(start, b->end - b->start, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, pinned.fd, (off_t)(b->start - pinned.base)) != start)
        stop("pinned memory");
    *p = address(b->at);
    return SOFT_OK;
}

int soft_free_host(soft_device *d, void *p) {
    uint64_t at = (uint64_t)(uintptr_t)p;
    block *b = block_of(&pinned, at, 1);
    if (!d) return SOFT_INVALID_CONTEXT;
    int code = d->lost ? 0 : unsafe();
    if (code) return code;
    if (!b || b->at != at) return SOFT_INVALID_VALUE;
    for (int i = 0; i < ndevices; i++) flush_device(&devices[i], false);
    b = block_of(&pinned, at, 1);
    if (!b || b->at != at) return SOFT_INVALID_VALUE;
    mmap(address(b->start), b->end - b->start, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    give(&pinned, b, d->index);
    return d->lost;
}

/* ---------------- copies */

int soft_read(soft_device *d, void *to, uint64_t from, uint64_t n) {
    int code = soft_check(d);
    if (!code) code = unsafe();
    if (!code && !n) return SOFT_OK;
    if (!code) code = is_host(to) ? check_range(d, from, n) : SOFT_INVALID_VALUE;
    if (!code) code = flush_device(d, true);
    return code ? code : file_read(&d->memory, from, to, n);
}

int soft_write(soft_device *d, uint64_t to, const void *from, uint64_t n) {
    int code = soft_check(d);
    if (!code) code = unsafe();
    if (!code && !n) return SOFT_OK;
    if (!code) code = is_host(from) ? check_range(d, to, n) : SOFT_INVALID_VALUE;
    if (!code) code = flush_device(d, true);
    return code ? code : file_write(&d->memory, to, from, n);
}

static int put_copy(soft_stream *s, uint64_t to, uint64_t from, uint64_t n) {
    op *o = new_op(COMMAND, 0);
    o->command.kind = SOFT_COPY;
    o->command.to = to, o->command.from = from, o->command.bytes = n;
    return put(s, o);
}

/* Pageable memory cannot be read at its convenience: a copy from it takes the bytes now, one to it waits. */
static int pageable(void) {
    static soft_point point = { "pageable", 0, NULL };
    return soft_enter(&point);
}
int soft_read_async(soft_device *d, void *to, uint64_t from, uint64_t n, soft_stream *s) {
    int code = check_stream(d, &s);
    if (!code && !n) return SOFT_OK;
    if (!code) code = is_host(to) ? check_range(d, from, n) : SOFT_INVALID_VALUE;
    if (code) return code;
    if (is_pinned(to, n)) return put_copy(s, (uint64_t)(uintptr_t)to, from, n);
    if (s->capture) return break_capture(s->capture), SOFT_CAPTURE_UNSUPPORTED;
    order_with_null(s);
    code = pageable();
    if (!code) code = flush_stream(s);
    return code ? code : file_read(&d->memory, from, to, n);
}

int soft_write_async(soft_device *d, uint64_t to, const void *from, uint64_t n, soft_stream *s) {
    int code = check_stream(d, &s);
    if (!code && !n) return SOFT_OK;
    if (!code) code = is_host(from) ? check_range(d, to, n) : SOFT_INVALID_VALUE;
    if (code) return code;
    if (is_pinned(from, n)) return put_copy(s, to, (uint64_t)(uintptr_t)from, n);
    if (s->capture) return break_capture(s->capture), SOFT_CAPTURE_UNSUPPORTED;
    code = pageable();
    for (const char *p = (const char *)from; n && !code;) {    /* a command's length is a 32-bit number */
        uint64_t k = n < (64u << 20) ? n : 64u << 20;
        op *o = new_op(COMMAND, soft_round(k, 16));
        o->command.kind = SOFT_WRITE;
        o->command.to = to, o->command.bytes = k;
        memcpy(o + 1, p, k);
        code = put(s, o);
        p += k, to += k, n -= k;
    }
    return code;
}

static int put_peer(soft_stream *s, uint64_t to, soft_device *td, uint64_t from, soft_device *fd, uint64_t n) {
    op *o = new_op(PEER, 0);
    o->to = td, o->from = fd;
    o->command.to = to, o->command.from = from, o->command.bytes = n;
    return put(s, o);
}

static soft_device *reachable(soft_device *d, uint64_t at, uint64_t n) {
    for (int i = 0; i < ndevices; i++)
        if ((i == d->index || d->peer[i]) && block_of(&devices[i].memory, at, n)) return &devices[i];
    return NULL;
}

int soft_copy_async(soft_device *d, uint64_t to, uint64_t from, uint64_t n, soft_stream *s) {
    int code = check_stream(d, &s);
    if (code || !n) return code;
    soft_device *td = reachable(d, to, n), *fd = reachable(d, from, n);
    if (!td) return check_range(d, to, n);
    if (!fd) return check_range(d, from, n);
    return td == d && fd == d ? put_copy(s, to, from, n) : put_peer(s, to, td, from, fd, n);
}

int soft_peer_async(soft_device *d, uint64_t to, soft_device *td, uint64_t from, soft_device *fd, uint64_t n, soft_stream *s) {
    int code = check_stream(d, &s);
    if (code || !n) return code;
    if (!td || !fd) return SOFT_INVALID_VALUE;
    if (td->lost || fd->lost) return td->lost ? td->lost : fd->lost;
    if (!block_of(&td->memory, to, n) || !block_of(&fd->memory, from, n)) return SOFT_INVALID_VALUE;
    return td == d && fd == d ? put_copy(s, to, from, n) : put_peer(s, to, td, from, fd, n);
}

int soft_set_async(soft_device *d, uint64_t to, int value, uint64_t n, soft_stream *s) {
    int code = check_stream(d, &s);
    if (!code && !n) return SOFT_OK;
    if (!code) code = check_range(d, to, n);
    if (code) return code;
    op *o = new_op(COMMAND, 0);
    o->command.kind = SOFT_SET;
    o->command.to = to, o->command.bytes = n, o->command.value = (uint32_t)(value & 255);
    return put(s, o);
}

int soft_can_peer(soft_device *d, soft_device *peer) { return d != peer && number_from("SOFTGPU_PEER", 1) != 0; }

int soft_enable_peer(soft_device *d, soft_device *peer) {
    int code = soft_check(d);
    if (code) return code;
    if (!peer) return SOFT_INVALID_VALUE;
    if (!soft_can_peer(d, peer)) return d == peer ? SOFT_INVALID_DEVICE : SOFT_PEER_UNSUPPORTED;
    if (d->peer[peer->index]) return SOFT_PEER_ENABLED;
    d->peer[peer->index] = true;
    control(d, SOFT_PEER, (uint64_t)peer->index, 0, 1);
    return SOFT_OK;
}

/* ---------------- streams */

int soft_stream_create(soft_device *d, soft_stream **out, unsigned flags) {
    int code = soft_check(d);
    if (code) return code;
    if (!out || flags > 1) return SOFT_INVALID_VALUE;
    soft_stream *s = (soft_stream *)allocate(sizeof *s);
    s->magic = STREAM_MAGIC;
    s->device = d;
    s->blocking = !(flags & 1);
    s->last = &s->first;
    s->next = d->streams;
    d->streams = s;
    live_streams++;
    *out = s;
    return SOFT_OK;
}

/* Its work is still done; that it is done here is as good as anywhere. */
int soft_stream_destroy(soft_device *d, soft_stream *s) {
    if (!d) return SOFT_INVALID_CONTEXT;
    if (!s || s->magic != STREAM_MAGIC || s == s->device->null_stream) return SOFT_INVALID_HANDLE;
    if (s->device != d) return SOFT_INVALID_CONTEXT;
    if (s->capture) drop_capture(s);
    flush_stream(s);
    for (soft_stream **p = &d->streams; *p; p = &(*p)->next)
        if (*p == s) { *p = s->next; break; }
    s->magic = DEAD;
    s->next = dead_streams;
    dead_streams = s;
    live_streams--;
    return d->lost;
}

static int not_captured(soft_stream *s) {
    return s->capture ? break_capture(s->capture), SOFT_CAPTURE_UNSUPPORTED : SOFT_OK;
}

int soft_stream_synchronize(soft_device *d, soft_stream *s) {
    int code = check_stream(d, &s);
    if (!code) code = not_captured(s);
    if (code) return code;
    return s == d->null_stream ? flush_device(d, true) : flush_stream(s);
}

int soft_stream_query(soft_device *d, soft_stream *s) {
    int code = check_stream(d, &s);
    if (!code) code = not_captured(s);
    if (code) return code;
    if (s->first && s->polls++ < TRIES) return SOFT_NOT_READY;
    if (!run_until(s, s->queued, false)) return finish(NULL), SOFT_NOT_READY;
    return flush_stream(s);
}

int soft_synchronize(soft_device *d) {
    int code = soft_check(d);
    if (code) return code;
    for (soft_stream *s = d->streams; s; s = s->next)
        if ((code = not_captured(s)) != 0) return code;
    return flush_device(d, false);
}

/* ---------------- events */

int soft_event_create(soft_device *d, soft_event **out, unsigned flags) {
    int code = soft_check(d);
    if (code) return code;
    if (!out) return SOFT_INVALID_VALUE;
    soft_event *e = (soft_event *)allocate(sizeof *e);
    e->magic = EVENT_MAGIC;
    e->device = d;
    e->timing = !(flags & 2);
    e->next = events;
    events = e;
    live_events++;
    *out = e;
    return SOFT_OK;
}

int soft_event_destroy(soft_device *d, soft_event *e) {
    if (!d) return SOFT_INVALID_CONTEXT;
    if (!e || e->magic != EVENT_MAGIC) return SOFT_INVALID_HANDLE;
    for (soft_event **p = &events; *p; p = &(*p)->next)
        if (*p == e) { *p = e->next; break; }
    e->magic = DEAD;
    e->timing = false;
    e->next = dead_events;
    dead_events = e;
    live_events--;
    return d->lost;
}

int soft_event_record(soft_device *d, soft_event *e, soft_stream *s) {
    int code = check_stream(d, &s);
    if (!code) code = check_event(d, e);
    if (code) return code;
    if (e->device != d) return SOFT_INVALID_HANDLE;
    e->polls = 0;
    if (s->capture) {
        e->capture = s->capture;
        e->stream = s;
        e->captured = s->captured;
        return s->capture->broken ? SOFT_CAPTURE_INVALIDATED : SOFT_OK;
    }
    op *o = new_op(RECORD, 0);
    o->event = e;
    code = put(s, o);
    if (code) return code;
    e->capture = NULL;
    e->stream = s;
    e->seq = s->queued;
    return SOFT_OK;
}

/* While capturing, a wait brings a stream into the capture or joins one to it. The graph's operations stay in the order
   they came in, which keeps every such rule. */
static int capture_wait(soft_stream *s, const soft_event *e) {
    if (!e->capture) return break_capture(s->capture), SOFT_CAPTURE_ISOLATION;
    if (s->capture && s->capture != e->capture) {
        break_capture(s->capture), break_capture(e->capture);
        return SOFT_CAPTURE_MERGE;
    }
    if (s == s->device->null_stream) return break_capture(e->capture), SOFT_CAPTURE_IMPLICIT;
    if (!s->capture) {
        s->capture = e->capture;
        s->captured = s->joined = 0;
    }
    if (e->stream != s && e->stream->joined < e->captured) e->stream->joined = e->captured;
    return s->capture->broken ? SOFT_CAPTURE_INVALIDATED : SOFT_OK;
}

int soft_stream_wait(soft_device *d, soft_stream *s, soft_event *e) {
    int code = check_stream(d, &s);
    if (!code) code = check_event(d, e);
    if (code) return code;
    if (e->capture || (s->capture && e->stream)) return capture_wait(s, e);
    if (!e->stream || e->stream->done >= e->seq) return SOFT_OK;
    order_with_null(s);
    push_wait(s, e->stream, e->seq);
    return SOFT_OK;
}

static bool is_done(const soft_event *e) { return !e->stream || e->stream->done >= e->seq; }

static int finish_event(soft_event *e) {
    if (!is_done(e)) run_until(e->stream, e->seq, true);
    finish(NULL);
    return e->device->lost;
}

int soft_event_synchronize(soft_device *d, soft_event *e) {
    int code = check_event(d, e);
    if (code) return code;
    if (e->capture) return break_capture(e->capture), SOFT_CAPTURED_EVENT;
    if ((code = unsafe()) != 0) return code;
    return finish_event(e);
}

int soft_event_query(soft_device *d, soft_event *e) {
    int code = check_event(d, e);
    if (code) return code;
    if (e->capture) return break_capture(e->capture), SOFT_CAPTURED_EVENT;
    if ((code = unsafe()) != 0) return code;
    if (!is_done(e) && e->polls++ < TRIES) return SOFT_NOT_READY;
    if (!is_done(e) && !run_until(e->stream, e->seq, false)) return finish(NULL), SOFT_NOT_READY;
    return finish_event(e);
}

int soft_event_elapsed(soft_device *d, float *ms, soft_event *from, soft_event *to) {
    int code = check_event(d, from);
    if (!code) code = check_event(d, to);
    if (code) return code;
    if (!ms) return SOFT_INVALID_VALUE;
    if (!from->timing || !to->timing || !from->stream || !to->stream) return SOFT_INVALID_HANDLE;
    if (!is_done(from) || !is_done(to)) return SOFT_NOT_READY;
    *ms = (float)((double)(int64_t)(to->stamp - from->stamp) / 1e6);
    return SOFT_OK;
}

/* ---------------- modules */

static content *read_content(char *text, uint64_t hash) {
    content *c = (content *)allocate(sizeof *c);
    char *p = text;
    c->hash = hash;
    c->number = (unsigned)strtoul(p, &p, 10);
    c->shared = (unsigned)strtoul(p, &p, 10);
    c->nkernels = (unsigned)strtoul(p, &p, 10);
    c->kernel = (kernel_info *)allocate((c->nkernels + 1) * sizeof *c->kernel);
    for (unsigned i = 0; i < c->nkernels; i++) {
        kernel_info *k = &c->kernel[i];
        p += strspn(p, "\n");
        size_t n = strcspn(p, " ");
        k->name = (char *)allocate(n + 1);
        memcpy(k->name, p, n);
        k->count = (unsigned)strtoul(p + n, &p, 10);
        k->size = (unsigned *)allocate((k->count + 1) * sizeof *k->size);
        for (unsigned j = 0; j < k->count; j++) k->size[j] = (unsigned)strtoul(p, &p, 10);
    }
    return c;
}

static int content_of(soft_device *d, const soft_image *image, content **out) {
    char *text = NULL;
    for (content *c = d->contents[image->hash % CONTENTS]; c; c = c->next)
        if (c->hash == image->hash) return *out = c, SOFT_OK;
    size_t payload = soft_round(image->bytes, 16);
    soft_command *c = (soft_command *)allocate(sizeof *c + payload);
    c->kind = SOFT_LOAD;
    c->head = (uint32_t)(sizeof *c + payload);
    c->to = image->hash;
    c->bytes = image->bytes;
    c->from = image->text;
    memcpy(c + 1, image + 1, image->bytes);
    finish(NULL);
    send_command(d, c);
    free(c);
    int code = finish(&text);
    if (!code && text) {
        *out = read_content(text, image->hash);
        content **first = &d->contents[image->hash % CONTENTS];
        (*out)->next = *first;
        *first = *out;
    }
    free(text);
    return code ? code : *out ? SOFT_OK : SOFT_INVALID_IMAGE;
}

static int nibble(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

static soft_image *from_text(const char *s) {  /* PTX */
    s += strcspn(s + strlen(SOFT_PTX), "\n") + strlen(SOFT_PTX);
    s += *s == '\n';
    size_t n = strlen(s) / 2;
    if (n < sizeof(soft_image)) return NULL;
    unsigned char *out = (unsigned char *)allocate(n);
    for (size_t i = 0; i < n; i++) {
        int high_part = nibble(s[2 * i]), low_part = nibble(s[2 * i + 1]);
        if (high_part < 0 || low_part < 0) { free(out); return NULL; }
        out[i] = (unsigned char)(high_part << 4 | low_part);
    }
    soft_image head;
    memcpy(&head, out, sizeof head);
    if (memcmp(head.magic, SOFT_MAGIC, 8) || n != sizeof head + head.bytes) { free(out); return NULL; }
    return (soft_image *)(void *)out;
}

/* The image copied and checked: where it came from need not be aligned, nor be what it says. */
static soft_image *read_image(const void *data, bool *text) {
    soft_image head;
    *text = !strncmp((const char *)data, SOFT_PTX, strlen(SOFT_PTX));
    if (*text) return from_text((const char *)data);
    if (strncmp((const char *)data, SOFT_MAGIC, 8)) return NULL;
    memcpy(&head, data, sizeof head);
    if (head.bytes > (1u << 30)) return NULL;
    soft_image *image = (soft_image *)allocate(sizeof head + head.bytes);
    memcpy(image, data, sizeof head + head.bytes);
    return image;
}

int soft_load(soft_device *d, soft_loaded **out, const void *data) {
    int code = soft_check(d);
    bool text;
    content *found = NULL;
    if (!code) code = unsafe();
    if (code) return code;
    if (!out || !data) return SOFT_INVALID_VALUE;
    soft_image *image = read_image(data, &text);
    if (!image) return SOFT_INVALID_IMAGE;
    if (soft_hash(14695981039346656037u, image + 1, image->bytes) != image->hash) code = SOFT_INVALID_IMAGE;
    else if (soft_takes((int)image->version, text)) code = soft_takes((int)image->version, text);
    else if (!soft_runs_on(image->arch, d->arch, text)) code = SOFT_NO_BINARY;
    else code = content_of(d, image, &found);
    free(image);
    if (code) return code;
    soft_loaded *m = (soft_loaded *)allocate(sizeof *m);
    m->magic = MODULE_MAGIC;
    m->device = d;
    m->content = found;
    m->functions = (soft_function *)allocate((found->nkernels + 1) * sizeof *m->functions);
    for (unsigned i = 0; i < found->nkernels; i++) {
        m->functions[i].magic = FUNCTION_MAGIC;
        m->functions[i].module = m;
        m->functions[i].kernel = i;
        m->functions[i].most_dynamic = (int)soft_plain_shared;
    }
    m->next = modules;
    modules = m;
    live_modules++;
    *out = m;
    return SOFT_OK;
}

int soft_unload(soft_device *d, soft_loaded *m) {
    if (!d) return SOFT_INVALID_CONTEXT;
    if (!m || m->magic != MODULE_MAGIC) return SOFT_INVALID_HANDLE;
    if (m->device != d) return SOFT_INVALID_CONTEXT;
    int code = d->lost ? 0 : unsafe();
    if (code) return code;
    for (soft_loaded **p = &modules; *p; p = &(*p)->next)
        if (*p == m) { *p = m->next; break; }
    for (unsigned i = 0; i < m->content->nkernels; i++) m->functions[i].magic = DEAD;
    m->magic = DEAD;
    m->next = dead_modules;
    dead_modules = m;
    live_modules--;
    return d->lost;
}

int soft_get_function(soft_device *d, soft_function **out, soft_loaded *m, const char *name) {
    int code = soft_check(d);
    if (code) return code;
    if (!out || !name) return SOFT_INVALID_VALUE;
    if (!m || m->magic != MODULE_MAGIC) return SOFT_INVALID_HANDLE;
    if (m->device != d) return SOFT_INVALID_CONTEXT;
    for (unsigned i = 0; i < m->content->nkernels; i++)
        if (!strcmp(m->content->kernel[i].name, name)) return *out = &m->functions[i], SOFT_OK;
    return SOFT_NOT_FOUND;
}

static int check_function(soft_device *d, const soft_function *f) {
    int code = soft_check(d);
    if (code) return code;
    if (!f || f->magic != FUNCTION_MAGIC) return SOFT_INVALID_HANDLE;
    return f->module->device == d ? SOFT_OK : SOFT_INVALID_CONTEXT;
}

int soft_function_attribute(soft_device *d, int *value, int which, soft_function *f) {
    int code = check_function(d, f);
    if (code) return code;
    if (!value) return SOFT_INVALID_VALUE;
    switch (which) {
    case 0: *value = 1024; break;              /* most threads in a block */
    case 1: *value = (int)f->module->content->shared; break;
    case 2: case 3: *value = 0; break;
    case 4: *value = 32; break;                /* registers */
    case 5: case 6: *value = atoi(d->arch); break;
    case 8: *value = f->most_dynamic; break;
    default: return SOFT_INVALID_VALUE;
    }
    return SOFT_OK;
}

int soft_function_set(soft_device *d, soft_function *f, int which, int value) {
    int code = check_function(d, f);
    if (code) return code;
    if (which == 9) return value >= -1 && value <= 100 ? SOFT_OK : SOFT_INVALID_VALUE;   /* a preference */
    if (which != 8 || value < 0 || value + (int)f->module->content->shared > SOFT_MOST_SHARED) return SOFT_INVALID_VALUE;
    f->most_dynamic = value;
    return SOFT_OK;
}

static bool good_shape(const unsigned grid[3], const unsigned threads[3]) {
    for (int i = 0; i < 3; i++)
        if (!grid[i] || !threads[i]) return false;
    return threads[0] <= 1024 && threads[1] <= 1024 && threads[2] <= 64 && threads[0] * threads[1] * threads[2] <= 1024
        && grid[0] <= 0x7fffffff && grid[1] <= 65535 && grid[2] <= 65535;
}

/* The limit is for all that a block has; more than the plain limit only if the function was told so. */
static bool good_shared(const soft_function *f, unsigned dynamic) {
    unsigned fixed = f->module->content->nkernels == 1 ? f->module->content->shared : 0;
    if (f->most_dynamic > (int)soft_plain_shared) return dynamic <= (unsigned)f->most_dynamic && dynamic + fixed <= SOFT_MOST_SHARED;
    return dynamic <= (unsigned)f->most_dynamic && dynamic + fixed <= soft_plain_shared;
}

/* A launch that is not in any queue yet. */
static int new_launch(soft_device *d, soft_function *f, const unsigned grid[3], const unsigned threads[3], unsigned shared, void **args,
                      void **extra, op **out) {
    int code = check_function(d, f);
    if (code) return code;
    const kernel_info *k = &f->module->content->kernel[f->kernel];
    if (extra || (k->count && !args) || !good_shape(grid, threads) || !good_shared(f, shared)) return SOFT_INVALID_VALUE;
    size_t payload = 0;
    for (unsigned i = 0; i < k->count; i++) payload += soft_round(k->size[i], 16);
    op *o = new_op(COMMAND, payload);
    o->function = f;
    o->command.kind = SOFT_LAUNCH;
    o->command.module = f->module->content->number;
    o->command.kernel = f->kernel;
    o->command.shared = shared;
    memcpy(o->command.grid, grid, sizeof o->command.grid);
    memcpy(o->command.block, threads, sizeof o->command.block);
    char *p = (char *)(o + 1);
    memset(p, 0, payload);
    for (unsigned i = 0; i < k->count; i++) memcpy(p, args[i], k->size[i]), p += soft_round(k->size[i], 16);
    *out = o;
    return SOFT_OK;
}

int soft_launch(soft_device *d, soft_function *f, const unsigned grid[3], const unsigned threads[3], unsigned shared,
                soft_stream *s, void **args, void **extra) {
    op *o = NULL;
    int code = check_stream(d, &s);
    if (!code) code = new_launch(d, f, grid, threads, shared, args, extra, &o);
    return code ? code : put(s, o);
}

/* ---------------- what other libraries do in a stream's turn: link.h */

static int link_device(void) { return soft_here() ? soft_here()->index : -1; }
static int link_physical(int device) { return devices[device].physical; }
static const soft_stream *as_stream(const void *s) {
    const soft_stream *t = (const soft_stream *)s;
    return t && t->magic == STREAM_MAGIC ? t : NULL;
}
static int link_device_of(const void *s) { return as_stream(s) ? as_stream(s)->device->index : -1; }
static bool link_holds(int device, uint64_t at, uint64_t n) { return block_of(&devices[device].memory, at, n) != NULL; }
static int link_queue(void *stream, soft_poll *poll, void *data, uint64_t *number) {
    soft_stream *s = (soft_stream *)stream;
    int code = check_stream(s->device, &s);
    if (code) return code;
    op *o = new_op(OTHER, 0);
    o->poll = poll;
    o->data = data;
    code = put(s, o);
    *number = s->queued;
    return code;
}
static bool link_captures(const void *stream) { return as_stream(stream) && as_stream(stream)->capture; }
static int link_capture(void *stream, soft_poll *poll, soft_again *again, soft_held *held, void *data) {
    soft_stream *s = (soft_stream *)stream;
    int code = check_stream(s->device, &s);
    if (code) return code;
    op *o = new_op(OTHER, 0);
    o->poll = poll;
    o->again = again;
    o->held = held;
    o->data = data;
    held(data, 1);
    return put(s, o);
}
static bool link_advance(void *stream, uint64_t number) {
    soft_stream *s = (soft_stream *)stream;
    if (ended || s->done >= number) return true;
    bool done = run_until(s, number, false);
    finish(NULL);
    return done;
}
static bool link_read(int device, void *to, uint64_t from, uint64_t n) { return !file_read(&devices[device].memory, from, to, n); }
static bool link_write(int device, uint64_t to, const void *from, uint64_t n) { return !file_write(&devices[device].memory, to, from, n); }

extern SOFT_EXPORT const soft_link_table soft_link;
const soft_link_table soft_link = { soft_lock, soft_unlock, link_device, link_physical, link_device_of, link_holds,
                                    link_queue, link_captures, link_capture, link_advance, link_read, link_write };

/* ---------------- what the codes are called */

static const struct { int code; const char *cuda, *hip, *text; } errors[] = {
    { 0, "CUDA_SUCCESS", "hipSuccess", "no error" },
    { 1, "CUDA_ERROR_INVALID_VALUE", "hipErrorInvalidValue", "invalid argument" },
    { 2, "CUDA_ERROR_OUT_OF_MEMORY", "hipErrorOutOfMemory", "out of memory" },
    { 3, "CUDA_ERROR_NOT_INITIALIZED", "hipErrorNotInitialized", "initialization error" },
    { 4, "CUDA_ERROR_DEINITIALIZED", "hipErrorDeinitialized", "driver shutting down" },
    { 34, "CUDA_ERROR_STUB_LIBRARY", NULL, "the library is a stub" },
    { 35, NULL, "hipErrorInsufficientDriver", "driver version is insufficient for runtime version" },
    { 46, "CUDA_ERROR_DEVICE_UNAVAILABLE", NULL, "device(s) is/are busy or unavailable" },
    { 98, NULL, "hipErrorInvalidDeviceFunction", "invalid device function" },
    { 100, "CUDA_ERROR_NO_DEVICE", "hipErrorNoDevice", "no device is detected" },
    { 101, "CUDA_ERROR_INVALID_DEVICE", "hipErrorInvalidDevice", "invalid device ordinal" },
    { 200, "CUDA_ERROR_INVALID_IMAGE", "hipErrorInvalidImage", "device kernel image is invalid" },
    { 201, "CUDA_ERROR_INVALID_CONTEXT", "hipErrorInvalidContext", "invalid device context" },
    { 209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "hipErrorNoBinaryForGpu", "no kernel image is available for execution on the device" },
    { 214, "CUDA_ERROR_ECC_UNCORRECTABLE", "hipErrorECCNotCorrectable", "uncorrectable ECC error encountered" },
    { 217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "hipErrorPeerAccessUnsupported", "peer access is not supported between these two devices" },
    { 218, "CUDA_ERROR_INVALID_PTX", "hipErrorInvalidKernelFile", "a PTX JIT compilation failed" },
    { 222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", NULL, "the provided PTX was compiled with an unsupported toolchain." },
    { 304, "CUDA_ERROR_OPERATING_SYSTEM", "hipErrorOperatingSystem", "OS call failed or operation not supported on this OS" },
    { 400, "CUDA_ERROR_INVALID_HANDLE", "hipErrorInvalidHandle", "invalid resource handle" },
    { 401, "CUDA_ERROR_ILLEGAL_STATE", "hipErrorIllegalState", "the operation cannot be performed in the present state" },
    { 500, "CUDA_ERROR_NOT_FOUND", "hipErrorNotFound", "named symbol not found" },
    { 600, "CUDA_ERROR_NOT_READY", "hipErrorNotReady", "device not ready" },
    { 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "hipErrorIllegalAddress", "an illegal memory access was encountered" },
    { 701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "hipErrorLaunchOutOfResources", "too many resources requested for launch" },
    { 702, "CUDA_ERROR_LAUNCH_TIMEOUT", "hipErrorLaunchTimeOut", "the launch timed out and was terminated" },
    { 704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "hipErrorPeerAccessAlreadyEnabled", "peer access is already enabled" },
    { 705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "hipErrorPeerAccessNotEnabled", "peer access has not been enabled" },
    { 709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "hipErrorContextIsDestroyed", "context is destroyed" },
    { 715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", NULL, "an illegal instruction was encountered" },
    { 719, "CUDA_ERROR_LAUNCH_FAILED", "hipErrorLaunchFailure", "unspecified launch failure" },
    { 801, "CUDA_ERROR_NOT_SUPPORTED", "hipErrorNotSupported", "operation not supported" },
    { 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "hipErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing" },
    { 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "hipErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture" },
    { 902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "hipErrorStreamCaptureMerge", "operation would result in a merge of separate capture sequences" },
    { 903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "hipErrorStreamCaptureUnmatched", "capture was not ended in the same stream as it began" },
    { 904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "hipErrorStreamCaptureUnjoined", "capturing stream has unjoined work" },
    { 905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "hipErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream" },
    { 906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "hipErrorStreamCaptureImplicit", "operation would make the legacy stream depend on a capturing blocking stream" },
    { 907, "CUDA_ERROR_CAPTURED_EVENT", "hipErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream" },
    { 908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "hipErrorStreamCaptureWrongThread", "attempt to terminate a thread-local capture sequence from another thread" },
    { 999, "CUDA_ERROR_UNKNOWN", "hipErrorUnknown", "unknown error" },
};

const char *soft_error_name(int code, bool hip) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) return hip ? errors[i].hip : errors[i].cuda;
    return NULL;
}
const char *soft_error_text(int code) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) return errors[i].text;
    return NULL;
}
