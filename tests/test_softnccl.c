/* The software NCCL and RCCL on their own: they must be as strict as the real ones are, or the tests that run on them prove
   little. Each test forks its ranks, which share nothing but a page for the unique id; each has one of several software GPUs.
   Without build/softgpu (or the folder $SOFTGPU) all is skipped. */
#define _GNU_SOURCE
#include "test.h"
#include <stdint.h>
#if defined __linux__
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct comm *comm;
typedef struct id { char text[128]; } id;
typedef struct config { size_t size; unsigned magic, version; int blocking; } config;
enum { SUCCESS, UNHANDLED, SYSTEM, INTERNAL, INVALID_ARGUMENT, INVALID_USAGE, REMOTE, IN_PROGRESS };
enum { UINT8 = 1, INT32 = 2, INT64 = 4, FLOAT16 = 6, FLOAT32, FLOAT64, BFLOAT16 };
enum { SUM, PROD, MAX, MIN, AVG };
#define NCCL(X)                                                                                                   \
    X(ncclGetVersion, (int *)) X(ncclGetUniqueId, (id *)) X(ncclCommInitRank, (comm *, int, id, int))             \
    X(ncclCommInitRankConfig, (comm *, int, id, int, config *)) X(ncclCommFinalize, (comm)) X(ncclCommDestroy, (comm)) \
    X(ncclCommAbort, (comm)) X(ncclCommGetAsyncError, (comm, int *)) X(ncclCommCount, (comm, int *))              \
    X(ncclCommUserRank, (comm, int *)) X(ncclAllReduce, (const void *, void *, size_t, int, int, comm, void *))   \
    X(ncclBroadcast, (const void *, void *, size_t, int, int, comm, void *))                                      \
    X(ncclReduce, (const void *, void *, size_t, int, int, int, comm, void *))                                    \
    X(ncclAllGather, (const void *, void *, size_t, int, comm, void *))                                           \
    X(ncclReduceScatter, (const void *, void *, size_t, int, int, comm, void *)) X(ncclGroupStart, (void)) X(ncclGroupEnd, (void))
#define POINTER(name, args) static int (*name) args;
NCCL(POINTER)
static const char *(*ncclGetErrorString)(int);
static void (*nccl_fail)(const char *, int, int);
static long (*nccl_live)(const char *);

/* ---------------- the driver's calls, CUDA's or HIP's */

typedef void *cuda_context;
static bool hip;
static int (*cuInit)(unsigned), (*cuDevicePrimaryCtxRetain)(cuda_context *, int), (*cuCtxSetCurrent)(cuda_context), (*hipSetDevice)(int);
static int (*new_stream)(void **, unsigned), (*wait_stream)(void *), (*new_event)(void **, unsigned), (*record)(void *, void *);
static int (*wait_event)(void *), (*query_event)(void *), (*wait_before)(void *, void *, unsigned), (*take)(void **, size_t), (*give)(void *);
static int (*capture)(void *, int), (*captured)(void *, void **), (*new_graph)(void **, unsigned), (*end_graph)(void *), (*end_exec)(void *);
static int (*add_child)(void **, void *, void *const *, size_t, void *), (*add_event)(void **, void *, void *const *, size_t, void *);
static int (*instantiate)(void **, void *, unsigned long long), (*launch)(void *, void *);
static int (*upload)(void *, const void *, size_t), (*download)(void *, const void *, size_t), (*fill)(void *, unsigned char, size_t, void *);

