/* The software GPU on its own: the libraries that stand in for CUDA's and HIP's must be as strict as a GPU, or the tests
   that run on them prove little. They are looked for in the folder $SOFTGPU, or build/softgpu; without them all is
   skipped. Each test runs in a process of its own, as what is shown depends on the environment a process starts with. */
#define _GNU_SOURCE
#include "test.h"
#include <stdint.h>
#if defined __linux__
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct context *ctx;
typedef struct stream *stream;
typedef struct event *event;
typedef struct module *module;
typedef struct function *function;
typedef struct graph *graph;
typedef struct node *node;
typedef struct cuda_node { function f; unsigned grid[3], block[3], shared; void **args, **extra, *kernel, *context; } cuda_node;
typedef struct hip_node { unsigned block[3]; void **extra; function f; unsigned grid[3]; void **args; unsigned shared; } hip_node;
typedef struct program *program;
typedef uint64_t ptr;

#define CUDA(X)                                                                                                       \
    X(cuInit, (unsigned)) X(cuDriverGetVersion, (int *)) X(cuDeviceGetCount, (int *)) X(cuDeviceGet, (int *, int))    \
    X(cuDeviceGetName, (char *, int, int)) X(cuDeviceGetAttribute, (int *, int, int))                                 \
    X(cuDeviceTotalMem_v2, (size_t *, int)) X(cuDeviceGetPCIBusId, (char *, int, int))                                \
    X(cuDevicePrimaryCtxRetain, (ctx *, int)) X(cuDevicePrimaryCtxRelease_v2, (int)) X(cuCtxPushCurrent_v2, (ctx))    \
    X(cuCtxPopCurrent_v2, (ctx *)) X(cuCtxGetCurrent, (ctx *)) X(cuCtxSetCurrent, (ctx)) X(cuCtxSynchronize, (void))  \
    X(cuStreamCreate, (stream *, unsigned)) X(cuStreamDestroy_v2, (stream)) X(cuStreamSynchronize, (stream))          \
    X(cuStreamQuery, (stream)) X(cuStreamWaitEvent, (stream, event, unsigned)) X(cuEventCreate, (event *, unsigned))  \
    X(cuEventDestroy_v2, (event)) X(cuEventRecord, (event, stream)) X(cuEventSynchronize, (event))                    \
    X(cuEventQuery, (event)) X(cuEventElapsedTime, (float *, event, event)) X(cuMemAlloc_v2, (ptr *, size_t))         \
    X(cuMemFree_v2, (ptr)) X(cuMemGetInfo_v2, (size_t *, size_t *)) X(cuMemHostAlloc, (void **, size_t, unsigned))    \
    X(cuMemFreeHost, (void *)) X(cuMemcpyHtoD_v2, (ptr, const void *, size_t))                                        \
    X(cuMemcpyDtoH_v2, (void *, ptr, size_t)) X(cuMemcpyHtoDAsync_v2, (ptr, const void *, size_t, stream))            \
    X(cuMemcpyDtoHAsync_v2, (void *, ptr, size_t, stream)) X(cuMemcpyDtoDAsync_v2, (ptr, ptr, size_t, stream))        \
    X(cuMemcpyPeerAsync, (ptr, ctx, ptr, ctx, size_t, stream)) X(cuDeviceCanAccessPeer, (int *, int, int))            \
    X(cuCtxEnablePeerAccess, (ctx, unsigned)) X(cuMemsetD8Async, (ptr, unsigned char, size_t, stream))                \
    X(cuModuleLoadData, (module *, const void *)) X(cuModuleUnload, (module))                                         \
    X(cuModuleLoadDataEx, (module *, const void *, unsigned, int *, void **)) X(cuEventElapsedTime_v2, (float *, event, event)) \
    X(cuModuleGetFunction, (function *, module, const char *)) X(cuFuncGetAttribute, (int *, int, function))          \
    X(cuTensorMapEncodeTiled, (void *, int, unsigned, void *, const uint64_t *, const uint64_t *, const unsigned *, const unsigned *, int, int, int, int)) \
    X(cuFuncSetAttribute, (function, int, int)) X(cuGetErrorName, (int, const char **))                               \
    X(cuGetErrorString, (int, const char **)) X(cuStreamBeginCapture_v2, (stream, int))                               \
    X(cuStreamEndCapture, (stream, graph *)) X(cuGraphInstantiateWithFlags, (graph *, graph, unsigned long long))     \
    X(cuGraphCreate, (graph *, unsigned)) X(cuGraphAddKernelNode_v2, (node *, graph, const node *, size_t, const cuda_node *)) \
    X(cuGraphExecKernelNodeSetParams_v2, (graph, node, const cuda_node *)) X(cuGraphLaunch, (graph, stream)) X(cuGraphExecDestroy, (graph)) X(cuGraphDestroy, (graph))                       \
    X(cuLaunchKernel, (function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, stream, void **, void **))
#define NVRTC(X)                                                                                                      \
    X(nvrtcVersion, (int *, int *)) X(nvrtcGetNumSupportedArchs, (int *)) X(nvrtcGetSupportedArchs, (int *))          \
    X(nvrtcCreateProgram, (program *, const char *, const char *, int, const char *const *, const char *const *))     \
    X(nvrtcCompileProgram, (program, int, const char *const *)) X(nvrtcGetProgramLogSize, (program, size_t *))        \
    X(nvrtcGetProgramLog, (program, char *)) X(nvrtcGetCUBINSize, (program, size_t *)) X(nvrtcGetCUBIN, (program, char *)) \
    X(nvrtcGetPTXSize, (program, size_t *)) X(nvrtcGetPTX, (program, char *)) X(nvrtcDestroyProgram, (program *))
#define POINTER(name, args) static int (*name) args;
CUDA(POINTER)
NVRTC(POINTER)
static const char *(*nvrtcGetErrorString)(int);
static void (*softgpu_fail)(const char *, int, int), (*softgpu_fail_rtc)(const char *, int, int), (*softgpu_reset_counts)(void);
static long (*softgpu_calls)(const char *), (*softgpu_live)(const char *);

/* ---------------- a process for each test */

static const char *folder(void) { return getenv("SOFTGPU") ? getenv("SOFTGPU") : "build/softgpu"; }
static void *open_library(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder(), name);
    void *l = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!l) fprintf(stderr, "%s\n", dlerror()), exit(3);
    return l;
}
static void find(void *library, const char *name, void *to) {
    void *p = dlsym(library, name);
    if (!p) fprintf(stderr, "%s is missing\n", name), exit(3);
    memcpy(to, &p, sizeof p);
}
static void load_cuda(void) {
    void *cuda = open_library("libcuda.so.1"), *rtc = open_library("libnvrtc.so.13");
#define FIND_CUDA(name, args) find(cuda, #name, &name);
#define FIND_NVRTC(name, args) find(rtc, #name, &name);
    CUDA(FIND_CUDA)
    NVRTC(FIND_NVRTC)
    find(rtc, "nvrtcGetErrorString", &nvrtcGetErrorString);
    find(rtc, "softgpu_fail", &softgpu_fail_rtc);
    find(cuda, "softgpu_fail", &softgpu_fail);
    find(cuda, "softgpu_reset_counts", &softgpu_reset_counts);
    find(cuda, "softgpu_calls", &softgpu_calls);
    find(cuda, "softgpu_live", &softgpu_live);
}

/* Runs it with these settings, "NAME=value NAME=value"; gives how the process ended. */
static int in_process(void (*body)(void), const char *settings) {
    int status = -1;
    fflush(stdout), fflush(stderr);
    pid_t pid = fork();
    if (!pid) {
        char copy[400];
        snprintf(copy, sizeof copy, "%s", settings);
        for (char *p = strtok(copy, " "); p; p = strtok(NULL, " ")) {
            char *value = strchr(p, '=');
            *value++ = 0;
            setenv(p, value, 1);
        }
        test_bad = 0;
        body();
        exit(test_bad != 0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid) return -1;
    return status;
}
static bool absent(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/libcuda.so.1", folder());
    return access(path, R_OK) != 0;
}
#define RUN(body, settings) do {                                                                  \
        if (absent()) SKIP("the software GPU is not built (build/softgpu, or $SOFTGPU)");        \
        CHECK(in_process(body, settings) == 0);                                                   \
    } while (0)
#define IS(call, code) do {                                                                       \
        int is_ = (call);                                                                         \
        if (!CHECK(is_ == (code))) fprintf(stderr, "    %s gives %d\n", #call, is_);             \
    } while (0)

/* ---------------- shorter words */

static ctx here;
static stream s0;

static void begin(void) {                      /* a context, a stream */
    load_cuda();
    IS(cuInit(0), 0);
    IS(cuDevicePrimaryCtxRetain(&here, 0), 0);
    IS(cuCtxPushCurrent_v2(here), 0);
    IS(cuStreamCreate(&s0, 1), 0);
}

static char *compile_as(const char *source, const char *name, const char *const *options, int n, int want, bool ptx) {
    program p = NULL;
    size_t size = 0;
    char *out = NULL;
    IS(nvrtcCreateProgram(&p, source, name, 0, NULL, NULL), 0);
    int code = nvrtcCompileProgram(p, n, options);
    IS(nvrtcGetProgramLogSize(p, &size), 0);
    char *log = (char *)calloc(1, size + 1);
    IS(nvrtcGetProgramLog(p, log), 0);
    if (!CHECK(code == want)) fprintf(stderr, "    %d: %s\n", code, log);
    if (code) return nvrtcDestroyProgram(&p), log;
    free(log);
    IS(ptx ? nvrtcGetPTXSize(p, &size) : nvrtcGetCUBINSize(p, &size), 0);
    out = (char *)calloc(1, size + 1);
    IS(ptx ? nvrtcGetPTX(p, out) : nvrtcGetCUBIN(p, out), 0);
    IS(nvrtcDestroyProgram(&p), 0);
    CHECK(p == NULL);
    return out;
}
static module load(const char *source) {
    static const char *const options[] = { "--gpu-architecture=sm_90", "-std=c++17", "-DTHREE=3" };
    module m = NULL;
    char *image = compile_as(source, "test.cu", options, 3, 0, false);
    IS(cuModuleLoadData(&m, image), 0);
    free(image);
    return m;
}
static function get(module m, const char *name) {
    function f = NULL;
    IS(cuModuleGetFunction(&f, m, name), 0);
    return f;
}
static function kernel(const char *source) { return get(load(source), "f"); }
static ptr device_memory(size_t n) {
    ptr p = 0;
    IS(cuMemAlloc_v2(&p, n), 0);
    return p;
}
static void *pinned_memory(size_t n) {
    void *p = NULL;
    IS(cuMemHostAlloc(&p, n, 0), 0);
    return p;
}
static int launch(function f, unsigned grid, unsigned block, unsigned shared, stream s, ptr p, int n) {
    void *args[] = { &p, &n };
    return cuLaunchKernel(f, grid, 1, 1, block, 1, 1, shared, s, args, NULL);
}
static int at(ptr p, int i) {
    int v = -1;
    IS(cuMemcpyDtoH_v2(&v, p + 4 * (ptr)i, 4), 0);
    return v;
}

static const char add_n[] =
    "extern \"C\" __global__ void __launch_bounds__(256) f(int *p, int n) {\n"
    "    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);\n"
    "    p[i] += n;\n"
    "}\n";

/* ---------------- what there is */

static void devices(void) {
    int n = -1, v = 0, major = 0, minor = 0;
    size_t bytes = 0;
    char name[64], id[32];
    const char *text = NULL;
    load_cuda();
    IS(cuDeviceGetCount(&n), 3);
    IS(cuInit(0), 0);
    IS(cuDeviceGetCount(&n), 0);
    CHECK(n == 2);
    IS(cuDeviceGet(&v, 1), 0);
    IS(cuDeviceGet(&v, 2), 101);
    IS(cuDeviceGetName(name, sizeof name, 0), 0);
    CHECK_STR(name, "Software GPU 2");         /* CUDA_VISIBLE_DEVICES=2,0 */
    IS(cuDeviceGetPCIBusId(id, sizeof id, 1), 0);
    CHECK_STR(id, "0000:01:00.0");
    IS(cuDeviceGetAttribute(&major, 75, 0), 0);
    IS(cuDeviceGetAttribute(&minor, 76, 0), 0);
    CHECK(major == 8 && minor == 6);
    IS(cuDeviceGetAttribute(&v, 10, 0), 0);
    CHECK(v == 32);
    IS(cuDeviceGetAttribute(&v, 999, 0), 1);
    IS(cuDeviceTotalMem_v2(&bytes, 0), 0);
    CHECK(bytes == 1 << 20);
    IS(cuDriverGetVersion(&v), 0);
    CHECK(v == 12080);
    IS(nvrtcVersion(&major, &minor), 0);
    CHECK(major == 13);
    IS(nvrtcGetNumSupportedArchs(&n), 0);
    REQUIRE(n > 3 && n < 40);
    int archs[40];
    IS(nvrtcGetSupportedArchs(archs), 0);
    CHECK(archs[0] == 75 && archs[n - 1] >= 120);
    IS(cuGetErrorName(700, &text), 0);
    CHECK_STR(text, "CUDA_ERROR_ILLEGAL_ADDRESS");
    IS(cuGetErrorString(2, &text), 0);
    CHECK_STR(text, "out of memory");
    IS(cuGetErrorName(12345, &text), 1);
    CHECK_STR(nvrtcGetErrorString(6), "NVRTC_ERROR_COMPILATION");
}
TEST(devices_and_attributes) {
    RUN(devices, "SOFTGPU_DEVICES=3 CUDA_VISIBLE_DEVICES=2,0,7,1 SOFTGPU_ARCH=86 SOFTGPU_MEMORY=1048576 SOFTGPU_DRIVER_VERSION=12080");
}

