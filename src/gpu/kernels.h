#ifndef FLUX__GPU_KERNELS_H
#define FLUX__GPU_KERNELS_H
#include "../base/platform.h"
#include "../base/backend.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../graph/nodes.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "../schedule/program.h"
#include "../schedule/spelling.h"

/* ---------------------------------------------------------------------- gpu/kernels.h
   The GPU layer: what CUDA and HIP have in common, which is nearly all. Kernels
   are emitted as C99 source, compiled at run time, kept in memory and on disk,
   and launched. flux_cuda.h and flux_hip.h each fill flux__driver, a table of
   driver calls, and a dialect: text that defines what C lacks. The source holds
   shapes as numbers; its parameters are addresses, numbers and random keys. A
   thread computes a point, or several share an outer point and join their partial
   results in a fixed order. Here are the types, the prelude (the text before every
   program), and the emitter, which writes a kernel's program as text.

   Invariant: a device runs its work on one stream in the order of the calls, so
   the pool may hand out freed memory at once; a loader's next batch is copied on
   a second stream, and each stream waits for the other where they share memory.
   Only a download makes the host wait. The application's context is current again
   when a call returns. Results depend on shapes and the kind of chip alone.

   Rejected: a library of compiled kernels (one per architecture, dtype and
   broadcast), and a stream per thread (each reuse of memory would need an
   event). */

FLUX__BEGIN_LEAN

typedef struct flux__gpu_info {           /* a device, as its driver describes it */
    char model[72], arch[40];             /* "NVIDIA H200"; the compiler's name of its architecture:
                                             "sm_90", "gfx90a" */
    int multiprocessors;
} flux__gpu_info;

/* A chip's instruction on small matrices: a warp multiplies 16 x k by k x 16 and adds to 16 x
   16 sums, which its lanes share. The dialect defines mma_NAME(d, a, b), which adds to a lane's
   sums; mma_a_NAME and mma_b_NAME, which load a lane's part of the operands from a tile in
   shared memory; and mma_row(n) and mma_col(n), the position of a lane's n-th sum. */
typedef struct flux__fragment {
    const char *name;
    int k, lanes, words;                  /* lanes of a warp; 32-bit words of each operand in a
                                             lane */
    bool ahead;                           /* the chip has asynchronous copies to shared memory:
                                             copy_16, copies_end, copies_left */
    bool fours;                           /* it loads four matrices of 8 x 8 half floats at once,
                                             by lines of 16 bytes: four, four_turned */
    bool turned;                          /* a lane's sums are of one column and, in fours,
                                             neighbouring rows, else pairs of two rows */
} flux__fragment;

/* How a tile of an operand is copied to shared memory (gpu/gemm_wgmma.h): its dims in elements of
   two bytes, the contiguous one first and the batches last, the bytes from one to the next of the
   others, and a tile's box. */
typedef struct flux__tensor_map {
    int slot;                             /* whose buffer it is in, `offset` bytes from the start;
                                             -1: scratch memory */
    bool brain;                           /* bf16, else f16 */
    int64_t offset, dim[3], step[2], box[3];
    const char *at;                       /* the address that `words` are of, or NULL */
    uint64_t words[32];                   /* the driver's 128 bytes, at a multiple of 128 */
} flux__tensor_map;

/* Where the driver wants a map's words: at a multiple of 128 (of 64 before CUDA 13). */
static void *flux__map_words(flux__tensor_map *m) {
    return (void *)(((uintptr_t)m->words + 127) & ~(uintptr_t)127);
}

enum { FLUX__GPU_NUMBER = 40 };           /* bytes for the text of an error code without a name */
enum { FLUX__NOT_READY = 600 };           /* CUDA's and HIP's code */

/* A function of a library, and where its address is stored. */
typedef struct flux__symbol {
    const char *name;
    size_t at;                            /* offset in the table of calls */
    bool spare;                           /* the library may lack it */
} flux__symbol;

/* A driver's calls. Those that return int return 0 or the driver's error code, for which
   error() has a sentence. All but open, count, device and close are made between enter and
   leave. device() does not open the device: a context takes time and memory, and where there
   are several devices a process often uses but one. */