static void find(void *library, const char *name, void *to) {
    void *p = dlsym(library, name);
    if (!p) fprintf(stderr, "%s is missing\n", name), exit(3);
    memcpy(to, &p, sizeof p);
}
static const char *folder(void) { return getenv("SOFTGPU") ? getenv("SOFTGPU") : "build/softgpu"; }
static void *library(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder(), name);
    void *l = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!l) fprintf(stderr, "%s\n", dlerror()), exit(3);
    return l;
}
static void set_device(int i) {
    static cuda_context context[8];
    if (hip) { CHECK(hipSetDevice(i) == 0); return; }
    CHECK(context[i] || cuDevicePrimaryCtxRetain(&context[i], i) == 0);
    CHECK(cuCtxSetCurrent(context[i]) == 0);
}
static void load(void) {
    void *d = library(hip ? "libamdhip64.so.6" : "libcuda.so.1"), *n = library(hip ? "librccl.so.1" : "libnccl.so.2");
    static const struct { const char *cuda, *hip; void *to; } names[] = {
        { "cuStreamCreate", "hipStreamCreateWithFlags", &new_stream }, { "cuStreamSynchronize", "hipStreamSynchronize", &wait_stream },
        { "cuEventCreate", "hipEventCreateWithFlags", &new_event }, { "cuEventRecord", "hipEventRecord", &record },
        { "cuEventSynchronize", "hipEventSynchronize", &wait_event }, { "cuEventQuery", "hipEventQuery", &query_event },
        { "cuStreamWaitEvent", "hipStreamWaitEvent", &wait_before }, { "cuMemAlloc_v2", "hipMalloc", &take },
        { "cuMemFree_v2", "hipFree", &give }, { "cuMemcpyHtoD_v2", "hipMemcpyHtoD", &upload },
        { "cuMemcpyDtoH_v2", "hipMemcpyDtoH", &download }, { "cuMemsetD8Async", "hipMemsetD8Async", &fill },
        { "cuStreamBeginCapture_v2", "hipStreamBeginCapture", &capture }, { "cuStreamEndCapture", "hipStreamEndCapture", &captured },
        { "cuGraphCreate", "hipGraphCreate", &new_graph }, { "cuGraphDestroy", "hipGraphDestroy", &end_graph },
        { "cuGraphExecDestroy", "hipGraphExecDestroy", &end_exec }, { "cuGraphAddChildGraphNode", "hipGraphAddChildGraphNode", &add_child },
        { "cuGraphAddEventRecordNode", "hipGraphAddEventRecordNode", &add_event },
        { "cuGraphInstantiateWithFlags", "hipGraphInstantiateWithFlags", &instantiate }, { "cuGraphLaunch", "hipGraphLaunch", &launch }
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) find(d, hip ? names[i].hip : names[i].cuda, names[i].to);
    if (hip) find(d, "hipSetDevice", &hipSetDevice);
    else find(d, "cuInit", &cuInit), find(d, "cuDevicePrimaryCtxRetain", &cuDevicePrimaryCtxRetain), find(d, "cuCtxSetCurrent", &cuCtxSetCurrent);
#define FIND(name, args) find(n, #name, &name);
    NCCL(FIND)
    find(n, "ncclGetErrorString", &ncclGetErrorString);
    find(n, "softgpu_fail", &nccl_fail);
    find(n, "softgpu_live", &nccl_live);
    if (!hip) CHECK(cuInit(0) == 0);
}

/* ---------------- ranks */

enum { MOST = 4 };
static struct { id id; volatile int meet[16]; } *shared;
static int rank, size;
static comm c0;
static void *s0;

/* Waits for all ranks, at place number `at`. */
static void meet(int at) {
    __atomic_add_fetch(&shared->meet[at], 1, __ATOMIC_SEQ_CST);
    for (int i = 0; shared->meet[at] < size && i < 20000; i++) usleep(1000);
}
#define IS(call, code) do {                                                                       \
        int is_ = (call);                                                                         \
        if (!CHECK(is_ == (code))) fprintf(stderr, "    rank %d: %s gives %d\n", rank, #call, is_); \
    } while (0)

static void begin(void) {
    load();
    set_device(rank);
    if (rank == 0) IS(ncclGetUniqueId(&shared->id), SUCCESS);
    meet(15);
}
static void join(void) {
    begin();
    IS(ncclCommInitRank(&c0, size, shared->id, rank), SUCCESS);
    IS(new_stream(&s0, 1), 0);
}
static void leave(void) {
    IS(wait_stream(s0), 0);
    IS(ncclCommDestroy(c0), SUCCESS);
    CHECK(nccl_live("comms") == 0);
}
static int state(void) {
    int code = -1;
    IS(ncclCommGetAsyncError(c0, &code), SUCCESS);
    return code;
}