static void no_device(void) {
    load_cuda();
    IS(cuInit(0), 100);
}
TEST(no_device) {
    RUN(no_device, "CUDA_VISIBLE_DEVICES=-1");
    RUN(no_device, "CUDA_VISIBLE_DEVICES=");
    RUN(no_device, "SOFTGPU_DEVICES=0");
}

static void *other_thread(void *arg) {
    ptr p = 0;
    (void)arg;
    IS(cuMemAlloc_v2(&p, 16), 201);            /* nothing is current in a new thread */
    IS(cuCtxPushCurrent_v2(here), 0);
    IS(cuMemAlloc_v2(&p, 16), 0);
    IS(cuMemFree_v2(p), 0);
    return NULL;
}
static void contexts(void) {
    ctx other = NULL, c = NULL;
    stream s = NULL;
    pthread_t t;
    begin();
    IS(cuDevicePrimaryCtxRetain(&other, 1), 0);
    IS(cuCtxPushCurrent_v2(other), 0);
    IS(cuCtxGetCurrent(&c), 0);
    CHECK(c == other);
    IS(cuStreamCreate(&s, 1), 0);
    IS(cuStreamSynchronize(s0), 201);          /* another device's */
    ptr p = device_memory(256);
    IS(cuCtxPopCurrent_v2(&c), 0);
    CHECK(c == other);
    IS(cuStreamSynchronize(s), 201);
    IS(cuMemFree_v2(p), 201);
    IS(cuMemsetD8Async(p, 1, 4, s0), 201);
    pthread_create(&t, NULL, other_thread, NULL);
    pthread_join(t, NULL);
    IS(cuCtxSetCurrent(other), 0);
    IS(cuMemFree_v2(p), 0);
    IS(cuStreamDestroy_v2(s), 0);
    IS(cuStreamDestroy_v2(s), 400);
    IS(cuDevicePrimaryCtxRelease_v2(1), 0);
    IS(cuCtxSynchronize(), 201);               /* released by all */
    IS(cuCtxPopCurrent_v2(&c), 0);
    IS(cuCtxPopCurrent_v2(&c), 201);
    IS(cuCtxSynchronize(), 201);
}
TEST(contexts) { RUN(contexts, "SOFTGPU_DEVICES=2"); }

/* ---------------- memory */

static void memory(void) {
    size_t free_bytes = 0, total = 0;
    unsigned char bytes[16];
    ptr p = 0, q = 0;
    begin();
    IS(cuMemAlloc_v2(&p, 0), 1);
    IS(cuMemAlloc_v2(&p, (size_t)3 << 20), 2);
    IS(cuMemAlloc_v2(&p, 1 << 20), 0);
    IS(cuMemAlloc_v2(&q, (1 << 20) + 1), 2);
    IS(cuMemAlloc_v2(&q, 100), 0);
    IS(cuMemGetInfo_v2(&free_bytes, &total), 0);
    CHECK(total == 2 << 20 && free_bytes == (1 << 20) - 256);
    CHECK(softgpu_live("memory") == 2 && softgpu_live("bytes") == (1 << 20) + 256);
    CHECK(p % 256 == 0 && q % 256 == 0 && (p > q ? p - q : q - p) > (1 << 20));
    IS(cuMemcpyDtoH_v2(bytes, q + 84, 16), 0);
    CHECK(bytes[0] == 0xA5 && bytes[15] == 0xA5);    /* SOFTGPU_FILL */
    IS(cuMemcpyDtoH_v2(bytes, q + 85, 16), 1);  /* past its end */
    IS(cuMemcpyHtoD_v2(q, (const void *)(uintptr_t)p, 16), 1);
    IS(cuMemFree_v2(q + 4), 1);
    IS(cuMemFree_v2(p), 0);
    IS(cuMemFree_v2(p), 1);
    IS(cuMemFree_v2(q), 0);
    CHECK(softgpu_live("memory") == 0 && softgpu_live("bytes") == 0 && softgpu_live("overruns") == 0);
    for (int i = 0; i < 70000; i++)            /* the whole span of addresses, guards and all, and again */
        if (cuMemAlloc_v2(&p, 100) || cuMemFree_v2(p)) CHECK(!"in a loop");
    void *h = pinned_memory(1000);
    memset(h, 1, 1000);
    CHECK(softgpu_live("pinned") == 1);
    IS(cuMemFreeHost(h), 0);
    IS(cuMemFreeHost(h), 1);
    CHECK(softgpu_live("pinned") == 0);
}
TEST(memory) { RUN(memory, "SOFTGPU_MEMORY=2097152 SOFTGPU_FILL=0xA5"); }

/* These end with 42 if nothing stops them; a signal does or, where that is caught, a sanitiser's report. */
static void touch(void) {
    begin();
    if (freopen("/dev/null", "w", stderr) && !test_bad) *(volatile int *)(uintptr_t)device_memory(64) = 1;
    _exit(42);
}
static void touch_freed_pinned(void) {
    begin();
    int *p = (int *)pinned_memory(64);
    IS(cuMemFreeHost(p), 0);
    if (freopen("/dev/null", "w", stderr) && !test_bad) *(volatile int *)p = 1;
    _exit(42);
}
static bool crashed(int status) { return status != 0 && !(WIFEXITED(status) && (WEXITSTATUS(status) == 42 || WEXITSTATUS(status) == 3)); }
TEST(the_host_cannot_touch_device_memory) {
    if (absent()) SKIP("the software GPU is not built");
    CHECK(crashed(in_process(touch, "A=1")));
    CHECK(crashed(in_process(touch_freed_pinned, "A=1")));
}

/* ---------------- kernels */

typedef struct three { float a; double b; short c; } three;
static void kernels(void) {
    static const char source[] =
        "#define n 5 /* words of the source's own, which must reach no further */\n"
        "#define kernel 6\n#define shared 7\n#define i 8\n#define a a\n#undef i\n"
        "typedef struct { float a; double b; short c; } three;\n"
        "__device__ __forceinline__ float twice(float x) { return x * 2; }\n"
        "static __device__ int index(int i) { return i; } /* a name that C has too; \" */\n"
        "extern \"C\" __global__ void f(float *__restrict__ out, const float *in, three t, unsigned char c, long long l, double d) {\n"
        "    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "    out[index((int)i)] = twice(in[i]) + t.a + (float)t.b + t.c + c + (float)l + (float)d + THREE;\n"
        "}\n"
        "extern \"C\" __global__ void shape(unsigned *out) {\n"
        "    unsigned t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);\n"
        "    unsigned b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);\n"
        "    out[b * blockDim.x * blockDim.y * blockDim.z + t] = b << 16 | t;\n"
        "}\n"
        "__global__ void mangled(int *p) { p[0] = 1; }\n"
        "extern \"C\" __global__ void declared(int);\n";
    float in[64], out[64];
    unsigned shape[2 * 3 * 4 * 4 * 3 * 2];
    function f = NULL;
    begin();
    module m = load(source);
    for (int i = 0; i < 64; i++) in[i] = (float)i;
    ptr a = device_memory(sizeof in), b = device_memory(sizeof out), c = device_memory(sizeof shape);
    three t = { 1, 2, 3 };
    unsigned char ch = 200;
    long long l = 1000;
    double d = 0.5;
    void *args[] = { &b, &a, &t, &ch, &l, &d };
    IS(cuMemcpyHtoD_v2(a, in, sizeof in), 0);
    IS(cuLaunchKernel(get(m, "f"), 4, 1, 1, 16, 1, 1, 0, s0, args, NULL), 0);
    int *h = (int *)pinned_memory(64);         /* both sides see it */
    h[0] = 40;
    IS(launch(kernel(add_n), 1, 1, 0, s0, (ptr)(uintptr_t)h, 2), 0);
    IS(cuCtxSynchronize(), 0);
    CHECK(h[0] == 42);
    IS(cuLaunchKernel(get(m, "f"), 4, 1, 1, 16, 1, 1, 0, s0, args, NULL), 0);
    t.a = 1000, ch = 0, l = 0;                 /* the launch has the arguments already */
    IS(cuStreamSynchronize(s0), 0);
    IS(cuMemcpyDtoH_v2(out, b, sizeof out), 0);
    for (int i = 0; i < 64; i++) CHECK(out[i] == 2 * in[i] + 1209.5f);
    void *more[] = { &c };
    IS(cuLaunchKernel(get(m, "shape"), 2, 3, 4, 4, 3, 2, 0, s0, more, NULL), 0);
    IS(cuStreamSynchronize(s0), 0);
    IS(cuMemcpyDtoH_v2(shape, c, sizeof shape), 0);
    for (unsigned i = 0; i < sizeof shape / 4; i++) CHECK(shape[i] == ((i / 24) << 16 | i % 24));
    IS(cuModuleGetFunction(&f, m, "twice"), 500);
    IS(cuModuleGetFunction(&f, m, "mangled"), 500);
    f = get(m, "f");
    IS(cuLaunchKernel(f, 0, 1, 1, 1, 1, 1, 0, s0, args, NULL), 1);
    IS(cuLaunchKernel(f, 1, 1, 1, 1025, 1, 1, 0, s0, args, NULL), 1);
    IS(cuLaunchKernel(f, 1, 1, 1, 64, 32, 1, 0, s0, args, NULL), 1);
    IS(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 49153, s0, args, NULL), 1);
    IS(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s0, NULL, NULL), 1);
    IS(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s0, args, args), 1);
    CHECK(softgpu_live("modules") == 2);
    IS(cuModuleUnload(m), 0);
    IS(cuModuleUnload(m), 400);
    IS(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s0, args, NULL), 400);
    CHECK(softgpu_live("modules") == 1);
}
TEST(kernels) {
    RUN(kernels, "A=1");
    RUN(kernels, "SOFTGPU_CC=gcc");
}

/* What a kernel may use of the device language; each line gives 1. */
static void language(void) {
    static const char source[] =
        "extern \"C\" __global__ void f(int *p, int n) {\n"
        "    int k = 0; float x = 0.75f; double d = 0.75; unsigned u = 7; unsigned long long w = 5; float af = 1; double ad = 1;\n"
        "    int ai = 3; bool yes = true;\n"
        "    p[k++] = __float_as_int(1.0f) == 0x3f800000 && __int_as_float(0x40000000) == 2.0f;\n"
        "    p[k++] = __uint_as_float(__float_as_uint(x)) == x && __longlong_as_double(__double_as_longlong(d)) == d;\n"
        "    p[k++] = __umulhi(0x80000000u, 6u) == 3 && __mul64hi(-1, 1) == -1 && __umul64hi(~0ull, ~0ull) == ~0ull - 1;\n"
        "    p[k++] = __fmaf_rn(2, 3, 4) == 10 && __fmul_rn(2, 3) == 6 && __fadd_rn(2, 3) == 5;\n"
        "    p[k++] = fabsf(rsqrtf(4.0f) - 0.5f) < 1e-6f && fminf(1, 2) == 1 && fmaxf(1, 2) == 2 && fmin(1.0, 2.0) == 1;\n"
        "    p[k++] = isnan(NAN) && !isnan(x) && isinf(INFINITY) && isinf(-INFINITY) && !isinf(NAN) && signbit(-x) && !signbit(d);\n"
        "    p[k++] = copysignf(1, -0.0f) == -1 && copysign(1, -2.0) == -1 && nearbyintf(2.5f) == 2 && rint(3.5) == 4;\n"
        "    p[k++] = fabsf(erff(1) - 0.8427008f) < 1e-6f && fabsf(lgammaf(5) - 3.1780539f) < 1e-6f && tgammaf(5) == 24;\n"
        "    p[k++] = fabs(exp(log(d)) - d) < 1e-12 && fabsf(expf(logf(x)) - x) < 1e-6f && powf(2, 3) == 8 && tanhf(0) == 0;\n"
        "    p[k++] = atomicAdd(&ai, 2) == 3 && ai == 5 && atomicMax(&ai, 9) == 5 && atomicMin(&ai, 4) == 9 && ai == 4;\n"
        "    p[k++] = atomicExch(&u, 8u) == 7 && atomicCAS(&u, 8u, 9u) == 8 && u == 9 && atomicCAS(&u, 1u, 2u) == 9 && u == 9;\n"
        "    p[k++] = atomicAdd(&w, 1ull) == 5 && w == 6 && atomicAdd(&af, 0.5f) == 1 && af == 1.5f && atomicAdd(&ad, 0.5) == 1 && ad == 1.5;\n"
        "    p[k++] = yes && !false && NULL == 0 && warpSize == 32 && sizeof(size_t) == 8 && clock64() <= clock64();\n"
        "#if __CUDA_ARCH__ != 900\n"
        "    k = 100;\n"
        "#endif\n"
        "#ifdef __CUDACC_RTC__\n"
        "    p[k++] = n;\n"
        "#endif\n"
        "    p[k++] = -1;\n"
        "}\n";
    begin();
    ptr p = device_memory(256);
    IS(launch(kernel(source), 1, 1, 0, s0, p, 1), 0);
    IS(cuStreamSynchronize(s0), 0);
    for (int i = 0; i < 14; i++)
        if (!CHECK(at(p, i) == 1)) fprintf(stderr, "    line %d\n", i);
    CHECK(at(p, 14) == -1);
}
TEST(device_language) {
    RUN(language, "A=1");
    RUN(language, "SOFTGPU_CC=gcc");
}