typedef struct flux__driver {
    const char *name;
    const char *dialect;                  /* text before the prelude: what C lacks */
    const char *matrices;                 /* text of the functions that flux__fragment names */
    const char *boxes;                    /* text of those of gpu/gemm_wgmma.h; or more of these */
    /* the matrix instruction for operands of a dtype; NULL: none */
    const flux__fragment *(*fragment)(const char *arch, int dtype, bool tf32);
    bool (*open)(char *why, size_t n);    /* finds the library and its calls, starts the driver */
    int (*count)(void);
    int (*device)(int id, flux__gpu_info *info);
    int (*enter)(int id, void **before);  /* makes the device current for this thread; *before: what
                                             was current */
    void (*leave)(void *before);
    void (*close)(int id);                /* gives back what enter opened */
    int (*stream)(void **stream);
    int (*stream_wait)(void *stream);
    void (*stream_free)(void *stream);
    int (*event)(void **event);
    int (*event_record)(void *event, void *stream);
    int (*event_wait)(void *event);       /* the host's thread waits */
    int (*event_query)(void *event);      /* 0: it is done; FLUX__NOT_READY: not yet */
    int (*event_before)(void *event, void *stream);   /* what is queued on the stream from now on
                                                         waits */
    void (*event_free)(void *event);
    int (*alloc)(void **p, size_t bytes);
    void (*release)(void *p);
    int (*pinned)(void **p, size_t bytes);
    void (*unpin)(void *p);
    /* copies that a stream queues: to the device, from it, within it, from another device */
    int (*up)(void *dst, const void *src, size_t bytes, void *stream);
    int (*down)(void *dst, const void *src, size_t bytes, void *stream);
    int (*across)(void *dst, const void *src, size_t bytes, void *stream);
    int (*peer)(void *dst, int to, const void *src, int from, size_t bytes, void *stream);
    int (*memory)(size_t *available, size_t *total);   /* bytes of the device's memory */
    int (*load)(void **module, const void *image);
    void (*unload)(void *module);
    int (*find)(void **function, void *module, const char *name);
    /* encodes a map's words, for a buffer at `at`; NULL: the chip has no such copies */
    int (*map)(const flux__tensor_map *m, const void *at, void *words);
    int (*reserve)(void *function, unsigned shared);   /* a block has so many bytes of shared
                                                          memory, more than 48 KiB */
    int (*launch)(void *function, const unsigned *grid, unsigned threads, unsigned shared,
                  void *stream, void **args);
    bool (*has_graphs)(void);             /* whether it has graphs: launches kept, to be replayed as
                                             one */
    int (*graph)(void **graph);
    /* Nodes of a graph: a launch, all of another graph, an event that is recorded. Each comes
       after the n nodes `after`. */
    int (*graph_add)(void **node, void *graph, void *const *after, size_t n, void *function,
                     const unsigned *grid, unsigned threads, unsigned shared, void **args);
    int (*graph_child)(void **node, void *graph, void *const *after, size_t n, void *child);
    int (*graph_event)(void **node, void *graph, void *const *after, size_t n, void *event);
    /* What this thread queues on the stream between the two becomes a graph, and is not done. */
    int (*capture)(void *stream);
    int (*captured)(void *stream, void **graph);
    int (*graph_ready)(void **exec, void *graph);
    /* changes a node's arguments, for later launches of the graph */
    int (*graph_set)(void *exec, void *node, void *function, const unsigned *grid, unsigned threads,
                     unsigned shared, void **args);
    int (*graph_event_set)(void *exec, void *node, void *event);  /* the event it records */
    int (*graph_launch)(void *exec, void *stream);
    /* each may be NULL; the caller has waited for the stream */
    void (*graph_free)(void *graph, void *exec);
    /* the driver's sentence, or the code's number, written to `number` */
    const char *(*error)(int code, char number[FLUX__GPU_NUMBER]);
    bool (*lost)(int code);               /* whether the device does nothing any more after this
                                             error */
    bool (*compiler)(char *why, size_t n);/* opens the run-time compiler */
    const char *(*version)(void);         /* of the compiler; "" until it is opened */
    bool (*takes)(const char *version);   /* whether the driver loads what such a compiler made */
    const void *calls;                    /* the compiler's functions, a table of addresses */
    /* *log and *image are the caller's to free */
    int (*compile)(const char *source, const char *arch, char **log, void **image, size_t *bytes);
    const char *const *components;        /* names for flux_functional_with, NULL at the end */
    bool (*component)(const char *name);  /* whether a component is there */
} flux__driver;

/* If a compiler fails and its log is empty, the log becomes the text of its error code. */
static int flux__log_code(char **log, int code, const char *text) {
    if (code == 0 || (*log && **log)) return code;
    flux__free(*log);
    *log = (char *)FLUX_MALLOC(strlen(text) + 40);
    if (*log) snprintf(*log, strlen(text) + 40, "%s (code %d)", text, code);
    return code;
}

/* Conversions of f16 by integer arithmetic, as in cpu/casts.h, for a compiler that has no
   instruction for them. */
#define FLUX__SOFT_HALF                                                                                                         \
    "DEVICE float f16_float(unsigned short h) {\n"                                                                              \
    "    float x = FLOAT_OF((unsigned int)(h & 0x7fff) << 13) * 5.192296858534828e33f;\n"                                       \
    "    unsigned int u = BITS_OF(x) | (x >= 65536.0f ? 0x7f800000u : 0u);\n"                                                   \
    "    if ((h & 0x7c00) == 0x7c00 && (h & 0x3ff)) u |= 0x400000u;\n"                                                          \
    "    return FLOAT_OF(u | (unsigned int)(h & 0x8000) << 16);\n}\n"                                                           \
    "DEVICE unsigned short float_f16(float x) {\n"                                                                              \
    "    unsigned int u = BITS_OF(x) & 0x7fffffffu, sign = (BITS_OF(x) >> 16) & 0x8000u, h;\n"                                   \
    "    if (u > 0x7f800000u) h = 0x7e00u | ((u >> 13) & 0x3ffu);\n"                                                            \
    "    else if (u < 0x38800000u) h = BITS_OF(FLOAT_OF(u) + 0.5f) - 0x3f000000u;\n"                                            \
    "    else h = (u - 0x38000000u + 0xfffu + ((u >> 13) & 1u)) >> 13;\n"                                                       \
    "    return (unsigned short)((u <= 0x7f800000u && h > 0x7c00u ? 0x7c00u : h) | sign);\n}\n"

#if defined(FLUX_CUDA)
#  include "flux_cuda.h"
#endif
#if defined(FLUX_HIP)
#  include "flux_hip.h"
#endif