/* Forks n ranks that run it; whether all ended well. HIP's odd ranks are late with every call. */
static bool in_ranks(void (*body)(void), int n, const char *settings) {
    pid_t pid[MOST];
    bool good = true;
    char place[] = "/dev/shm/test_softnccl-XXXXXX", remove_it[64];
    if (!mkdtemp(place)) return false;
    snprintf(remove_it, sizeof remove_it, "rm -r %s", place);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return false;
    fflush(stdout), fflush(stderr);
    for (int r = 0; r < n; r++) {
        if ((pid[r] = fork()) != 0) continue;
        char copy[200];
        snprintf(copy, sizeof copy, "%s", settings);
        for (char *p = strtok(copy, " "); p; p = strtok(NULL, " ")) {
            char *value = strchr(p, '=');
            *value++ = 0;
            setenv(p, value, 1);
        }
        setenv("SOFTGPU_DEVICES", "4", 1);
        if (hip && r % 2) setenv("SOFTGPU_LATE", "5000", 1);
        setenv("SOFTNCCL_FOLDER", place, 1);
        alarm(60);
        rank = r, size = n, test_bad = 0;
        body();
        exit(test_bad != 0);
    }
    for (int r = 0; r < n; r++) {
        int status = -1;
        good = pid[r] > 0 && waitpid(pid[r], &status, 0) == pid[r] && status == 0 && good;
    }
    munmap(shared, sizeof *shared);
    return system(remove_it) == 0 && good;
}
#define RUN(body, n, settings) do {                                                               \
        char path_[4096];                                                                         \
        snprintf(path_, sizeof path_, "%s/libnccl.so.2", folder());                               \
        if (access(path_, R_OK)) SKIP("the software NCCL is not built (build/softgpu, or $SOFTGPU)"); \
        for (int h_ = 0; h_ < 2; h_++) hip = h_ != 0, CHECK(in_ranks(body, n, settings));        \
    } while (0)

/* ---------------- results */

static void *device_memory(const void *data, size_t n) {
    void *p = NULL;
    IS(take(&p, n), 0);
    if (data) IS(upload(p, data, n), 0);
    return p;
}
static float *floats(int n, float first) {
    static float v[4096];
    for (int i = 0; i < n; i++) v[i] = first + (float)i;
    return v;
}

static void results(void) {
    enum { N = 100 };
    float out[N * MOST];
    int version, count = 0, me = -1;
    join();
    IS(ncclGetVersion(&version), SUCCESS);
    IS(ncclCommCount(c0, &count), SUCCESS);
    IS(ncclCommUserRank(c0, &me), SUCCESS);
    CHECK(count == size && me == rank && version > 20000);
    void *a = device_memory(floats(N, (float)rank), N * 4), *b = device_memory(NULL, N * 4 * MOST);
    const double sum0 = size * (size - 1) / 2.0;
    static const int ops[] = { SUM, MAX, MIN, AVG };
    for (int k = 0; k < 4; k++) {
        IS(ncclAllReduce(a, b, N, FLOAT32, ops[k], c0, s0), SUCCESS);
        IS(wait_stream(s0), 0);
        IS(download(out, b, N * 4), 0);
        for (int i = 0; i < N; i++)
            CHECK_NEAR(out[i], k == 0 ? sum0 + size * i : k == 1 ? size - 1 + i : k == 2 ? i : sum0 / size + i, 1e-6);
    }
    IS(ncclReduce(a, b, N, FLOAT32, PROD, size - 1, c0, s0), SUCCESS);
    IS(ncclBroadcast(a, a, N, FLOAT32, 1 % size, c0, s0), SUCCESS);       /* behind it: its operand is read before */
    IS(wait_stream(s0), 0);
    IS(download(out, b, N * 4), 0);
    for (int i = 0; i < N && rank == size - 1; i++) {
        double want = 1;
        for (int r = 0; r < size; r++) want *= r + i;
        CHECK_NEAR(out[i], want, 1e-6 * want);
    }
    IS(download(out, a, N * 4), 0);
    for (int i = 0; i < N; i++) CHECK(out[i] == (float)(1 % size + i));
    IS(upload((char *)b + rank * N * 4, floats(N, (float)(1000 * rank)), N * 4), 0);
    IS(ncclAllGather((char *)b + rank * N * 4, b, N, FLOAT32, c0, s0), SUCCESS);      /* in place */
    IS(ncclReduceScatter(b, (char *)b + rank * N * 4, N, FLOAT32, SUM, c0, s0), SUCCESS);
    IS(wait_stream(s0), 0);
    IS(download(out, b, (size_t)size * N * 4), 0);
    for (int r = 0; r < size; r++)
        for (int i = 0; i < N; i++) CHECK(out[r * N + i] == (float)(r == rank ? size : 1) * (float)(1000 * r + i));
    leave();
}
TEST(results_of_two_ranks) { RUN(results, 2, "A=1"); }
TEST(results_of_three_ranks) { RUN(results, 3, "A=1"); }
TEST(results_of_one_rank) { RUN(results, 1, "A=1"); }

