/* softgpu.h - a GPU made of software, for tests: what its parts agree on.

   libcuda.so.1 and libamdhip64.so.6 (driver.c with cuda.c or hip.c) are what a program loads. They queue its work and
   hand it to one device process a device (device.c), which maps the device's memory at the addresses that the program
   holds but cannot touch. libnvrtc.so.13 and libhiprtc.so.6 (compiler.c) make images: a header and a shared library
   compiled by the host's compiler from the kernel source behind a prelude (prelude.c).

   A program finds them as it finds the real ones, by LD_LIBRARY_PATH, and cannot tell the difference but by their
   strictness: nothing is done before something waits for it, streams take turns in changing order, device memory has
   nothing behind its addresses in the program, what is freed or never was faults, and so does host memory in a kernel.
   The device process, softgpu-device, must lie beside them, and softgpu-cc.so (server.c) should. Linux, and x86-64 for speed.

   Environment, read when a library is first used:
     SOFTGPU_DEVICES=1           how many, 8 at most; CUDA_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES pick among them
     SOFTGPU_MEMORY=268435456    bytes that each has, 3 GiB at most
     SOFTGPU_FILL=0xFF           the byte that new device, pinned and shared memory is full of: all ones are NaN in any float
     SOFTGPU_ARCH=90             what they are: digits for CUDA (with a or f at will), gfx... for HIP (gfx90a)
     SOFTGPU_COMPILER_VERSION=12.9   what the run-time compiler says that it is; else NVRTC says what its file's name says
     SOFTGPU_PEER=1              0: no device reaches another's memory
     SOFTGPU_DRIVER_VERSION=13000    CUDA's; what a compiler of a later number than its made is refused
     SOFTGPU_FAIL=               function:nth=code,... as softgpu_fail() below
     SOFTGPU_LATE=0              microseconds that each call of the libraries waits before it is done, as on a busy machine
     SOFTGPU_TIMEOUT=120         seconds after which a batch of work is given up, error 702; 0: never
     SOFTGPU_QUIET=              if set, nothing is said on stderr when a device is lost
     SOFTGPU_CC=                 compiles kernels; unset: tcc if there is one, or cc -O0, which stays for many (server.c), and
                                 cc -O1 once more what has run for long (device.c)
     SOFTGPU_ORDER=0             a number for each order in which threads, warps and blocks may take turns
     SOFTGPU_RACES=              if set, compiles them so that races fail the launch, as do reads of shared memory that
                                 nobody wrote, accesses that are not aligned (race.c) and undefined behaviour (error 715)
     SOFTGPU_CACHE=              folder of compiled kernels: $TMPDIR/softgpu-<user>, or in /tmp; may be removed at any time
     SOFTGPU_PTX=                a real NVRTC's library: kernels are the PTX that it makes, become C (ptx.c); "source": the
                                 sources are PTX themselves
     SOFTGPU_SOURCES=            folder that gets each program that is compiled, as ARCH-HASH.txt
     SOFTGPU_PROCESS=            the device process, if not beside the libraries
   Each library exports, for tests to find by dlsym:
     void softgpu_fail(const char *function, int nth, int code)   its nth next call gives the code, once; "execute" is a
                                                                  kernel's run, whose failure loses the device
     long softgpu_calls(const char *function)                     since the start, or softgpu_reset_counts(), which also
                                                                  forgets faults that have not come up; "pageable" counts
                                                                  asynchronous copies of host memory that is not pinned,
                                                                  "setrlimit" what NVRTC compiled with the process's
                                                                  limit of the stack raised
     long softgpu_live(const char *what)   "memory" (allocations), "bytes" (in multiples of 256), "pinned", "streams",
                                           "events", "modules", "graphs"; "lost" (devices), "overruns" (writes just
                                           outside an allocation, seen when it was freed); of the compilers "programs"
   A driver has its end registered by atexit, when it starts and with the first context; a call that comes later ends the
   program with status 97.
   Of a graph made node by node only kernels are known, and it runs in an order that its dependencies allow, not in the one
   in which the nodes were added.
   Limits: a kernel source is C99 with the words of prelude.c, each kernel written `extern "C" __global__ void name(type
   name, ...) {`, no `extern "C" {`. Of PTX within asm() it knows conversions of half floats, mma, ldmatrix and cp.async,
   one instruction a statement, as the architecture has them; of AMD's builtins mfma and wmma on 16 x 16 sums. Their layouts are the
   manuals', and what cp.async copies is there when a thread has waited for it, not before. Tensor maps, of three dims,
   are only for kernels that are PTX (SOFTGPU_PTX), which has mbarriers, boxes, wgmma, setmaxnreg (async.c). Globals of a module keep their values as long as the device process lives. Static
   shared memory is summed over a module's kernels. An integer division by zero faults. In a program started without
   address randomisation a stray host pointer may be an address of the device process.

   Memory: each device has a span of addresses of its own, the same in every process, and pinned host memory another.
   The file behind a span is a memfd. A program's process reserves the spans with no access, and gives access to the
   pinned blocks alone. The bases lie where neither an executable, nor a stack, nor a sanitiser's shadow does. */