static const char reverse[] =                  /* out[i] = in[n - 1 - i] by way of shared memory */
    "extern \"C\" __global__ void f(int *p, int n) {\n"
    "    __shared__ int s[256];\n"
    "    int i = (int)threadIdx.x;\n"
    "    s[i] = p[i];\n"
    "    BARRIER;\n"
    "    p[i] = s[n - 1 - i];\n"
    "    if (n < 0) __syncthreads();\n"
    "}\n";
static int reversed_right(const char *define) {
    const char *options[] = { "-arch=sm_90", define };
    int data[256], right = 0;
    module m = NULL;
    char *image = compile_as(reverse, NULL, options, 2, 0, false);
    IS(cuModuleLoadData(&m, image), 0);
    free(image);
    ptr p = device_memory(sizeof data);
    for (int i = 0; i < 256; i++) data[i] = i;
    IS(cuMemcpyHtoD_v2(p, data, sizeof data), 0);
    IS(launch(get(m, "f"), 1, 256, 0, s0, p, 256), 0);
    IS(cuStreamSynchronize(s0), 0);
    IS(cuMemcpyDtoH_v2(data, p, sizeof data), 0);
    for (int i = 0; i < 256; i++) right += data[i] == 255 - i;
    return right;
}
static void barriers(void) {
    begin();
    CHECK(reversed_right("-DBARRIER=__syncthreads()") == 256);
    CHECK(reversed_right("-DBARRIER=(void)0") < 200);      /* shows */
    CHECK(reversed_right("-DBARRIER=__syncwarp()") < 200);
    function f = kernel(                                   /* a tree of sums; the barriers are in a loop */
        "extern \"C\" __global__ void f(int *p, int n) {\n"
        "    extern __shared__ int s[];\n"
        "    unsigned t = threadIdx.x;\n"
        "    s[t] = (int)(t + blockIdx.x);\n"
        "    __syncthreads();\n"
        "    for (unsigned k = blockDim.x / 2; k; k /= 2) {\n"
        "        if (t < k) s[t] += s[t + k];\n"
        "        __syncthreads();\n"
        "    }\n"
        "    if (!t) p[blockIdx.x] = s[0] + n;\n"
        "}\n");
    ptr p = device_memory(40);
    IS(launch(f, 10, 512, 2048, s0, p, 5), 0);
    IS(cuStreamSynchronize(s0), 0);
    for (int i = 0; i < 10; i++) CHECK(at(p, i) == 512 * 511 / 2 + 512 * i + 5);
}
TEST(barriers) {
    RUN(barriers, "A=1");
    RUN(barriers, "SOFTGPU_CC=gcc");
}