/* 1 + rank in every type, and its bits. */
static void types(void) {
    static const struct { int type; size_t size; uint64_t one, two, sum; } t[] = {
        { UINT8, 1, 1, 2, 3 }, { INT32, 4, 1, 2, 3 }, { INT64, 8, 1, 2, 3 }, { FLOAT16, 2, 0x3c00, 0x4000, 0x4200 },
        { BFLOAT16, 2, 0x3f80, 0x4000, 0x4040 }, { FLOAT32, 4, 0x3f800000, 0x40000000, 0x40400000 },
        { FLOAT64, 8, 0x3ff0000000000000, 0x4000000000000000, 0x4008000000000000 }
    };
    join();
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        uint64_t bits = 0;
        void *p = device_memory(rank ? &t[i].two : &t[i].one, 8);
        IS(ncclAllReduce(p, p, 1, t[i].type, SUM, c0, s0), SUCCESS);
        IS(wait_stream(s0), 0);
        IS(download(&bits, p, t[i].size), 0);
        CHECK(bits == t[i].sum);
    }
    const float nan[] = { rank ? 3.0f : NAN };
    float out;
    void *p = device_memory(nan, 4);
    IS(ncclAllReduce(p, p, 1, FLOAT32, MAX, c0, s0), SUCCESS);
    IS(wait_stream(s0), 0);
    IS(download(&out, p, 4), 0);
    CHECK(out == 3);                                     /* as fmaxf */
    leave();
}
TEST(types_of_elements) { RUN(types, 2, "A=1"); }

/* ---------------- streams: nothing is done before its turn, and a device goes on by itself */

static void in_turn(void) {
    unsigned char out[4];
    void *other, *packed, *done;
    join();
    IS(new_stream(&other, 1), 0);
    IS(new_event(&packed, 2), 0);
    IS(new_event(&done, 2), 0);
    void *p = device_memory("\1\1\1\1", 4);
    IS(fill(p, 2, 4, other), 0);                         /* ordered before */
    IS(record(packed, other), 0);
    IS(wait_before(s0, packed, 0), 0);
    IS(ncclAllReduce(p, p, 4, UINT8, SUM, c0, s0), SUCCESS);
    IS(record(done, s0), 0);
    CHECK(query_event(done) == 600);
    meet(1);                                             /* who waits has the others' devices go on */
    if (rank) meet(0);                                   /* rank 0 waits for the result; this one never does: its device goes on */
    else {
        IS(wait_event(done), 0);
        IS(download(out, p, 4), 0);
        CHECK(out[0] == 4 && out[3] == 4);
        meet(0);
    }
    IS(fill(p, 5, 4, other), 0);                         /* not ordered before: one of the two was forgotten */
    IS(ncclAllReduce(p, p, 4, UINT8, SUM, c0, s0), SUCCESS);
    IS(wait_stream(s0), 0);
    IS(download(out, p, 4), 0);
    CHECK(out[0] == 8);
    leave();
}
TEST(streams_take_turns) { RUN(in_turn, 2, "A=1"); }