#ifndef SOFTGPU_H
#define SOFTGPU_H
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define SOFT_MAX_DEVICES 8
#define SOFT_SPAN        ((uint64_t)4 << 30)
#define SOFT_CUDA_BASE   ((uint64_t)0x566000000000)
#define SOFT_HIP_BASE    ((uint64_t)0x567000000000)
#define SOFT_ADDRESS(base, device) ((base) + (uint64_t)(device) * SOFT_SPAN)  /* device SOFT_MAX_DEVICES: pinned memory */
#define SOFT_MOST_SHARED 232448                /* bytes of shared memory that a block may have */

/* The files that a device process is started with */
enum { SOFT_FD_SOCKET = 3, SOFT_FD_PINNED, SOFT_FD_MEMORY };  /* then one for each device */

/* ---------------- images: what a program takes for a cubin */

#define SOFT_MAGIC "SoftGPU"
typedef struct soft_image {
    char magic[8];
    char arch[56];                             /* "90", "90a" or "gfx90a" */
    int64_t version;                           /* of the compiler: 12090 */
    uint64_t bytes, hash;                      /* of what follows: a shared library, and its text */
    uint64_t text;                             /* bytes of the text in C, by which it may be compiled again; 0: there is none */
} soft_image;
/* How the host's compiler makes a shared library of a kernel's text; tcc knows none of these. */
#define SOFT_CC_FLAGS "-std=gnu11 -fgnu89-inline -fPIC -fvisibility=hidden -ffp-contract=off -fno-strict-aliasing " \
                      "-fno-math-errno -fno-asynchronous-unwind-tables -pipe -nostdlib"

#define SOFT_PTX "//\n// Generated for a software GPU\n//\n.target sm_"      /* then the arch, newline, the image in hex */

/* ---------------- CUtensorMap as cuTensorMapEncodeTiled fills it in: 128 bytes */

#define SOFT_MAP "SoftMap"
typedef struct soft_map {
    char magic[8];
    uint64_t at, dim[5], step[4];              /* bytes from one to the next of the dims behind the first */
    uint16_t box[5];
    unsigned char rank, bytes, swizzle;        /* bytes of an element; lines of 128 bytes are swizzled */
} soft_map;

/* ---------------- what such a shared library exports, by the name softgpu_module */

typedef struct soft_kernel {
    const char *name;
    const unsigned *size;                      /* of each parameter */
    unsigned count;
    void (*run)(void **args);                  /* the thread that threadIdx says */
} soft_kernel;

enum { SOFT_SHFL_INDEX, SOFT_SHFL_UP, SOFT_SHFL_DOWN, SOFT_SHFL_XOR, SOFT_SHFL_BALLOT, SOFT_SYNC_WARP };

typedef struct soft_module {
    const soft_kernel *kernel;
    unsigned kernels;
    int meets;                                 /* its threads have barriers or shuffles */
    int warp;                                  /* threads in one */
    int masks;                                 /* shuffles say who takes part (CUDA) */
    int sealed;                                /* tcc puts a section with a name where nothing may be written */
    unsigned *thread, *block, *block_size, *grid_size;                        /* three numbers each */
    char *shared, *shared_end;                 /* static shared memory, and 16 bytes of the prelude's */
    char *const *dynamic;                      /* arrays for dynamic shared memory, each of SOFT_MOST_SHARED and a page */
    unsigned dynamics;
    void (*barrier)(void);                     /* these are filled in by the device process */
    unsigned long long (*shuffle)(int kind, unsigned long long mask, unsigned long long value, int lane, int width);
    long long (*clock)(void);
} soft_module;

