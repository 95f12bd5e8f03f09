/* cuda.c - the CUDA driver API's names and rules over driver.c: contexts, and what a device says of itself.

   A device has its primary context and no other. Each thread has a stack of current ones; a call that needs a context
   acts on the top, and one about another device's stream, kernel or memory is an error, though a driver may let it pass. */
#include "driver.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const uint64_t soft_base = SOFT_CUDA_BASE;
const char *const soft_visible = "CUDA_VISIBLE_DEVICES";
const char *const soft_default_arch = "90";
const unsigned soft_plain_shared = 49152;

bool soft_arch_is_ours(const char *arch) { return *arch >= '0' && *arch <= '9'; }

/* Machine code runs on its own generation from its own version on, with a letter only on the very same; PTX on what is
   newer too. */
bool soft_runs_on(const char *image_arch, const char *device_arch, bool text) {
    char *end;
    long image = strtol(image_arch, &end, 10), device = strtol(device_arch, NULL, 10);
    if (*end == 'a') return image == device;
    if (*end == 'f' || !text) return image / 10 == device / 10 && image <= device;
    return image <= device;
}

static int driver_version(void) {
    const char *asked = getenv("SOFTGPU_DRIVER_VERSION");
    return asked && *asked ? atoi(asked) : 13000;
}
/* Machine code of any compiler of the same CUDA or an older one; PTX of one that is not newer than the driver. */
int soft_takes(int version, bool text) {
    if (text) return version <= driver_version() ? SOFT_OK : SOFT_UNSUPPORTED_PTX;
    return version / 1000 <= driver_version() / 1000 ? SOFT_OK : SOFT_INVALID_IMAGE;
}

typedef struct context { soft_device *device; int retained; } context;
static context contexts[SOFT_MAX_DEVICES];

#define MOST_CURRENT 64
static _Thread_local context *current[MOST_CURRENT];
static _Thread_local int ncurrent;

static bool is_context(const context *c) { return c >= contexts && c < contexts + SOFT_MAX_DEVICES && c->device && c->retained; }
static soft_device *here(void) {
    context *c = ncurrent ? current[ncurrent - 1] : NULL;
    return c && is_context(c) ? c->device : NULL;
}
soft_device *soft_here(void) { return here(); }

typedef struct kernel_node {                   /* CUDA_KERNEL_NODE_PARAMS_v2 */
    soft_function *f;
    unsigned grid[3], block[3], shared;
    void **args, **extra, *kernel, *context;
} kernel_node;

#define ENTER(function) SOFT_ENTER(function); if (!soft_ready()) return SOFT_NOT_INITIALIZED
#define EXPORT SOFT_EXPORT int

