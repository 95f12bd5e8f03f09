/* flux_cuda.h - what CUDA adds to flux.h: its driver's calls, its compiler's, and its dialect, the
   text that defines what C lacks. flux.h includes this file when FLUX_CUDA is defined; keep the two
   side by side. Public domain or MIT, as flux.h.

   Nothing of CUDA's is needed to build. At run time the driver is opened, by the path in
   FLUX_CUDA_LIBRARY, else as libcuda.so.1 or nvcuda.dll. When a kernel is to be compiled, NVRTC is
   opened: by the path in FLUX_NVRTC, else the newest whose code the driver takes, by file name
   (libnvrtc.so.13, .12, ... nvrtc64_130_0.dll ...), searched where the system does and in the lib
   folders of CUDA_PATH, CUDA_HOME and /usr/local/cuda. All declarations are our own; their types
   have the size and meaning of the driver's. Devices are used through their primary contexts, which
   a program's other CUDA code shares. */

typedef struct flux__cu_calls {
    int (*Init)(unsigned flags);
    int (*DriverGetVersion)(int *version);
    int (*DeviceGetCount)(int *n);
    int (*DeviceGet)(int *device, int ordinal);
    int (*DeviceGetName)(char *name, int length, int device);
    int (*DeviceGetAttribute)(int *value, int attribute, int device);
    int (*DevicePrimaryCtxRetain)(void **context, int device);
    int (*DevicePrimaryCtxRelease)(int device);
    int (*CtxPushCurrent)(void *context);
    int (*CtxPopCurrent)(void **context);
    int (*StreamCreate)(void **stream, unsigned flags);
    int (*StreamSynchronize)(void *stream);
    int (*StreamDestroy)(void *stream);
    int (*StreamWaitEvent)(void *stream, void *event, unsigned flags);
    int (*EventCreate)(void **event, unsigned flags);
    int (*EventRecord)(void *event, void *stream);
    int (*EventSynchronize)(void *event);
    int (*EventQuery)(void *event);
    int (*EventDestroy)(void *event);
    int (*MemAlloc)(unsigned long long *p, size_t bytes);
    int (*MemFree)(unsigned long long p);
    int (*MemHostAlloc)(void **p, size_t bytes, unsigned flags);
    int (*MemFreeHost)(void *p);
    int (*MemcpyHtoDAsync)(unsigned long long dst, const void *src, size_t bytes, void *stream);
    int (*MemcpyDtoHAsync)(void *dst, unsigned long long src, size_t bytes, void *stream);
    int (*MemcpyDtoDAsync)(unsigned long long dst, unsigned long long src, size_t bytes,
                           void *stream);
    int (*MemcpyPeerAsync)(unsigned long long dst, void *to, unsigned long long src, void *from,
                           size_t bytes, void *stream);
    int (*MemGetInfo)(size_t *available, size_t *total);
    int (*ModuleLoadData)(void **module, const void *image);
    int (*ModuleUnload)(void *module);
    int (*ModuleGetFunction)(void **function, void *module, const char *name);
    int (*LaunchKernel)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared, void *stream, void **args,
                        void **extra);
    int (*GetErrorString)(int code, const char **text);
    int (*GraphCreate)(void **graph, unsigned flags);
    int (*GraphAddKernelNode)(void **node, void *graph, void *const *after, size_t n,
                              const void *launch);
    int (*GraphInstantiate)(void **exec, void *graph, unsigned long long flags);
    int (*GraphAddChildGraphNode)(void **node, void *graph, void *const *after, size_t n,
                                  void *child);
    int (*GraphAddEventRecordNode)(void **node, void *graph, void *const *after, size_t n,
                                   void *event);
    int (*GraphExecEventRecordNodeSetEvent)(void *exec, void *node, void *event);
    int (*StreamBeginCapture)(void *stream, int mode);
    int (*StreamEndCapture)(void *stream, void **graph);
    int (*GraphExecKernelNodeSetParams)(void *exec, void *node, const void *launch);
    int (*GraphLaunch)(void *exec, void *stream);
    int (*GraphExecDestroy)(void *exec);
    int (*GraphDestroy)(void *graph);
    int (*FuncSetAttribute)(void *function, int attribute, int value);
    int (*TensorMapEncodeTiled)(void *map, int type, unsigned rank, void *at,
                                const unsigned long long *dim, const unsigned long long *step,
                                const unsigned *box, const unsigned *every, int interleave,
                                int swizzle, int promotion, int fill);
} flux__cu_calls;
static flux__cu_calls flux__cu;

typedef struct flux__cu_node {                     /* CUDA_KERNEL_NODE_PARAMS */
    void *function;
    unsigned grid[3], block[3], shared;
    void **args, **extra, *kernel, *context;
} flux__cu_node;
/* primary contexts of open devices, else NULL */
static void *flux__cu_context[FLUX__MAX_IDS];

