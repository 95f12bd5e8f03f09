/* hip.c - the HIP runtime's names and rules over driver.c. Each thread has a current device, 0 at first; a call about
   another device's stream, kernel or memory is an error, though a runtime may let it pass. */
#include "driver.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const uint64_t soft_base = SOFT_HIP_BASE;
const char *const soft_default_arch = "gfx90a:sramecc+:xnack-";
const char *const soft_visible = "HIP_VISIBLE_DEVICES";
const unsigned soft_plain_shared = 65536;

bool soft_arch_is_ours(const char *arch) { return !strncmp(arch, "gfx", 3); }

/* Code names its target and perhaps features of it; what it leaves open fits any. */
int soft_takes(int version, bool text) { (void)version, (void)text; return SOFT_OK; }
bool soft_runs_on(const char *image_arch, const char *device_arch, bool text) {
    size_t n = strcspn(image_arch, ":");
    if (text || n != strcspn(device_arch, ":") || strncmp(image_arch, device_arch, n)) return false;
    for (const char *p = image_arch + n; *p == ':';) {
        size_t k = 1 + strcspn(p + 1, ":");
        char feature[32];
        snprintf(feature, sizeof feature, "%.*s", (int)k, p);
        if (!strstr(device_arch, feature)) return false;
        p += k;
    }
    return true;
}

static _Thread_local int current;
static soft_device *here(void) { return soft_device_at(current); }
soft_device *soft_here(void) { return here(); }

static int start(void) {
    soft_lock();
    int code = soft_init();
    soft_unlock();
    return code;
}
typedef struct kernel_node {                   /* hipKernelNodeParams; a function of a module, as newer versions take */
    unsigned block[3];
    void **extra;
    soft_function *f;
    unsigned grid[3];
    void **args;
    unsigned shared;
} kernel_node;

/* The runtime starts itself when it is first used */
#define ENTER(function) SOFT_ENTER(function); if (!soft_ready() && start()) return SOFT_NO_DEVICE
#define EXPORT SOFT_EXPORT int

/* ---------------- properties: two layouts, before ROCm 6 and since */

typedef struct properties {
    char name[256];
    size_t memory, shared;
    int registers, warp, threads, threads_dim[3], grid[3], clock, memory_clock, memory_bus;
    size_t constant;
    int major, minor, processors, l2, threads_per_processor, compute_mode, clock_instruction;
    unsigned features;
    int concurrent_kernels, pci_domain, pci_bus, pci_device;
    size_t shared_per_processor;
    int multi_board, maps_host, gcn_arch;
    char arch[256];
    int integrated, cooperative, cooperative_multi, texture_1d_linear, texture_1d, texture_2d[2], texture_3d[3];
    unsigned *flush[2];
    size_t pitch, texture_alignment, texture_pitch_alignment;
    int timeout, ecc, tcc, unmatched[4], large_bar, revision, managed, direct_managed, concurrent_managed, pageable, pageable_tables;
} properties;
_Static_assert(sizeof(properties) == 792 && offsetof(properties, arch) == 396 && offsetof(properties, warp) == 276 &&
               offsetof(properties, pci_bus) == 368 && offsetof(properties, integrated) == 652, "hipDeviceProp_tR0000");