EXPORT cuInit(unsigned flags);
EXPORT cuDriverGetVersion(int *version);
EXPORT cuDeviceGetCount(int *n);
EXPORT cuDeviceGet(int *device, int ordinal);
EXPORT cuDeviceGetName(char *name, int n, int device);
EXPORT cuDeviceGetAttribute(int *value, int which, int device);
EXPORT cuDeviceTotalMem_v2(size_t *bytes, int device);
EXPORT cuDeviceGetPCIBusId(char *id, int n, int device);
EXPORT cuDeviceCanAccessPeer(int *can, int device, int peer);
EXPORT cuDevicePrimaryCtxRetain(context **c, int device);
EXPORT cuDevicePrimaryCtxRelease_v2(int device);
EXPORT cuCtxPushCurrent_v2(context *c);
EXPORT cuCtxPopCurrent_v2(context **c);
EXPORT cuCtxGetCurrent(context **c);
EXPORT cuCtxSetCurrent(context *c);
EXPORT cuCtxGetDevice(int *device);
EXPORT cuCtxSynchronize(void);
EXPORT cuCtxEnablePeerAccess(context *peer, unsigned flags);
EXPORT cuStreamCreate(soft_stream **s, unsigned flags);
EXPORT cuStreamDestroy_v2(soft_stream *s);
EXPORT cuStreamSynchronize(soft_stream *s);
EXPORT cuStreamQuery(soft_stream *s);
EXPORT cuStreamWaitEvent(soft_stream *s, soft_event *e, unsigned flags);
EXPORT cuEventCreate(soft_event **e, unsigned flags);
EXPORT cuEventDestroy_v2(soft_event *e);
EXPORT cuEventRecord(soft_event *e, soft_stream *s);
EXPORT cuEventSynchronize(soft_event *e);
EXPORT cuEventQuery(soft_event *e);
EXPORT cuEventElapsedTime(float *ms, soft_event *from, soft_event *to);
EXPORT cuEventElapsedTime_v2(float *ms, soft_event *from, soft_event *to);
EXPORT cuMemAlloc_v2(uint64_t *p, size_t n);
EXPORT cuMemFree_v2(uint64_t p);
EXPORT cuMemGetInfo_v2(size_t *free, size_t *total);
EXPORT cuMemHostAlloc(void **p, size_t n, unsigned flags);
EXPORT cuMemFreeHost(void *p);
EXPORT cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n);
EXPORT cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n);
EXPORT cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, soft_stream *s);
EXPORT cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, soft_stream *s);
EXPORT cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, soft_stream *s);
EXPORT cuMemcpyPeerAsync(uint64_t to, context *tc, uint64_t from, context *fc, size_t n, soft_stream *s);
EXPORT cuMemsetD8Async(uint64_t to, unsigned char value, size_t n, soft_stream *s);
EXPORT cuModuleLoadData(soft_loaded **m, const void *image);
EXPORT cuModuleLoadDataEx(soft_loaded **m, const void *image, unsigned n, int *options, void **values);
EXPORT cuModuleUnload(soft_loaded *m);
EXPORT cuModuleGetFunction(soft_function **f, soft_loaded *m, const char *name);
EXPORT cuFuncGetAttribute(int *value, int which, soft_function *f);
EXPORT cuFuncSetAttribute(soft_function *f, int which, int value);
EXPORT cuLaunchKernel(soft_function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                      unsigned shared, soft_stream *s, void **args, void **extra);
EXPORT cuStreamBeginCapture_v2(soft_stream *s, int mode);
EXPORT cuStreamEndCapture(soft_stream *s, soft_graph **g);
EXPORT cuGraphCreate(soft_graph **g, unsigned flags);
EXPORT cuGraphAddKernelNode_v2(soft_node **node, soft_graph *g, soft_node *const *after, size_t n, const kernel_node *k);
EXPORT cuGraphAddChildGraphNode(soft_node **node, soft_graph *g, soft_node *const *after, size_t n, soft_graph *child);
EXPORT cuGraphAddEventRecordNode(soft_node **node, soft_graph *g, soft_node *const *after, size_t n, soft_event *e);
EXPORT cuGraphExecKernelNodeSetParams_v2(soft_graph *exec, soft_node *node, const kernel_node *k);
EXPORT cuGraphExecEventRecordNodeSetEvent(soft_graph *exec, soft_node *node, soft_event *e);
EXPORT cuGraphInstantiateWithFlags(soft_graph **exec, soft_graph *g, unsigned long long flags);
EXPORT cuGraphLaunch(soft_graph *exec, soft_stream *s);
EXPORT cuGraphExecDestroy(soft_graph *exec);
EXPORT cuGraphDestroy(soft_graph *g);
EXPORT cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *at, const uint64_t *dim, const uint64_t *step,
                              const unsigned *box, const unsigned *every, int interleave, int swizzle, int promotion, int fill);
EXPORT cuGetErrorName(int code, const char **name);
EXPORT cuGetErrorString(int code, const char **text);

/* ---------------- devices */

static int start(void) {
    int code = soft_init();
    for (int i = 0; i < soft_count(); i++) contexts[i].device = soft_device_at(i);
    return code;
}
int cuInit(unsigned flags) {
    SOFT_ENTER(cuInit);
    if (flags) return SOFT_INVALID_VALUE;
    SOFT_LOCKED(start());
}