/* Each call, and the name of the driver's function */
#define FLUX__CU_CALLS(X) \
    X(Init, cuInit) X(DriverGetVersion, cuDriverGetVersion) X(DeviceGetCount, cuDeviceGetCount) X(DeviceGet, cuDeviceGet) \
    X(DeviceGetName, cuDeviceGetName) X(DeviceGetAttribute, cuDeviceGetAttribute) \
    X(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain) X(DevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2) \
    X(CtxPushCurrent, cuCtxPushCurrent_v2) X(CtxPopCurrent, cuCtxPopCurrent_v2) X(StreamCreate, cuStreamCreate) \
    X(StreamSynchronize, cuStreamSynchronize) X(StreamDestroy, cuStreamDestroy_v2) \
    X(StreamWaitEvent, cuStreamWaitEvent) X(EventCreate, cuEventCreate) X(EventRecord, cuEventRecord) \
    X(EventSynchronize, cuEventSynchronize) X(EventQuery, cuEventQuery) X(EventDestroy, cuEventDestroy_v2) X(MemAlloc, cuMemAlloc_v2) \
    X(MemFree, cuMemFree_v2) X(MemHostAlloc, cuMemHostAlloc) X(MemFreeHost, cuMemFreeHost) \
    X(MemcpyHtoDAsync, cuMemcpyHtoDAsync_v2) X(MemcpyDtoHAsync, cuMemcpyDtoHAsync_v2) \
    X(MemcpyDtoDAsync, cuMemcpyDtoDAsync_v2) X(MemcpyPeerAsync, cuMemcpyPeerAsync) X(MemGetInfo, cuMemGetInfo_v2) \
    X(ModuleLoadData, cuModuleLoadData) X(ModuleUnload, cuModuleUnload) X(ModuleGetFunction, cuModuleGetFunction) \
    X(LaunchKernel, cuLaunchKernel) X(GetErrorString, cuGetErrorString)
/* Graphs, since CUDA 12; without them kernels are launched one by one. Last those for sm_90's
   products, as old */
#define FLUX__CU_GRAPH_CALLS(X) \
    X(GraphCreate, cuGraphCreate) X(GraphAddKernelNode, cuGraphAddKernelNode_v2) X(GraphInstantiate, cuGraphInstantiateWithFlags) \
    X(GraphExecKernelNodeSetParams, cuGraphExecKernelNodeSetParams_v2) X(GraphLaunch, cuGraphLaunch) \
    X(GraphExecDestroy, cuGraphExecDestroy) X(GraphDestroy, cuGraphDestroy) \
    X(GraphAddChildGraphNode, cuGraphAddChildGraphNode) X(GraphAddEventRecordNode, cuGraphAddEventRecordNode) \
    X(GraphExecEventRecordNodeSetEvent, cuGraphExecEventRecordNodeSetEvent) \
    X(StreamBeginCapture, cuStreamBeginCapture_v2) X(StreamEndCapture, cuStreamEndCapture) \
    X(FuncSetAttribute, cuFuncSetAttribute) X(TensorMapEncodeTiled, cuTensorMapEncodeTiled)
static const flux__symbol flux__cu_names[] = {
#define FLUX__CU(call, symbol) { #symbol, offsetof(flux__cu_calls, call), false },
    FLUX__CU_CALLS(FLUX__CU)
#undef FLUX__CU
#define FLUX__CU(call, symbol) { #symbol, offsetof(flux__cu_calls, call), true },
    FLUX__CU_GRAPH_CALLS(FLUX__CU)
#undef FLUX__CU
};
static bool flux__cu_graphs;              /* the driver has all calls of graphs */
/* the newest CUDA whose code the driver takes: 12040 is 12.4 */
static int flux__cu_version;

/* The driver's sentence for a code; if it has none, text written to `number`, which is the
   caller's since threads may meet errors at the same time. */
static const char *flux__cu_error(int code, char number[FLUX__GPU_NUMBER]) {
    const char *text = NULL;
    if (flux__cu.GetErrorString && flux__cu.GetErrorString(code, &text) == 0 && text) return text;
    snprintf(number, FLUX__GPU_NUMBER, "CUDA error %d", code);
    return number;
}

/* Opens the driver and finds its calls; `why` says what failed. */
static bool flux__cu_open(char *why, size_t n) {
    static int state;                     /* 1: open. A query for a component may come at any
                                             time */
    if (state == 1) return true;
#if defined(_WIN32)
    const char *set = flux__env("FLUX_CUDA_LIBRARY"), *file = set ? set : "nvcuda.dll";
#else
    const char *set = flux__env("FLUX_CUDA_LIBRARY"), *file = set ? set : "libcuda.so.1";
#endif
    void *library = flux__library_open(file);
    if (!library && set)
        return flux__library_why(why, n, "NVIDIA driver", "FLUX_CUDA_LIBRARY"), false;
    if (!library) return snprintf(why, n, "no NVIDIA driver: %s is not there", file), false;
    flux__cu_graphs = true;
    for (size_t i = 0; i < sizeof flux__cu_names / sizeof *flux__cu_names; i++) {
        if (flux__library_symbol(library, flux__cu_names[i].name,
                                 (char *)&flux__cu + flux__cu_names[i].at, sizeof(void *)))
            continue;
        if (!flux__cu_names[i].spare)
            return snprintf(why, n, "the NVIDIA driver is too old: it has no %s",
                            flux__cu_names[i].name), false;
        flux__cu_graphs = false;
    }
    char number[FLUX__GPU_NUMBER];
    int code = flux__cu.Init(0);
    if (code == 0) code = flux__cu.DriverGetVersion(&flux__cu_version);
    if (code != 0)
        return snprintf(why, n, "the NVIDIA driver did not start: %s",
                        flux__cu_error(code, number)), false;
    state = 1;
    return true;
}

static int flux__cu_count(void) {
    int n = 0;
    return flux__cu.DeviceGetCount && flux__cu.DeviceGetCount(&n) == 0 ? n : 0;
}

