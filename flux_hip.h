/* flux_hip.h - what HIP adds to flux.h: AMD's driver calls, its compiler's, and its dialect, the
   text that defines what C lacks. flux.h includes this file when FLUX_HIP is defined; keep the two
   side by side. Public domain or MIT, as flux.h.

   Nothing of ROCm's is needed to build. At run time the driver (libamdhip64) is opened and, when a
   kernel is to be compiled, hiprtc: by the paths in FLUX_HIP_LIBRARY and FLUX_HIPRTC, else by their
   file names, searched where the system does and in the lib folders of ROCM_PATH, HIP_PATH and
   /opt/rocm. If there is no file of hiprtc, it may be inside libamdhip64. All declarations are our
   own; their types have the size and meaning of the driver's. HIP's calls use the device that is
   current on the thread: it is set before a call and set back afterwards. */

typedef struct flux__roc_calls {
    int (*Init)(unsigned flags);
    int (*GetDeviceCount)(int *n);
    int (*GetDevice)(int *id);
    int (*SetDevice)(int id);
    int (*DeviceGetName)(char *name, int length, int device);
    int (*DeviceGetAttribute)(int *value, int attribute, int device);
    int (*GetDeviceProperties)(void *properties, int id);
    int (*StreamCreateWithFlags)(void **stream, unsigned flags);
    int (*StreamSynchronize)(void *stream);
    int (*StreamDestroy)(void *stream);
    int (*StreamWaitEvent)(void *stream, void *event, unsigned flags);
    int (*EventCreateWithFlags)(void **event, unsigned flags);
    int (*EventRecord)(void *event, void *stream);
    int (*EventSynchronize)(void *event);
    int (*EventQuery)(void *event);
    int (*EventDestroy)(void *event);
    int (*Malloc)(void **p, size_t bytes);
    int (*Free)(void *p);
    int (*HostMalloc)(void **p, size_t bytes, unsigned flags);
    int (*HostFree)(void *p);
    int (*MemcpyHtoDAsync)(void *dst, void *src, size_t bytes, void *stream);
    int (*MemcpyDtoHAsync)(void *dst, void *src, size_t bytes, void *stream);
    int (*MemcpyDtoDAsync)(void *dst, void *src, size_t bytes, void *stream);
    int (*MemcpyPeerAsync)(void *dst, int to, const void *src, int from, size_t bytes,
                           void *stream);
    int (*MemGetInfo)(size_t *available, size_t *total);
    int (*ModuleLoadData)(void **module, const void *image);
    int (*ModuleUnload)(void *module);
    int (*ModuleGetFunction)(void **function, void *module, const char *name);
    int (*ModuleLaunchKernel)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                              unsigned by, unsigned bz, unsigned shared, void *stream, void **args,
                              void **extra);
    const char *(*GetErrorString)(int code);
    int (*GraphCreate)(void **graph, unsigned flags);
    int (*GraphAddKernelNode)(void **node, void *graph, void *const *after, size_t n,
                              const void *launch);
    int (*GraphInstantiateWithFlags)(void **exec, void *graph, unsigned long long flags);
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
} flux__roc_calls;

/* hipKernelNodeParams; in newer runtimes `function` may also be a module's */
typedef struct flux__roc_node {
    unsigned block[3];
    void **extra, *function;
    unsigned grid[3];
    void **args;
    unsigned shared;
} flux__roc_node;
static flux__roc_calls flux__roc;
static void *flux__roc_library;           /* the runtime, which may contain hiprtc */

#define FLUX__ROC_CALLS(X) \
    X(Init) X(GetDeviceCount) X(GetDevice) X(SetDevice) X(DeviceGetName) X(DeviceGetAttribute) X(GetDeviceProperties) \
    X(StreamCreateWithFlags) X(StreamSynchronize) X(StreamDestroy) X(StreamWaitEvent) X(EventCreateWithFlags) \
    X(EventRecord) X(EventSynchronize) X(EventQuery) X(EventDestroy) X(Malloc) X(Free) X(HostMalloc) X(HostFree) X(MemcpyHtoDAsync) \
    X(MemcpyDtoHAsync) X(MemcpyDtoDAsync) X(MemcpyPeerAsync) X(MemGetInfo) X(ModuleLoadData) X(ModuleUnload) \
    X(ModuleGetFunction) X(ModuleLaunchKernel) X(GetErrorString)