/* ---- the prelude, the text before every program: the functions that formulas use, for each
   class; casts; random numbers. It stands after the dialect, which defines DEVICE and
   conversions of f16. The suffix _w is that of integers, which are computed in 64 bits and then
   cut. */
static const char *const flux__gpu_prelude[] = {
    "#define IF(c, x, y) ((c) ? (x) : (y))\n"
    "#define K_f32(v) ((float)(v))\n#define K_f64(v) ((double)(v))\n"
    "#define K_w(v) ((long long)(v))\n"
    "typedef unsigned int u32;\ntypedef unsigned long long u64;\n"
    "typedef struct ALIGN16 { u32 x[4]; } words4;\n"
    "typedef struct ALIGN16 { float x[4]; } float_pack;\n"
    "typedef struct ALIGN16 { double x[2]; } double_pack;\n"
    "typedef struct ALIGN8 { u32 x[2]; } words2;\ntypedef struct { u32 x[1]; } words1;\n"
    "#define DOUBLE_OF(u) __longlong_as_double((long long)(u))\n"
    "#define WORDS_OF(x) (u64)__double_as_longlong(x)\n"
    /* a / b from r, nearly 1 / b: each step adds what the quotient's rest gives, and the second is
       rounded as a / b is (Markstein, IBM J. Res. Dev. 34, 1990), where no number is so small that
       it loses bits nor so large that it overflows. `inverse` is 0 where b is such a number. */
    "DEVICE float finer(float b, float r) { return fmaf(r, fmaf(-b, r, 1.0f), r); }\n"
    "DEVICE float over(float a, float b, float r) {\n    float q = a * r;\n"
    "    if (a == 0.0f && r != 0.0f) return q;\n"
    "    if (!(fabsf(a) > 1e-25f && fabsf(q) > 1e-25f && fabsf(q) < 1e30f)) return a / b;\n"
    "    q = fmaf(fmaf(-b, q, a), r, q);\n    return fmaf(fmaf(-b, q, a), r, q);\n}\n"
    "DEVICE float inverse(float b) { return fabsf(b) > 1e-30f && fabsf(b) < 1e30f ? "
    "finer(b, near_inverse(b)) : 0.0f; }\n"
    "DEVICE float part_f32(float a, float b) {\n"
    "    float r = finer(b, near_inverse(b)), q = a * r;\n"
    "    return fmaf(fmaf(-b, q, a), r, q);\n}\n"
    "DEVICE double part_f64(double a, double b) { return a / b; }\n"
    "#define REAL(T, X, s) \\\n"
    "DEVICE T abs_##X(T x) { return fabs##s(x); }\\\n"
    "DEVICE T sqrt_##X(T x) { return sqrt##s(x); }\\\n"
    "DEVICE T exp_##X(T x) { return exp##s(x); }\\\nDEVICE T log_##X(T x) { return log##s(x); }\\\n"
    "DEVICE T log1p_##X(T x) { return log1p##s(x); }\\\n"
    "DEVICE T expm1_##X(T x) { return expm1##s(x); }\\\n"
    "DEVICE T sin_##X(T x) { return sin##s(x); }\\\nDEVICE T cos_##X(T x) { return cos##s(x); }\\\n"
    "DEVICE T sinh_##X(T x) { return sinh##s(x); }\\\n"
    "DEVICE T cosh_##X(T x) { return cosh##s(x); }\\\n"
    "DEVICE T atan2_##X(T y, T x) { return atan2##s(y, x); }\\\n"
    "DEVICE T tanh_##X(T x) { return tanh##s(x); }\\\n"
    "DEVICE T erf_##X(T x) { return erf##s(x); }\\\n"
    "DEVICE T floor_##X(T x) { return floor##s(x); }\\\n"
    "DEVICE T ceil_##X(T x) { return ceil##s(x); }\\\n"
    "DEVICE T round_##X(T x) { return rint##s(x); }\\\n"
    "DEVICE T pow_##X(T x, T y) { return pow##s(x, y); }\\\n"
    "DEVICE T mod_##X(T a, T b) { T r = fmod##s(a, b); return r == 0 ? copysign##s(r, b) : "
    "(r < 0) != (b < 0) ? r + b : r; }\\\n"
    "DEVICE T fmax_##X(T a, T b) { return a != a ? a : a > b ? a : b; }\\\n"
    "DEVICE T fmin_##X(T a, T b) { return a != a ? a : a < b ? a : b; }\\\n"
    "DEVICE T sign_##X(T x) { return x > 0 ? (T)1 : x < 0 ? (T)-1 : x; }\\\n"
    "DEVICE T sigmoid_##X(T x) { T e = exp##s(-fabs##s(x)); "
    "return part_##X(x < 0 ? e : (T)1, (T)1 + e); }\\\n"
    "DEVICE T softplus_##X(T x) { return (x > 0 ? x : (T)0) + log1p##s(exp##s(-fabs##s(x))); }\\\n"
    "DEVICE T gelu_##X(T x) { return x * sigmoid_##X(x * "
    "fma##s((T)0.07135481627260025 * x, x, (T)1.5957691216057308)); }\\\n"
    "DEVICE T gelu_slope_##X(T x) {\\\n"
    "    const T u = (T)1.5957691216057308, v = (T)0.07135481627260025;\\\n"
    "    const T c = x > 10 ? (T)10 : x < -10 ? (T)-10 : x, "
    "e = exp##s(-fabs##s(c * (u + v * c * c))), r = part_##X((T)1, (T)1 + e);\\\n"
    "    return (x > 0 ? r : e * r) + c * (u + 3 * v * c * c) * r * (e * r);\\\n}\\\n"
    "DEVICE T sum_##X(T a, T b) { return a + b; }\\\n"
    "DEVICE T prod_##X(T a, T b) { return a * b; }\n"
    "REAL(float, f32, f)\nREAL(double, f64, )\n",
    "#define WHOLE(T, U, X) \\\n"
    "DEVICE T sum_##X(T a, T b) { return (T)((U)a + (U)b); }\\\n"
    "DEVICE T prod_##X(T a, T b) { return (T)((U)a * (U)b); }\\\n"
    "DEVICE T fmax_##X(T a, T b) { return a > b ? a : b; }\\\n"
    "DEVICE T fmin_##X(T a, T b) { return a < b ? a : b; }\n"
    "WHOLE(int, u32, i32)\nWHOLE(long long, u64, i64)\n"
    "DEVICE long long abs_w(long long x) { return x < 0 ? -x : x; }\n"
    "DEVICE long long sign_w(long long x) { return (x > 0) - (x < 0); }\n"
    "DEVICE long long floor_w(long long x) { return x; }\n"
    "DEVICE long long ceil_w(long long x) { return x; }\n"
    "DEVICE long long round_w(long long x) { return x; }\n"
    "DEVICE long long fmax_w(long long a, long long b) { return a > b ? a : b; }\n"
    "DEVICE long long fmin_w(long long a, long long b) { return a < b ? a : b; }\n"
    "DEVICE long long pow_w(long long a, long long b) {\n"
    "    u64 x = (u64)a, y = 1;\n"
    "    if (b < 0) return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;\n"
    "    for (; b; b >>= 1, x *= x)\n        if (b & 1) y *= x;\n"
    "    return (long long)y;\n}\n"
    "DEVICE long long mod_w(long long a, long long b) {\n"
    "    long long r = b == 0 || b == -1 ? 0 : a % b;\n"
    "    return r != 0 && (r < 0) != (b < 0) ? r + b : r;\n}\n"
    /* a float as an integer: rounded towards zero, clamped to the range, 0 for NaN */
    "#define CUT(name, F, T, least, beyond, most) \\\n"
    "DEVICE T name(F v) { return v >= (beyond) ? (T)(most) : v > (least) ? (T)v : v <= (least) ? "
    "(T)(least) : (T)0; }\n"
    "CUT(f32_i32, float, int, -2147483648.0f, 2147483648.0f, 2147483647)\n"
    "CUT(f64_i32, double, int, -2147483648.0, 2147483647.0, 2147483647)\n"
    "CUT(f32_i64, float, long long, -9223372036854775808.0f, 9223372036854775808.0f, "
    "9223372036854775807LL)\n"
    "CUT(f64_i64, double, long long, -9223372036854775808.0, 9223372036854775808.0, "
    "9223372036854775807LL)\n"
    "CUT(f32_u8, float, unsigned char, 0.0f, 255.0f, 255)\n"
    "CUT(f64_u8, double, unsigned char, 0.0, 255.0, 255)\n"
    "#define f32_f64(v) ((double)(v))\n#define f64_f32(v) ((float)(v))\n"
    "#define i32_f32(v) ((float)(v))\n"
    "#define i32_f64(v) ((double)(v))\n#define i32_i64(v) ((long long)(v))\n"
    "#define i64_f32(v) ((float)(v))\n"
    "#define i64_f64(v) ((double)(v))\n#define i64_i32(v) ((int)(v))\n",
    "DEVICE float bf16_float(unsigned short h) { return FLOAT_OF((u32)h << 16); }\n"
    "#ifndef PAIRS\n"
    "DEVICE unsigned short float_bf16(float x) {\n    u32 u = BITS_OF(x);\n"
    "    return (unsigned short)(x != x ? 0x7fc0 : (u + 0x7fff + ((u >> 16) & 1)) >> 16);\n}\n"
    "DEVICE u32 pair_f16(float x, float y) { return float_f16(x) | (u32)float_f16(y) << 16; }\n"
    "DEVICE u32 pair_bf16(float x, float y) { return float_bf16(x) | (u32)float_bf16(y) << 16; }\n"
    "#endif\n"
    "#define f32_bf16_round(x) bf16_float(float_bf16(x))\n"
    "#define f32_f16_round(x) f16_float(float_f16(x))\n"
    /* argmax (max) and argmin: the first of equal elements; a NaN comes before all others */
    "#define ARG(T, X) \\\n"
    "DEVICE int beats_##X(T x, T best, int max) { return best == best && (x != x || (max ? x > "
    "best : x < best)); }\\\n"
    "DEVICE int later_##X(T x, long long at, T best, long long index, int max) {\\\n"
    "    return at >= 0 && (index < 0 || beats_##X(x, best, max) || (!beats_##X(best, x, "
    "max) && at < index));\\\n}\n"
    "ARG(float, f32)\nARG(double, f64)\nARG(int, i32)\nARG(long long, i64)\n",
    /* random numbers, bit for bit as in cpu/random.h */
    "DEVICE void words(u64 key, u64 stream, u64 counter, u32 *w) {\n"
    "    u32 c0 = (u32)counter, c1 = (u32)(counter >> 32), c2 = (u32)stream, "
    "c3 = (u32)(stream >> 32);\n"
    "    u32 k0 = (u32)key, k1 = (u32)(key >> 32);\n"
    "    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {\n"
    "        u64 p = (u64)c0 * 0xD2511F53u, q = (u64)c2 * 0xCD9E8D57u;\n"
    "        c0 = (u32)(q >> 32) ^ c1 ^ k0, c2 = (u32)(p >> 32) ^ c3 ^ k1, c1 = (u32)q, "
    "c3 = (u32)p;\n    }\n"
    "    w[0] = c0, w[1] = c1, w[2] = c2, w[3] = c3;\n}\n"
    "DEVICE float uniform(u64 key, u64 stream, long long i) {\n    u32 w[4];\n"
    "    words(key, stream, (u64)i >> 2, w);\n"
    "    return (float)(int)(w[i & 3] >> 8) * 5.9604644775390625e-8f;\n}\n"
    "DEVICE float radius(u32 w) {\n"
    "    u32 b = BITS_OF(((float)(int)(w >> 1) + 1.0f) * 4.65661287e-10f) - 0x3f3504f3u;\n"
    "    float e = (float)((int)b >> 23), f = FLOAT_OF((b & 0x7fffffu) + 0x3f3504f3u) - 1.0f, "
    "z = f * f;\n"
    "    float p = -0.0759919658f;\n"
    "    p = p * f + 0.127297074f; p = p * f + -0.131613865f; p = p * f + 0.142079964f; "
    "p = p * f + -0.166237861f;\n"
    "    p = p * f + 0.200008228f; p = p * f + -0.250007987f; p = p * f + 0.333333403f;\n"
    "    float y = z * -0.5f + z * f * p;\n"
    "    return sqrtf((e * 0.693147182f + (f + y)) * -2.0f);\n}\n"
    "DEVICE float circle(u32 w, u32 quarters) {\n"
    "    u32 j = (w + 0x20000000u) >> 30, k = j + quarters;\n"
    "    float r = (float)(int)(w - (j << 30)) * 1.46291807e-9f, z = r * r;\n"
    "    float p = ((2.75806656e-06f * z + -0.000198463487f) * z + 0.00833336543f) * z + "
    "-0.166666672f;\n"
    "    float q = (2.45242463e-05f * z + -0.00138882315f) * z + 0.0416666679f;\n"
    "    float s = r + z * r * p, c = 1.0f + (z * -0.5f + z * z * q);\n"
    "    return FLOAT_OF(BITS_OF(k & 1u ? c : s) ^ ((k & 2u) << 30));\n}\n"
    "DEVICE float normal(u64 key, u64 stream, long long i) {\n    u32 w[4], at = (u32)i & 2u;\n"
    "    words(key, stream, (u64)i >> 2, w);\n"
    "    return radius(w[at]) * circle(w[at + 1], i & 1 ? 0u : 1u);\n}\n"
    /* four numbers, from number i, a multiple of four, on */
    "DEVICE void uniforms(u64 key, u64 stream, long long i, float *x) {\n    u32 w[4];\n"
    "    words(key, stream, (u64)i >> 2, w);\n"
    "    for (int j = 0; j < 4; j++) x[j] = (float)(int)(w[j] >> 8) * 5.9604644775390625e-8f;\n}\n"
    "DEVICE void normals(u64 key, u64 stream, long long i, float *x) {\n    u32 w[4];\n"
    "    words(key, stream, (u64)i >> 2, w);\n"
    "    for (int j = 0; j < 4; j++)\n"
    "        x[j] = radius(w[j & 2]) * circle(w[j | 1], j & 1 ? 0u : 1u);\n}\n"
};