static void many(void) {
    float out;
    join();
    void *p = device_memory(floats(1, 1), 4), *q = device_memory(NULL, 4);
    for (int i = 0; i < 20; i++) IS(ncclAllReduce(i ? q : p, q, 1, FLOAT32, i % 2 ? MAX : SUM, c0, s0), SUCCESS);
    IS(wait_stream(s0), 0);
    IS(download(&out, q, 4), 0);
    CHECK(out == powf((float)size, 10));
    leave();
}
TEST(many_operations) { RUN(many, 3, "A=1"); }

static void group(void) {
    float out;
    join();
    void *p = device_memory(floats(1, 1), 4), *q = device_memory(floats(1, 2), 4);
    IS(ncclGroupStart(), SUCCESS);
    IS(ncclAllReduce(p, p, 1, FLOAT32, SUM, c0, s0), SUCCESS);
    IS(ncclGroupStart(), SUCCESS);
    IS(ncclAllReduce(q, q, 1, FLOAT32, SUM, c0, s0), SUCCESS);
    IS(ncclGroupEnd(), SUCCESS);
    CHECK(nccl_live("operations") == 0);                 /* they begin where the outer one ends */
    IS(ncclGroupEnd(), SUCCESS);
    CHECK(nccl_live("operations") == 2);
    meet(0);                                             /* who waits has the others' devices go on */
    IS(wait_stream(s0), 0);
    IS(download(&out, q, 4), 0);
    CHECK(out == 2 * size);
    IS(ncclGroupEnd(), INVALID_USAGE);
    leave();
}
TEST(groups) { RUN(group, 2, "SOFTGPU_QUIET=1"); }

/* ---------------- what is forbidden */

/* Every rank calls what its number says; all are told, and nothing is written. */
enum { COUNT, TYPE, OP, ROOT, KIND, GROUP, DIFFERENCES };
static void differ(void) {
    join();
    void *p = device_memory(floats(8, 1), 32);
    for (int d = 0; d < DIFFERENCES; d++) {
        const bool odd = rank == 1;
        float out = 0;
        if (d) {                                         /* the last one is spoilt */
            if (rank == 0) IS(ncclGetUniqueId(&shared->id), SUCCESS);
            IS(ncclCommAbort(c0), SUCCESS);
            meet(d);
            IS(ncclCommInitRank(&c0, size, shared->id, rank), SUCCESS);
        }
        if (d == GROUP && odd) IS(ncclGroupStart(), SUCCESS);
        if (d == ROOT) IS(ncclBroadcast(p, p, 4, FLOAT32, odd, c0, s0), SUCCESS);
        else if (d == KIND && odd) IS(ncclBroadcast(p, p, 4, FLOAT32, 0, c0, s0), SUCCESS);
        else IS(ncclAllReduce(p, p, d == COUNT && odd ? 3 : 4, d == TYPE && odd ? INT32 : FLOAT32, d == OP && odd ? MAX : SUM, c0, s0), SUCCESS);
        if (d == GROUP && odd) IS(ncclAllReduce(p, p, 4, FLOAT32, SUM, c0, s0), SUCCESS);
        if (d == GROUP && odd) IS(ncclGroupEnd(), SUCCESS);
        if (d == GROUP && odd) continue;                 /* its second has nobody to meet */
        IS(wait_stream(s0), 0);
        IS(state(), INVALID_USAGE);
        IS(ncclAllReduce(p, p, 4, FLOAT32, SUM, c0, s0), INVALID_USAGE);
        IS(download(&out, p, 4), 0);
        CHECK(isnan(out));
        IS(upload(p, floats(8, 1), 32), 0);
    }
    meet(14);
    IS(ncclCommAbort(c0), SUCCESS);
}
TEST(ranks_that_differ) { RUN(differ, 2, "SOFTGPU_QUIET=1"); }