static int flux__cu_device(int id, flux__gpu_info *info) {
    int device = 0, major = 0, minor = 0, code = flux__cu.DeviceGet(&device, id);
    memset(info, 0, sizeof *info);
    if (code == 0) code = flux__cu.DeviceGetName(info->model, (int)sizeof info->model, device);
    /* attributes 75 and 76: COMPUTE_CAPABILITY_MAJOR and _MINOR; 16: MULTIPROCESSOR_COUNT */
    if (code == 0) code = flux__cu.DeviceGetAttribute(&major, 75, device);
    if (code == 0) code = flux__cu.DeviceGetAttribute(&minor, 76, device);
    if (code == 0) code = flux__cu.DeviceGetAttribute(&info->multiprocessors, 16, device);
    snprintf(info->arch, sizeof info->arch, "sm_%d%d", major, minor);
    return code;
}

static int flux__cu_enter(int id, void **before) {
    int device = 0, code = 0;
    *before = NULL;
    if (!flux__cu_context[id]) {
        code = flux__cu.DeviceGet(&device, id);
        if (code == 0) code = flux__cu.DevicePrimaryCtxRetain(&flux__cu_context[id], device);
        if (code != 0) flux__cu_context[id] = NULL;
    }
    return code != 0 ? code : flux__cu.CtxPushCurrent(flux__cu_context[id]);
}
static void flux__cu_leave(void *before) { flux__cu.CtxPopCurrent(&before); }
static void flux__cu_close(int id) {
    int device = 0;
    if (flux__cu_context[id] && flux__cu.DeviceGet(&device, id) == 0)
        flux__cu.DevicePrimaryCtxRelease(device);
    flux__cu_context[id] = NULL;
}
/* Flag 1 is CU_STREAM_NON_BLOCKING: no synchronisation with the default stream. */
static int flux__cu_stream(void **s) {
    return flux__cu.StreamCreate(s, 1);
}
static int flux__cu_stream_wait(void *s) { return flux__cu.StreamSynchronize(s); }
static void flux__cu_stream_free(void *s) { flux__cu.StreamDestroy(s); }
/* Flag 2 is CU_EVENT_DISABLE_TIMING. */
static int flux__cu_event(void **e) {
    return flux__cu.EventCreate(e, 2);
}
static int flux__cu_event_record(void *e, void *s) { return flux__cu.EventRecord(e, s); }
static int flux__cu_event_wait(void *e) { return flux__cu.EventSynchronize(e); }
static int flux__cu_event_query(void *e) { return flux__cu.EventQuery(e); }
static int flux__cu_event_before(void *e, void *s) { return flux__cu.StreamWaitEvent(s, e, 0); }
static void flux__cu_event_free(void *e) { flux__cu.EventDestroy(e); }
static unsigned long long flux__cu_address(const void *p) {
    return (unsigned long long)(uintptr_t)p;
}
static int flux__cu_alloc(void **p, size_t bytes) {
    unsigned long long at = 0;
    int code = flux__cu.MemAlloc(&at, bytes);
    *p = (void *)(uintptr_t)at;
    return code;
}
static void flux__cu_release(void *p) { flux__cu.MemFree(flux__cu_address(p)); }
/* Flag 1 is CU_MEMHOSTALLOC_PORTABLE: pinned for all contexts. */
static int flux__cu_pinned(void **p, size_t bytes) {
    return flux__cu.MemHostAlloc(p, bytes, 1);
}
static void flux__cu_unpin(void *p) { flux__cu.MemFreeHost(p); }
static int flux__cu_up(void *dst, const void *src, size_t n, void *s) {
    return flux__cu.MemcpyHtoDAsync(flux__cu_address(dst), src, n, s);
}
static int flux__cu_down(void *dst, const void *src, size_t n, void *s) {
    return flux__cu.MemcpyDtoHAsync(dst, flux__cu_address(src), n, s);
}
static int flux__cu_across(void *dst, const void *src, size_t n, void *s) {
    return flux__cu.MemcpyDtoDAsync(flux__cu_address(dst), flux__cu_address(src), n, s);
}
static int flux__cu_peer(void *dst, int to, const void *src, int from, size_t n, void *s) {
    return flux__cu.MemcpyPeerAsync(flux__cu_address(dst), flux__cu_context[to],
                                    flux__cu_address(src), flux__cu_context[from], n, s);
}
static int flux__cu_room(size_t *available, size_t *total) {
    return flux__cu.MemGetInfo(available, total);
}
static int flux__cu_load(void **module, const void *image) {
    return flux__cu.ModuleLoadData(module, image);
}
static void flux__cu_unload(void *module) { flux__cu.ModuleUnload(module); }
static int flux__cu_find(void **function, void *module, const char *name) {
    return flux__cu.ModuleGetFunction(function, module, name);
}
/* Types 6 and 9: FLOAT16, BFLOAT16. No interleave; swizzle 3: of 128 bytes; promotion 3: the L2
   cache fetches 256 bytes; fill 0: zeros beyond the edges. */