/* ---- text that grows */

typedef struct flux__listing { char *text; int n, capacity; bool failed; } flux__listing;

/* Appends formatted text. Without memory it sets s->failed and does nothing from then on. */
static FLUX__PRINTF(2, 3) void flux__emit(flux__listing *s, const char *format, ...) {
    for (int tries = 0; tries < 2 && !s->failed; tries++) {
        va_list args;
        va_start(args, format);
        int capacity = s->capacity - s->n,
            n = vsnprintf(s->text ? s->text + s->n : NULL, (size_t)capacity, format, args);
        va_end(args);
        if (n >= 0 && n < capacity) {
            s->n += n;
            return;
        }
        char *text = n < 0 ? NULL : (char *)flux__grow(s->text, &s->capacity, s->n + n + 1, 1);
        if (text) s->text = text;
        else s->failed = true;
    }
}

/* ---- compiled kernels, devices, launches */

typedef struct flux__gpu_fn {             /* a compiled kernel, in its device's hash table until
                                             that is closed */
    uint64_t hash[2];                     /* of its text */
    void *function, *module;
    struct flux__gpu_fn *next;
} flux__gpu_fn;

enum { FLUX__SLOTS = 8, FLUX__SLOT_BYTES = FLUX__PIECE, FLUX__STATUS_WORDS = 8, FLUX__COMING = 16 };