static void misuse(void) {
    void *far, *stream;
    int code;
    join();
    void *p = device_memory(floats(8, 1), 32), *q = device_memory(NULL, 32);
    CHECK(give(q) == 0);
#define REFUSED(call, why) do {                                                                   \
        const long before = nccl_live("complaints");                                              \
        IS(call, why);                                                                            \
        CHECK(nccl_live("complaints") == before + 1);                                             \
        IS(ncclCommAbort(c0), SUCCESS);                                                           \
        IS(ncclGetUniqueId(&shared->id), SUCCESS);                                                \
        IS(ncclCommInitRank(&c0, 1, shared->id, 0), SUCCESS);                                     \
    } while (0)
    REFUSED(ncclAllReduce(p, q, 8, FLOAT32, SUM, c0, s0), INVALID_ARGUMENT);       /* freed */
    REFUSED(ncclAllReduce(p, p, 9, FLOAT32, SUM, c0, s0), INVALID_ARGUMENT);       /* longer than the allocation */
    REFUSED(ncclAllReduce(&code, p, 1, FLOAT32, SUM, c0, s0), INVALID_ARGUMENT);   /* the host's */
    REFUSED(ncclAllReduce(p, (char *)p + 4, 4, FLOAT32, SUM, c0, s0), INVALID_ARGUMENT);
    REFUSED(ncclAllReduce(p, p, 4, 77, SUM, c0, s0), INVALID_ARGUMENT);
    REFUSED(ncclAllReduce(p, p, 4, FLOAT32, 5, c0, s0), INVALID_ARGUMENT);
    REFUSED(ncclBroadcast(p, p, 4, FLOAT32, 1, c0, s0), INVALID_ARGUMENT);
    set_device(1);
    IS(new_stream(&stream, 1), 0);
    far = device_memory(NULL, 32);
    REFUSED(ncclAllReduce(p, p, 4, FLOAT32, SUM, c0, s0), INVALID_USAGE);          /* another device is current */
    set_device(0);
    IS(ncclCommAbort(c0), SUCCESS);
    IS(ncclGetUniqueId(&shared->id), SUCCESS);
    IS(ncclCommInitRank(&c0, 1, shared->id, 0), SUCCESS);
    REFUSED(ncclAllReduce(p, p, 4, FLOAT32, SUM, c0, stream), INVALID_USAGE);
    REFUSED(ncclAllReduce(far, p, 4, FLOAT32, SUM, c0, s0), INVALID_ARGUMENT);
    IS(ncclAllReduce(p, p, 8, FLOAT32, SUM, c0, s0), SUCCESS);
    IS(give(p), 0);                                      /* waits for it, as drivers do */
    IS(state(), SUCCESS);
    comm gone = c0;
    IS(ncclCommFinalize(c0), SUCCESS);
    IS(ncclAllReduce(far, far, 8, FLOAT32, SUM, c0, s0), INVALID_USAGE);
    IS(ncclCommAbort(c0), SUCCESS);
    IS(ncclAllReduce(far, far, 8, FLOAT32, SUM, gone, s0), INVALID_ARGUMENT);
    IS(ncclCommAbort(gone), INVALID_ARGUMENT);
    IS(ncclCommGetAsyncError(gone, &code), INVALID_ARGUMENT);
    CHECK(strstr(ncclGetErrorString(INVALID_USAGE), "usage") != NULL);
}
TEST(what_is_refused) { RUN(misuse, 1, "SOFTGPU_QUIET=1"); }

static void wrong_init(void) {
    comm c = NULL;
    id none = { "softnccl" };
    begin();
    IS(ncclCommInitRank(&c, size, shared->id, size), INVALID_ARGUMENT);
    IS(ncclCommInitRank(&c, 0, shared->id, 0), INVALID_ARGUMENT);
    IS(ncclCommInitRank(&c, 1, none, 0), INVALID_ARGUMENT);
    IS(ncclCommInitRank(&c, size + rank, shared->id, rank), rank ? SYSTEM : INVALID_USAGE);  /* one knows of one rank more */
    meet(0);
    if (rank == 0) IS(ncclGetUniqueId(&shared->id), SUCCESS);
    meet(1);
    set_device(0);                                       /* all of them */
    IS(ncclCommInitRank(&c, size, shared->id, rank), INVALID_USAGE);
    CHECK(!c);
    meet(2);
    if (rank == 0) IS(ncclGetUniqueId(&shared->id), SUCCESS);
    meet(3);
    set_device(rank);
    if (rank == 0) IS(ncclCommInitRank(&c, size, shared->id, 1), SYSTEM);       /* the other never comes */
    else {
        usleep(200000);
        IS(ncclCommInitRank(&c, size, shared->id, 1), INVALID_USAGE);
    }
}
TEST(wrong_inits) { RUN(wrong_init, 2, "SOFTGPU_QUIET=1 SOFTNCCL_TIMEOUT=1"); }