typedef struct properties6 {
    char name[256], uuid[16], luid[8];
    unsigned luid_mask;
    size_t memory, shared;
    int registers, warp;
    size_t pitch;
    int threads, threads_dim[3], grid[3], clock;
    size_t constant;
    int major, minor;
    size_t texture_alignment, texture_pitch_alignment;
    int overlap, processors, timeout, integrated, maps_host, compute_mode, textures[26], surfaces[14];
    size_t surface_alignment;
    int concurrent_kernels, ecc, pci_bus, pci_device, pci_domain, tcc, engines, unified, memory_clock, memory_bus, l2, persisting_l2,
        threads_per_processor, priorities, global_l1, local_l1;
    size_t shared_per_processor;
    int registers_per_processor, managed, multi_board, board_group, native_atomics, double_ratio, pageable, concurrent_managed,
        preemption, registered_pointer, cooperative, cooperative_multi;
    size_t shared_optin;
    int pageable_tables, direct_managed, blocks_per_processor, policy_window;
    size_t shared_reserved;
    int host_register, sparse, read_only_register, timeline, pools, rdma, rdma_flush, rdma_order, pool_handles, deferred, ipc, cluster,
        function_pointers, reserved[63], hip_reserved[32];
    char arch[256];
    size_t most_shared_per_processor;
    int clock_instruction;
    unsigned features;
    unsigned *flush[2];
    int unmatched[4], large_bar, revision;
} properties6;
_Static_assert(sizeof(properties6) == 1472 && offsetof(properties6, arch) == 1160 && offsetof(properties6, warp) == 308 &&
               offsetof(properties6, major) == 360 && offsetof(properties6, processors) == 388 && offsetof(properties6, pci_bus) == 584 &&
               offsetof(properties6, surface_alignment) == 568 && offsetof(properties6, shared_optin) == 696 &&
               offsetof(properties6, pools) == 744, "hipDeviceProp_tR0600");

EXPORT hipInit(unsigned flags);
EXPORT hipDriverGetVersion(int *version);
EXPORT hipRuntimeGetVersion(int *version);
EXPORT hipGetDeviceCount(int *n);
EXPORT hipDeviceGet(int *device, int ordinal);
EXPORT hipDeviceGetName(char *name, int n, int device);
EXPORT hipDeviceGetAttribute(int *value, int which, int device);
EXPORT hipDeviceTotalMem(size_t *bytes, int device);
EXPORT hipDeviceGetPCIBusId(char *id, int n, int device);
EXPORT hipGetDeviceProperties(properties *p, int device);
EXPORT hipGetDevicePropertiesR0000(properties *p, int device);
EXPORT hipGetDevicePropertiesR0600(properties6 *p, int device);
EXPORT hipSetDevice(int device);
EXPORT hipGetDevice(int *device);
EXPORT hipDeviceSynchronize(void);
EXPORT hipDeviceCanAccessPeer(int *can, int device, int peer);
EXPORT hipDeviceEnablePeerAccess(int peer, unsigned flags);
EXPORT hipStreamCreateWithFlags(soft_stream **s, unsigned flags);
EXPORT hipStreamDestroy(soft_stream *s);
EXPORT hipStreamSynchronize(soft_stream *s);
EXPORT hipStreamQuery(soft_stream *s);
EXPORT hipStreamWaitEvent(soft_stream *s, soft_event *e, unsigned flags);
EXPORT hipEventCreateWithFlags(soft_event **e, unsigned flags);
EXPORT hipEventDestroy(soft_event *e);
EXPORT hipEventRecord(soft_event *e, soft_stream *s);
EXPORT hipEventSynchronize(soft_event *e);
EXPORT hipEventQuery(soft_event *e);
EXPORT hipEventElapsedTime(float *ms, soft_event *from, soft_event *to);
EXPORT hipMalloc(void **p, size_t n);
EXPORT hipFree(void *p);
EXPORT hipMemGetInfo(size_t *free, size_t *total);
EXPORT hipHostMalloc(void **p, size_t n, unsigned flags);
EXPORT hipHostFree(void *p);
EXPORT hipMemcpyHtoD(void *to, void *from, size_t n);
EXPORT hipMemcpyDtoH(void *to, void *from, size_t n);
EXPORT hipMemcpyHtoDAsync(void *to, void *from, size_t n, soft_stream *s);
EXPORT hipMemcpyDtoHAsync(void *to, void *from, size_t n, soft_stream *s);
EXPORT hipMemcpyDtoDAsync(void *to, void *from, size_t n, soft_stream *s);
EXPORT hipMemcpyPeerAsync(void *to, int td, const void *from, int fd, size_t n, soft_stream *s);
EXPORT hipMemsetD8Async(void *to, unsigned char value, size_t n, soft_stream *s);
EXPORT hipModuleLoadData(soft_loaded **m, const void *image);
EXPORT hipModuleLoadDataEx(soft_loaded **m, const void *image, unsigned n, int *options, void **values);
EXPORT hipModuleUnload(soft_loaded *m);
EXPORT hipModuleGetFunction(soft_function **f, soft_loaded *m, const char *name);
EXPORT hipFuncGetAttribute(int *value, int which, soft_function *f);
EXPORT hipModuleLaunchKernel(soft_function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                             unsigned shared, soft_stream *s, void **args, void **extra);
EXPORT hipStreamBeginCapture(soft_stream *s, int mode);
EXPORT hipStreamEndCapture(soft_stream *s, soft_graph **g);
EXPORT hipGraphCreate(soft_graph **g, unsigned flags);
EXPORT hipGraphAddKernelNode(soft_node **node, soft_graph *g, soft_node *const *after, size_t n, const kernel_node *k);
EXPORT hipGraphAddChildGraphNode(soft_node **node, soft_graph *g, soft_node *const *after, size_t n, soft_graph *child);
EXPORT hipGraphAddEventRecordNode(soft_node **node, soft_graph *g, soft_node *const *after, size_t n, soft_event *e);
EXPORT hipGraphExecKernelNodeSetParams(soft_graph *exec, soft_node *node, const kernel_node *k);
EXPORT hipGraphExecEventRecordNodeSetEvent(soft_graph *exec, soft_node *node, soft_event *e);
EXPORT hipGraphInstantiateWithFlags(soft_graph **exec, soft_graph *g, unsigned long long flags);
EXPORT hipGraphLaunch(soft_graph *exec, soft_stream *s);
EXPORT hipGraphExecDestroy(soft_graph *exec);
EXPORT hipGraphDestroy(soft_graph *g);
SOFT_EXPORT const char *hipGetErrorName(int code);
SOFT_EXPORT const char *hipGetErrorString(int code);