typedef struct flux__gpu_counters {
    int64_t launches;                     /* kernels launched, alone or in graphs */
    int64_t graphs, graph_launches, graph_updates;   /* graphs made; their launches; nodes that got
                                                        other arguments */
    int64_t waits;                        /* times that the host waited for a device, or asked
                                             whether it had to */
    int64_t ahead;                        /* uploads on the second stream, beside the device's
                                             work */
    int64_t allocations, uploads, downloads, bytes_up, bytes_down, programs_compiled, programs_read;
} flux__gpu_counters;

typedef struct flux__slot {               /* a piece of pinned memory, which copies go through */
    void *memory, *event;
    bool busy, used;                      /* a thread fills or empties it; its event belongs to a
                                             copy that may be under way */
} flux__slot;

/* Work of another library that a device's stream waits for, where a rank that does not come would
   let the host wait for ever. The device is current in both calls. */
typedef struct flux__gpu_guest {
    struct flux__gpu_guest *next;
    /* Returns when the event (NULL: all its work) is done. False: the work has failed and was
       ended, and an error was told. */
    bool (*watch)(struct flux__gpu_guest *it, void *event);
    void (*leave)(struct flux__gpu_guest *it);           /* the device is closed */
    void (*trim)(struct flux__gpu_guest *it);            /* memory of the device is given back */
} flux__gpu_guest;