/* Graphs; without them kernels are launched one by one */
#define FLUX__ROC_GRAPH_CALLS(X) \
    X(GraphCreate) X(GraphAddKernelNode) X(GraphInstantiateWithFlags) X(GraphExecKernelNodeSetParams) X(GraphLaunch) \
    X(GraphExecDestroy) X(GraphDestroy) X(GraphAddChildGraphNode) X(GraphAddEventRecordNode) \
    X(GraphExecEventRecordNodeSetEvent) X(StreamBeginCapture) X(StreamEndCapture)
static const flux__symbol flux__roc_names[] = {
#define FLUX__ROC(call) { "hip" #call, offsetof(flux__roc_calls, call), false },
    FLUX__ROC_CALLS(FLUX__ROC)
#undef FLUX__ROC
#define FLUX__ROC(call) { "hip" #call, offsetof(flux__roc_calls, call), true },
    FLUX__ROC_GRAPH_CALLS(FLUX__ROC)
#undef FLUX__ROC
};
static bool flux__roc_graphs;

static const char *flux__roc_error(int code, char number[FLUX__GPU_NUMBER]) {
    (void)number;                         /* HIP has a text for every code */
    const char *text = flux__roc.GetErrorString ? flux__roc.GetErrorString(code) : NULL;
    return text ? text : "unknown HIP error";
}

/* Opens a library: by the path in the environment variable `set`, or by its file names, newest
   first, by themselves and then in ROCm's folders. */
static void *flux__roc_find(const char *set, const char *const *files) {
    const char *path = set ? flux__env(set) : NULL,
        *homes[] = { flux__env("ROCM_PATH"), flux__env("HIP_PATH"), "/opt/rocm" };
    void *library = path ? flux__library_open(path) : NULL;
    if (path) return library;             /* the user chose it, whether it opened or not */
    for (int f = 0; files[f] && !library; f++) library = flux__library_open(files[f]);
    for (int h = 0; h < 3 && !library; h++)
        for (int f = 0; homes[h] && files[f] && !library; f++) {
            char at[600];
            snprintf(at, sizeof at, "%s/lib/%s", homes[h], files[f]);
            library = flux__library_open(at);
        }
    return library;
}

static void *flux__roc_named(const char *file) {
    const char *const files[] = { file, NULL };
    return flux__roc_find(NULL, files);
}

/* Opens the HIP runtime and finds its calls; `why` says what failed. */
static bool flux__roc_open(char *why, size_t n) {
    static int state;                     /* 1: open */
#if defined(_WIN32)
    static const char *const files[] = { "amdhip64_7.dll", "amdhip64_6.dll", "amdhip64.dll", NULL };
#else
    static const char *const files[] = { "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5",
                                         "libamdhip64.so", NULL };
#endif
    if (state == 1) return true;
    void *library = flux__roc_find("FLUX_HIP_LIBRARY", files);
    if (!library && flux__env("FLUX_HIP_LIBRARY"))
        return flux__library_why(why, n, "HIP runtime", "FLUX_HIP_LIBRARY"), false;
    if (!library)
        return snprintf(why, n,
                        "no HIP runtime: libamdhip64 is not among the system's libraries, "
                        "nor under ROCM_PATH, HIP_PATH or /opt/rocm"), false;
    flux__roc_graphs = true;
    for (size_t i = 0; i < sizeof flux__roc_names / sizeof *flux__roc_names; i++) {
        const char *name = flux__roc_names[i].name;
        void *at = (char *)&flux__roc + flux__roc_names[i].at;
        /* ROCm 6 renamed this call */
        bool renamed = strcmp(name, "hipGetDeviceProperties") == 0 &&
                       flux__library_symbol(library, "hipGetDevicePropertiesR0600", at,
                                            sizeof(void *));
        if (renamed || flux__library_symbol(library, name, at, sizeof(void *))) continue;
        if (!flux__roc_names[i].spare)
            return snprintf(why, n, "the HIP runtime is too old: it has no %s", name), false;
        flux__roc_graphs = false;
    }
    flux__roc_library = library;          /* for hiprtc, even if Init fails */
    char number[FLUX__GPU_NUMBER];
    int code = flux__roc.Init(0);
    if (code != 0)
        return snprintf(why, n, "the HIP runtime did not start: %s", flux__roc_error(code, number)),
               false;
    state = 1;
    return true;
}