/* Who comes when: 4 blocks of 6 threads that do not meet, and a block of 3 warps. */
static int *came;                              /* [2][2][96], shared by processes; the order of orders() below */
static int orders_at;
static void orders(void) {
    begin();
    ptr p = device_memory(97 * 4);
    for (int kind = 0; kind < 2; kind++) {
        const int n = kind ? 96 : 24;
        function f = kernel(kind ? "extern \"C\" __global__ void f(int *p, int n) {\n"
                                   "    __syncthreads();\n    p[1 + atomicAdd(p, 1)] = threadIdx.x + n; }"
                                 : "extern \"C\" __global__ void f(int *p, int n) {\n"
                                   "    p[1 + atomicAdd(p, 1)] = blockIdx.x * blockDim.x + threadIdx.x + n; }");
        for (int turn = 0; turn < 2; turn++) {
            int *list = came + 96 * (2 * (2 * orders_at + kind) + turn);
            IS(cuMemsetD8Async(p, 0, 4, s0), 0);
            IS(launch(f, kind ? 1 : 4, kind ? 96 : 6, 0, s0, p, 0), 0);
            IS(cuStreamSynchronize(s0), 0);
            IS(cuMemcpyDtoH_v2(list, p + 4, (size_t)n * 4), 0);
            for (int t = 0, found; t < n; t++) {
                found = 0;
                for (int i = 0; i < n; i++) found += list[i] == t;
                CHECK(found == 1);             /* each comes once */
            }
        }
    }
}
/* Thread 1 needs one of its neighbours to have come: forwards and backwards it is so, though there is no barrier. */
static void neighbours(void) {
    int wrong = 0;
    begin();
    ptr p = device_memory(16);
    function f = kernel("extern \"C\" __global__ void f(int *p, int n) {\n"
                        "    const int t = (int)threadIdx.x;\n"
                        "    p[t] = t == 1 ? p[0] | p[2] : n;\n    __syncthreads(); }");
    for (int i = 0; i < 50; i++) {
        IS(cuMemsetD8Async(p, 0, 12, s0), 0);
        IS(launch(f, 1, 3, 0, s0, p, 1), 0);
        IS(cuStreamSynchronize(s0), 0);
        wrong += !at(p, 1);
    }
    CHECK(wrong > 5 && wrong < 30);            /* of 50, a third */
}
TEST(orders_of_threads) {
    static const char *const seeds[] = { "SOFTGPU_ORDER=5", "SOFTGPU_ORDER=5", "SOFTGPU_ORDER=6" };
    const size_t one = 2 * 2 * 96 * sizeof *came;
    if (absent()) SKIP("the software GPU is not built");
    came = (int *)mmap(NULL, 3 * one, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(came != MAP_FAILED);
    for (orders_at = 0; orders_at < 3; orders_at++) RUN(orders, seeds[orders_at]);
    CHECK(!memcmp(came, came + 384, one));     /* a seed is an order of everything */
    CHECK(memcmp(came, came + 768, 96 * 4) != 0 && memcmp(came + 192, came + 960, 96 * 4) != 0);
    CHECK(memcmp(came, came + 96, 24 * 4) != 0 && memcmp(came + 192, came + 288, 96 * 4) != 0);   /* the second launch's is another */
    munmap(came, 3 * one);
    RUN(neighbours, "A=1");
}

static void bad_barrier(void) {
    begin();
    ptr p = device_memory(256);
    IS(launch(kernel("extern \"C\" __global__ void f(int *p, int n) { if ((int)threadIdx.x < n) __syncthreads(); p[0] = n; }"),
              1, 64, 0, s0, p, 32), 0);
    IS(cuStreamSynchronize(s0), 719);
    IS(cuStreamSynchronize(s0), 719);          /* for good */
    IS(cuMemAlloc_v2(&p, 4), 719);
    CHECK(softgpu_live("lost") == 1);
}
static void bad_shuffle(void) {
    begin();
    ptr p = device_memory(256);
    IS(launch(kernel("extern \"C\" __global__ void f(int *p, int n) {\n"
                     "    if ((int)threadIdx.x < n) p[0] = __shfl_sync(0xffffffffu, p[0], 0); else __syncthreads(); }"),
              1, 32, 0, s0, p, 16), 0);
    IS(cuStreamSynchronize(s0), 719);
}
static void shared_overrun(void) {
    begin();
    ptr p = device_memory(256);
    IS(launch(kernel("extern \"C\" __global__ void f(int *p, int n) { extern __shared__ char s[]; s[threadIdx.x] = 0; p[0] = n; }"),
              1, 65, 64, s0, p, 16), 0);
    IS(cuStreamSynchronize(s0), 719);
}
TEST(threads_that_do_not_meet) {
    RUN(bad_barrier, "SOFTGPU_QUIET=1");
    RUN(bad_shuffle, "SOFTGPU_QUIET=1");
    RUN(shared_overrun, "SOFTGPU_QUIET=1");
}

static void shuffles(void) {
    int data[64];
    begin();
    ptr p = device_memory(64 * 4 * 8);
    function f = kernel(
        "extern \"C\" __global__ void f(int *p, int n) {\n"
        "    int t = (int)threadIdx.x, sum = t;\n"
        "    float x = (float)t;\n"
        "    double d = t + 0.25;\n"
        "    for (int k = 16; k; k /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, k);\n"
        "    p[t] = sum;\n"
        "    p[n + t] = __shfl_down_sync(0xffffffffu, t, 3);\n"
        "    p[2 * n + t] = (int)__shfl_sync(0xffffffffu, x, 5, 8);\n"
        "    p[3 * n + t] = __shfl_xor_sync(0xffffffffu, d, 1) == (t ^ 1) + 0.25;\n"
        "    p[4 * n + t] = __shfl_up_sync(0xffffffffu, t, 2);\n"
        "    if (t < 8) p[5 * n + t] = __shfl_xor_sync(0xffu, t, 4);\n"
        "    p[6 * n + t] = (int)__ballot_sync(0xffffffffu, t % 32 < 3);\n"
        "    __syncthreads();\n"
        "    p[7 * n + t] = __any_sync(0xffffffffu, t == 40) + 2 * __all_sync(0xffffffffu, t >= 32);\n"
        "}\n");
    IS(launch(f, 1, 64, 0, s0, p, 64), 0);
    IS(cuStreamSynchronize(s0), 0);
    for (int part = 0; part < 8; part++) {
        IS(cuMemcpyDtoH_v2(data, p + (ptr)(part * 256), 256), 0);
        for (int t = 0; t < (part == 5 ? 8 : 64); t++) {
            int first = t & ~31, want[] = { first ? 1520 : 496, t % 32 < 29 ? t + 3 : t, (t & ~7) + 5, 1, t % 32 < 2 ? t : t - 2, t ^ 4, 7, first ? 3 : 0 };
            if (!CHECK(data[t] == want[part])) fprintf(stderr, "    part %d, thread %d: %d\n", part, t, data[t]);
        }
    }
}
TEST(shuffles) { RUN(shuffles, "A=1"); }

static void atomics(void) {
    begin();
    ptr p = device_memory(16);
    IS(cuMemsetD8Async(p, 0, 16, s0), 0);
    IS(launch(kernel("extern \"C\" __global__ void f(int *p, int n) {\n"
                     "    atomicAdd(p, 1); atomicAdd((float *)p + 1, 0.5f); atomicMax(p + 2, (int)threadIdx.x); atomicExch(p + 3, n); }"),
              10, 100, 0, s0, p, 7), 0);
    IS(cuStreamSynchronize(s0), 0);
    CHECK(at(p, 0) == 1000 && at(p, 1) == 0x43fa0000 && at(p, 2) == 99 && at(p, 3) == 7);
}
TEST(atomics) { RUN(atomics, "A=1"); }

/* ---------------- what goes wrong */

static void host_pointer(void) {
    static int mine = 5;
    begin();
    ptr p = device_memory(64);
    IS(launch(kernel(add_n), 1, 1, 0, s0, (ptr)(uintptr_t)&mine, 1), 0);
    IS(cuStreamSynchronize(s0), 700);
    IS(cuMemFree_v2(p), 700);
    IS(cuStreamDestroy_v2(s0), 700);
    IS(cuMemAlloc_v2(&p, 4), 700);
    CHECK(mine == 5);
    CHECK(softgpu_live("memory") == 0 && softgpu_live("streams") == 0);    /* given back all the same */
}
static void wrong_device(void) {
    ctx other;
    begin();
    ptr p = device_memory(64);
    IS(cuDevicePrimaryCtxRetain(&other, 1), 0);
    IS(cuCtxSetCurrent(other), 0);
    stream s = NULL;
    IS(cuStreamCreate(&s, 1), 0);
    ptr q = device_memory(64);
    IS(launch(kernel(add_n), 1, 1, 0, s, p, 1), 0);
    IS(cuStreamSynchronize(s), 700);
    IS(cuMemFree_v2(q), 700);
    IS(cuCtxSetCurrent(here), 0);              /* the other goes on */
    IS(cuCtxSynchronize(), 0);
    IS(launch(kernel(add_n), 1, 1, 0, s0, p, 1), 0);
    IS(cuStreamSynchronize(s0), 0);
}
static void past_the_end(void) {
    begin();
    ptr p = device_memory(100);
    IS(launch(kernel(add_n), 1, 64, 0, s0, p, 1), 0);      /* 256 bytes: within what aligns it */
    IS(cuMemFree_v2(p), 0);
    CHECK(softgpu_live("overruns") == 1);
    p = device_memory(100);
    IS(launch(kernel(add_n), 1, 65, 0, s0, p, 1), 0);      /* beyond */
    IS(cuCtxSynchronize(), 700);
}
static void freed_memory(void) {
    begin();
    ptr p = device_memory(1000);
    IS(cuMemFree_v2(p), 0);
    IS(launch(kernel(add_n), 1, 1, 0, s0, p, 1), 0);
    IS(cuCtxSynchronize(), 700);
}
static void endless(void) {
    begin();
    IS(launch(kernel("extern \"C\" __global__ void f(volatile int *p, int n) { while (p[0] != n) {} }"), 1, 1, 0, s0, device_memory(64), 1), 0);
    IS(cuStreamSynchronize(s0), 702);
}

#include "softgpu/ptx_cases.h"

/* A kernel that does the instructions of all cases one after the other: words in, a word out. */
static char *ptx_of(const ptx_case *c, int n) {
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    fprintf(f, ".version 8.0\n.target sm_90\n.address_size 64\n.global .align 4 .b32 table[2] = {76, 77};\n"
               ".func (.param .b64 out) twice(.param .b64 in)\n{\n.reg .b64 %%x;\nld.param.u64 %%x, [in];\nadd.s64 %%x, %%x, %%x;\n"
               "st.param.b64 [out+0], %%x;\nret;\n}\n"
               ".visible .entry f(.param .u64 p, .param .u32 n)\n.maxntid 32, 1, 1\n{\n.reg .b64 %%a, %%b, %%c, %%d, %%e, %%r<3>;\n.reg .pred %%p, %%q;\n"
               ".local .align 16 .b8 stack[64];\n.shared .align 16 .b8 board[64];\nld.param.u64 %%r1, [p];\ncvta.to.global.u64 %%r1, %%r1;\n");
    for (int i = 0; i < n; i++) {
        fprintf(f, "ld.global.u64 %%a, [%%r1+%d];\nld.global.u64 %%b, [%%r1+%d];\nld.global.u64 %%c, [%%r1+%d];\n", 40 * i + 8, 40 * i + 16, 40 * i + 24);
        fprintf(f, "and.b64 %%r2, %%c, 1;\nsetp.ne.s64 %%p, %%r2, 0;\n// case %d\n", i);
        for (const char *p = c[i].text; *p; p++)
            if (!strncmp(p, "LINE", 4)) fprintf(f, "$L_%d", i), p += 3;
            else fputc(*p, f);
        fprintf(f, "\nst.global.u64 [%%r1+%d], %%d;\n", 40 * i + 32);
    }
    fprintf(f, "ret;\n}\n");
    fclose(f);
    return text;
}
/* Whether an instruction of a case is one of a row of the translator's: its name, a part that must be there, a type. */
static int has_part(const char *text, const char *op, const char *part, const char *of_types) {
    size_t n = strlen(op), k = strlen(part);
    for (const char *p = text; (p = strstr(p, op)) != NULL; p++) {
        if ((p > text && p[-1] != ' ') || p[n] != '.') continue;
        char parts[100], type[12];
        snprintf(parts, sizeof parts, "%.*s.", (int)strcspn(p, " "), p);
        const char *found = *part ? strstr(parts, part) : parts;
        if (!found || (*part && (found[-1] != '.' || found[k] != '.'))) continue;
        for (const char *t = of_types; *t; t += strcspn(t, " "), t += *t == ' ') {
            snprintf(type, sizeof type, ".%.*s.", (int)strcspn(t, " "), t);
            if (strstr(parts, type)) return 1;
        }
    }
    return 0;
}
static void ptx(void) {
    static ptx_case c[400];
    const char *(*row)(int, const char **, const char **), *when, *of_types, *op;
    const int n = ptx_cases(c);
    begin();
    ptr p = device_memory(sizeof c);
    IS(cuMemcpyHtoD_v2(p, c, sizeof c), 0);
    char *text = ptx_of(c, n);
    IS(launch(kernel(text), 1, 1, 0, s0, p, 1), 0);
    IS(cuStreamSynchronize(s0), 0);
    free(text);
    static ptx_case got[400];
    IS(cuMemcpyDtoH_v2(got, p, sizeof got), 0);
    for (int i = 0; i < n; i++) {
        const bool nan = c[i].d == ANY_NAN && got[i].d << 33 > 0xff000000ull << 32;
        if (!CHECK(nan || got[i].d == c[i].d))
            fprintf(stderr, "    %s of %llx, %llx, %llx is %llx, not %llx\n", c[i].text, (unsigned long long)c[i].a, (unsigned long long)c[i].b,
                    (unsigned long long)c[i].c, (unsigned long long)got[i].d, (unsigned long long)c[i].d);
    }
    find(open_library("libnvrtc.so.13"), "softgpu_ptx_row", &row);
    for (int k = 0; (op = row(k, &when, &of_types)) != NULL; k++) {
        int seen = 0;
        for (int i = 0; i < n && !seen; i++) seen = has_part(c[i].text, op, when, of_types);
        if (!CHECK(seen)) fprintf(stderr, "    no case of %s %s %s\n", op, when, of_types);
    }
}
TEST(ptx_instructions) {
    RUN(ptx, "SOFTGPU_PTX=source");
    RUN(ptx, "SOFTGPU_PTX=source SOFTGPU_CC=gcc");
}

/* What is not known is told, not passed over. */
static void strange_ptx(void) {
    static const char *const options[] = { "--gpu-architecture=sm_90" }, *const texts[] = {
        "frob.b32 %a, %a;", "add.rp.f32 %a, %a, %a;", "add.f32 %a, %a, %a;", "mul.f16 %a, %a, %a;", "cvt.rz.f32.f64 %a, %a;", "bar.sync 1;", "dp2a.lo.s32.u32 %a, %a, %a, %a;", "bar.red.popc.u32 %a, 0, %p;", "brx.idx %a, there;",
        ".extern .shared .align 16 .b8 more[];", "wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8 {%a}, %a, %a, %p;", "mbarrier.inval.b64 [%a];", "cp.async.bulk.global.shared::cta.bulk_group [%a], [%a], 16;", "atom.global.add.u32 %a, [%a], 1;", "setp.lt.s32 %p|%q, %a, %a;", "mov.u32 %a, %nosuch.x;",
    };
    load_cuda();
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char text[400];
        snprintf(text, sizeof text, ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry f()\n{\n.reg .b64 %%a;\n.reg .pred %%p, %%q;\n%s\nret;\n}\n", texts[i]);
        char *log = compile_as(text, "f", options, 1, 6, false);
        if (!CHECK(*log)) fprintf(stderr, "    %s\n", texts[i]);
        free(log);
    }
}
TEST(ptx_that_is_not_known) { RUN(strange_ptx, "SOFTGPU_PTX=source"); }

/* ---------------- what sm_90 does behind its threads' backs: boxes, phases, products of warpgroups */

/* One warpgroup: thread 0 asks for a box of a, 64 x 64, and of b, 8 x 64, and all multiply them, 64 x 8 sums. */
static const char warpgroup_text[] =
    ".version 8.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 16 .b8 dynamic[];\n.visible .entry f(.param .u64 p, .param .u32 n)\n{\n"
    ".reg .b64 %a, %b, %p, %o, %r;\n.reg .b32 %t, %s, %e, %u, %i, %c;\n.reg .f32 %f<5>;\n.reg .pred %q, %y;\n.shared .align 8 .b8 phases[16];\n"
    "ld.param.u64 %p, [p];\nadd.s64 %o, %p, 128;\nmov.u32 %t, %tid.x;\nmov.u64 %r, dynamic;\ncvt.u32.u64 %s, %r;\nadd.s32 %s, %s, 1023;\nand.b32 %s, %s, -1024;\n"
    "add.s32 %u, %s, 8192;\nmov.u64 %r, phases;\ncvt.u32.u64 %e, %r;\nsetp.ne.s32 %q, %t, 0;\nsetp.eq.s32 %y, 0, 0;\n@%q bra READY;\n"
    "mbarrier.init.shared::cta.b64 [%e], 1;\nfence.proxy.async.shared::cta;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%e], BYTES;\n"
    "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%s], [%p, {0, 0, 1}], [%e];\n"
    "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%u], [%o, {0, 0, 0}], [%e];\nREADY:\nbar.sync 0;\n"
    "setmaxnreg.dec.sync.aligned.u32 40;\n"
    "WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 %q, [%e], 0;\n@!%q bra WAIT;\n"
    "mov.f32 %f1, 0f00000000;\nmov.f32 %f2, 0f00000000;\nmov.f32 %f3, 0f00000000;\nmov.f32 %f4, 0f3F800000;\n"
    "wgmma.fence.sync.aligned;\n"
    "shr.u32 %i, %s, 4;\ncvt.u64.u32 %a, %i;\nor.b64 %a, %a, FIRST;\nshr.u32 %i, %u, 4;\ncvt.u64.u32 %b, %i;\nor.b64 %b, %b, SECOND;\nmov.u32 %c, 0;\n"
    "MORE:\nwgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, %a, %b, %y, 1, 1, TURNED_A, TURNED_B;\n"
    "add.s64 %a, %a, STEP_A;\nadd.s64 %b, %b, STEP_B;\nadd.s32 %c, %c, 1;\nsetp.lt.s32 %q, %c, 4;\n@%q bra MORE;\n"
    "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\nbar.sync 1, 128;\n"
    "mul.wide.s32 %r, %t, 16;\nadd.s64 %r, %r, %p;\nst.global.v4.f32 [%r+256], {%f1, %f2, %f3, %f4};\nret;\n}\n";

/* The text with words put in: FIRST=..., and one more replacement. */
static char *with(char *text, const char *word, const char *by) {
    char *at = strstr(text, word), *out = NULL;
    size_t n = 0;
    if (!CHECK(at != NULL)) return text;
    FILE *f = open_memstream(&out, &n);
    fprintf(f, "%.*s%s%s", (int)(at - text), text, by, at + strlen(word));
    fclose(f);
    free(text);
    return out;
}
static const char *group_word, *group_by;
static int group_turned, group_code;           /* bits: a, b is MN-major; -1: the sums are spoilt */
static const int rows_there = 60;              /* of a's 64: the rest is beyond the edge */

static unsigned short brain(int x) {           /* small integers are exact in bf16 */
    float f = (float)x;
    unsigned u;
    memcpy(&u, &f, 4);
    return (unsigned short)(u >> 16);
}
static int a_of(int i, int l) { return i < rows_there ? (i * 7 + l * 3) % 11 - 5 : 0; }
static int b_of(int j, int l) { return (j * 5 + l) % 7 - 3; }

static void put_map(ptr to, ptr from, int turned, unsigned rows, unsigned lines) {
    _Alignas(128) char map[192];
    const uint64_t dim[3] = { turned ? rows : 64, turned ? 64 : rows, 2 }, step[2] = { 128, 8192 };
    const unsigned box[3] = { 64, turned ? 64 : lines, 1 }, every[3] = { 1, 1, 1 };
    IS(cuTensorMapEncodeTiled(map, 9, 3, (void *)(uintptr_t)from, dim, step, box, every, 0, 3, 3, 0), 0);
    IS(cuTensorMapEncodeTiled(map + 64, 9, 3, (void *)(uintptr_t)from, dim, step, box, every, 0, 3, 3, 0), 1);
    IS(cuTensorMapEncodeTiled(map, 9, 3, (void *)(uintptr_t)(from + 8), dim, step, box, every, 0, 3, 3, 0), 1);
    IS(cuMemcpyHtoD_v2(to, map, 128), 0);
}
static void warpgroup(void) {
    static unsigned short a[2][64][64], b[64][64];
    const int ta = group_turned & 1, tb = group_turned >> 1;
    begin();
    ptr p = device_memory(256 + 2048), from = device_memory(sizeof a), other = device_memory(2 * sizeof b);
    for (int i = 0; i < 64; i++)
        for (int l = 0; l < 64; l++) {
            a[1][ta ? l : i][ta ? i : l] = brain((i * 7 + l * 3) % 11 - 5);        /* of the second batch */
            b[tb ? l : i][tb ? i : l] = brain(b_of(i, l));
        }
    IS(cuMemcpyHtoD_v2(from, a, sizeof a), 0);
    IS(cuMemcpyHtoD_v2(other, b, sizeof b), 0);
    put_map(p, from, ta, (unsigned)rows_there, 64), put_map(p + 128, other, tb, 64, 8);
    char *text = strdup(warpgroup_text);
    text = with(text, group_word, group_by);
    if (strstr(text, "BYTES")) text = with(text, "BYTES", tb ? "16384" : "9216");
    if (strstr(text, "FIRST")) text = with(text, "FIRST", ta ? "0x4000004002000000" : "0x4000004000010000");
    text = with(text, "SECOND", tb ? "0x4000004002000000" : "0x4000004000010000");
    text = with(text, "STEP_A", ta ? "128" : "2"), text = with(text, "STEP_B", tb ? "128" : "2");
    text = with(text, "TURNED_A", ta ? "1" : "0"), text = with(text, "TURNED_B", tb ? "1" : "0");
    function f = kernel(text);
    IS(cuFuncSetAttribute(f, 8, 24576), 0);
    IS(launch(f, 1, 128, 24576, s0, p, 1), 0);
    const int code = cuStreamSynchronize(s0);
    if (!CHECK(code == (group_code < 0 ? 0 : group_code))) fprintf(stderr, "    \"%s\" by \"%s\" gives %d\n", group_word, group_by, code);
    float got[128][4];
    int wrong = 0;
    if (!code) IS(cuMemcpyDtoH_v2(got, p + 256, sizeof got), 0);
    for (int t = 0; t < 128 && !code; t++)
        for (int e = 0; e < 4; e++) {
            const int i = t / 32 * 16 + t % 32 / 4 + e / 2 * 8, j = t % 4 * 2 + e % 2;
            int sum = e == 3;
            for (int l = 0; l < 64; l++) sum += a_of(i, l) * b_of(j, l);
            wrong += !(got[t][e] == (float)sum);
        }
    if (!CHECK(code || (wrong != 0) == (group_code < 0))) fprintf(stderr, "    \"%s\" by \"%s\": %d wrong sums\n", group_word, group_by, wrong);
    free(text);
}
static void group(int turned, const char *word, const char *by, int code) {
    group_turned = turned, group_word = word, group_by = by, group_code = code;
    RUN(warpgroup, "SOFTGPU_QUIET=1 SOFTGPU_PTX=source");
}
#define BOX_A "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%s], [%p, {0, 0, 1}], [%e];\n"
#define TRY "mbarrier.try_wait.parity.shared::cta.b64 %q, [%e], 0;\n"
TEST(products_of_warpgroups) {
    for (int turned = 0; turned < 4; turned++) group(turned, "WAIT:", "WAIT:", 0);
    group(0, "@!%q bra WAIT;\n", "", 719);                                     /* what is read is under way */
    group(0, TRY, "mbarrier.try_wait.parity.shared::cta.b64 %q, [%e], 1;\n", 719);       /* the phase before */
    group(0, "BYTES", "20000", 719);                                           /* more bytes than come */
    group(0, "BYTES", "8192", 719);                                            /* fewer */
    group(0, "[%e], 1;", "[%e], 2;", 719);                                     /* an arrival too few */
    group(0, "WAIT:", "mbarrier.arrive.shared::cta.b64 _, [%e];\nWAIT:", 719);   /* too many */
    group(0, "mbarrier.init.shared::cta.b64 [%e], 1;\n", "", 719);
    group(0, "fence.proxy.async.shared::cta;\n", "", 719);
    group(0, "fence.proxy.async.shared::cta;\n", "fence.mbarrier_init.release.cluster;\n", 0);
    group(0, BOX_A, "add.s32 %i, %s, 128;\n" "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%i], [%p, {0, 0, 1}], [%e];\n", 719);
    group(0, BOX_A, BOX_A BOX_A, 719);                                         /* twice to one place */
    group(0, "[%p, {0", "[%o, {0", 719);                                       /* of a box of other bytes */
    group(0, "wgmma.fence.sync.aligned;\n", "", 719);
    group(0, "wgmma.wait_group.sync.aligned 0;\n", "", -1);                     /* sums that nobody may look at yet */
    group(0, "wgmma.commit_group.sync.aligned;\n", "", -1);
    group(0, "wgmma.wait_group.sync.aligned 0;\n", "wgmma.wait_group.sync.aligned 1;\n", -1);
    group(0, "wgmma.fence", "st.shared.u32 [%s], 0;\nwgmma.fence", 719);        /* a thread's write, not fenced */
    group(0, "wgmma.fence", "ld.shared.u32 %i, [%s];\nst.shared.u32 [%s], %i;\nfence.proxy.async;\nbar.sync 0;\nwgmma.fence", 0);
    group(0, "wgmma.commit", "st.shared.u32 [%s], 0;\nwgmma.commit", 719);      /* before the product is done */
    group(0, "WAIT:", "ld.shared.u32 %i, [%s];\nWAIT:", 719);                   /* a thread's own read */
    group(0, "FIRST", "0x0000004000010000", 719);                              /* no swizzle */
    group(0, "FIRST", "0x4000000800010000", -1);                               /* lines of 128 bytes, as if eight were one */
    group(0, "or.b64 %a", "cvt.u64.u32 %r, %t;\nadd.s64 %a, %a, %r;\nor.b64 %a", 719);    /* threads disagree */
    group(0, "dec.sync.aligned.u32 40", "inc.sync.aligned.u32 40", 719);
    group(0, "dec.sync.aligned.u32 40", "dec.sync.aligned.u32 41", 719);
    group(0, "bar.sync 1, 128", "bar.sync 1, 160", 719);
    group(0, "bar.sync 1, 128", "elect.sync _|%q, 0xffffffff;\n@%q bar.sync 1, 128", 719);
}

/* Kernels of 64 threads and two blocks that are right and kernels with one fault each, which SOFTGPU_RACES finds. */
static const char *race_text;
static int race_code;
static void racing(void) {
    begin();
    ptr p = device_memory(4096);
    IS(launch(kernel(race_text), 2, 64, 0, s0, p, 1), 0);
    IS(cuStreamSynchronize(s0), race_code);
}
static void race(const char *text, int code) {
    race_text = text, race_code = code;
    RUN(racing, "SOFTGPU_QUIET=1 SOFTGPU_RACES=1");
}
#define KERNEL(body) "extern \"C\" __global__ void f(int *p, int n) { __shared__ int s[65]; int t = (int)threadIdx.x, b = (int)blockIdx.x; " body " }"
TEST(races) {
    race(KERNEL("s[t] = n; __syncthreads(); p[b * 64 + t] = s[63 - t];"), 0);
    race(KERNEL("s[t] = n; p[b * 64 + t] = s[63 - t];"), 719);                      /* no barrier */
    race(KERNEL("s[t] = n; __syncthreads(); n = s[63 - t]; s[t] = n;"), 719);       /* none before it is written again */
    race(KERNEL("s[t] = n; __syncthreads(); n = s[63 - t]; __syncthreads(); s[t] = n;"), 0);
    race(KERNEL("s[t / 2] = n; __syncthreads();"), 719);                           /* two writers */
    race(KERNEL("s[t] = n; __syncthreads(); p[b * 64 + t] = s[t + 1];"), 719);      /* nobody wrote s[64] */
    race(KERNEL("p[t] = n; if (t > 64) __syncthreads(); s[t] = 0;"), 719);          /* two blocks write */
    race(KERNEL("p[b * 64 + t] = n + p[127 - b * 64 - t]; if (t > 64) __syncthreads(); s[t] = 0;"), 719);  /* and read */
    race(KERNEL("p[b * 64 + t] += n; if (t > 64) __syncthreads(); s[t] = 0;"), 0);
    race(KERNEL("*(long long *)(p + 1 + b * 256 + t * 2) = n; s[t] = 0;"), 719);    /* not aligned */
    race(KERNEL("*(long long *)(p + b * 256 + t * 2) = n; s[t] = 0;"), 0);
    race(KERNEL("atomicAdd(p, n); if (t > 64) __syncthreads(); s[t] = 0;"), 0);     /* of both blocks */
    race(KERNEL("if (atomicCAS(p, -1, n) == -1) p[1] = t; s[t] = 0;"), 0);          /* one of them */
}
TEST(undefined_behaviour) {
    race(KERNEL("s[t] = n; p[b * 64 + t] = 2147483646 + n;"), 0);
    race(KERNEL("s[t] = n; p[b * 64 + t] = 2147483647 + n;"), 715);
    race(KERNEL("s[t] = n; p[b * 64 + t] = 1 << (31 + n);"), 715);
    race(KERNEL("s[t] = n; if (!t) s[65 * n] = 0;"), 715);
}

/* Each thread copies 16 bytes in two groups; then comes what is between, and a thread reads its neighbour's. */
#define COPY(to, from) "asm volatile(\"cp.async.cg.shared.global [%0], [%1], 16, %2;\" : : \"r\"((unsigned)__cvta_generic_to_shared(" to ")), " \
                       "\"l\"(" from "), \"r\"(16) : \"memory\"); asm volatile(\"cp.async.commit_group;\" : : : \"memory\"); "
#define LEFT(n) "asm volatile(\"cp.async.wait_group %0;\" : : \"n\"(" #n ") : \"memory\"); "
#define COPIED(between, then) KERNEL("__shared__ __align__(16) int c[512]; unsigned r[4] = { 0, 0, 0, 0 }; " COPY("c + 4 * t", "p + 4 * t") \
                                     COPY("c + 256 + 4 * t", "p + 256 + 4 * t") between then " p[512 + b * 64 + t] = n + (int)r[0]; if (t > 64) s[t] = 0;")