typedef struct flux__gpu {
    const flux__driver *driver;
    int id, lost;                         /* lost: the error code after which the device does
                                             nothing more, or 0 */
    int process;                          /* the one that opened it; a child forked later must not
                                             call the driver */
    bool open, pending;                   /* pending: a kernel that may report a bad index was
                                             queued since status was read */
    flux__gpu_info info;
    void *stream, *status;                /* status: FLUX__STATUS_WORDS in device memory, for bad
                                             indices */
    void *own;                            /* the stream that was made here: the same, but for
                                             flux_use_stream */
    flux__slot slot[FLUX__SLOTS];         /* a ring */
    unsigned turn;                        /* the next to take, modulo FLUX__SLOTS */
    void *copies, *reached;               /* stream of copies ahead, or NULL; event: what the main
                                             stream had queued when a copy ahead began */
    bool alone;                           /* that stream could not be made: all copies use the main
                                             one */
    /* copies ahead that the main stream has not waited for: numbers came ... comes - 1, a ring */
    struct { const void *at; size_t bytes; void *event; } coming[FLUX__COMING];
    unsigned came, comes;
    flux__gpu_fn *known[256];             /* compiled kernels, by hash */
    void **module;                        /* programs loaded */
    int nmodule, module_room;
    struct flux__graph_exec *execs;       /* graphs of all plans */
    flux__gpu_guest *guests;              /* they stay until the device is closed */
    bool replaying;                       /* the driver has graphs, and FLUX_REPLAY does not forbid
                                             them */
    bool tiled;                           /* products may use gpu/gemm_wgmma.h */
    flux__gpu_counters counters;
} flux__gpu;

/* A kernel's parameter, whose argument is, by kind: p, the address of slot `what`; n, the
   number of value `what`; k and t, key and stream of random value `what`; f, the node's number;
   s, scratch memory; e, the status words; m, map `what` of the kernel's. */
typedef struct flux__gpu_param {
    char kind;
    int what;
} flux__gpu_param;

/* The most blocks along x of a launch; where there is work for more, a block loops. AMD's
   hardware counts the threads along a side in 32 bits, and a block has at most 1024. */
#ifndef FLUX__GPU_BLOCKS
#  define FLUX__GPU_BLOCKS (1 << 20)
#endif
static unsigned flux__gpu_blocks(int64_t n) {
    return (unsigned)(n < FLUX__GPU_BLOCKS ? n : FLUX__GPU_BLOCKS);
}

typedef struct flux__gpu_step {           /* one launch */
    char *text;                           /* its source; NULL once compiled */
    char name[40];
    flux__gpu_fn *fn;
    unsigned grid[3], threads, blocks;    /* threads of a block; blocks that are to fit on a
                                             multiprocessor at once (0: the compiler's choice, which
                                             may spill) */
    unsigned shared;                      /* bytes of dynamic shared memory of a block */
} flux__gpu_step;

typedef struct flux__gpu_kernel {         /* a plan's kernel, made ready for a device */
    flux__gpu_step *step, next;           /* its launches in order; the one whose text is being
                                             written */
    int launches, step_room, nparam, param_room;
    flux__gpu_param *param;
    void **args;                          /* the last launch's arguments: nparam addresses, then the
                                             8 bytes that each points to */
    flux__tensor_map *maps;               /* of operands that TMA copies, or NULL */
    bool stale;                           /* they have changed since the graph got them */
    struct flux__graph_exec *exec;        /* graph of the row of kernels that starts with this, or
                                             NULL */
    int runs;                             /* runs of that row; < 0: it can't be replayed */
} flux__gpu_kernel;

/* The coordinates d0, d1, ... of a kernel's points: dims that follow each other in all values are
   one, of which `first` is the first. */
typedef struct flux__tiling {
    int nd, first[FLUX_MAX_DIMS];         /* nd is 0 where the text has points o and r instead */
    int64_t dim[FLUX_MAX_DIMS];
    int across, side;                     /* of tiles: the other coordinate besides 0; points along
                                             each of both */
} flux__tiling;