/* ---------------- devices */

int hipInit(unsigned flags) {
    ENTER(hipInit);
    return flags ? SOFT_INVALID_VALUE : SOFT_OK;
}

static int version(int *to) {
    if (!to) return SOFT_INVALID_VALUE;
    *to = 60032830;
    return SOFT_OK;
}
int hipDriverGetVersion(int *to) { ENTER(hipDriverGetVersion); return version(to); }
int hipRuntimeGetVersion(int *to) { ENTER(hipRuntimeGetVersion); return version(to); }

int hipGetDeviceCount(int *n) {
    if (n) *n = 0;
    ENTER(hipGetDeviceCount);
    if (!n) return SOFT_INVALID_VALUE;
    *n = soft_count();
    return SOFT_OK;
}

int hipDeviceGet(int *device, int ordinal) {
    ENTER(hipDeviceGet);
    if (!device) return SOFT_INVALID_VALUE;
    if (!soft_device_at(ordinal)) return SOFT_INVALID_DEVICE;
    *device = ordinal;
    return SOFT_OK;
}

int hipDeviceGetName(char *name, int n, int device) {
    ENTER(hipDeviceGetName);
    if (!soft_device_at(device)) return SOFT_INVALID_DEVICE;
    if (!name || n < 1) return SOFT_INVALID_VALUE;
    snprintf(name, (size_t)n, "Software GPU %d", soft_physical(soft_device_at(device)));
    return SOFT_OK;
}

/* gfx906 is 9.0, gfx1030 is 10.3; gfx9 and before run 64 threads in step. */
static int version_of(const char *arch) {
    int n = (int)strcspn(arch + 3, ":") - 2, v = 0;
    for (int i = 0; i < n; i++) v = 10 * v + (arch[3 + i] - '0');
    return 10 * v + (arch[3 + n] >= '0' && arch[3 + n] <= '9' ? arch[3 + n] - '0' : 0);
}
static int warp_of(const char *arch) { return version_of(arch) >= 100 ? 32 : 64; }