static int flux__roc_count(void) {
    int n = 0;
    return flux__roc.GetDeviceCount && flux__roc.GetDeviceCount(&n) == 0 ? n : 0;
}

static int flux__roc_enter(int id, void **before) {
    int was = 0, code = flux__roc.GetDevice(&was);
    *before = (void *)(intptr_t)was;
    return code != 0 || was == id ? code : flux__roc.SetDevice(id);
}
static void flux__roc_leave(void *before) {
    int now = 0, was = (int)(intptr_t)before;
    if (flux__roc.GetDevice(&now) == 0 && now != was) flux__roc.SetDevice(was);
}

static void flux__roc_close(int id) { (void)id; }

/* What a device is. The architecture's name is in a struct that has grown over the years, so it
   is searched for: it is the only text after the device's name that starts with gfx. Features
   follow it after a colon, and the compiler knows them. */
static int flux__roc_device(int id, flux__gpu_info *info) {
    char *properties = (char *)flux__zalloc(16384);
    memset(info, 0, sizeof *info);
    if (!properties) return 2;            /* hipErrorOutOfMemory */
    int code = flux__roc.GetDeviceProperties(properties, id);
    if (code == 0) snprintf(info->model, sizeof info->model, "%.70s", properties);
    for (int i = 256; i < 16000 && code == 0; i++)
        if (memcmp(properties + i, "gfx", 3) == 0) {
            snprintf(info->arch, sizeof info->arch, "%.*s", (int)strcspn(properties + i, ":"),
                     properties + i);
            break;
        }
    /* attribute 63: MultiprocessorCount */
    if (code == 0) code = flux__roc.DeviceGetAttribute(&info->multiprocessors, 63, id);
    FLUX_FREE(properties);
    return code;
}