typedef struct flux__emitter {            /* the emitter's state for one kernel */
    const flux__kernel *k;
    const flux__plan *plan;
    flux__gpu_kernel *gk;
    flux__listing s, params;              /* text of the body, and of the parameters'
                                             declarations */
    const char *index;                    /* the type of positions: "int" or "long long" */
    flux__axes *outer_axes, *inner_axes;  /* of each value: dims that stay, dims that are reduced */
    const flux__axes *fast;               /* those along which a thread has several points */
    flux__tiling tiling;
    bool *need;                           /* of each value: a phase's pass computes it */
    uint8_t *how;                         /* of each value: FLUX__ALIGNED ..., see gpu/vectors.h, or
                                             FLUX__TILED, see gpu/tiles.h */
    int width;                            /* neighbouring points that a thread computes together */
    uint8_t ops[FLUX__ELEMENTWISE_COUNT]; /* bit ctype: the text calls the op's function of that
                                             class */
    bool failed;
} flux__emitter;

/* The number of the kernel's parameter of this kind, declared when it is first asked for. */
static int flux__emitter_param(flux__emitter *c, char kind, int what, const char *type) {
    flux__gpu_kernel *gk = c->gk;
    for (int i = 0; i < gk->nparam; i++)
        if (gk->param[i].kind == kind && gk->param[i].what == what) return i;
    flux__gpu_param *p = (flux__gpu_param *)flux__grow(gk->param, &gk->param_room, gk->nparam + 1,
                                                       sizeof *p);
    if (!p) {
        c->failed = true;
        return 0;
    }
    gk->param = p;
    p[gk->nparam].kind = kind, p[gk->nparam].what = what;
    flux__emit(&c->params, "%s%s p%d", gk->nparam ? ", " : "", type, gk->nparam);
    return gk->nparam++;
}

/* The parameter that is the address of a slot's buffer. */
static int flux__emitter_slot(flux__emitter *c, int slot, int dtype) {
    char type[32];
    snprintf(type, sizeof type, "%s *", flux__dtype_types[dtype]);
    return flux__emitter_param(c, 'p', slot, type);
}

/* Adds to a position the offset of element number `var` of these dims, as terms + (var / before
   % dim) * step. */
static void flux__emit_axes(flux__listing *s, const flux__axes *x, const char *var) {
    int64_t before = 1;
    for (int d = 0; d < x->nd; d++) {
        if (x->step[d] && x->dim[d] > 1) {
            flux__emit(s, " + (%s", var);
            if (before > 1) flux__emit(s, " / %lld", (long long)before);
            if (d + 1 < x->nd) flux__emit(s, " %% %lld", (long long)x->dim[d]);
            flux__emit(s, x->step[d] == 1 ? ")" : ") * %lld", (long long)x->step[d]);
        }
        before *= x->dim[d];
    }
}

/* The position of value i at the outer point o and the reduced point r, or at the coordinates. */
static void flux__emit_place(const flux__emitter *c, flux__listing *s, int i) {
    const flux__value *v = &c->k->value[i];
    int64_t step[FLUX_MAX_DIMS];
    flux__emit(s, "%lld", (long long)flux__value_offset(c->k, v));
    if (c->tiling.nd) {
        flux__value_strides(c->k, v, step);
        for (int d = 0; d < c->tiling.nd; d++)
            if (step[c->tiling.first[d]])
                flux__emit(s, " + d%d * %lld", d, (long long)step[c->tiling.first[d]]);
        return;
    }
    flux__emit_axes(s, &c->outer_axes[i], "o");
    if (!v->outer && c->k->reduced) flux__emit_axes(s, &c->inner_axes[i], "r");
}

/* Converts x, an element as it is stored, to the class it is computed in; and x of class ctype to
   what is stored. */
static void flux__emit_loaded(flux__listing *s, int dtype, const char *x) {
    static const char *const how[] = { "%s", "%s", "f16_float(%s)", "bf16_float(%s)", "%s", "%s",
                                       "(int)%s", "(int)(%s != 0)" };
    const char *at = strchr(how[dtype], '%');
    flux__emit(s, "%.*s%s%s", (int)(at - how[dtype]), how[dtype], x, at + 2);
}
static void flux__emit_stored(flux__listing *s, int dtype, int ctype, const char *x) {
    int own = flux__class_of(dtype);
    char y[80];
    if (dtype == FLUX_BOOL) {
        flux__emit(s, "(unsigned char)(%s != 0)", x);
        return;
    }
    if (dtype == FLUX_U8 && ctype <= FLUX__F64C) {
        flux__emit(s, "%s_u8(%s)", flux__class_names[ctype], x);
        return;
    }
    if (own == ctype) snprintf(y, sizeof y, "%s", x);
    else snprintf(y, sizeof y, "%s_%s(%s)", flux__class_names[ctype], flux__class_names[own], x);
    flux__emit(s, dtype == FLUX_F16 ? "float_f16(%s)" : dtype == FLUX_BF16 ? "float_bf16(%s)"
                   : dtype == FLUX_U8 ? "(unsigned char)%s" : "%s", y);
}

/* Stores value i to its output. */
static void flux__emit_store(flux__emitter *c, int i, const char *indent) {
    const flux__value *v = &c->k->value[i];
    char x[24];
    snprintf(x, sizeof x, "v%d", i);
    int p = flux__emitter_slot(c, v->out, v->dtype);
    flux__emit(&c->s, "%sp%d[", indent, p);
    flux__emit_place(c, &c->s, i);
    flux__emit(&c->s, "] = ");
    flux__emit_stored(&c->s, v->dtype, v->ctype, x);
    flux__emit(&c->s, ";\n");
}