static const struct { int which, value; } attributes[] = {
    { 0, 0 }, { 2, 2 }, { 3, 1 }, { 5, 1700000 }, { 6, 0 }, { 8, 1 }, { 9, 0 }, { 10, 1 }, { 16, 0 }, { 17, 0 }, { 18, 0 },
    { 19, 8 << 20 }, { 24, 0 }, { 26, 1024 }, { 27, 1024 }, { 28, 1024 }, { 29, 0x7fffffff }, { 30, 65536 }, { 31, 65536 },
    { 56, 1024 }, { 57, 2048 }, { 58, 0x7fffffff }, { 59, 4096 }, { 60, 1600000 }, { 63, 4 }, { 65, 0 }, { 68, 0 }, { 69, 0 },
    { 71, 65536 }, { 72, 65536 }, { 74, 65536 }, { 75, 65536 }, { 76, 65536 }, { 78, 1 }, { 81, 256 }, { 83, 0x7fffffff },
    { 85, 1 }, { 88, 1 }, { 10000, 25000 }, { 10002, 65536 }, { 10015, 4 }
};

int hipDeviceGetAttribute(int *value, int which, int device) {
    ENTER(hipDeviceGetAttribute);
    const soft_device *d = soft_device_at(device);
    if (!d) return SOFT_INVALID_DEVICE;
    if (!value) return SOFT_INVALID_VALUE;
    switch (which) {
    case 23: return *value = version_of(soft_arch(d)) / 10, SOFT_OK;
    case 61: return *value = version_of(soft_arch(d)) % 10, SOFT_OK;
    case 67: return *value = soft_physical(d) + 1, SOFT_OK;       /* PCI bus */
    case 87: return *value = warp_of(soft_arch(d)), SOFT_OK;
    default: break;
    }
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (attributes[i].which == which) return *value = attributes[i].value, SOFT_OK;
    return SOFT_INVALID_VALUE;
}

int hipDeviceTotalMem(size_t *bytes, int device) {
    ENTER(hipDeviceTotalMem);
    if (!soft_device_at(device)) return SOFT_INVALID_DEVICE;
    if (!bytes) return SOFT_INVALID_VALUE;
    *bytes = soft_total(soft_device_at(device));
    return SOFT_OK;
}

int hipDeviceGetPCIBusId(char *id, int n, int device) {
    ENTER(hipDeviceGetPCIBusId);
    if (!soft_device_at(device)) return SOFT_INVALID_DEVICE;
    if (!id || n < 13) return SOFT_INVALID_VALUE;
    snprintf(id, (size_t)n, "0000:%02x:00.0", (unsigned)(soft_physical(soft_device_at(device)) + 1));
    return SOFT_OK;
}

#define FILL(p, d) do {                                                                                          \
        memset(p, 0, sizeof *(p));                                                                               \
        snprintf((p)->name, sizeof (p)->name, "Software GPU %d", soft_physical(d));                              \
        snprintf((p)->arch, sizeof (p)->arch, "%s", soft_arch(d));                                               \
        (p)->memory = soft_total(d), (p)->shared = (p)->shared_per_processor = 65536, (p)->registers = 65536;    \
        (p)->warp = warp_of(soft_arch(d)), (p)->threads = 1024, (p)->threads_per_processor = 2048;               \
        for (int i_ = 0; i_ < 3; i_++) (p)->threads_dim[i_] = 1024, (p)->grid[i_] = i_ ? 65536 : 0x7fffffff;     \
        (p)->clock = 1700000, (p)->memory_clock = 1600000, (p)->memory_bus = 4096, (p)->constant = 0x7fffffff;   \
        (p)->major = version_of(soft_arch(d)) / 10, (p)->minor = version_of(soft_arch(d)) % 10;                  \
        (p)->processors = 4, (p)->l2 = 8 << 20, (p)->concurrent_kernels = (p)->maps_host = 1;                    \
        (p)->pci_bus = soft_physical(d) + 1, (p)->clock_instruction = 25000, (p)->pitch = 0x7fffffff;            \
    } while (0)