/* Flag 1 is hipStreamNonBlocking. */
static int flux__roc_stream(void **s) {
    return flux__roc.StreamCreateWithFlags(s, 1);
}
static int flux__roc_stream_wait(void *s) { return flux__roc.StreamSynchronize(s); }
static void flux__roc_stream_free(void *s) { flux__roc.StreamDestroy(s); }
/* Flag 2 is hipEventDisableTiming. */
static int flux__roc_event(void **e) {
    return flux__roc.EventCreateWithFlags(e, 2);
}
static int flux__roc_event_record(void *e, void *s) { return flux__roc.EventRecord(e, s); }
static int flux__roc_event_wait(void *e) { return flux__roc.EventSynchronize(e); }
static int flux__roc_event_query(void *e) { return flux__roc.EventQuery(e); }
static int flux__roc_event_before(void *e, void *s) { return flux__roc.StreamWaitEvent(s, e, 0); }
static void flux__roc_event_free(void *e) { flux__roc.EventDestroy(e); }
static int flux__roc_alloc(void **p, size_t bytes) { return flux__roc.Malloc(p, bytes); }
static void flux__roc_release(void *p) { flux__roc.Free(p); }
/* Flag 1 is hipHostMallocPortable: pinned for all devices. */
static int flux__roc_pinned(void **p, size_t bytes) {
    return flux__roc.HostMalloc(p, bytes, 1);
}
static void flux__roc_unpin(void *p) { flux__roc.HostFree(p); }
static int flux__roc_up(void *dst, const void *src, size_t n, void *s) {
    return flux__roc.MemcpyHtoDAsync(dst, (void *)(intptr_t)src, n, s);
}
static int flux__roc_down(void *dst, const void *src, size_t n, void *s) {
    return flux__roc.MemcpyDtoHAsync(dst, (void *)(intptr_t)src, n, s);
}
static int flux__roc_across(void *dst, const void *src, size_t n, void *s) {
    return flux__roc.MemcpyDtoDAsync(dst, (void *)(intptr_t)src, n, s);
}
static int flux__roc_peer(void *dst, int to, const void *src, int from, size_t n, void *s) {
    return flux__roc.MemcpyPeerAsync(dst, to, src, from, n, s);
}
static int flux__roc_room(size_t *available, size_t *total) {
    return flux__roc.MemGetInfo(available, total);
}
static int flux__roc_load(void **module, const void *image) {
    return flux__roc.ModuleLoadData(module, image);
}
static void flux__roc_unload(void *module) { flux__roc.ModuleUnload(module); }
static int flux__roc_function(void **function, void *module, const char *name) {
    return flux__roc.ModuleGetFunction(function, module, name);
}
static int flux__roc_launch(void *function, const unsigned *grid, unsigned threads,
                            unsigned shared, void *stream, void **args) {
    return flux__roc.ModuleLaunchKernel(function, grid[0], grid[1], grid[2], threads, 1, 1, shared,
                                        stream, args, NULL);
}
static bool flux__roc_has_graphs(void) { return flux__roc_graphs; }
static int flux__roc_graph(void **graph) { return flux__roc.GraphCreate(graph, 0); }
static flux__roc_node flux__roc_launch_node(void *function, const unsigned *grid, unsigned threads,
                                            unsigned shared, void **args) {
    flux__roc_node k;
    memset(&k, 0, sizeof k);
    k.function = function, k.args = args, k.shared = shared;
    memcpy(k.grid, grid, sizeof k.grid);
    k.block[0] = threads, k.block[1] = k.block[2] = 1;
    return k;
}
static int flux__roc_graph_add(void **node, void *graph, void *const *after, size_t n,
                               void *function, const unsigned *grid, unsigned threads,
                               unsigned shared, void **args) {
    flux__roc_node k = flux__roc_launch_node(function, grid, threads, shared, args);
    return flux__roc.GraphAddKernelNode(node, graph, after, n, &k);
}
static int flux__roc_graph_child(void **node, void *graph, void *const *after, size_t n,
                                 void *child) {
    return flux__roc.GraphAddChildGraphNode(node, graph, after, n, child);
}
static int flux__roc_graph_event(void **node, void *graph, void *const *after, size_t n,
                                 void *event) {
    return flux__roc.GraphAddEventRecordNode(node, graph, after, n, event);
}
/* 1: other threads may call what they like meanwhile */
static int flux__roc_capture(void *stream) { return flux__roc.StreamBeginCapture(stream, 1); }
static int flux__roc_captured(void *stream, void **graph) {
    return flux__roc.StreamEndCapture(stream, graph);
}
static int flux__roc_graph_ready(void **exec, void *graph) {
    return flux__roc.GraphInstantiateWithFlags(exec, graph, 0);
}
static int flux__roc_graph_set(void *exec, void *node, void *function, const unsigned *grid,
                               unsigned threads, unsigned shared, void **args) {
    flux__roc_node k = flux__roc_launch_node(function, grid, threads, shared, args);
    return flux__roc.GraphExecKernelNodeSetParams(exec, node, &k);
}
static int flux__roc_graph_event_set(void *exec, void *node, void *event) {
    return flux__roc.GraphExecEventRecordNodeSetEvent(exec, node, event);
}
static int flux__roc_graph_launch(void *exec, void *stream) {
    return flux__roc.GraphLaunch(exec, stream);
}
static void flux__roc_graph_free(void *graph, void *exec) {
    if (exec) flux__roc.GraphExecDestroy(exec);
    if (graph) flux__roc.GraphDestroy(graph);
}
/* Errors after which the device takes no calls, with CUDA's codes: the driver has shut down,
   memory has failed, an illegal address, a launch that took too long, a context that was
   destroyed, an assertion, a launch that failed. */
static bool flux__roc_lost(int code) {
    static const short codes[] = { 4, 214, 700, 702, 709, 710, 719 };
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i] == code) return true;
    return false;
}

/* ---- hiprtc */

typedef struct flux__hiprtc_calls {
    int (*Version)(int *major, int *minor);
    int (*CreateProgram)(void **program, const char *source, const char *name, int nheaders,
                         const char **headers, const char **names);
    int (*CompileProgram)(void *program, int noptions, const char **options);
    int (*GetProgramLogSize)(void *program, size_t *bytes);
    int (*GetProgramLog)(void *program, char *log);
    int (*GetCodeSize)(void *program, size_t *bytes);
    int (*GetCode)(void *program, char *image);
    int (*DestroyProgram)(void **program);
    const char *(*GetErrorString)(int code);
} flux__hiprtc_calls;
static flux__hiprtc_calls flux__hiprtc;
static char flux__hiprtc_version[40];