static int flux__cu_map(const flux__tensor_map *m, const void *at, void *words) {
    unsigned long long dim[3], step[2];
    unsigned box[3];
    const unsigned every[3] = { 1, 1, 1 };
    for (int d = 0; d < 3; d++) {
        dim[d] = (unsigned long long)m->dim[d], box[d] = (unsigned)m->box[d];
        if (d < 2) step[d] = (unsigned long long)m->step[d];
    }
    if (!flux__cu.TensorMapEncodeTiled || !flux__cu.FuncSetAttribute) return 801;
    return flux__cu.TensorMapEncodeTiled(words, m->brain ? 9 : 6, 3, (void *)(uintptr_t)at, dim,
                                         step, box, every, 0, 3, 3, 0);
}
/* Attribute 8: MAX_DYNAMIC_SHARED_SIZE_BYTES */
static int flux__cu_reserve(void *function, unsigned shared) {
    return flux__cu.FuncSetAttribute(function, 8, (int)shared);
}
static int flux__cu_launch(void *function, const unsigned *grid, unsigned threads, unsigned shared,
                           void *stream, void **args) {
    return flux__cu.LaunchKernel(function, grid[0], grid[1], grid[2], threads, 1, 1, shared,
                                 stream, args, NULL);
}
static bool flux__cu_has_graphs(void) { return flux__cu_graphs; }
static int flux__cu_graph(void **graph) { return flux__cu.GraphCreate(graph, 0); }
static flux__cu_node flux__cu_launch_node(void *function, const unsigned *grid, unsigned threads,
                                          unsigned shared, void **args) {
    flux__cu_node k;
    memset(&k, 0, sizeof k);
    k.function = function, k.args = args, k.shared = shared;
    memcpy(k.grid, grid, sizeof k.grid);
    k.block[0] = threads, k.block[1] = k.block[2] = 1;
    return k;
}
static int flux__cu_graph_add(void **node, void *graph, void *const *after, size_t n,
                              void *function, const unsigned *grid, unsigned threads,
                              unsigned shared, void **args) {
    flux__cu_node k = flux__cu_launch_node(function, grid, threads, shared, args);
    return flux__cu.GraphAddKernelNode(node, graph, after, n, &k);
}
static int flux__cu_graph_child(void **node, void *graph, void *const *after, size_t n,
                                void *child) {
    return flux__cu.GraphAddChildGraphNode(node, graph, after, n, child);
}
static int flux__cu_graph_event(void **node, void *graph, void *const *after, size_t n,
                                void *event) {
    return flux__cu.GraphAddEventRecordNode(node, graph, after, n, event);
}
/* 1: other threads may call what they like meanwhile */
static int flux__cu_capture(void *stream) { return flux__cu.StreamBeginCapture(stream, 1); }
static int flux__cu_captured(void *stream, void **graph) {
    return flux__cu.StreamEndCapture(stream, graph);
}
static int flux__cu_graph_ready(void **exec, void *graph) {
    return flux__cu.GraphInstantiate(exec, graph, 0);
}
static int flux__cu_graph_set(void *exec, void *node, void *function, const unsigned *grid,
                              unsigned threads, unsigned shared, void **args) {
    flux__cu_node k = flux__cu_launch_node(function, grid, threads, shared, args);
    return flux__cu.GraphExecKernelNodeSetParams(exec, node, &k);
}
static int flux__cu_graph_event_set(void *exec, void *node, void *event) {
    return flux__cu.GraphExecEventRecordNodeSetEvent(exec, node, event);
}
static int flux__cu_graph_launch(void *exec, void *stream) {
    return flux__cu.GraphLaunch(exec, stream);
}
/* A launch that is under way still finishes. */
static void flux__cu_graph_free(void *graph, void *exec) {
    if (exec) flux__cu.GraphExecDestroy(exec);
    if (graph) flux__cu.GraphDestroy(graph);
}
/* Errors after which a context takes no calls. Most come from a running kernel: an illegal
   address, a launch that took too long, an assertion. Some come from the machine: memory or a
   link that failed, an error that the driver contained to this process. In others the driver
   has shut down, or another library has destroyed the context. */
static bool flux__cu_lost(int code) {
    static const short codes[] = { 4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718,
                                   719, 721 };
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i] == code) return true;
    return false;
}

/* ---- NVRTC */

typedef struct flux__nvrtc_calls {
    int (*Version)(int *major, int *minor);
    int (*GetNumSupportedArchs)(int *n);
    int (*GetSupportedArchs)(int *archs);
    int (*CreateProgram)(void **program, const char *source, const char *name, int nheaders,
                         const char *const *headers, const char *const *names);
    int (*CompileProgram)(void *program, int noptions, const char *const *options);
    int (*GetProgramLogSize)(void *program, size_t *bytes);
    int (*GetProgramLog)(void *program, char *log);
    int (*GetCUBINSize)(void *program, size_t *bytes);
    int (*GetCUBIN)(void *program, char *image);
    int (*GetPTXSize)(void *program, size_t *bytes);
    int (*GetPTX)(void *program, char *image);
    int (*DestroyProgram)(void **program);
    const char *(*GetErrorString)(int code);
} flux__nvrtc_calls;
static flux__nvrtc_calls flux__nvrtc;
static char flux__nvrtc_version[40];
static bool flux__nvrtc_limits_stack;    /* it has the option, see flux__nvrtc_compile */

#define FLUX__NVRTC_CALLS(X) \
    X(Version) X(GetNumSupportedArchs) X(GetSupportedArchs) X(CreateProgram) X(CompileProgram) X(GetProgramLogSize) \
    X(GetProgramLog) X(GetCUBINSize) X(GetCUBIN) X(GetPTXSize) X(GetPTX) X(DestroyProgram) X(GetErrorString)
static const flux__symbol flux__nvrtc_names[] = {
#define FLUX__RTC(call) { "nvrtc" #call, offsetof(flux__nvrtc_calls, call), false },
    FLUX__NVRTC_CALLS(FLUX__RTC)
#undef FLUX__RTC
};

/* The version of an NVRTC, counted as the driver does (12040 is 12.4); 0 if it gives none. */
static int flux__nvrtc_asked(void *library) {
    int (*version)(int *major, int *minor) = NULL, major = 0, minor = 0;
    if (!library || !flux__library_symbol(library, "nvrtcVersion", &version, sizeof version))
        return 0;
    return version(&major, &minor) == 0 && major > 0 && major < 1000
           ? major * 1000 + minor * 10 : 0;
}