int cuDriverGetVersion(int *version) {         /* allowed before cuInit */
    SOFT_ENTER(cuDriverGetVersion);
    if (!version) return SOFT_INVALID_VALUE;
    *version = driver_version();
    return SOFT_OK;
}

int cuDeviceGetCount(int *n) {
    ENTER(cuDeviceGetCount);
    if (!n) return SOFT_INVALID_VALUE;
    *n = soft_count();
    return SOFT_OK;
}

int cuDeviceGet(int *device, int ordinal) {
    ENTER(cuDeviceGet);
    if (!device) return SOFT_INVALID_VALUE;
    if (!soft_device_at(ordinal)) return SOFT_INVALID_DEVICE;
    *device = ordinal;
    return SOFT_OK;
}

int cuDeviceGetName(char *name, int n, int device) {
    ENTER(cuDeviceGetName);
    const soft_device *d = soft_device_at(device);
    if (!d) return SOFT_INVALID_DEVICE;
    if (!name || n < 1) return SOFT_INVALID_VALUE;
    snprintf(name, (size_t)n, "Software GPU %d", soft_physical(d));
    return SOFT_OK;
}

static const struct { int which, value; } attributes[] = {
    { 1, 1024 }, { 2, 1024 }, { 3, 1024 }, { 4, 64 }, { 5, 0x7fffffff }, { 6, 65535 }, { 7, 65535 },   /* shapes */
    { 8, 49152 }, { 9, 65536 }, { 10, 32 }, { 11, 0x7fffffff }, { 12, 65536 }, { 13, 1000000 }, { 14, 512 },
    { 15, 1 }, { 16, 4 }, { 17, 0 }, { 18, 0 }, { 19, 1 }, { 20, 0 }, { 31, 1 }, { 32, 0 }, { 34, 0 }, { 35, 0 },
    { 36, 1000000 }, { 37, 256 }, { 38, 4 << 20 }, { 39, 2048 }, { 40, 2 }, { 41, 1 }, { 50, 0 }, { 51, 32 }, { 78, 0 },
    { 79, 1 }, { 80, 1 }, { 81, 102400 }, { 82, 65536 }, { 83, 0 }, { 84, 0 }, { 85, 0 }, { 86, 0 }, { 87, 2 }, { 88, 0 },
    { 89, 0 }, { 90, 1 }, { 91, 1 }, { 95, 0 }, { 96, 0 }, { 97, SOFT_MOST_SHARED }, { 98, 0 }, { 99, 0 }, { 100, 0 },
    { 101, 0 }, { 102, 0 }, { 103, 0 }, { 106, 32 }, { 107, 0 }, { 108, 0 }, { 109, 0 }, { 111, 1024 }, { 115, 1 },
    { 120, 0 }
};

int cuDeviceGetAttribute(int *value, int which, int device) {
    ENTER(cuDeviceGetAttribute);
    const soft_device *d = soft_device_at(device);
    if (!d) return SOFT_INVALID_DEVICE;
    if (!value) return SOFT_INVALID_VALUE;
    int arch = atoi(soft_arch(d));
    switch (which) {
    case 33: return *value = soft_physical(d) + 1, SOFT_OK;       /* PCI bus */
    case 75: return *value = arch / 10, SOFT_OK;
    case 76: return *value = arch % 10, SOFT_OK;
    default: break;
    }
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (attributes[i].which == which) return *value = attributes[i].value, SOFT_OK;
    return SOFT_INVALID_VALUE;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    ENTER(cuDeviceTotalMem_v2);
    if (!soft_device_at(device)) return SOFT_INVALID_DEVICE;
    if (!bytes) return SOFT_INVALID_VALUE;
    *bytes = soft_total(soft_device_at(device));
    return SOFT_OK;
}