/* A communicator that does not block: each call is in progress until it is said to be done. */
static int settled(int code) {
    for (int i = 0; code == IN_PROGRESS && i < 20000; i++) usleep(500), code = state();
    return code;
}
static void without_blocking(void) {
    config how = { sizeof how, 0xcafebeef, 21400, 0 }, bad = { sizeof bad, 0, 21400, 0 };
    float out;
    begin();
    IS(ncclCommInitRankConfig(&c0, size, shared->id, rank, &bad), INVALID_ARGUMENT);
    if (rank) usleep(100000);
    IS(ncclCommInitRankConfig(&c0, size, shared->id, rank, &how), IN_PROGRESS);
    IS(settled(IN_PROGRESS), SUCCESS);
    IS(new_stream(&s0, 1), 0);
    void *p = device_memory(floats(1, 1), 4);
    IS(ncclAllReduce(p, p, 1, FLOAT32, SUM, c0, s0), IN_PROGRESS);
    IS(settled(IN_PROGRESS), SUCCESS);
    IS(ncclGroupStart(), SUCCESS);
    IS(ncclAllReduce(p, p, 1, FLOAT32, SUM, c0, s0), SUCCESS);
    IS(ncclGroupEnd(), IN_PROGRESS);
    IS(settled(IN_PROGRESS), SUCCESS);
    IS(settled(ncclCommFinalize(c0)), SUCCESS);
    IS(download(&out, p, 4), 0);
    CHECK(out == (float)(size * size));
    IS(ncclCommDestroy(c0), SUCCESS);
    if (rank) return;
    IS(ncclGetUniqueId(&shared->id), SUCCESS);
    IS(settled(ncclCommInitRankConfig(&c0, 1, shared->id, 0, &how)), SUCCESS);
    IS(ncclAllReduce(p, p, 1, FLOAT32, SUM, c0, s0), IN_PROGRESS);
    IS(ncclAllReduce(p, p, 1, FLOAT32, SUM, c0, s0), INVALID_USAGE);       /* not settled */
    IS(ncclCommAbort(c0), SUCCESS);
}
TEST(calls_in_progress) { RUN(without_blocking, 2, "SOFTGPU_QUIET=1"); }

/* ---------------- graphs */

/* An allreduce of p as a graph. */
static void *graph_of(void *p) {
    void *g = NULL;
    IS(capture(s0, 1), 0);
    IS(ncclAllReduce(p, p, 1, FLOAT32, SUM, c0, s0), SUCCESS);
    IS(captured(s0, &g), 0);
    return g;
}
static void in_graphs(void) {
    void *child, *g, *e, *node[3], *exec, *other;
    float out;
    join();
    IS(new_stream(&other, 1), 0);
    IS(new_event(&e, 2), 0);
    void *p = device_memory(floats(1, 1), 4);
    child = graph_of(p);
    CHECK(nccl_live("operations") == 0);                 /* nothing is done by then */
    IS(new_graph(&g, 0), 0);
    IS(add_child(&node[0], g, NULL, 0, child), 0);
    IS(end_graph(child), 0);                             /* it has a copy */
    IS(add_event(&node[1], g, node, 1, e), 0);
    IS(add_child(&node[2], g, node, 2, g), 1);           /* not itself */
    IS(instantiate(&exec, g, 0), 0);
    for (int i = 0; i < 3; i++) {
        IS(launch(exec, i == 1 ? other : s0), 0);
        IS(wait_event(e), 0);
    }
    IS(ncclAllReduce(p, p, 1, FLOAT32, SUM, c0, s0), SUCCESS);       /* and without one */
    IS(wait_stream(s0), 0);
    IS(download(&out, p, 4), 0);
    CHECK(out == (float)(size * size * size * size));
    IS(end_exec(exec), 0);
    IS(end_graph(g), 0);
    leave();
    CHECK(nccl_live("complaints") == 0);
}
TEST(collectives_in_graphs) { RUN(in_graphs, 2, ""); }