static int old_properties(properties *p, int device) {
    const soft_device *d = soft_device_at(device);
    if (!d) return SOFT_INVALID_DEVICE;
    if (!p) return SOFT_INVALID_VALUE;
    FILL(p, d);
    return SOFT_OK;
}
int hipGetDeviceProperties(properties *p, int device) { ENTER(hipGetDeviceProperties); return old_properties(p, device); }
int hipGetDevicePropertiesR0000(properties *p, int device) { ENTER(hipGetDevicePropertiesR0000); return old_properties(p, device); }
int hipGetDevicePropertiesR0600(properties6 *p, int device) {
    ENTER(hipGetDevicePropertiesR0600);
    const soft_device *d = soft_device_at(device);
    if (!d) return SOFT_INVALID_DEVICE;
    if (!p) return SOFT_INVALID_VALUE;
    FILL(p, d);
    p->pools = 1;
    return SOFT_OK;
}

int hipSetDevice(int device) {
    ENTER(hipSetDevice);
    if (!soft_device_at(device)) return SOFT_INVALID_DEVICE;
    current = device;
    return SOFT_OK;
}
int hipGetDevice(int *device) {
    ENTER(hipGetDevice);
    if (!device) return SOFT_INVALID_VALUE;
    *device = current;
    return SOFT_OK;
}

int hipDeviceSynchronize(void) { ENTER(hipDeviceSynchronize); SOFT_LOCKED(soft_synchronize(here())); }
int hipDeviceCanAccessPeer(int *can, int device, int peer) {
    ENTER(hipDeviceCanAccessPeer);
    soft_device *d = soft_device_at(device), *p = soft_device_at(peer);
    if (!d || !p) return SOFT_INVALID_DEVICE;
    if (!can) return SOFT_INVALID_VALUE;
    *can = soft_can_peer(d, p);
    return SOFT_OK;
}
int hipDeviceEnablePeerAccess(int peer, unsigned flags) {
    ENTER(hipDeviceEnablePeerAccess);
    if (flags) return SOFT_INVALID_VALUE;
    if (!soft_device_at(peer)) return SOFT_INVALID_DEVICE;
    SOFT_LOCKED(soft_enable_peer(here(), soft_device_at(peer)));
}

/* ---------------- streams and events */

int hipStreamCreateWithFlags(soft_stream **s, unsigned flags) {
    ENTER(hipStreamCreateWithFlags);
    SOFT_LOCKED(soft_stream_create(here(), s, flags));
}
int hipStreamDestroy(soft_stream *s) { ENTER(hipStreamDestroy); SOFT_LOCKED(soft_stream_destroy(here(), s)); }
int hipStreamSynchronize(soft_stream *s) { ENTER(hipStreamSynchronize); SOFT_LOCKED(soft_stream_synchronize(here(), s)); }
int hipStreamQuery(soft_stream *s) { ENTER(hipStreamQuery); SOFT_LOCKED(soft_stream_query(here(), s)); }
int hipStreamWaitEvent(soft_stream *s, soft_event *e, unsigned flags) {
    ENTER(hipStreamWaitEvent);
    if (flags) return SOFT_INVALID_VALUE;
    SOFT_LOCKED(soft_stream_wait(here(), s, e));
}
int hipEventCreateWithFlags(soft_event **e, unsigned flags) { ENTER(hipEventCreateWithFlags); SOFT_LOCKED(soft_event_create(here(), e, flags)); }
int hipEventDestroy(soft_event *e) { ENTER(hipEventDestroy); SOFT_LOCKED(soft_event_destroy(here(), e)); }
int hipEventRecord(soft_event *e, soft_stream *s) { ENTER(hipEventRecord); SOFT_LOCKED(soft_event_record(here(), e, s)); }
int hipEventSynchronize(soft_event *e) { ENTER(hipEventSynchronize); SOFT_LOCKED(soft_event_synchronize(here(), e)); }
int hipEventQuery(soft_event *e) { ENTER(hipEventQuery); SOFT_LOCKED(soft_event_query(here(), e)); }
int hipEventElapsedTime(float *ms, soft_event *from, soft_event *to) {
    ENTER(hipEventElapsedTime);
    SOFT_LOCKED(soft_event_elapsed(here(), ms, from, to));
}

/* ---------------- memory: here nothing is asked for and given back without complaint */

static uint64_t number(const void *p) { return (uint64_t)(uintptr_t)p; }