int cuDeviceGetPCIBusId(char *id, int n, int device) {
    ENTER(cuDeviceGetPCIBusId);
    if (!soft_device_at(device)) return SOFT_INVALID_DEVICE;
    if (!id || n < 13) return SOFT_INVALID_VALUE;
    snprintf(id, (size_t)n, "0000:%02X:00.0", (unsigned)(soft_physical(soft_device_at(device)) + 1));
    return SOFT_OK;
}

int cuDeviceCanAccessPeer(int *can, int device, int peer) {
    ENTER(cuDeviceCanAccessPeer);
    soft_device *d = soft_device_at(device), *p = soft_device_at(peer);
    if (!d || !p) return SOFT_INVALID_DEVICE;
    if (!can) return SOFT_INVALID_VALUE;
    *can = soft_can_peer(d, p);
    return SOFT_OK;
}

/* ---------------- contexts */

static int retain(context **c, int device) {
    int code = soft_check(soft_device_at(device));
    static bool first = true;
    if (!code) contexts[device].retained++, *c = &contexts[device];
    if (!code && first) first = false, soft_end_last();
    return code;
}
int cuDevicePrimaryCtxRetain(context **c, int device) {
    ENTER(cuDevicePrimaryCtxRetain);
    if (!c) return SOFT_INVALID_VALUE;
    if (!soft_device_at(device)) return SOFT_INVALID_DEVICE;
    SOFT_LOCKED(retain(c, device));
}

static int release(int device) { return contexts[device].retained ? contexts[device].retained--, SOFT_OK : SOFT_INVALID_CONTEXT; }
int cuDevicePrimaryCtxRelease_v2(int device) {
    ENTER(cuDevicePrimaryCtxRelease_v2);
    if (!soft_device_at(device)) return SOFT_INVALID_DEVICE;
    SOFT_LOCKED(release(device));
}

int cuCtxPushCurrent_v2(context *c) {
    ENTER(cuCtxPushCurrent_v2);
    if (!is_context(c)) return SOFT_INVALID_CONTEXT;
    if (ncurrent == MOST_CURRENT) return SOFT_INVALID_VALUE;      /* pushed in a loop, never popped */
    current[ncurrent++] = c;
    return SOFT_OK;
}

int cuCtxPopCurrent_v2(context **c) {
    ENTER(cuCtxPopCurrent_v2);
    if (!ncurrent) return SOFT_INVALID_CONTEXT;
    ncurrent--;
    if (c) *c = current[ncurrent];
    return SOFT_OK;
}

int cuCtxGetCurrent(context **c) {
    ENTER(cuCtxGetCurrent);
    if (!c) return SOFT_INVALID_VALUE;
    *c = ncurrent ? current[ncurrent - 1] : NULL;
    return SOFT_OK;
}

int cuCtxSetCurrent(context *c) {              /* changes the top; none takes the top off */
    ENTER(cuCtxSetCurrent);
    if (c && !is_context(c)) return SOFT_INVALID_CONTEXT;
    if (!c) ncurrent -= ncurrent > 0;
    else if (ncurrent) current[ncurrent - 1] = c;
    else current[ncurrent++] = c;
    return SOFT_OK;
}

int cuCtxGetDevice(int *device) {
    ENTER(cuCtxGetDevice);
    if (!device) return SOFT_INVALID_VALUE;
    if (!here()) return SOFT_INVALID_CONTEXT;
    *device = soft_index(here());
    return SOFT_OK;
}

int cuCtxSynchronize(void) { ENTER(cuCtxSynchronize); SOFT_LOCKED(soft_synchronize(here())); }

int cuCtxEnablePeerAccess(context *peer, unsigned flags) {
    ENTER(cuCtxEnablePeerAccess);
    if (flags) return SOFT_INVALID_VALUE;
    if (!is_context(peer)) return SOFT_INVALID_CONTEXT;
    SOFT_LOCKED(soft_enable_peer(here(), peer->device));
}

/* ---------------- streams and events */