/* ---------------- what is sent to a device process: a batch of commands, answered once */

enum { SOFT_ACCESS, SOFT_LAUNCH, SOFT_COPY, SOFT_WRITE, SOFT_SET, SOFT_STAMP, SOFT_PEER, SOFT_LOAD };

typedef struct soft_batch { uint64_t bytes; uint32_t count, timeout; } soft_batch;    /* seconds */

typedef struct soft_command {
    uint32_t kind;
    uint32_t head;                             /* with what follows `data` here, a multiple of 16 */
    uint64_t bytes;                            /* that follow, or that are copied or set */
    uint64_t to, from;                         /* addresses; ACCESS, PEER: from is 0 or 1; LOAD: to is the hash, from the text's bytes */
    uint32_t module, kernel;
    uint32_t grid[3], block[3], shared, value;
} soft_command;                                /* LAUNCH: then each argument at a multiple of 16; WRITE, LOAD: then the bytes */

typedef struct soft_answer {
    int32_t status;                            /* a code of CUDA's or HIP's, which are the same here */
    uint32_t stamps;                           /* 64-bit nanoseconds that follow */
    uint64_t bytes;                            /* of text that follows those: a loaded module's kernels */
    char fault[240];
} soft_answer;

enum {
    SOFT_OK = 0, SOFT_INVALID_VALUE = 1, SOFT_OUT_OF_MEMORY = 2, SOFT_NOT_INITIALIZED = 3, SOFT_NO_DEVICE = 100,
    SOFT_INVALID_DEVICE = 101, SOFT_INVALID_IMAGE = 200, SOFT_INVALID_CONTEXT = 201, SOFT_NO_BINARY = 209,
    SOFT_PEER_UNSUPPORTED = 217, SOFT_UNSUPPORTED_PTX = 222, SOFT_OPERATING_SYSTEM = 304, SOFT_INVALID_HANDLE = 400, SOFT_NOT_FOUND = 500,
    SOFT_NOT_READY = 600, SOFT_ILLEGAL_ADDRESS = 700, SOFT_LAUNCH_TIMEOUT = 702, SOFT_PEER_ENABLED = 704,
    SOFT_ILLEGAL_INSTRUCTION = 715, SOFT_LAUNCH_FAILED = 719, SOFT_NOT_SUPPORTED = 801, SOFT_CAPTURE_UNSUPPORTED = 900,
    SOFT_CAPTURE_INVALIDATED = 901, SOFT_CAPTURE_MERGE = 902, SOFT_CAPTURE_UNMATCHED = 903,
    SOFT_CAPTURE_UNJOINED = 904, SOFT_CAPTURE_ISOLATION = 905, SOFT_CAPTURE_IMPLICIT = 906, SOFT_CAPTURED_EVENT = 907,
    SOFT_WRONG_THREAD = 908
};

static inline uint64_t soft_hash(uint64_t h, const void *data, size_t n) {    /* FNV-1a, eight bytes at a time */
    const unsigned char *p = (const unsigned char *)data;
    uint64_t w;
    for (; n >= 8; n -= 8, p += 8) {
        w = 0;
        for (int i = 7; i >= 0; i--) w = w << 8 | p[i];
        h = (h ^ w) * 0x100000001b3u;
        h ^= h >> 29;
    }
    for (; n; n--) h = (h ^ *p++) * 0x100000001b3u;
    return h ^ h >> 32;
}
/* New memory holds this: a NaN to whatever reads it as a float of any size. */
static inline unsigned char soft_spoilt(void) {
    const char *s = getenv("SOFTGPU_FILL");
    return (unsigned char)(s && *s ? strtol(s, NULL, 0) : 0xFF);
}
static inline size_t soft_round(size_t n, size_t to) { return (n + to - 1) / to * to; }
#endif