/* Whether the driver loads an NVRTC's machine code: it takes that of its own major version of
   CUDA, newer minor versions too, and of older ones. */
static bool flux__nvrtc_fits(int version) {
    return version > 0 && version / 1000 <= flux__cu_version / 1000;
}

/* The file name of NVRTC for a major version of CUDA; 0: the name without a version. */
static void flux__nvrtc_file(char *out, size_t n, int major) {
#if defined(_WIN32)
    if (major) snprintf(out, n, "nvrtc64_%d%s_0.dll", major, major == 11 ? "2" : "0");
    else snprintf(out, n, "nvrtc.dll");
#else
    if (major) snprintf(out, n, "libnvrtc.so.%d%s", major, major == 11 ? ".2" : "");
    else snprintf(out, n, "libnvrtc.so");
#endif
}

/* Opens NVRTC by this file name, by itself or in CUDA's folders, if the driver loads its code;
   *other gets the version of one whose code it does not. */
static void *flux__nvrtc_find(const char *file, int *other) {
#if defined(_WIN32)
    static const char *const folders[] = { "bin/x64", "bin" };
#else
    static const char *const folders[] = { "lib64", "lib" };
#endif
    const char *homes[] = { NULL, flux__env("CUDA_PATH"), flux__env("CUDA_HOME"),
                            "/usr/local/cuda" };
    for (int h = 0; h < 4; h++)
        for (int d = 0; d < (h ? 2 : 1); d++) {
            char path[600];
            if (h && !homes[h]) continue;
            if (h) snprintf(path, sizeof path, "%s/%s/%s", homes[h], folders[d], file);
            void *library = flux__library_open(h ? path : file);
            int version = flux__nvrtc_asked(library);
            if (flux__nvrtc_fits(version)) return library;
            if (version) *other = version;
        }
    return NULL;
}

/* The newest NVRTC whose code the driver loads, or NULL and the reason in `why`. */
static void *flux__nvrtc_library(char *why, size_t n) {
    enum { OLDEST = 11, NEWEST = 40 };    /* major versions of CUDA that are tried */
    const char *set = flux__env("FLUX_NVRTC");
    void *library = set ? flux__library_open(set) : NULL;
    int most = flux__cu_version / 1000, other = set ? flux__nvrtc_asked(library) : 0;
    char file[40];
    if (set && !library) return flux__library_why(why, n, "NVRTC", "FLUX_NVRTC"), (void *)NULL;
    /* the user chose it; flux__nvrtc_open reports a call that it lacks */
    if (set && (!other || flux__nvrtc_fits(other))) return library;
    for (int major = most < NEWEST ? most : NEWEST; major >= OLDEST && !set && !library; major--) {
        flux__nvrtc_file(file, sizeof file, major);
        library = flux__nvrtc_find(file, &other);
    }
    /* the name without a version; then versions that are too new, to report that they are there */
    for (int more = 0; more < 4 && !set && !library; more++) {
        flux__nvrtc_file(file, sizeof file, more ? most + more : 0);
        library = flux__nvrtc_find(file, &other);
    }
    if (library && !set) return library;
    if (other)
        snprintf(why, n,
                 "NVRTC %d.%d is here, but the NVIDIA driver is of CUDA %d.%d and takes no code of "
                 "a newer one: it wants NVRTC %d%s", other / 1000, other % 1000 / 10, most,
                 flux__cu_version % 1000 / 10, most, set ? " (FLUX_NVRTC)" : "");
    else snprintf(why, n,
                  "no NVRTC: libnvrtc is not among the system's libraries, nor under CUDA_PATH, "
                  "CUDA_HOME or /usr/local/cuda");
    return NULL;
}

/* Opens NVRTC and finds its calls; `why` says what failed. */
static bool flux__nvrtc_open(char *why, size_t n) {
    int major = 0, minor = 0;
    if (*flux__nvrtc_version) return true;
    void *library = flux__nvrtc_library(why, n);
    if (!library) return false;
    for (size_t i = 0; i < sizeof flux__nvrtc_names / sizeof *flux__nvrtc_names; i++)
        if (!flux__library_symbol(library, flux__nvrtc_names[i].name,
                                  (char *)&flux__nvrtc + flux__nvrtc_names[i].at, sizeof(void *)))
            return snprintf(why, n, "NVRTC is too old: it has no %s", flux__nvrtc_names[i].name),
                   false;
    if (flux__nvrtc.Version(&major, &minor) != 0)
        return snprintf(why, n, "NVRTC does not answer"), false;
    flux__nvrtc_limits_stack = major > 11 || (major == 11 && minor >= 4);
    snprintf(flux__nvrtc_version, sizeof flux__nvrtc_version, "NVRTC %d.%d", major, minor);
    return true;
}
static const char *flux__nvrtc_named(void) { return flux__nvrtc_version; }
static bool flux__nvrtc_taken(const char *version) {
    return strncmp(version, "NVRTC ", 6) == 0 && flux__nvrtc_fits(atoi(version + 6) * 1000);
}

/* Writes the option for the architecture to compile for. True: the card's own, as machine code;
   sm_90 with the instructions that no other has, which the "a" is for, since NVRTC 12.
   False: this NVRTC is older than the card, and the option is the newest architecture that it
   knows, as PTX, which the driver translates. */