#define FLUX__HIPRTC_CALLS(X) \
    X(Version) X(CreateProgram) X(CompileProgram) X(GetProgramLogSize) X(GetProgramLog) X(GetCodeSize) X(GetCode) \
    X(DestroyProgram) X(GetErrorString)
static const flux__symbol flux__hiprtc_names[] = {
#define FLUX__RTC(call) { "hiprtc" #call, offsetof(flux__hiprtc_calls, call), false },
    FLUX__HIPRTC_CALLS(FLUX__RTC)
#undef FLUX__RTC
};

static bool flux__hiprtc_all(void *library) {
    for (size_t i = 0; i < sizeof flux__hiprtc_names / sizeof *flux__hiprtc_names; i++)
        if (!flux__library_symbol(library, flux__hiprtc_names[i].name,
                                  (char *)&flux__hiprtc + flux__hiprtc_names[i].at, sizeof(void *)))
            return false;
    return true;
}

/* Opens hiprtc and finds its calls; `why` says what failed. */
static bool flux__hiprtc_open(char *why, size_t n) {
#if defined(_WIN32)
    static const char *const files[] = {
        "hiprtc0702.dll", "hiprtc0701.dll", "hiprtc0700.dll", "hiprtc0604.dll", "hiprtc0603.dll",
        "hiprtc0602.dll", "hiprtc0601.dll", "hiprtc0600.dll", "hiprtc0507.dll", "hiprtc0506.dll",
        "hiprtc0505.dll", "hiprtc.dll", NULL };
#else
    static const char *const files[] = { "libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5",
                                         "libhiprtc.so", NULL };
#endif
    int major = 0, minor = 0;
    if (*flux__hiprtc_version) return true;
    void *library = flux__roc_find("FLUX_HIPRTC", files);
    if (!library && flux__env("FLUX_HIPRTC"))
        return flux__library_why(why, n, "hiprtc", "FLUX_HIPRTC"), false;
    if (!library) library = flux__roc_library;    /* until ROCm 6 the runtime contained it */
    if (!library || !flux__hiprtc_all(library))
        return snprintf(why, n,
                        "no hiprtc: it is not among the system's libraries, nor under ROCM_PATH, "
                        "HIP_PATH or /opt/rocm"), false;
    if (flux__hiprtc.Version(&major, &minor) != 0)
        return snprintf(why, n, "hiprtc does not answer"), false;
    snprintf(flux__hiprtc_version, sizeof flux__hiprtc_version, "hiprtc %d.%d", major, minor);
    return true;
}
static const char *flux__hiprtc_named(void) { return flux__hiprtc_version; }
static bool flux__hiprtc_taken(const char *version) { return strncmp(version, "hiprtc ", 7) == 0; }

/* Compiles source text for an architecture: 0 and the image, or the error's code and the log. */
static int flux__hiprtc_compile(const char *source, const char *arch, char **log, void **image,
                                size_t *bytes) {
    char option[80];
    const char *options[] = { option, "-O3", "-ffp-contract=off", "-std=c++17" };
    void *program = NULL;
    size_t n = 0;
    snprintf(option, sizeof option, "--offload-arch=%s", arch);
    *log = NULL, *image = NULL, *bytes = 0;
    int code = flux__hiprtc.CreateProgram(&program, source, "flux.hip", 0, NULL, NULL);
    if (code != 0) return flux__log_code(log, code, flux__hiprtc.GetErrorString(code));
    code = flux__hiprtc.CompileProgram(program, 4, options);
    if (code != 0 && flux__hiprtc.GetProgramLogSize(program, &n) == 0 &&
        (*log = (char *)flux__zalloc(n + 1)) != NULL)
        flux__hiprtc.GetProgramLog(program, *log);
    if (code == 0) code = flux__hiprtc.GetCodeSize(program, bytes);
    if (code == 0 && (*image = flux__zalloc(*bytes + 1)) != NULL)
        code = flux__hiprtc.GetCode(program, (char *)*image);
    flux__hiprtc.DestroyProgram(&program);
    return flux__log_code(log, code, flux__hiprtc.GetErrorString(code));
}