#define FOUR "asm volatile(\"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\" : \"=r\"(r[0]), \"=r\"(r[1]), \"=r\"(r[2]), \"=r\"(r[3]) " \
             ": \"r\"((unsigned)__cvta_generic_to_shared(c + 4 * (t ^ 1)))); "
TEST(copies_under_way) {
    race(COPIED(LEFT(0) "__syncthreads();", "n = c[4 * (t ^ 1)] + c[256 + 4 * (t ^ 1)];"), 0);
    race(COPIED(LEFT(1) "__syncthreads();", "n = c[4 * (t ^ 1)];"), 0);
    race(COPIED("__syncthreads();", "n = c[4 * t];"), 719);                       /* nobody waited */
    race(COPIED(LEFT(1) "__syncthreads();", "n = c[256 + 4 * t];"), 719);          /* for the second group */
    race(COPIED(LEFT(0), "n = c[4 * (t ^ 1)];"), 719);                            /* only each for its own */
    race(COPIED("c[4 * t] = n;", ""), 719);                                       /* written before it has landed */
    race(COPIED(LEFT(0) "__syncthreads();", FOUR), 0);
    race(COPIED("__syncthreads();", FOUR), 719);
    race(COPIED(LEFT(0), FOUR), 719);
}

TEST(illegal_addresses) {
    RUN(host_pointer, "SOFTGPU_QUIET=1");
    RUN(wrong_device, "SOFTGPU_QUIET=1 SOFTGPU_DEVICES=2");
    RUN(past_the_end, "SOFTGPU_QUIET=1");
    RUN(freed_memory, "SOFTGPU_QUIET=1");
}
TEST(a_kernel_without_end) { RUN(endless, "SOFTGPU_QUIET=1 SOFTGPU_TIMEOUT=1"); }

static void compile_errors(void) {
    static const char *const sm90[] = { "--gpu-architecture=sm_90" }, *const sm12[] = { "-arch=sm_12" }, *const junk[] = { "--no-such" },
        *const ptx[] = { "--gpu-architecture=compute_80" }, *const sm80[] = { "-arch", "sm_80" }, *const newer[] = { "-arch=compute_100" },
        *const sm86[] = { "-arch=sm_86" }, *const exact[] = { "-arch=sm_90a" };
    module m = NULL;
    begin();
    char *log = compile_as("\n\nextern \"C\" __global__ void f(int *p) {\n    p[0] = nothing;\n}\n", "mine.cu", sm90, 1, 6, false);
    if (!CHECK(strstr(log, "mine.cu:4:") != NULL)) fprintf(stderr, "    %s\n", log);
    free(log);
    log = compile_as("extern \"C\" __global__ void f(float *p) { p[0] = no_such_function(p[0]); }", NULL, sm90, 1, 6, false);
    CHECK(strstr(log, "no_such_function") != NULL);
    free(log);
    free(compile_as(add_n, NULL, sm12, 1, 5, false));
    log = compile_as(add_n, NULL, junk, 1, 5, false);
    CHECK(strstr(log, "--no-such") != NULL);
    free(log);
    char *image = compile_as(add_n, NULL, ptx, 1, 0, true);
    CHECK(strstr(image, ".target sm_80") != NULL);
    IS(cuModuleLoadData(&m, image), 0);        /* PTX runs on what is newer */
    IS(cuModuleUnload(m), 0);
    free(image);
    image = compile_as(add_n, NULL, newer, 1, 0, true);
    IS(cuModuleLoadData(&m, image), 209);
    free(image);
    image = compile_as(add_n, NULL, sm80, 2, 0, false);
    IS(cuModuleLoadDataEx(&m, image, 0, NULL, NULL), 209);
    free(image);
    image = compile_as(add_n, NULL, sm86, 1, 0, false);
    IS(cuModuleLoadData(&m, image), 209);
    free(image);
    image = compile_as(add_n, NULL, exact, 1, 0, false);
    IS(cuModuleLoadData(&m, image), 0);
    image[200] = (char)~image[200];            /* damaged */
    IS(cuModuleLoadData(&m, image), 200);
    free(image);
    IS(cuModuleLoadData(&m, "junk"), 200);
    program p = NULL;
    size_t n = 99;
    static const char *const names[] = { "deep/inc.h" }, *const texts[] = { "#define FOUR 4\n" };
    IS(nvrtcCreateProgram(&p, "#include \"deep/inc.h\"\nextern \"C\" __global__ void f(int *p, int n) { p[0] = FOUR; }", NULL, 1, texts, names), 0);
    IS(nvrtcGetCUBINSize(p, &n), 4);           /* not compiled yet */
    IS(nvrtcCompileProgram(p, 1, ptx), 0);
    IS(nvrtcGetCUBINSize(p, &n), 0);
    CHECK(n == 0);                             /* no machine code was asked for */
    IS(nvrtcDestroyProgram(&p), 0);
    IS(nvrtcDestroyProgram(&p), 4);
}
TEST(compile_errors) {
    RUN(compile_errors, "A=1");
    RUN(compile_errors, "SOFTGPU_CC=gcc");
}

/* ---------------- when things are done */

static void late(void) {
    event e = NULL;
    begin();
    int *h = (int *)pinned_memory(256), pageable = 3;
    ptr p = device_memory(256);
    function f = kernel(add_n);
    h[0] = 1;
    IS(cuMemcpyHtoDAsync_v2(p, h, 4, s0), 0);
    IS(launch(f, 1, 1, 0, s0, p, 10), 0);
    h[0] = 2;                                  /* too early: the copy has not been done */
    IS(cuMemcpyDtoHAsync_v2(h + 1, p, 4, s0), 0);
    h[1] = -1;
    CHECK(h[1] == -1);
    IS(cuStreamQuery(s0), 600);
    IS(cuStreamSynchronize(s0), 0);
    CHECK(h[1] == 12);
    IS(cuStreamQuery(s0), 0);
    IS(cuMemcpyHtoDAsync_v2(p, &pageable, 4, s0), 0);      /* pageable memory is read at once */
    pageable = 4;
    IS(cuStreamSynchronize(s0), 0);
    CHECK(at(p, 0) == 3);
    IS(launch(f, 1, 1, 0, s0, p, 10), 0);
    CHECK(at(p, 0) == 3);                      /* a plain copy does not wait for a stream of its own kind */
    IS(cuMemcpyDtoHAsync_v2(&pageable, p, 4, s0), 0);      /* to pageable memory it waits */
    CHECK(pageable == 13);
    IS(launch(f, 1, 1, 0, s0, p, 10), 0);
    int tries = 0;
    while (cuStreamQuery(s0) == 600 && tries < 100) tries++;
    CHECK(tries > 0 && tries < 100);           /* asking is enough in the end */
    CHECK(at(p, 0) == 23);
    IS(cuEventCreate(&e, 2), 0);
    IS(cuEventQuery(e), 0);                    /* never recorded */
    IS(cuEventRecord(e, s0), 0);
    IS(cuEventQuery(e), 600);
    for (tries = 0; cuEventQuery(e) == 600 && tries < 100;) tries++;
    CHECK(tries < 100);
    stream blocking = NULL;
    IS(cuStreamCreate(&blocking, 0), 0);
    IS(launch(f, 1, 1, 0, blocking, p, 10), 0);
    CHECK(at(p, 0) == 33);                     /* ordered with the null stream, as plain copies are */
    IS(launch(f, 1, 1, 0, NULL, p, 10), 0);
    IS(launch(f, 1, 1, 0, blocking, p, 10), 0);
    IS(cuStreamSynchronize(blocking), 0);
    CHECK(at(p, 0) == 53);
}
TEST(done_late) { RUN(late, "A=1"); }