static bool flux__nvrtc_arch(const char *arch, char *option, size_t n) {
    int count = 0, archs[128], want = atoi(arch + 3), best = 0;
    bool known = flux__nvrtc.GetNumSupportedArchs(&count) == 0 && count > 0 && count <= 128 &&
                 flux__nvrtc.GetSupportedArchs(archs) == 0;
    for (int i = 0; known && i < count; i++)
        if (archs[i] <= want && archs[i] > best) best = archs[i];
    bool exact = !known || best == want;
    if (best == 0) best = want;
    snprintf(option, n, "--gpu-architecture=%s_%d%s", exact ? "sm" : "compute", best,
             exact && best == 90 && atoi(flux__nvrtc_version + 6) >= 12 ? "a" : "");
    return exact;
}

/* Compiles source text for an architecture: 0 and the image, or the error's code and the log. */
static int flux__nvrtc_compile(const char *source, const char *arch, char **log, void **image,
                               size_t *bytes) {
    char option[64];
    bool exact = flux__nvrtc_arch(arch, option, sizeof option);
    /* The last option keeps NVRTC from raising the whole process's stack limit while it
       compiles: threads that start meanwhile would get stacks of that size. */
    const char *options[] = { option, "--fmad=false", "--std=c++17", "--modify-stack-limit=false" };
    void *program = NULL;
    size_t n = 0;
    *log = NULL, *image = NULL, *bytes = 0;
    int code = flux__nvrtc.CreateProgram(&program, source, "flux.cu", 0, NULL, NULL);
    if (code != 0) return flux__log_code(log, code, flux__nvrtc.GetErrorString(code));
    code = flux__nvrtc.CompileProgram(program, flux__nvrtc_limits_stack ? 4 : 3, options);
    if (code != 0 && flux__nvrtc.GetProgramLogSize(program, &n) == 0 &&
        (*log = (char *)flux__zalloc(n + 1)) != NULL)
        flux__nvrtc.GetProgramLog(program, *log);
    if (code == 0)
        code = (exact ? flux__nvrtc.GetCUBINSize : flux__nvrtc.GetPTXSize)(program, bytes);
    if (code == 0 && (*image = flux__zalloc(*bytes + 1)) != NULL)
        code = (exact ? flux__nvrtc.GetCUBIN : flux__nvrtc.GetPTX)(program, (char *)*image);
    flux__nvrtc.DestroyProgram(&program);
    return flux__log_code(log, code, flux__nvrtc.GetErrorString(code));
}

/* Whether a component is there: NVRTC, or a library that flux.h does not use but a program may
   ask for. */
static bool flux__cuda_has(const char *name) {
    static const char *const libraries[][2] = { { "NCCL", "nccl" }, { "cuBLAS", "cublas" },
                                                { "cuDNN", "cudnn" } };
    char why[320];
    if (strcmp(name, "NVRTC") == 0) return flux__nvrtc_open(why, sizeof why);
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++)
        if (strcmp(name, libraries[i][0]) == 0)
            return flux__library_numbered(flux__library_open, libraries[i][1]) != NULL;
    return false;
}

/* The tensor cores' instruction for a dtype, by the PTX that the architecture has. A compute
   capability below 7.5 has none here. */
static const flux__fragment *flux__cu_fragment(const char *arch, int dtype, bool tf32) {
    static const flux__fragment f16 = { "f16", 16, 32, 4, true, true, false },
        bf16 = { "bf16", 16, 32, 4, true, true, false },
        f32 = { "tf32", 8, 32, 4, true, false, false };
    static const flux__fragment turing = { "f16", 16, 32, 4, false, true, false };
    int sm = atoi(arch + 3);
    if (dtype == FLUX_F16) return sm >= 80 ? &f16 : sm >= 75 ? &turing : NULL;
    if (dtype == FLUX_BF16 && sm >= 80) return &bf16;
    return dtype == FLUX_F32 && tf32 && sm >= 80 ? &f32 : NULL;
}

/* The text of a function for one mma instruction: d += a b, 16 rows, 8 columns, k of the inner
   dim. */
#define FLUX__CU_MMA(name, k, type, operands)                                                                                        \
    "DEVICE void mma_" name "(float *d, const unsigned *a, const unsigned *b) {\n"                                              \
    "    asm volatile(\"mma.sync.aligned.m16n8k" k ".row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, " operands ";\"\n"
#define FLUX__CU_SUMS "        : \"+f\"(d[0]), \"+f\"(d[1]), \"+f\"(d[2]), \"+f\"(d[3]) : "
#define FLUX__CU_MMA_16(name, type)                                                                                              \
    FLUX__CU_MMA(name, "16", type, "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}")                                                    \
    FLUX__CU_SUMS "\"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"r\"(b[0]), \"r\"(b[1]));\n}\n"