/* Rank 0 launches a graph, rank 1 calls the operation, or launches the graph of another capture. */
static void wrong_graphs(void) {
    join();
    for (int what = 0; what < 2; what++) {
        void *g[2], *exec, *p = device_memory(floats(1, 1), 4);
        const long before = nccl_live("complaints");
        for (int i = 0; i < 2; i++) g[i] = graph_of(p);
        IS(instantiate(&exec, g[what && rank], 0), 0);
        if (!what && rank) IS(ncclAllReduce(p, p, 1, FLOAT32, SUM, c0, s0), SUCCESS);
        else IS(launch(exec, s0), 0);
        IS(wait_stream(s0), 0);
        CHECK(nccl_live("complaints") == before + 1);
        CHECK(launch(exec, s0) != 0);                    /* after an error */
        for (int i = 0; i < 2; i++) IS(end_graph(g[i]), 0);
        IS(end_exec(exec), 0);
        IS(ncclCommAbort(c0), SUCCESS);
        if (rank == 0) IS(ncclGetUniqueId(&shared->id), SUCCESS);
        meet(what + 1);
        IS(ncclCommInitRank(&c0, size, shared->id, rank), SUCCESS);
    }
    const long before = nccl_live("complaints");
    void *g = graph_of(device_memory(floats(1, 1), 4));
    IS(ncclCommAbort(c0), SUCCESS);
    CHECK(nccl_live("complaints") == before + 1);        /* the real one waits for the graph's end */
    IS(end_graph(g), 0);
}
TEST(graphs_that_differ) { RUN(wrong_graphs, 2, "SOFTGPU_QUIET=1"); }

/* ---------------- faults */

static void hang(void) {
    void *e;
    float out;
    join();
    IS(new_event(&e, 2), 0);
    void *p = device_memory(floats(1, 1), 4);
    IS(ncclAllReduce(p, p, 1, FLOAT32, SUM, c0, s0), SUCCESS);
    IS(record(e, s0), 0);
    IS(wait_event(e), 0);
    IS(ncclAllReduce(p, p, 1, FLOAT32, SUM, c0, s0), SUCCESS);
    IS(record(e, s0), 0);
    for (int i = 0; i < 50; i++) CHECK(query_event(e) == 600), usleep(1000);
    IS(state(), SUCCESS);                                /* nothing is known of it */
    IS(ncclCommAbort(c0), SUCCESS);
    IS(wait_event(e), 0);                                /* the stream goes on */
    IS(download(&out, p, 4), 0);
    CHECK(out == size);
}
TEST(rank_that_hangs) { RUN(hang, 2, "SOFTNCCL_HANG=1:1"); }

static void failures(void) {
    join();
    void *p = device_memory(floats(1, 1), 4);
    nccl_fail("ncclAllReduce", 1, INTERNAL);
    IS(ncclAllReduce(p, p, 1, FLOAT32, SUM, c0, s0), INTERNAL);
    IS(ncclAllReduce(p, p, 1, FLOAT32, SUM, c0, s0), SUCCESS);
    IS(wait_stream(s0), 0);
    if (rank) nccl_fail("async", 1, REMOTE);
    IS(ncclAllReduce(p, p, 1, FLOAT32, SUM, c0, s0), SUCCESS);
    IS(wait_stream(s0), 0);
    IS(state(), rank ? REMOTE : SUCCESS);
    IS(ncclCommAbort(c0), SUCCESS);
}
TEST(failures_on_request) { RUN(failures, 2, "SOFTGPU_QUIET=1"); }
#else
TEST(software_nccl) { SKIP("the software GPU is for Linux"); }
#endif
TEST_MAIN()