static int take_memory(void **p, size_t n) {
    uint64_t at = 0;
    int code = soft_alloc(here(), &at, n);
    if (!code) *p = (void *)(uintptr_t)at;
    return code;
}
int hipMalloc(void **p, size_t n) {
    ENTER(hipMalloc);
    if (!p) return SOFT_INVALID_VALUE;
    if (!n) return *p = NULL, SOFT_OK;
    SOFT_LOCKED(take_memory(p, n));
}
int hipFree(void *p) {
    ENTER(hipFree);
    if (!p) return SOFT_OK;
    SOFT_LOCKED(soft_free(here(), number(p)));
}
int hipMemGetInfo(size_t *free, size_t *total) { ENTER(hipMemGetInfo); SOFT_LOCKED(soft_memory(here(), free, total)); }
int hipHostMalloc(void **p, size_t n, unsigned flags) {
    ENTER(hipHostMalloc);
    (void)flags;
    if (!p) return SOFT_INVALID_VALUE;
    if (!n) return *p = NULL, SOFT_OK;
    SOFT_LOCKED(soft_alloc_host(here(), p, n));
}
int hipHostFree(void *p) {
    ENTER(hipHostFree);
    if (!p) return SOFT_OK;
    SOFT_LOCKED(soft_free_host(here(), p));
}
int hipMemcpyHtoD(void *to, void *from, size_t n) { ENTER(hipMemcpyHtoD); SOFT_LOCKED(soft_write(here(), number(to), from, n)); }
int hipMemcpyDtoH(void *to, void *from, size_t n) { ENTER(hipMemcpyDtoH); SOFT_LOCKED(soft_read(here(), to, number(from), n)); }
int hipMemcpyHtoDAsync(void *to, void *from, size_t n, soft_stream *s) {
    ENTER(hipMemcpyHtoDAsync);
    SOFT_LOCKED(soft_write_async(here(), number(to), from, n, s));
}
int hipMemcpyDtoHAsync(void *to, void *from, size_t n, soft_stream *s) {
    ENTER(hipMemcpyDtoHAsync);
    SOFT_LOCKED(soft_read_async(here(), to, number(from), n, s));
}
int hipMemcpyDtoDAsync(void *to, void *from, size_t n, soft_stream *s) {
    ENTER(hipMemcpyDtoDAsync);
    SOFT_LOCKED(soft_copy_async(here(), number(to), number(from), n, s));
}
int hipMemcpyPeerAsync(void *to, int td, const void *from, int fd, size_t n, soft_stream *s) {
    ENTER(hipMemcpyPeerAsync);
    if (!soft_device_at(td) || !soft_device_at(fd)) return SOFT_INVALID_DEVICE;
    SOFT_LOCKED(soft_peer_async(here(), number(to), soft_device_at(td), number(from), soft_device_at(fd), n, s));
}
int hipMemsetD8Async(void *to, unsigned char value, size_t n, soft_stream *s) {
    ENTER(hipMemsetD8Async);
    SOFT_LOCKED(soft_set_async(here(), number(to), value, n, s));
}

/* ---------------- modules, kernels, graphs */