static void between_streams(void) {
    stream a = NULL, b = NULL;
    event e = NULL, later = NULL, t0 = NULL, t1 = NULL;
    float ms = -1;
    begin();
    IS(cuStreamCreate(&a, 1), 0);
    IS(cuStreamCreate(&b, 1), 0);
    IS(cuEventCreate(&e, 2), 0);
    IS(cuEventCreate(&later, 2), 0);
    IS(cuEventCreate(&t0, 0), 0);
    IS(cuEventCreate(&t1, 0), 0);
    ptr p = device_memory(256), q = device_memory(256);
    function twice = kernel("extern \"C\" __global__ void f(int *p, int n) { p[0] = p[0] * 2 + n; }");
    IS(cuMemsetD8Async(p, 0, 256, a), 0);
    IS(cuEventRecord(t0, a), 0);
    IS(launch(twice, 1, 1, 0, a, p, 1), 0);
    IS(cuEventRecord(t1, a), 0);
    IS(cuEventRecord(e, a), 0);
    IS(cuStreamWaitEvent(b, e, 0), 0);
    IS(launch(twice, 1, 1, 0, a, p, 5), 0);    /* after the event: b must not wait for it */
    IS(cuEventRecord(e, a), 0);                /* nor is a wait moved by a later record */
    IS(cuMemcpyDtoDAsync_v2(q, p, 4, b), 0);
    IS(cuEventElapsedTime(&ms, t0, t1), 600);
    IS(cuStreamSynchronize(b), 0);
    CHECK(at(q, 0) == 1 && at(p, 0) == 1);
    IS(cuEventElapsedTime_v2(&ms, t0, t1), 0);
    CHECK(ms >= 0 && ms < 1000);
    IS(cuEventElapsedTime(&ms, e, t1), 400);
    IS(cuEventSynchronize(e), 0);
    CHECK(at(p, 0) == 7);
    /* without an event the two orders both come up */
    int first = 0;
    for (int i = 0; i < 4; i++) {
        IS(cuMemsetD8Async(p, 0, 4, a), 0);
        IS(cuStreamSynchronize(a), 0);
        IS(launch(twice, 1, 1, 0, a, p, 1), 0);
        IS(launch(twice, 1, 1, 0, b, p, 2), 0);
        IS(cuCtxSynchronize(), 0);
        first += at(p, 0) == 4;
    }
    CHECK(first > 0 && first < 4);
    IS(cuEventRecord(later, a), 0);
    IS(launch(twice, 1, 1, 0, a, p, 1), 0);
    IS(cuStreamDestroy_v2(a), 0);              /* its work is done all the same */
    IS(cuEventQuery(later), 0);
    IS(cuEventDestroy_v2(e), 0);
    IS(cuEventDestroy_v2(e), 400);
    CHECK(softgpu_live("events") == 3 && softgpu_live("streams") == 2);
}
TEST(events_between_streams) { RUN(between_streams, "A=1"); }

/* The runner's counts are for one thread: these have their own. */
typedef struct job { pthread_t thread; function f; int n, bad; } job;
static void *one_of_many(void *arg) {
    job *j = (job *)arg;
    stream s = NULL;
    event e = NULL;
    void *memory = NULL;
    j->bad += cuCtxPushCurrent_v2(here) || cuStreamCreate(&s, 1) || cuEventCreate(&e, 2) || cuMemHostAlloc(&memory, 8, 0);
    for (int i = 0; i < 50 && !j->bad; i++) {
        ptr p = 0;
        int *h = (int *)memory;
        j->bad += cuMemAlloc_v2(&p, 8) || cuMemsetD8Async(p, 0, 8, s);
        for (int k = 0; k < 10; k++) j->bad += launch(j->f, 1, 1, 0, s, p, j->n);
        j->bad += cuMemcpyDtoHAsync_v2(h, p, 8, s) || cuEventRecord(e, s);
        j->bad += i % 2 ? cuEventSynchronize(e) : cuStreamSynchronize(s);
        j->bad += h[0] != 10 * j->n || h[1] != 10 * j->n;
        j->bad += cuMemFree_v2(p);
    }
    return NULL;
}
static void many_threads(void) {
    job jobs[4];
    begin();
    function f = kernel("extern \"C\" __global__ void f(int *p, int n) { atomicAdd(p, n); p[1] += n * (int)blockDim.x; }");
    for (int i = 0; i < 4; i++) {
        jobs[i].f = f, jobs[i].n = i + 1, jobs[i].bad = 0;
        pthread_create(&jobs[i].thread, NULL, one_of_many, &jobs[i]);
    }
    for (int i = 0; i < 4; i++) pthread_join(jobs[i].thread, NULL);
    for (int i = 0; i < 4; i++) CHECK(jobs[i].bad == 0);
    CHECK(softgpu_live("memory") == 0);
}
TEST(many_threads) { RUN(many_threads, "A=1"); }

/* ---------------- graphs */

static void graphs(void) {
    graph g = NULL, exec = NULL;
    event e = NULL, back = NULL;
    stream side = NULL;
    begin();
    IS(cuStreamCreate(&side, 1), 0);
    IS(cuEventCreate(&e, 2), 0);
    IS(cuEventCreate(&back, 2), 0);
    ptr p = device_memory(256), q = device_memory(256);
    int *h = (int *)pinned_memory(64), pageable = 0;
    function f = kernel(add_n);
    h[0] = 5;
    IS(cuStreamBeginCapture_v2(s0, 0), 0);
    IS(cuMemcpyHtoDAsync_v2(p, h, 4, s0), 0);
    IS(launch(f, 1, 1, 0, s0, p, 10), 0);
    IS(cuEventRecord(e, s0), 0);
    IS(cuStreamWaitEvent(side, e, 0), 0);      /* the other stream takes part */
    IS(cuMemcpyDtoDAsync_v2(q, p, 4, side), 0);
    IS(launch(f, 1, 1, 0, side, q, 100), 0);
    IS(cuEventRecord(back, side), 0);
    IS(cuStreamWaitEvent(s0, back, 0), 0);
    IS(cuMemcpyDtoHAsync_v2(h + 1, q, 4, s0), 0);
    IS(cuStreamEndCapture(s0, &g), 0);
    h[1] = -1;
    IS(cuCtxSynchronize(), 0);
    CHECK(h[1] == -1);                         /* recorded, not run */
    IS(cuGraphInstantiateWithFlags(&exec, g, 0), 0);
    IS(cuGraphDestroy(g), 0);
    for (int i = 0; i < 3; i++) {
        h[0] = i;
        IS(cuGraphLaunch(exec, s0), 0);
        IS(cuStreamSynchronize(s0), 0);
        CHECK(h[1] == i + 110);
    }
    CHECK(softgpu_live("graphs") == 1);
    IS(cuGraphExecDestroy(exec), 0);
    CHECK(softgpu_live("graphs") == 0);
    /* what must not be done meanwhile */
    IS(cuStreamBeginCapture_v2(s0, 0), 0);
    IS(cuStreamSynchronize(s0), 900);
    IS(launch(f, 1, 1, 0, s0, p, 10), 901);
    IS(cuStreamEndCapture(s0, &g), 901);
    CHECK(g == NULL);
    IS(cuStreamSynchronize(s0), 0);
    IS(cuStreamBeginCapture_v2(s0, 0), 0);
    IS(cuMemAlloc_v2(&q, 4), 900);
    IS(cuStreamEndCapture(s0, &g), 901);
    IS(cuStreamBeginCapture_v2(s0, 2), 0);     /* relaxed: allowed */
    IS(cuMemAlloc_v2(&q, 4), 0);
    IS(cuStreamEndCapture(s0, &g), 0);
    IS(cuGraphDestroy(g), 0);
    IS(cuStreamBeginCapture_v2(s0, 1), 0);
    IS(cuMemcpyHtoDAsync_v2(p, &pageable, 4, s0), 900);
    IS(cuStreamEndCapture(s0, &g), 901);
    IS(cuStreamBeginCapture_v2(s0, 0), 0);
    IS(cuEventRecord(e, s0), 0);
    IS(cuStreamWaitEvent(side, e, 0), 0);
    IS(launch(f, 1, 1, 0, side, p, 10), 0);
    IS(cuStreamEndCapture(s0, &g), 904);       /* the side stream's work never came back */
    IS(cuStreamBeginCapture_v2(s0, 0), 0);
    IS(cuEventRecord(e, s0), 0);
    IS(cuEventQuery(e), 907);
    IS(cuStreamEndCapture(s0, &g), 901);
    IS(cuStreamEndCapture(s0, &g), 1);
    IS(cuStreamBeginCapture_v2(NULL, 0), 900);
}
TEST(graphs) { RUN(graphs, "A=1"); }

static int add_node(node *out, graph g, const node *after, size_t n, function f, ptr p, int value) {
    void *args[] = { &p, &value };             /* taken over when the node is made */
    cuda_node k = { f, { 1, 1, 1 }, { 1, 1, 1 }, 0, args, NULL, NULL, NULL };
    return cuGraphAddKernelNode_v2(out, g, after, n, &k);
}
static int set_node(graph exec, node which, function f, ptr p, int value) {
    void *args[] = { &p, &value };
    cuda_node k = { f, { 1, 1, 1 }, { 1, 1, 1 }, 0, args, NULL, NULL, NULL };
    return cuGraphExecKernelNodeSetParams_v2(exec, which, &k);
}
static void graphs_by_hand(void) {
    graph g = NULL, other = NULL, exec = NULL, loose[2] = { NULL, NULL };
    node a, b, c, twice[2];
    begin();
    ptr p = device_memory(256);
    module m = load("extern \"C\" __global__ void twice(int *p, int n) { *p = *p * 10 + n; }\n");
    function f = get(m, "twice");
    IS(cuGraphCreate(&g, 1), 1);
    IS(cuGraphCreate(&g, 0), 0);
    IS(cuGraphCreate(&other, 0), 0);
    IS(add_node(&a, g, NULL, 0, f, p, 1), 0);
    IS(add_node(&b, g, &a, 1, f, p, 2), 0);
    IS(add_node(&c, g, &b, 1, f, p, 3), 0);
    twice[0] = twice[1] = a;
    IS(add_node(&a, g, twice, 2, f, p, 1), 1);
    IS(add_node(&a, other, &b, 1, f, p, 1), 1);  /* another graph's node */
    IS(add_node(&a, g, NULL, 0, NULL, p, 1), 1);
    IS(cuGraphInstantiateWithFlags(&exec, g, 0), 0);
    IS(cuMemsetD8Async(p, 0, 4, s0), 0);
    IS(cuGraphLaunch(exec, s0), 0);
    IS(set_node(exec, b, f, p, 5), 0);         /* for the launches that follow */
    IS(cuGraphLaunch(exec, s0), 0);
    IS(cuStreamSynchronize(s0), 0);
    CHECK(at(p, 0) == 123153);
    IS(set_node(g, b, f, p, 5), 1);
    /* what comes after nothing comes in any order */
    int seen[100] = { 0 };
    IS(add_node(&a, other, NULL, 0, f, p, 1), 0);
    IS(add_node(&c, other, NULL, 0, f, p, 2), 0);
    IS(set_node(exec, a, f, p, 5), 1);
    for (int i = 0; i < 2; i++) {
        IS(cuGraphInstantiateWithFlags(&loose[i], other, 0), 0);
        IS(cuMemsetD8Async(p, 0, 4, s0), 0);
        IS(cuGraphLaunch(loose[i], s0), 0);
        IS(cuStreamSynchronize(s0), 0);
        seen[at(p, 0) % 100]++;
        IS(cuGraphExecDestroy(loose[i]), 0);
    }
    CHECK(seen[12] == 1 && seen[21] == 1);
    IS(cuGraphDestroy(g), 0);
    IS(set_node(exec, b, f, p, 5), 1);         /* its nodes went with it; it can still be launched */
    IS(cuGraphLaunch(exec, s0), 0);
    IS(cuStreamSynchronize(s0), 0);
    IS(cuModuleUnload(m), 0);
    IS(cuGraphLaunch(exec, s0), 400);
    IS(cuGraphExecDestroy(exec), 0);
    IS(cuGraphDestroy(other), 0);
    CHECK(softgpu_live("graphs") == 0);
}
TEST(graphs_made_node_by_node) { RUN(graphs_by_hand, "A=1"); }

/* ---------------- several devices */