int cuStreamCreate(soft_stream **s, unsigned flags) { ENTER(cuStreamCreate); SOFT_LOCKED(soft_stream_create(here(), s, flags)); }
int cuStreamDestroy_v2(soft_stream *s) { ENTER(cuStreamDestroy_v2); SOFT_LOCKED(soft_stream_destroy(here(), s)); }
int cuStreamSynchronize(soft_stream *s) { ENTER(cuStreamSynchronize); SOFT_LOCKED(soft_stream_synchronize(here(), s)); }
int cuStreamQuery(soft_stream *s) { ENTER(cuStreamQuery); SOFT_LOCKED(soft_stream_query(here(), s)); }
int cuStreamWaitEvent(soft_stream *s, soft_event *e, unsigned flags) {
    ENTER(cuStreamWaitEvent);
    if (flags) return SOFT_INVALID_VALUE;
    SOFT_LOCKED(soft_stream_wait(here(), s, e));
}
int cuEventCreate(soft_event **e, unsigned flags) { ENTER(cuEventCreate); SOFT_LOCKED(soft_event_create(here(), e, flags)); }
int cuEventDestroy_v2(soft_event *e) { ENTER(cuEventDestroy_v2); SOFT_LOCKED(soft_event_destroy(here(), e)); }
int cuEventRecord(soft_event *e, soft_stream *s) { ENTER(cuEventRecord); SOFT_LOCKED(soft_event_record(here(), e, s)); }
int cuEventSynchronize(soft_event *e) { ENTER(cuEventSynchronize); SOFT_LOCKED(soft_event_synchronize(here(), e)); }
int cuEventQuery(soft_event *e) { ENTER(cuEventQuery); SOFT_LOCKED(soft_event_query(here(), e)); }
int cuEventElapsedTime(float *ms, soft_event *from, soft_event *to) {
    ENTER(cuEventElapsedTime);
    SOFT_LOCKED(soft_event_elapsed(here(), ms, from, to));
}
int cuEventElapsedTime_v2(float *ms, soft_event *from, soft_event *to) {
    ENTER(cuEventElapsedTime_v2);
    SOFT_LOCKED(soft_event_elapsed(here(), ms, from, to));
}

/* ---------------- memory */

int cuMemAlloc_v2(uint64_t *p, size_t n) { ENTER(cuMemAlloc_v2); SOFT_LOCKED(soft_alloc(here(), p, n)); }
int cuMemFree_v2(uint64_t p) { ENTER(cuMemFree_v2); SOFT_LOCKED(soft_free(here(), p)); }
int cuMemGetInfo_v2(size_t *free, size_t *total) { ENTER(cuMemGetInfo_v2); SOFT_LOCKED(soft_memory(here(), free, total)); }
int cuMemHostAlloc(void **p, size_t n, unsigned flags) {
    ENTER(cuMemHostAlloc);
    if (flags > 7) return SOFT_INVALID_VALUE;
    SOFT_LOCKED(soft_alloc_host(here(), p, n));
}
int cuMemFreeHost(void *p) { ENTER(cuMemFreeHost); SOFT_LOCKED(soft_free_host(here(), p)); }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n) { ENTER(cuMemcpyHtoD_v2); SOFT_LOCKED(soft_write(here(), to, from, n)); }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n) { ENTER(cuMemcpyDtoH_v2); SOFT_LOCKED(soft_read(here(), to, from, n)); }
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, soft_stream *s) {
    ENTER(cuMemcpyHtoDAsync_v2);
    SOFT_LOCKED(soft_write_async(here(), to, from, n, s));
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, soft_stream *s) {
    ENTER(cuMemcpyDtoHAsync_v2);
    SOFT_LOCKED(soft_read_async(here(), to, from, n, s));
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, soft_stream *s) {
    ENTER(cuMemcpyDtoDAsync_v2);
    SOFT_LOCKED(soft_copy_async(here(), to, from, n, s));
}
int cuMemcpyPeerAsync(uint64_t to, context *tc, uint64_t from, context *fc, size_t n, soft_stream *s) {
    ENTER(cuMemcpyPeerAsync);
    if (!is_context(tc) || !is_context(fc)) return SOFT_INVALID_CONTEXT;
    SOFT_LOCKED(soft_peer_async(here(), to, tc->device, from, fc->device, n, s));
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t n, soft_stream *s) {
    ENTER(cuMemsetD8Async);
    SOFT_LOCKED(soft_set_async(here(), to, value, n, s));
}