/* Whether a component is there. hiprtc contains lld and the device libraries; flux.h does not
   use the other libraries, but a program may ask for them. */
static bool flux__hip_has(const char *name) {
    static const char *const libraries[][2] = {
        { "RCCL", "rccl" }, { "NCCL", "rccl" }, { "rocblas", "rocblas" },
        { "rocsolver", "rocsolver" }, { "rocsparse", "rocsparse" }, { "rocrand", "rocrand" },
        { "rocfft", "rocfft" }, { "hiptensor", "hiptensor" }, { "MIOpen", "MIOpen" } };
    char why[320];
    if (strcmp(name, "hip") == 0) return true;
    if (strcmp(name, "hiprtc") == 0 || strcmp(name, "lld") == 0 || strcmp(name, "device_libs") == 0)
        return flux__hiprtc_open(why, sizeof why);
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++)
        if (strcmp(name, libraries[i][0]) == 0)
            return flux__library_numbered(flux__roc_named, libraries[i][1]) != NULL;
    return false;
}

/* The matrix cores' instruction for a dtype: mfma on the chips made for computing, which also
   multiply f32 in full precision, wmma on RDNA 3 and 4. */
static const flux__fragment *flux__roc_fragment(const char *arch, int dtype, bool tf32) {
    static const char *const archs[] = { "gfx908", "gfx90a", "gfx940", "gfx941", "gfx942", "gfx950",
                                         NULL };
    static const flux__fragment f16[] = { { "f16", 16, 64, 2, false, false, true },
                                          { "f16", 16, 32, 8, false, false, true },
                                          { "f16", 16, 32, 4, false, false, true } },
        bf16[] = { { "bf16", 16, 64, 2, false, false, true },
                   { "bf16", 16, 32, 8, false, false, true },
                   { "bf16", 16, 32, 4, false, false, true } },
        f32 = { "f32", 4, 64, 1, false, false, true };
    const int kind = flux__in_list(arch, archs) ? 0
                   : strncmp(arch, "gfx110", 6) == 0 || strncmp(arch, "gfx115", 6) == 0 ? 1
                   : strncmp(arch, "gfx120", 6) == 0 ? 2 : -1;
    (void)tf32;
    if (kind < 0) return NULL;
    return dtype == FLUX_F16 ? &f16[kind] : dtype == FLUX_BF16 ? &bf16[kind]
         : dtype == FLUX_F32 && kind == 0 ? &f32 : NULL;
}

/* The text of a function for one instruction, `call`: d += x y. T is the type of a lane's part of
   x and y, S of its sums. */
#define FLUX__ROC_MMA(name, T, S, call)                                                                                         \
    "DEVICE void mma_" name "(float *d, const unsigned *a, const unsigned *b) {\n"                                               \
    "    " T " x, y; " S " z;\n"                                                                                              \
    "    __builtin_memcpy(&x, a, sizeof x), __builtin_memcpy(&y, b, sizeof y), __builtin_memcpy(&z, d, sizeof z);\n"                   \
    "    z = __builtin_amdgcn_" call ";\n    __builtin_memcpy(d, &z, sizeof z);\n}\n"
#define FLUX__ROC_MFMA(name, T, type)                                                                                            \
    FLUX__ROC_MMA(name, T, "float_x4", "mfma_f32_16x16x" type "(x, y, z, 0, 0, 0)")
#define FLUX__ROC_WMMA(name, T, type)                                                                                            \
    FLUX__ROC_MMA(name, T, "float_x8", "wmma_f32_16x16x16_" type "(x, y, z)")