static void peers(void) {
    ctx other = NULL;
    stream s1 = NULL;
    event e = NULL;
    int can = -1, enabled = getenv("SOFTGPU_PEER") ? 0 : 1;
    begin();
    ptr p = device_memory(1 << 20), r = 0;
    function f = kernel(add_n);
    IS(cuEventCreate(&e, 2), 0);
    IS(cuMemsetD8Async(p, 1, 1 << 20, s0), 0);
    IS(launch(f, 1, 1, 0, s0, p, 1), 0);
    IS(cuEventRecord(e, s0), 0);
    IS(cuDevicePrimaryCtxRetain(&other, 1), 0);
    IS(cuCtxSetCurrent(other), 0);
    IS(cuStreamCreate(&s1, 1), 0);
    ptr q = device_memory(1 << 20);
    IS(cuStreamWaitEvent(s1, e, 0), 0);        /* across devices */
    IS(cuMemcpyPeerAsync(q, other, p, here, 1 << 20, s1), 0);
    IS(launch(kernel(add_n), 1, 1, 0, s1, q, 1), 0);
    IS(cuStreamSynchronize(s1), 0);
    CHECK(at(q, 0) == 0x01010103 && at(q, 1) == 0x01010101 && at(q, (1 << 18) - 1) == 0x01010101);
    IS(cuDeviceCanAccessPeer(&can, 1, 0), 0);
    CHECK(can == enabled);
    IS(cuMemcpyDtoDAsync_v2(q, p, 4, s1), 201);
    if (enabled) {
        IS(cuCtxEnablePeerAccess(here, 0), 0);
        IS(cuCtxEnablePeerAccess(here, 0), 704);
        IS(launch(kernel(add_n), 1, 1, 0, s1, p, 5), 0);   /* the other's memory, in a kernel */
        IS(cuMemcpyDtoDAsync_v2(q, p, 4, s1), 0);
        IS(cuStreamSynchronize(s1), 0);
        CHECK(at(q, 0) == 0x01010107);
    } else IS(cuCtxEnablePeerAccess(here, 0), 217);
    IS(cuCtxSetCurrent(here), 0);
    IS(cuMemAlloc_v2(&r, 4), 0);
}
TEST(peers) {
    RUN(peers, "SOFTGPU_DEVICES=2");
    RUN(peers, "SOFTGPU_DEVICES=2 SOFTGPU_PEER=0");
}

/* ---------------- HIP */

#define HIP(X)                                                                                                        \
    X(hipInit, (unsigned)) X(hipDriverGetVersion, (int *)) X(hipRuntimeGetVersion, (int *)) X(hipGetDeviceCount, (int *)) \
    X(hipDeviceGetName, (char *, int, int)) X(hipDeviceGetAttribute, (int *, int, int)) X(hipDeviceTotalMem, (size_t *, int)) \
    X(hipGetDeviceProperties, (void *, int)) X(hipGetDevicePropertiesR0600, (void *, int)) X(hipSetDevice, (int))     \
    X(hipGetDevice, (int *)) X(hipStreamCreateWithFlags, (stream *, unsigned)) X(hipStreamDestroy, (stream))          \
    X(hipStreamSynchronize, (stream)) X(hipStreamQuery, (stream)) X(hipStreamWaitEvent, (stream, event, unsigned))    \
    X(hipEventCreateWithFlags, (event *, unsigned)) X(hipEventDestroy, (event)) X(hipEventRecord, (event, stream))    \
    X(hipEventSynchronize, (event)) X(hipEventQuery, (event)) X(hipEventElapsedTime, (float *, event, event))         \
    X(hipMalloc, (void **, size_t)) X(hipFree, (void *)) X(hipMemGetInfo, (size_t *, size_t *))                       \
    X(hipHostMalloc, (void **, size_t, unsigned)) X(hipHostFree, (void *)) X(hipMemcpyHtoD, (void *, void *, size_t)) \
    X(hipMemcpyDtoH, (void *, void *, size_t)) X(hipMemcpyHtoDAsync, (void *, void *, size_t, stream))                \
    X(hipMemcpyDtoHAsync, (void *, void *, size_t, stream)) X(hipMemcpyDtoDAsync, (void *, void *, size_t, stream))   \
    X(hipMemcpyPeerAsync, (void *, int, const void *, int, size_t, stream)) X(hipDeviceCanAccessPeer, (int *, int, int)) \
    X(hipDeviceEnablePeerAccess, (int, unsigned)) X(hipMemsetD8Async, (void *, unsigned char, size_t, stream))        \
    X(hipModuleLoadData, (module *, const void *)) X(hipModuleLoadDataEx, (module *, const void *, unsigned, int *, void **)) \
    X(hipModuleUnload, (module)) X(hipModuleGetFunction, (function *, module, const char *))                          \
    X(hipFuncGetAttribute, (int *, int, function)) X(hipDeviceSynchronize, (void)) X(hipStreamBeginCapture, (stream, int)) \
    X(hipStreamEndCapture, (stream, graph *)) X(hipGraphInstantiateWithFlags, (graph *, graph, unsigned long long))   \
    X(hipGraphCreate, (graph *, unsigned)) X(hipGraphAddKernelNode, (node *, graph, const node *, size_t, const hip_node *)) \
    X(hipGraphExecKernelNodeSetParams, (graph, node, const hip_node *)) X(hipGraphLaunch, (graph, stream)) X(hipGraphExecDestroy, (graph)) X(hipGraphDestroy, (graph))                    \
    X(hipModuleLaunchKernel, (function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, stream, void **, void **))
#define HIPRTC(X)                                                                                                     \
    X(hiprtcVersion, (int *, int *)) X(hiprtcGetCodeSize, (program, size_t *)) X(hiprtcGetCode, (program, char *))    \
    X(hiprtcCreateProgram, (program *, const char *, const char *, int, const char *const *, const char *const *))    \
    X(hiprtcCompileProgram, (program, int, const char *const *)) X(hiprtcGetProgramLogSize, (program, size_t *))      \
    X(hiprtcGetProgramLog, (program, char *)) X(hiprtcDestroyProgram, (program *))
HIP(POINTER)
HIPRTC(POINTER)
static const char *(*hipGetErrorName)(int), *(*hipGetErrorString)(int), *(*hiprtcGetErrorString)(int);

static void load_hip(void) {
    void *hip = open_library("libamdhip64.so.6"), *rtc = open_library("libhiprtc.so.6");
#define FIND_HIP(name, args) find(hip, #name, &name);
#define FIND_HIPRTC(name, args) find(rtc, #name, &name);
    HIP(FIND_HIP)
    HIPRTC(FIND_HIPRTC)
    find(hip, "hipGetErrorName", &hipGetErrorName);
    find(hip, "hipGetErrorString", &hipGetErrorString);
    find(rtc, "hiprtcGetErrorString", &hiprtcGetErrorString);
    find(hip, "softgpu_live", &softgpu_live);
}
static int load_for(const char *source, const char *arch, module *m) {
    char option[64];
    const char *options[] = { option, "-O3", "-ffast-math" };
    program p = NULL;
    size_t n = 0;
    snprintf(option, sizeof option, "--offload-arch=%s", arch);
    IS(hiprtcCreateProgram(&p, source, "mine.hip", 0, NULL, NULL), 0);
    int code = hiprtcCompileProgram(p, 3, options);
    if (!code) {
        IS(hiprtcGetCodeSize(p, &n), 0);
        char *image = (char *)malloc(n);
        IS(hiprtcGetCode(p, image), 0);
        code = hipModuleLoadData(m, image);
        free(image);
    }
    IS(hiprtcDestroyProgram(&p), 0);
    return code;
}
static function hip_kernel(const char *source) {
    module m = NULL;
    function f = NULL;
    IS(load_for(source, "gfx90a", &m), 0);
    IS(hipModuleGetFunction(&f, m, "f"), 0);
    return f;
}
static int hip_launch(function f, unsigned block, stream s, void *p, int n) {
    void *args[] = { &p, &n };
    return hipModuleLaunchKernel(f, 1, 1, 1, block, 1, 1, 0, s, args, NULL);
}

static void hip_devices(void) {
    static union { char bytes[1472]; int i; size_t z; } p;
    int n = -1, v = 0;
    char name[64];
    module m = NULL;
    load_hip();
    IS(hipInit(0), 0);
    IS(hipGetDeviceCount(&n), 0);
    CHECK(n == 2);
    IS(hipDeviceGetName(name, sizeof name, 1), 0);
    CHECK_STR(name, "Software GPU 1");
    IS(hipGetDevicePropertiesR0600(&p, 1), 0);             /* by the offsets that a program compiled against ROCm 6 has */
    CHECK_STR(p.bytes + 1160, "gfx1030");
    memcpy(&v, p.bytes + 308, sizeof v);
    CHECK(v == 32);
    IS(hipGetDeviceProperties(&p, 1), 0);                  /* ... and ROCm 5 */
    CHECK_STR(p.bytes + 396, "gfx1030");
    memcpy(&v, p.bytes + 276, sizeof v);
    CHECK(v == 32);
    IS(hipGetDeviceProperties(&p, 2), 101);
    IS(hipDeviceGetAttribute(&v, 87, 0), 0);
    CHECK(v == 32);
    IS(hipDeviceGetAttribute(&v, 23, 0), 0);
    CHECK(v == 10);
    IS(hipGetDevice(&v), 0);
    CHECK(v == 0);
    IS(hipSetDevice(2), 101);
    IS(load_for("extern \"C\" __global__ void f(int *p, int n) { p[0] = n; }", "gfx1030", &m), 0);
    IS(load_for("extern \"C\" __global__ void f(int *p, int n) { p[0] = n; }", "gfx90a", &m), 209);
    IS(load_for("extern \"C\" __global__ void f(int *p, int n) { p[0] = n; }", "gfx77", &m), 6);
    CHECK_STR(hipGetErrorName(700), "hipErrorIllegalAddress");
    CHECK_STR(hiprtcGetErrorString(6), "HIPRTC_ERROR_COMPILATION");
}
static void hip_none(void) {
    int n = 7;
    load_hip();
    IS(hipGetDeviceCount(&n), 100);
    CHECK(n == 0);
    IS(hipInit(0), 100);
}
TEST(hip_devices) {
    RUN(hip_devices, "SOFTGPU_DEVICES=2 SOFTGPU_ARCH=gfx1030");
    RUN(hip_none, "HIP_VISIBLE_DEVICES=-1");
}

static void hip_work(void) {
    stream s = NULL, other = NULL;
    event e = NULL;
    graph g = NULL, exec = NULL;
    void *p = NULL, *q = NULL;
    int *h = NULL, data[64];
    float ms = -1;
    load_hip();
    IS(hipStreamCreateWithFlags(&s, 1), 0);
    IS(hipEventCreateWithFlags(&e, 0), 0);
    IS(hipMalloc(&p, 1024), 0);
    IS(hipMalloc(&q, 0), 0);
    CHECK(q == NULL);
    IS(hipFree(NULL), 0);
    IS(hipHostMalloc((void **)&h, 64, 0), 0);
    function f = hip_kernel(                               /* 64 threads in step; those that are away are not waited for */
        "extern \"C\" __global__ void f(int *p, int n) {\n"
        "    int t = (int)threadIdx.x, sum = t;\n"
        "    for (int k = warpSize / 2; k; k /= 2) sum += __shfl_xor(sum, k);\n"
        "    p[t] = sum;\n"
        "    if (t < 32) p[t] += __shfl_down(t, 1, 32); else p[t] = n + __popcll(__ballot(1));\n"
        "    __syncthreads();\n"
        "}\n");
    IS(hip_launch(f, 64, s, p, 1000), 0);
    IS(hipEventRecord(e, s), 0);
    IS(hipEventQuery(e), 600);
    IS(hipEventSynchronize(e), 0);
    IS(hipEventElapsedTime(&ms, e, e), 0);
    CHECK(ms == 0);
    IS(hipMemcpyDtoH(data, p, sizeof data), 0);
    for (int t = 0; t < 64; t++) CHECK(data[t] == (t < 32 ? 2016 + (t < 31 ? t + 1 : t) : 1032));
    function add = hip_kernel("extern \"C\" __global__ void f(int *p, int n) { atomicAdd(p, n); }");
    IS(hipStreamBeginCapture(s, 0), 0);
    IS(hipMemsetD8Async(p, 0, 4, s), 0);
    IS(hip_launch(add, 10, s, p, 5), 0);
    IS(hipMemcpyDtoHAsync(h, p, 4, s), 0);
    IS(hipStreamEndCapture(s, &g), 0);
    IS(hipGraphInstantiateWithFlags(&exec, g, 0), 0);
    h[0] = -1;
    IS(hipGraphLaunch(exec, s), 0);
    CHECK(h[0] == -1);
    IS(hipStreamSynchronize(s), 0);
    CHECK(h[0] == 50);
    IS(hipGraphExecDestroy(exec), 0);
    IS(hipGraphDestroy(g), 0);
    int five = 5;
    node n;
    hip_node k = { { 2, 1, 1 }, NULL, add, { 3, 1, 1 }, (void *[]){ &p, &five }, 0 };
    IS(hipGraphCreate(&g, 0), 0);
    IS(hipGraphAddKernelNode(&n, g, NULL, 0, &k), 0);
    IS(hipGraphInstantiateWithFlags(&exec, g, 0), 0);
    five = 7;
    IS(hipGraphLaunch(exec, s), 0);
    IS(hipGraphExecKernelNodeSetParams(exec, n, &k), 0);
    IS(hipGraphLaunch(exec, s), 0);
    IS(hipMemcpyDtoHAsync(h, p, 4, s), 0);
    IS(hipStreamSynchronize(s), 0);
    CHECK(h[0] == 50 + 30 + 42);
    IS(hipGraphExecDestroy(exec), 0);
    IS(hipGraphDestroy(g), 0);
    IS(hipSetDevice(1), 0);
    IS(hipMalloc(&q, 1024), 0);
    IS(hipStreamCreateWithFlags(&other, 1), 0);
    IS(hipStreamSynchronize(s), 201);
    IS(hipMemcpyPeerAsync(q, 1, p, 0, 4, other), 0);
    IS(hip_launch(hip_kernel("extern \"C\" __global__ void f(int *p, int n) { p[0] += n; }"), 1, other, q, 7), 0);
    IS(hipDeviceSynchronize(), 0);
    IS(hipMemcpyDtoH(data, q, 4), 0);
    CHECK(data[0] == 50 + 30 + 42 + 7);
    IS(hipFree(q), 0);
    IS(hipStreamDestroy(other), 0);
    IS(hipSetDevice(0), 0);
    IS(hip_launch(add, 1, s, NULL, 1), 0);
    IS(hipStreamSynchronize(s), 700);
    IS(hipHostFree(h), 700);
    IS(hipFree(p), 700);
    IS(hipStreamDestroy(s), 700);
    IS(hipEventDestroy(e), 700);
    CHECK(softgpu_live("memory") + softgpu_live("pinned") + softgpu_live("streams") + softgpu_live("events") + softgpu_live("graphs") == 0);
}
TEST(hip_work) { RUN(hip_work, "SOFTGPU_DEVICES=2 SOFTGPU_QUIET=1"); }