/* ---------------- modules, kernels, graphs */

int cuModuleLoadData(soft_loaded **m, const void *image) { ENTER(cuModuleLoadData); SOFT_LOCKED(soft_load(here(), m, image)); }
int cuModuleLoadDataEx(soft_loaded **m, const void *image, unsigned n, int *options, void **values) {
    ENTER(cuModuleLoadDataEx);
    if (n && (!options || !values)) return SOFT_INVALID_VALUE;
    SOFT_LOCKED(soft_load(here(), m, image));
}
int cuModuleUnload(soft_loaded *m) { ENTER(cuModuleUnload); SOFT_LOCKED(soft_unload(here(), m)); }
int cuModuleGetFunction(soft_function **f, soft_loaded *m, const char *name) {
    ENTER(cuModuleGetFunction);
    SOFT_LOCKED(soft_get_function(here(), f, m, name));
}
int cuFuncGetAttribute(int *value, int which, soft_function *f) {
    ENTER(cuFuncGetAttribute);
    SOFT_LOCKED(soft_function_attribute(here(), value, which, f));
}
int cuFuncSetAttribute(soft_function *f, int which, int value) {
    ENTER(cuFuncSetAttribute);
    SOFT_LOCKED(soft_function_set(here(), f, which, value));
}
int cuLaunchKernel(soft_function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, soft_stream *s, void **args, void **extra) {
    ENTER(cuLaunchKernel);
    const unsigned grid[3] = { gx, gy, gz }, block[3] = { bx, by, bz };
    SOFT_LOCKED(soft_launch(here(), f, grid, block, shared, s, args, extra));
}
int cuStreamBeginCapture_v2(soft_stream *s, int mode) { ENTER(cuStreamBeginCapture_v2); SOFT_LOCKED(soft_capture_begin(here(), s, mode)); }
int cuStreamEndCapture(soft_stream *s, soft_graph **g) { ENTER(cuStreamEndCapture); SOFT_LOCKED(soft_capture_end(here(), s, g)); }
int cuGraphCreate(soft_graph **g, unsigned flags) {
    ENTER(cuGraphCreate);
    if (flags) return SOFT_INVALID_VALUE;
    SOFT_LOCKED(soft_graph_create(here(), g));
}
int cuGraphAddKernelNode_v2(soft_node **node, soft_graph *g, soft_node *const *after, size_t n, const kernel_node *k) {
    ENTER(cuGraphAddKernelNode_v2);
    if (!k || !k->f) return SOFT_INVALID_VALUE;   /* a CUkernel and a context in its place are not known here */
    SOFT_LOCKED(soft_graph_add(here(), node, g, after, n, k->f, k->grid, k->block, k->shared, k->args, k->extra));
}
int cuGraphAddChildGraphNode(soft_node **node, soft_graph *g, soft_node *const *after, size_t n, soft_graph *child) {
    ENTER(cuGraphAddChildGraphNode);
    SOFT_LOCKED(soft_graph_add_child(here(), node, g, after, n, child));
}
int cuGraphAddEventRecordNode(soft_node **node, soft_graph *g, soft_node *const *after, size_t n, soft_event *e) {
    ENTER(cuGraphAddEventRecordNode);
    SOFT_LOCKED(soft_graph_add_event(here(), node, g, after, n, e));
}
int cuGraphExecKernelNodeSetParams_v2(soft_graph *exec, soft_node *node, const kernel_node *k) {
    ENTER(cuGraphExecKernelNodeSetParams_v2);
    if (!k || !k->f) return SOFT_INVALID_VALUE;
    SOFT_LOCKED(soft_graph_set(here(), exec, node, k->f, k->grid, k->block, k->shared, k->args, k->extra));
}
int cuGraphExecEventRecordNodeSetEvent(soft_graph *exec, soft_node *node, soft_event *e) {
    ENTER(cuGraphExecEventRecordNodeSetEvent);
    SOFT_LOCKED(soft_graph_set_event(here(), exec, node, e));
}
int cuGraphInstantiateWithFlags(soft_graph **exec, soft_graph *g, unsigned long long flags) {
    ENTER(cuGraphInstantiateWithFlags);
    if (flags & ~15ull) return SOFT_INVALID_VALUE;
    SOFT_LOCKED(soft_graph_instantiate(here(), exec, g));
}
int cuGraphLaunch(soft_graph *exec, soft_stream *s) { ENTER(cuGraphLaunch); SOFT_LOCKED(soft_graph_launch(here(), exec, s)); }
int cuGraphExecDestroy(soft_graph *exec) { ENTER(cuGraphExecDestroy); SOFT_LOCKED(soft_graph_destroy(exec, true)); }
int cuGraphDestroy(soft_graph *g) { ENTER(cuGraphDestroy); SOFT_LOCKED(soft_graph_destroy(g, false)); }