static const char flux__hip_dialect[] =
    "#define DEVICE static __device__ __forceinline__\n"
    /* BLOCKS is empty, since the second number of HIP's launch bounds counts something else */
    "#define ALIGN16 __attribute__((aligned(16)))\n#define ALIGN8 __attribute__((aligned(8)))\n"
    "#define BLOCKS(n)\n#define FULLY _Pragma(\"unroll\")\n#define ACROSS(v, w) __shfl_xor(v, w)\n"
    "#define INF FLOAT_OF(0x7f800000u)\n"
    /* where the compiler may not load ahead: on RDNA it would spill what it loads */
    "#if defined(__HIP_DEVICE_COMPILE__) && (defined(__GFX11__) || defined(__GFX12__))\n"
    "#define APART __builtin_amdgcn_sched_barrier(0)\n#else\n#define APART\n#endif\n"
    "#define FLOAT_OF(u) __uint_as_float(u)\n#define BITS_OF(x) __float_as_uint(x)\n"
    "#if defined(__HIP_DEVICE_COMPILE__)\n"
    "DEVICE float f16_float(unsigned short h) { _Float16 x; __builtin_memcpy(&x, &h, 2); "
    "return (float)x; }\n"
    "DEVICE unsigned short float_f16(float f) { _Float16 x = (_Float16)f; unsigned short h; "
    "__builtin_memcpy(&h, &x, 2); return h; }\n"
    "DEVICE float near_inverse(float x) { return __builtin_amdgcn_rcpf(x); }\n"
    "#else\n" FLUX__SOFT_HALF
    "DEVICE float near_inverse(float x) { return 1.0f / x; }\n#endif\n"
    "DEVICE float near_exp2(float x) { return exp2f(x); }\n";

/* Loads and multiplies fragments. In an mfma instruction a lane has row lane % 16 of a (column
   lane % 16 of b), and along the inner dim element number lane / 16 or, of half floats, four
   neighbours. */
static const char flux__hip_matrices[] =
    "#if defined(__HIP_DEVICE_COMPILE__)\n"
    "#define VECTOR(T, n, name) typedef T name __attribute__((ext_vector_type(n)));\n"
    "VECTOR(_Float16, 4, half_x4)\nVECTOR(_Float16, 8, half_x8)\nVECTOR(_Float16, 16, half_x16)\n"
    "#else\n"
    "#define VECTOR(T, n, name) typedef struct { T x[n]; } name;\n"
    "VECTOR(unsigned short, 4, half_x4)\nVECTOR(unsigned short, 8, half_x8)\n"
    "VECTOR(unsigned short, 16, half_x16)\n"
    "#endif\n"
    "VECTOR(float, 4, float_x4)\nVECTOR(float, 8, float_x8)\nVECTOR(short, 2, short_x2)\n"
    "VECTOR(short, 4, short_x4)\nVECTOR(short, 8, short_x8)\nVECTOR(short, 16, short_x16)\n"
    "DEVICE int mma_col(int e) { return (int)threadIdx.x % 16; }\n"
    "#if !defined(__GFX11__) && !defined(__GFX12__)\n"
    "DEVICE int mma_row(int e) { return (int)threadIdx.x % 64 / 16 * 4 + e; }\n"
    "#endif\n"
    "#if defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx941__) "
    "|| defined(__gfx942__) || defined(__gfx950__)\n"
    "DEVICE void mma_a_f16(unsigned *r, const unsigned short *t, int row, int in) {\n"
    "    const unsigned short *p = t + (int)threadIdx.x % 16 * row + (int)threadIdx.x % 64 / 16 * "
    "4 * in;\n"
    "    r[0] = p[0] | (unsigned)p[in] << 16, r[1] = p[2 * in] | (unsigned)p[3 * in] << 16;\n}\n"
    "DEVICE void mma_a_f32(unsigned *r, const float *t, int row, int in) {\n"
    "    r[0] = BITS_OF(t[(int)threadIdx.x % 16 * row + (int)threadIdx.x % 64 / 16 * in]);\n}\n"
    "#define mma_b_f16 mma_a_f16\n#define mma_a_bf16 mma_a_f16\n#define mma_b_bf16 mma_a_f16\n"
    "#define mma_b_f32 mma_a_f32\n"
    FLUX__ROC_MFMA("f16", "half_x4", "16f16") FLUX__ROC_MFMA("f32", "float", "4f32")
    /* gfx908's instruction takes half of the inner dim: two are issued, and their order in the
       inner dim is free */
    "#if defined(__gfx908__)\n"
    FLUX__ROC_MFMA("bf16_8", "short_x2", "8bf16")
    "DEVICE void mma_bf16(float *d, const unsigned *a, const unsigned *b) { mma_bf16_8(d, a, b), "
    "mma_bf16_8(d, a + 1, b + 1); }\n"
    "#else\n" FLUX__ROC_MFMA("bf16", "short_x4", "16bf16_1k") "#endif\n"
    "#endif\n";