static const char flux__cuda_dialect[] =
    "#define DEVICE static __device__ __forceinline__\n"
    "#define ALIGN16 __align__(16)\n#define ALIGN8 __align__(8)\n#define BLOCKS(n) , n\n"
    "#define FULLY _Pragma(\"unroll\")\n#define APART\n"
    "#define ACROSS(v, w) __shfl_xor_sync(0xffffffffu, v, w)\n"
    "#define INF FLOAT_OF(0x7f800000u)\n"
    "#define FLOAT_OF(u) __uint_as_float(u)\n#define BITS_OF(x) __float_as_uint(x)\n"
    "DEVICE float f16_float(unsigned short h) { float x; asm(\"cvt.f32.f16 %0, "
    "%1;\" : \"=f\"(x) : \"h\"(h)); return x; }\n"
    "DEVICE unsigned short float_f16(float x) { unsigned short h; asm(\"cvt.rn.f16.f32 %0, "
    "%1;\" : \"=h\"(h) : \"f\"(x)); return h; }\n"
    "DEVICE float near_inverse(float x) { float y; asm(\"rcp.approx.ftz.f32 %0, "
    "%1;\" : \"=f\"(y) : \"f\"(x)); return y; }\n"
    "DEVICE float near_exp2(float x) { float y; asm(\"ex2.approx.ftz.f32 %0, "
    "%1;\" : \"=f\"(y) : \"f\"(x)); return y; }\n"
    /* two at a time, the second one in the upper half; a NaN becomes 0x7fff */
    "#if __CUDA_ARCH__ >= 800\n#define PAIRS\n"
    "DEVICE unsigned pair_f16(float x, float y) { unsigned h; asm(\"cvt.rn.f16x2.f32 %0, %1, "
    "%2;\" : \"=r\"(h) : \"f\"(y), \"f\"(x)); return h; }\n"
    "DEVICE unsigned pair_bf16(float x, float y) { unsigned h; asm(\"cvt.rn.bf16x2.f32 %0, %1, "
    "%2;\" : \"=r\"(h) : \"f\"(y), \"f\"(x)); return h; }\n"
    "DEVICE unsigned short float_bf16(float x) { return (unsigned short)pair_bf16(x, 0.0f); }\n"
    "#endif\n";

/* Loads and multiplies fragments. In an mma instruction a lane has row lane / 4 of a (column
   lane / 4 of b), and number lane % 4 of neighbouring elements, or pairs of half floats, along
   the inner dim. */
static const char flux__cuda_matrices[] =
    "DEVICE int mma_row(int e) { return (int)threadIdx.x % 32 / 4 + e / 2 % 2 * 8; }\n"
    "DEVICE int mma_col(int e) { return (int)threadIdx.x % 4 * 2 + e % 2 + e / 4 * 8; }\n"
    "#if __CUDA_ARCH__ >= 750\n"
    "DEVICE void four(unsigned *r, const void *p) {\n"
    "    asm volatile(\"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\"\n"
    "        : \"=r\"(r[0]), \"=r\"(r[1]), \"=r\"(r[2]), "
    "\"=r\"(r[3]) : \"r\"((unsigned)__cvta_generic_to_shared(p)));\n}\n"
    "DEVICE void four_turned(unsigned *r, const void *p) {\n"
    "    asm volatile(\"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\"\n"
    "        : \"=r\"(r[0]), \"=r\"(r[1]), \"=r\"(r[2]), "
    "\"=r\"(r[3]) : \"r\"((unsigned)__cvta_generic_to_shared(p)));\n}\n"
    "DEVICE void mma_a_f16(unsigned *r, const unsigned short *t, int row, int in) {\n"
    "    const int q = (int)threadIdx.x % 32, low = q % 16, high = q / 16 * 8;\n"
    "    if (in == 1) four(r, t + low * row + high);\n"
    "    else four_turned(r, t + (q % 8 + high) * in + q / 8 % 2 * 8);\n}\n"
    "DEVICE void mma_b_f16(unsigned *r, const unsigned short *t, int col, int in) {\n"
    "    const int q = (int)threadIdx.x % 32, low = q % 16, high = q / 16 * 8;\n"
    "    if (in == 1) four(r, t + (q % 8 + high) * col + q / 8 % 2 * 8);\n"
    "    else four_turned(r, t + low * in + high);\n}\n"
    "#endif\n"
    "#if __CUDA_ARCH__ >= 800\n"
    "DEVICE void copy_16(void *to, const void *from, int bytes) {\n"
    "    asm volatile(\"cp.async.cg.shared.global [%0], [%1], 16, %2;\"\n"
    "        : : \"r\"((unsigned)__cvta_generic_to_shared(to)), \"l\"(from), "
    "\"r\"(bytes) : \"memory\");\n}\n"
    "#define copies_end() asm volatile(\"cp.async.commit_group;\" : : : \"memory\")\n"
    "#define copies_left(n) asm volatile(\"cp.async.wait_group %0;\" : : \"n\"(n) : \"memory\")\n"
    "#define mma_a_bf16 mma_a_f16\n#define mma_b_bf16 mma_b_f16\n"
    FLUX__CU_MMA_16("f16_8", "f16") FLUX__CU_MMA_16("bf16_8", "bf16")
    "DEVICE unsigned tf32(float x) { unsigned u; asm(\"cvt.rna.tf32.f32 %0, "
    "%1;\" : \"=r\"(u) : \"f\"(x)); return u; }\n"
    "DEVICE void mma_a_tf32(unsigned *r, const float *t, int row, int in) {\n"
    "    const float *p = t + (int)threadIdx.x % 32 / 4 * row + (int)threadIdx.x % 4 * in;\n"
    "    r[0] = tf32(p[0]), r[1] = tf32(p[8 * row]), r[2] = tf32(p[4 * in]), "
    "r[3] = tf32(p[8 * row + 4 * in]);\n}\n"
    "DEVICE void mma_b_tf32(unsigned *r, const float *t, int col, int in) {\n"
    "    const float *p = t + (int)threadIdx.x % 32 / 4 * col + (int)threadIdx.x % 4 * in;\n"
    "    r[0] = tf32(p[0]), r[1] = tf32(p[4 * in]), r[2] = tf32(p[8 * col]), "
    "r[3] = tf32(p[8 * col + 4 * in]);\n}\n"
    FLUX__CU_MMA("tf32_8", "8", "tf32", "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}")
    FLUX__CU_SUMS "\"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"r\"(b[0]), \"r\"(b[1]));\n"
    "}\n"
    "#define TWICE(name) DEVICE void mma_##name(float *d, const unsigned *a, const unsigned *b) "
    "{ mma_##name##_8(d, a, b), mma_##name##_8(d + 4, a, b + 2); }\n"
    "TWICE(f16)\nTWICE(bf16)\nTWICE(tf32)\n"
    "#elif __CUDA_ARCH__ >= 750\n"
    FLUX__CU_MMA("f16_8", "8", "f16", "{%4,%5}, {%6}, {%0,%1,%2,%3}") FLUX__CU_SUMS "\"r\"(a[0]), "
    "\"r\"(a[1]), \"r\"(b[0]));\n}\n"
    "DEVICE void mma_f16(float *d, const unsigned *a, const unsigned *b) {\n"
    "    mma_f16_8(d, a, b), mma_f16_8(d, a + 2, b + 1), mma_f16_8(d + 4, a, b + 2), "
    "mma_f16_8(d + 4, a + 2, b + 3);\n}\n"
    "#endif\n";