/* Numbers whose products and sums are exact, in the places of the examples of AMD's GPUOpen, for RDNA 3 and for 4. */
static int number_at(int i, int j) { return (i * 3 + j * 5 + i * j) % 5; }
static int half_of_number(bool brain, int n) {
    static const int half[] = { 0, 0x3c00, 0x4000, 0x4200, 0x4400 }, brains[] = { 0, 0x3f80, 0x4000, 0x4040, 0x4080 };
    return (brain ? brains : half)[n];
}
static function wave_product(const char *arch, bool third, bool brain) {
    char source[2000];
    module m = NULL;
    function f = NULL;
    snprintf(source, sizeof source,
             "typedef struct { unsigned short x[%d]; } part; typedef struct { float x[8]; } sums;\n"
             "extern \"C\" __global__ void f(int *p, int n) {\n"
             "    part a, b; sums c; const int t = threadIdx.x, first = %d * (t / 16);\n"
             "    const int numbers[5] = { %d, %d, %d, %d, %d };\n"
             "    for (int k = 0; k < %d; k++) {\n"
             "        a.x[k] = (unsigned short)numbers[(t %% 16 * 3 + (first + k) * 5 + t %% 16 * (first + k)) %% 5];\n"
             "        b.x[k] = (unsigned short)numbers[((first + k) * 3 + t %% 16 * 5 + (first + k) * (t %% 16)) %% 5];\n    }\n"
             "    if (t == n) a.x[3] ^= 1;\n    __syncthreads();\n"
             "    for (int r = 0; r < 8; r++) c.x[r] = (float)(100 * t + r);\n"
             "    c = __builtin_amdgcn_wmma_f32_16x16x16_%s_w32%s(a, b, c);\n"
             "    for (int r = 0; r < 8; r++) p[t * 8 + r] = (int)c.x[r];\n}\n", third ? 16 : 8, third ? 0 : 8,
             half_of_number(brain, 0), half_of_number(brain, 1), half_of_number(brain, 2), half_of_number(brain, 3),
             half_of_number(brain, 4), third ? 16 : 8, brain ? "bf16" : "f16", third ? "" : "_gfx12");
    IS(load_for(source, arch, &m), 0);
    IS(hipModuleGetFunction(&f, m, "f"), 0);
    return f;
}
static void wave_products(void) {
    const char *arch = getenv("SOFTGPU_ARCH");
    const bool third = !strcmp(arch, "gfx1100");
    int data[256];
    void *p = NULL;
    load_hip();
    IS(hipMalloc(&p, sizeof data), 0);
    for (int brain = 0; brain < 2; brain++) {
        IS(hip_launch(wave_product(arch, third, brain), 32, NULL, p, -1), 0);
        IS(hipMemcpyDtoH(data, p, sizeof data), 0);
        for (int t = 0; t < 32; t++)
            for (int r = 0; r < 8; r++) {
                const int i = third ? 2 * r + t / 16 : r + 8 * (t / 16), j = t % 16;
                int sum = 100 * t + r;
                for (int k = 0; k < 16; k++) sum += number_at(i, k) * number_at(k, j);
                CHECK(data[t * 8 + r] == sum);
            }
    }
    IS(hip_launch(wave_product(arch, third, false), 32, NULL, p, 21), 0);      /* what lane 5 has not */
    IS(hipMemcpyDtoH(data, p, sizeof data), third ? 700 : 0);
}
TEST(wave_products) {
    RUN(wave_products, "SOFTGPU_ARCH=gfx1100 SOFTGPU_QUIET=1");
    RUN(wave_products, "SOFTGPU_ARCH=gfx1201 SOFTGPU_QUIET=1");
}

static void both(void) {
    void *p = NULL;
    int v = 0;
    begin();
    load_hip();
    ptr q = device_memory(64);
    IS(hipMalloc(&p, 64), 0);
    CHECK((ptr)(uintptr_t)p != q);
    IS(launch(kernel(add_n), 1, 1, 0, s0, q, 1), 0);
    IS(hip_launch(hip_kernel("extern \"C\" __global__ void f(int *p, int n) { p[0] = n; }"), 1, NULL, p, 9), 0);
    IS(cuStreamSynchronize(s0), 0);
    IS(hipMemcpyDtoH(&v, p, 4), 0);
    CHECK(v == 9 && at(q, 0) == 0);            /* new memory is all ones: NaN, in floats */
}
TEST(cuda_and_hip_in_one_process) { RUN(both, "A=1"); }

/* ---------------- faults on request */

static void faults(void) {
    program p = NULL;
    begin();
    ptr q = 0;
    softgpu_fail("cuMemAlloc_v2", 2, 2);
    IS(cuMemAlloc_v2(&q, 64), 0);
    IS(cuMemAlloc_v2(&q, 64), 2);
    IS(cuMemAlloc_v2(&q, 64), 0);
    CHECK(softgpu_calls("cuMemAlloc_v2") == 3 && softgpu_live("memory") == 2);
    softgpu_reset_counts();
    CHECK(softgpu_calls("cuMemAlloc_v2") == 0);
    softgpu_fail_rtc("nvrtcCreateProgram", 1, 1);
    IS(nvrtcCreateProgram(&p, add_n, NULL, 0, NULL, NULL), 1);
    function f = kernel(add_n);
    softgpu_fail("execute", 2, 700);
    IS(launch(f, 1, 1, 0, s0, q, 1), 0);
    IS(cuStreamSynchronize(s0), 0);
    IS(launch(f, 1, 1, 0, s0, q, 1), 0);
    IS(cuStreamSynchronize(s0), 700);
    IS(cuStreamSynchronize(s0), 700);
}
static void faults_from_outside(void) {
    ptr p = 0;
    begin();
    IS(cuMemAlloc_v2(&p, 4), 0);
    IS(cuMemAlloc_v2(&p, 4), 0);
    IS(cuMemAlloc_v2(&p, 4), 2);
    IS(cuMemAlloc_v2(&p, 4), 0);
    program q = NULL;
    IS(nvrtcCreateProgram(&q, add_n, NULL, 0, NULL, NULL), 0);
    IS(nvrtcCompileProgram(q, 0, NULL), 6);
    IS(nvrtcCompileProgram(q, 0, NULL), 0);
    IS(nvrtcDestroyProgram(&q), 0);
}
TEST(faults) {
    RUN(faults, "SOFTGPU_QUIET=1");
    RUN(faults_from_outside, "SOFTGPU_FAIL=cuMemAlloc_v2:3=2,nvrtcCompileProgram:1=6");
}

/* ---------------- the device process */

static int alive[2];                           /* a pipe that the device processes inherit */
static void die_in_the_middle(void) {
    begin();
    IS(launch(kernel("extern \"C\" __global__ void f(volatile int *p, int n) { while (p[0] != n) {} }"), 1, 1, 0, s0, device_memory(64), 1), 0);
    alarm(1);
    cuStreamSynchronize(s0);
}
static void child_of_user(void) {
    int n = -1, status = -1;
    ptr p = 0;
    begin();
    p = device_memory(64);
    pid_t pid = fork();
    if (!pid) {
        IS(cuDeviceGetCount(&n), 3);
        IS(cuMemFree_v2(p), 3);
        IS(cuInit(0), 3);
        exit(test_bad != 0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    IS(launch(kernel(add_n), 1, 1, 0, s0, p, 1), 0);       /* the parent's is as it was */
    IS(cuStreamSynchronize(s0), 0);
}
TEST(nothing_is_left_after_a_fork) { RUN(child_of_user, "A=1"); }

TEST(device_process_ends_with_the_program) {
    char c;
    if (absent()) SKIP("the software GPU is not built");
    REQUIRE(pipe(alive) == 0);
    int status = in_process(die_in_the_middle, "A=1");
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM);
    close(alive[1]);
    CHECK(read(alive[0], &c, 1) == 0);         /* once nobody has it open */
    close(alive[0]);
}

/* ---------------- the cache, and time */

static char cache[100];
static void compile_many(void) {
    char source[400];
    begin();
    ptr p = device_memory(64);
    for (int i = 0; i < 20; i++) {
        snprintf(source, sizeof source, "extern \"C\" __global__ void f(int *p, int n) { p[0] = n + %d; }", i);
        IS(launch(kernel(source), 1, 1, 0, s0, p, 1), 0);
        IS(cuStreamSynchronize(s0), 0);
        CHECK(at(p, 0) == i + 1);
    }
}
static void two_at_once(void) {
    int status[2] = { -1, -1 };
    pid_t pid[2];
    for (int i = 0; i < 2; i++)
        if (!(pid[i] = fork())) compile_many(), exit(test_bad != 0);
    for (int i = 0; i < 2; i++) CHECK(waitpid(pid[i], &status[i], 0) == pid[i] && status[i] == 0);
}
/* The runner's counts are for one thread: a job has its own. */
static void *one_compiles(void *arg) {
    static const char *const option = "--gpu-architecture=sm_90";
    job *j = (job *)arg;
    char source[200];
    for (int i = 0; i < j->n; i++) {
        program p = NULL;
        snprintf(source, sizeof source, "extern \"C\" __global__ void f(int *p) { p[0] = %d; }", i % 20);
        j->bad += nvrtcCreateProgram(&p, source, "test.cu", 0, NULL, NULL) || nvrtcCompileProgram(p, 1, &option);
        j->bad += nvrtcDestroyProgram(&p) != 0;
    }
    return NULL;
}
static void threads_compile(void) {
    job jobs[4];
    char words[200] = "cc -O0";
    while (strlen(words) < 120) strcat(words, " -w");                           /* many, for threads to meet in them */
    setenv("SOFTGPU_CC", words, 1);
    load_cuda();
    for (int i = 0; i < 4; i++) {
        jobs[i].n = 3000, jobs[i].bad = 0;
        pthread_create(&jobs[i].thread, NULL, one_compiles, &jobs[i]);
    }
    for (int i = 0; i < 4; i++) pthread_join(jobs[i].thread, NULL);
    for (int i = 0; i < 4; i++) CHECK(jobs[i].bad == 0);
}

/* Twenty programs are compiled, by all of them together; nothing but these is left in the cache. */
static void share_cache(void (*body)(void)) {
    char settings[200], command[200];
    if (absent()) SKIP("the software GPU is not built");
    snprintf(cache, sizeof cache, "%s/softgpu-test-XXXXXX", test_temp());
    REQUIRE(mkdtemp(cache) != NULL);
    snprintf(settings, sizeof settings, "SOFTGPU_CACHE=%s", cache);
    RUN(body, settings);
    snprintf(command, sizeof command, "test $(ls %s | wc -l) = 20", cache);
    CHECK(system(command) == 0);
    snprintf(command, sizeof command, "rm -r %s", cache);
    CHECK(system(command) == 0);
}
TEST(cache_shared_by_processes) { share_cache(two_at_once); }
TEST(cache_shared_by_threads) { share_cache(threads_compile); }

/* How often this thread has slept so far. */
static long sleeps(void) {
    struct rusage now;
    getrusage(RUSAGE_THREAD, &now);
    return now.ru_nvcsw;
}
static void launches(void) {
    begin();
    function f = kernel(add_n);
    ptr p = device_memory(1024);
    launch(f, 1, 32, 0, s0, p, 1), cuStreamSynchronize(s0);
    long n = sleeps();
    for (int i = 0; i < 1000; i++) launch(f, 1, 32, 0, s0, p, 1);
    const long alone = sleeps() - n;
    cuStreamSynchronize(s0);
    n = sleeps();
    for (int i = 0; i < 100; i++) launch(f, 1, 32, 0, s0, p, 1), cuStreamSynchronize(s0);
    const long waiting = sleeps() - n;
    if (alone >= 20 || waiting > 400) fprintf(stderr, "1000 launches sleep %ld times, 100 with waiting %ld times\n", alone, waiting);
    CHECK(alone < 20 && waiting <= 400);
}
TEST(a_launch_waits_for_nothing) { RUN(launches, "A=1"); }
#else
TEST(software_gpu) { SKIP("the software GPU is for Linux"); }
#endif
TEST_MAIN()