/* In a wmma instruction a lane has eight neighbours of the inner dim or, on gfx11, all sixteen,
   as lane + 16 has them. Its sums are of rows 2 e + lane / 16 there: rows of a are exchanged, so
   that they are neighbours, as on gfx12. */
static const char flux__hip_wave_matrices[] =
    "#if defined(__GFX11__) || defined(__GFX12__)\n"
    "DEVICE int mma_row(int e) { return (int)threadIdx.x % 32 / 16 * 8 + e; }\n"
    "DEVICE void mma_load(unsigned *r, const unsigned short *p, int in) {\n"
    "#if defined(__GFX11__)\n    enum { WORDS = 8 };\n"
    "#else\n    enum { WORDS = 4 };\n    p += (int)threadIdx.x % 32 / 16 * 8 * in;\n#endif\n"
    "    FULLY\n    for (int i = 0; i < WORDS; i++) "
    "r[i] = p[2 * i * in] | (unsigned)p[(2 * i + 1) * in] << 16;\n}\n"
    "DEVICE void mma_b_f16(unsigned *r, const unsigned short *t, int col, int in) {\n"
    "    mma_load(r, t + (int)threadIdx.x % 16 * col, in);\n}\n"
    "#if defined(__GFX11__)\n"
    "DEVICE void mma_a_f16(unsigned *r, const unsigned short *t, int row, int in) {\n"
    "    mma_load(r, t + ((int)threadIdx.x % 2 * 8 + (int)threadIdx.x % 16 / 2) * row, in);\n}\n"
    /* of eight rows of each half of a warp, in four words, all sixteen */
    "DEVICE void mma_share(unsigned *r) {\n"
    "    const int second = (int)threadIdx.x % 32 / 16;\n    FULLY\n"
    "    for (int i = 0; i < 4; i++) {\n    const unsigned other = ACROSS(r[i], 16);\n"
    "    r[i + 4] = second ? r[i] : other, r[i] = second ? other : r[i];\n    }\n}\n"
    FLUX__ROC_WMMA("f16", "half_x16", "f16_w32") FLUX__ROC_WMMA("bf16", "short_x16", "bf16_w32")
    "#else\n#define mma_a_f16 mma_b_f16\n"
    FLUX__ROC_WMMA("f16", "half_x8", "f16_w32_gfx12")
    FLUX__ROC_WMMA("bf16", "short_x8", "bf16_w32_gfx12")
    "#endif\n#define mma_a_bf16 mma_a_f16\n#define mma_b_bf16 mma_b_f16\n"
    "#endif\n";

static const flux__driver flux__hip_driver = {
    "AMDGPU", flux__hip_dialect, flux__hip_matrices, flux__hip_wave_matrices, flux__roc_fragment,
    flux__roc_open, flux__roc_count, flux__roc_device, flux__roc_enter, flux__roc_leave,
    flux__roc_close, flux__roc_stream, flux__roc_stream_wait, flux__roc_stream_free,
    flux__roc_event, flux__roc_event_record, flux__roc_event_wait, flux__roc_event_query,
    flux__roc_event_before, flux__roc_event_free,
    flux__roc_alloc, flux__roc_release, flux__roc_pinned, flux__roc_unpin, flux__roc_up,
    flux__roc_down, flux__roc_across, flux__roc_peer,
    flux__roc_room, flux__roc_load, flux__roc_unload, flux__roc_function, NULL,
    NULL, flux__roc_launch,
    flux__roc_has_graphs, flux__roc_graph, flux__roc_graph_add, flux__roc_graph_child,
    flux__roc_graph_event, flux__roc_capture, flux__roc_captured, flux__roc_graph_ready,
    flux__roc_graph_set, flux__roc_graph_event_set, flux__roc_graph_launch,
    flux__roc_graph_free,
    flux__roc_error, flux__roc_lost,
    flux__hiprtc_open, flux__hiprtc_named, flux__hiprtc_taken, &flux__hiprtc, flux__hiprtc_compile,
    flux__amd_parts, flux__hip_has
};