/* ---------------- tensor maps, for kernels by the real compiler's PTX: no others can use them */

/* Bytes of a CUtensorMapDataType's element; 0: not known here. */
static unsigned element_of(int type) {
    static const unsigned char bytes[] = { 1, 2, 4, 4, 8, 8, 2, 4, 8, 2 };
    return type >= 0 && (size_t)type < sizeof bytes ? bytes[type] : 0;
}
int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *at, const uint64_t *dim, const uint64_t *step,
                           const unsigned *box, const unsigned *every, int interleave, int swizzle, int promotion, int fill) {
    ENTER(cuTensorMapEncodeTiled);
    soft_map m = { .magic = SOFT_MAP, .at = (uintptr_t)at, .rank = (unsigned char)rank, .bytes = (unsigned char)element_of(type) };
    const char *real = getenv("SOFTGPU_PTX");
    if (!real || !*real) return SOFT_NOT_SUPPORTED;
    if (!ncurrent) return SOFT_INVALID_CONTEXT;
    if (!map || (uintptr_t)map % 128 || !dim || !box || !every || rank < 1 || rank > 5 || (rank > 1 && !step)) return SOFT_INVALID_VALUE;
    if (!at || m.at % 16 || !m.bytes || interleave || (swizzle && swizzle != 3) || promotion < 0 || promotion > 3 || fill) return SOFT_INVALID_VALUE;
    for (unsigned d = 0; d < rank; d++) {
        if (!dim[d] || dim[d] > (uint64_t)1 << 32 || !box[d] || box[d] > 256 || every[d] != 1) return SOFT_INVALID_VALUE;
        if (d > 0 && (step[d - 1] % 16 || step[d - 1] >= (uint64_t)1 << 40)) return SOFT_INVALID_VALUE;
        m.dim[d] = dim[d], m.box[d] = (uint16_t)box[d];
        if (d > 0) m.step[d - 1] = step[d - 1];
    }
    if (box[0] * m.bytes % 16 || (swizzle && box[0] * m.bytes > 128)) return SOFT_INVALID_VALUE;
    m.swizzle = swizzle == 3;
    memset(map, 0, 128);
    memcpy(map, &m, sizeof m);
    return SOFT_OK;
}

/* ---------------- errors */

int cuGetErrorName(int code, const char **name) {
    SOFT_ENTER(cuGetErrorName);
    if (!name) return SOFT_INVALID_VALUE;
    return (*name = soft_error_name(code, false)) != NULL ? SOFT_OK : SOFT_INVALID_VALUE;
}
int cuGetErrorString(int code, const char **text) {
    SOFT_ENTER(cuGetErrorString);
    if (!text) return SOFT_INVALID_VALUE;
    return (*text = soft_error_text(code)) != NULL ? SOFT_OK : SOFT_INVALID_VALUE;
}