/* What sm_90 alone has, see gpu/gemm_wgmma.h. A phase (mbarrier) is over when all have arrived
   and the bytes that it expects have come; its parity is that of how many were over before. Of
   65536 registers the warpgroups that multiply take 232 a thread and the one that loads 40. */
static const char flux__cuda_boxes[] =
    "#ifdef __CUDA_ARCH_FEAT_SM90_ALL\n"
    "#define ASM(text, ...) asm volatile(text : : __VA_ARGS__ : \"memory\")\n"
    "#define ALONE(text) asm volatile(text : : : \"memory\")\n"
    "typedef struct __align__(128) { unsigned long long x[16]; } tensor_map;\n"
    "DEVICE unsigned shared_at(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }\n"
    "DEVICE void phase_start(unsigned phase, int all) {\n"
    "    ASM(\"mbarrier.init.shared::cta.b64 [%0], %1;\", \"r\"(phase), \"r\"(all));\n}\n"
    "#define phases_started() do { ALONE(\"fence.mbarrier_init.release.cluster;\"); "
    "ALONE(\"fence.proxy.async.shared::cta;\"); } while (0)\n"
    "DEVICE void phase_expects(unsigned phase, int bytes) {\n"
    "    ASM(\"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\", "
    "\"r\"(phase), \"r\"(bytes));\n}\n"
    "DEVICE void phase_arrive(unsigned phase) {\n"
    "    ASM(\"mbarrier.arrive.shared::cta.b64 _, [%0];\", \"r\"(phase));\n}\n"
    "DEVICE void phase_wait(unsigned phase, int parity) {\n    int over;\n"
    "    do asm volatile(\"{\\n.reg .pred %%p;\\n"
    "mbarrier.try_wait.parity.shared::cta.b64 %%p, [%1], %2;\\nselp.b32 %0, 1, 0, %%p;\\n}\\n\"\n"
    "        : \"=r\"(over) : \"r\"(phase), \"r\"(parity) : \"memory\");\n"
    "    while (!over);\n}\n"
    "DEVICE void box_load(unsigned to, const tensor_map *map, int x, int y, int z, unsigned phase) "
    "{\n    ASM(\"cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
    "[%0], [%1, {%2, %3, %4}], [%5];\",\n"
    "        \"r\"(to), \"l\"(map), \"r\"(x), \"r\"(y), \"r\"(z), \"r\"(phase));\n}\n"
    "#define registers_less() ALONE(\"setmaxnreg.dec.sync.aligned.u32 40;\")\n"
    "#define registers_more() ALONE(\"setmaxnreg.inc.sync.aligned.u32 232;\")\n"
    "#define consumers_meet() ALONE(\"bar.sync 1, 256;\")\n"
    "#define products_begin() ALONE(\"wgmma.fence.sync.aligned;\")\n"
    "#define products_end() ALONE(\"wgmma.commit_group.sync.aligned;\")\n"
    "#define products_left(n) ASM(\"wgmma.wait_group.sync.aligned %0;\", \"n\"(n))\n"
    "#define SETTLED(sum) asm volatile(\"\" : \"+f\"(sum) : : \"memory\")\n"
    "#endif\n";

static const flux__driver flux__cuda_driver = {
    "CUDA", flux__cuda_dialect, flux__cuda_matrices, flux__cuda_boxes, flux__cu_fragment,
    flux__cu_open, flux__cu_count, flux__cu_device, flux__cu_enter, flux__cu_leave, flux__cu_close,
    flux__cu_stream, flux__cu_stream_wait, flux__cu_stream_free,
    flux__cu_event, flux__cu_event_record, flux__cu_event_wait, flux__cu_event_query,
    flux__cu_event_before, flux__cu_event_free,
    flux__cu_alloc, flux__cu_release, flux__cu_pinned, flux__cu_unpin, flux__cu_up, flux__cu_down,
    flux__cu_across, flux__cu_peer,
    flux__cu_room, flux__cu_load, flux__cu_unload, flux__cu_find, flux__cu_map,
    flux__cu_reserve, flux__cu_launch,
    flux__cu_has_graphs, flux__cu_graph, flux__cu_graph_add, flux__cu_graph_child,
    flux__cu_graph_event, flux__cu_capture, flux__cu_captured, flux__cu_graph_ready,
    flux__cu_graph_set, flux__cu_graph_event_set, flux__cu_graph_launch,
    flux__cu_graph_free,
    flux__cu_error, flux__cu_lost,
    flux__nvrtc_open, flux__nvrtc_named, flux__nvrtc_taken, &flux__nvrtc, flux__nvrtc_compile,
    flux__cuda_parts, flux__cuda_has
};