/* The prelude's function for a random number; with an s behind it, for four. */
static const char *flux__draw_name(const flux__value *v) {
    return v->op == FLUX__NORMAL ? "normal" : "uniform";
}

static void flux__emit_random(flux__emitter *c, int i) {
    const flux__value *v = &c->k->value[i];
    int key = flux__emitter_param(c, 'k', i, "unsigned long long"),
        stream = flux__emitter_param(c, 't', i, "unsigned long long");
    flux__emit(&c->s, "%s(p%d, p%d, ", flux__draw_name(v), key, stream);
    flux__emit_place(c, &c->s, i);
    flux__emit(&c->s, ");\n");
}

/* The declaration of value i of the kernel's program: const float v7 = ... */
static void flux__emit_line(flux__emitter *c, int i) {
    const flux__value *v = &c->k->value[i];
    flux__listing *s = &c->s;
    char x[64];
    flux__emit(s, "    const %s v%d = ", flux__class_types[v->ctype], i);
    switch (v->kind) {
    case FLUX__V_LOAD: {
        const flux__operand *o = &c->k->operand[v->operand];
        flux__listing at = { NULL, 0, 0, false };
        if (c->tiling.nd && c->how[i]) flux__emit(&at, "tile%d[x][row]", i);
        else {
            flux__emit(&at, "p%d[", flux__emitter_slot(c, o->src, o->dtype));
            flux__emit_place(c, &at, i);
            flux__emit(&at, "]");
        }
        if (at.failed) s->failed = true;
        else flux__emit_loaded(s, o->dtype, at.text);
        flux__free(at.text);
        flux__emit(s, ";\n");
        break;
    }
    case FLUX__V_NUMBER:
        if (v->op == 1) flux__emit(s, "(%s)%d;\n", flux__class_types[v->ctype], v->node);
        else flux__emit(s, "p%d;\n", flux__emitter_param(c, 'n', i, flux__class_types[v->ctype]));
        break;
    case FLUX__V_IOTA:
        flux__emit_place(c, s, i);
        flux__emit(s, ";\n");
        break;
    case FLUX__V_RANDOM: flux__emit_random(c, i); break;
    case FLUX__V_OP:
        c->ops[v->op] = (uint8_t)(c->ops[v->op] | 1u << v->ctype);
        flux__emit(s, "%s_%s_op(v%d, v%d, v%d);\n",
                    flux__op_names[v->op], flux__class_names[v->ctype], v->a, v->b < 0 ?
                        v->a : v->b,
                    v->c < 0 ? v->a : v->c);
        break;
    case FLUX__V_ROUND:
        flux__emit(s, "f32_%s_round(v%d);\n", flux__dtypes[v->op].name, v->a);
        break;
    case FLUX__V_WRAP: {
        flux__listing cut = { NULL, 0, 0, false };
        snprintf(x, sizeof x, "v%d", v->a);
        flux__emit_stored(&cut, v->op, c->k->value[v->a].ctype, x);
        flux__emit(s, "(%s)%s;\n", flux__class_types[v->ctype], cut.failed ? "0" : cut.text);
        flux__free(cut.text);
        break;
    }
    default: {                            /* CONVERT */
        int from = c->k->value[v->a].ctype;
        if (from == v->ctype) flux__emit(s, "v%d;\n", v->a);
        else flux__emit(s, "%s_%s(v%d);\n", flux__class_names[from], flux__class_names[v->ctype],
                         v->a);
        break;
    }
    }
}

/* Continues a 128-bit hash, h[0] and h[1]. */
static void flux__hash_bytes(uint64_t *h, const void *data, size_t n) {
    const unsigned char *p = (const unsigned char *)data;
    for (size_t i = 0; i < n; i++) {
        h[0] = (h[0] ^ p[i]) * 0x100000001b3u;
        h[1] = (h[1] ^ (h[1] >> 29) ^ p[i]) * 0x9e3779b97f4a7c15u;
    }
}

static void flux__step_start(flux__gpu_step *next) {
    memset(next, 0, sizeof *next);
    next->grid[0] = next->grid[1] = next->grid[2] = 1;
}

/* Ends a launch: adds the parameters and braces around the body, and names the launch by the
   hash of its text. Then the next launch begins. */
static bool flux__emitter_finish(flux__emitter *c) {
    flux__listing all = { NULL, 0, 0, false };
    uint64_t h[2] = { 0xcbf29ce484222325u, 0x84222325cbf29ce4u };
    flux__gpu_kernel *gk = c->gk;
    flux__gpu_step *step = (flux__gpu_step *)flux__grow(gk->step, &gk->step_room, gk->launches + 1,
                                                        sizeof *step);
    if (!step) return false;
    gk->step = step;
    if (!c->s.failed && !c->params.failed && !c->failed) {
        flux__emit(&all, "(%s) {\n%s}\n", c->params.text ? c->params.text : "",
                    c->s.text ? c->s.text : "");
        if (!all.failed) flux__hash_bytes(h, all.text, (size_t)all.n);
    }
    c->s.n = 0;
    snprintf(gk->next.name, sizeof gk->next.name, "k%016llx%016llx", (unsigned long long)h[0],
             (unsigned long long)h[1]);
    gk->next.text = all.text;
    gk->step[gk->launches++] = gk->next;
    flux__step_start(&gk->next);
    return !all.failed && all.text;
}

FLUX__END_LEAN

#endif /* FLUX__GPU_KERNELS_H */