int hipModuleLoadData(soft_loaded **m, const void *image) { ENTER(hipModuleLoadData); SOFT_LOCKED(soft_load(here(), m, image)); }
int hipModuleLoadDataEx(soft_loaded **m, const void *image, unsigned n, int *options, void **values) {
    ENTER(hipModuleLoadDataEx);
    if (n && (!options || !values)) return SOFT_INVALID_VALUE;
    SOFT_LOCKED(soft_load(here(), m, image));
}
int hipModuleUnload(soft_loaded *m) { ENTER(hipModuleUnload); SOFT_LOCKED(soft_unload(here(), m)); }
int hipModuleGetFunction(soft_function **f, soft_loaded *m, const char *name) {
    ENTER(hipModuleGetFunction);
    SOFT_LOCKED(soft_get_function(here(), f, m, name));
}
int hipFuncGetAttribute(int *value, int which, soft_function *f) {
    ENTER(hipFuncGetAttribute);
    SOFT_LOCKED(soft_function_attribute(here(), value, which, f));
}
static bool too_many(const unsigned *grid, const unsigned *block) {    /* AMD's hardware counts threads, in 32 bits */
    for (int i = 0; i < 3; i++)
        if ((uint64_t)grid[i] * block[i] > 0xffffffffu) return true;
    return false;
}
int hipModuleLaunchKernel(soft_function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, soft_stream *s, void **args, void **extra) {
    ENTER(hipModuleLaunchKernel);
    const unsigned grid[3] = { gx, gy, gz }, block[3] = { bx, by, bz };
    if (too_many(grid, block)) return SOFT_INVALID_VALUE;
    SOFT_LOCKED(soft_launch(here(), f, grid, block, shared, s, args, extra));
}
int hipStreamBeginCapture(soft_stream *s, int mode) { ENTER(hipStreamBeginCapture); SOFT_LOCKED(soft_capture_begin(here(), s, mode)); }
int hipStreamEndCapture(soft_stream *s, soft_graph **g) { ENTER(hipStreamEndCapture); SOFT_LOCKED(soft_capture_end(here(), s, g)); }
int hipGraphCreate(soft_graph **g, unsigned flags) {
    ENTER(hipGraphCreate);
    if (flags) return SOFT_INVALID_VALUE;
    SOFT_LOCKED(soft_graph_create(here(), g));
}
int hipGraphAddKernelNode(soft_node **node, soft_graph *g, soft_node *const *after, size_t n, const kernel_node *k) {
    ENTER(hipGraphAddKernelNode);
    if (!k || !k->f || too_many(k->grid, k->block)) return SOFT_INVALID_VALUE;
    SOFT_LOCKED(soft_graph_add(here(), node, g, after, n, k->f, k->grid, k->block, k->shared, k->args, k->extra));
}
int hipGraphAddChildGraphNode(soft_node **node, soft_graph *g, soft_node *const *after, size_t n, soft_graph *child) {
    ENTER(hipGraphAddChildGraphNode);
    SOFT_LOCKED(soft_graph_add_child(here(), node, g, after, n, child));
}
int hipGraphAddEventRecordNode(soft_node **node, soft_graph *g, soft_node *const *after, size_t n, soft_event *e) {
    ENTER(hipGraphAddEventRecordNode);
    SOFT_LOCKED(soft_graph_add_event(here(), node, g, after, n, e));
}
int hipGraphExecKernelNodeSetParams(soft_graph *exec, soft_node *node, const kernel_node *k) {
    ENTER(hipGraphExecKernelNodeSetParams);
    if (!k || !k->f || too_many(k->grid, k->block)) return SOFT_INVALID_VALUE;
    SOFT_LOCKED(soft_graph_set(here(), exec, node, k->f, k->grid, k->block, k->shared, k->args, k->extra));
}
int hipGraphExecEventRecordNodeSetEvent(soft_graph *exec, soft_node *node, soft_event *e) {
    ENTER(hipGraphExecEventRecordNodeSetEvent);
    SOFT_LOCKED(soft_graph_set_event(here(), exec, node, e));
}
int hipGraphInstantiateWithFlags(soft_graph **exec, soft_graph *g, unsigned long long flags) {
    ENTER(hipGraphInstantiateWithFlags);
    if (flags & ~15ull) return SOFT_INVALID_VALUE;
    SOFT_LOCKED(soft_graph_instantiate(here(), exec, g));
}
int hipGraphLaunch(soft_graph *exec, soft_stream *s) { ENTER(hipGraphLaunch); SOFT_LOCKED(soft_graph_launch(here(), exec, s)); }
int hipGraphExecDestroy(soft_graph *exec) { ENTER(hipGraphExecDestroy); SOFT_LOCKED(soft_graph_destroy(exec, true)); }
int hipGraphDestroy(soft_graph *g) { ENTER(hipGraphDestroy); SOFT_LOCKED(soft_graph_destroy(g, false)); }

/* ---------------- errors */

const char *hipGetErrorName(int code) {
    const char *name = soft_error_name(code, true);
    return name ? name : "hipErrorUnknown";
}
const char *hipGetErrorString(int code) {
    const char *text = soft_error_text(code);
    return text ? text : "unknown error";
}
