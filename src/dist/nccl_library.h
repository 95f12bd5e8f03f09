#ifndef FLUX__DIST_NCCL_LIBRARY_H
#define FLUX__DIST_NCCL_LIBRARY_H
#include "../base/platform.h"
#include "../base/system.h"
#include "../base/backend.h"
#include "../gpu/kernels.h"

#if defined(FLUX_MPI) && (defined(FLUX_CUDA) || defined(FLUX_HIP))
#define FLUX__WITH_NCCL
/* ---------------------------------------------------------------------- dist/nccl_library.h
   Finding NCCL, NVIDIA's collectives between GPUs, or RCCL, AMD's, which has
   the same calls under the same names. The library is opened at run time, and
   nothing of it is needed to compile; tests/check_nccl.sh compares these
   declarations and numbers with the makers' headers.

   Invariant: a table of flux__nccls is filled once, under the lock of drivers. It
   has all calls but those marked as spare, which came with NCCL 2.14: without
   them an init blocks, and can't be given up.

   Rejected: linking with it, and a table for each of the two libraries. */

FLUX__BEGIN_COLD

typedef struct flux__nccl_id { char bytes[128]; } flux__nccl_id;           /* ncclUniqueId */
/* What every version's ncclConfig_t begins with; a library takes this part from an older one. */
typedef struct flux__nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
} flux__nccl_config;

/* The calls, and those that a library may lack. Streams and communicators are pointers; types,
   operations and results are numbers. */
#define FLUX__NCCL_CALLS(X)                                                                        \
    X(GetVersion, (int *version)) X(GetUniqueId, (flux__nccl_id *id))                              \
    X(CommInitRank, (void **comm, int size, flux__nccl_id id, int rank))                           \
    X(CommGetAsyncError, (void *comm, int *result)) X(CommAbort, (void *comm))                     \
    X(CommDestroy, (void *comm)) X(GroupStart, (void)) X(GroupEnd, (void))                         \
    X(AllReduce, (const void *in, void *out, size_t n, int type, int op, void *comm,               \
                  void *stream))                                                                   \
    X(Reduce, (const void *in, void *out, size_t n, int type, int op, int root, void *comm,        \
               void *stream))                                                                      \
    X(Broadcast, (const void *in, void *out, size_t n, int type, int root, void *comm,             \
                  void *stream))                                                                   \
    X(AllGather, (const void *in, void *out, size_t n, int type, void *comm, void *stream))        \
    X(ReduceScatter, (const void *in, void *out, size_t n, int type, int op, void *comm,           \
                      void *stream))
#define FLUX__NCCL_SPARE_CALLS(X)                                                                  \
    X(CommInitRankConfig, (void **comm, int size, flux__nccl_id id, int rank,                      \
                           flux__nccl_config *config))                                             \
    X(CommFinalize, (void *comm))

typedef struct flux__nccl_calls {
#define FLUX__NCCL_FIELD(name, parameters) int (*name) parameters;
    FLUX__NCCL_CALLS(FLUX__NCCL_FIELD)
    FLUX__NCCL_SPARE_CALLS(FLUX__NCCL_FIELD)
#undef FLUX__NCCL_FIELD
    const char *(*GetErrorString)(int result);
} flux__nccl_calls;

static const flux__symbol flux__nccl_names[] = {
#define FLUX__NCCL_NAME(call, parameters) { "nccl" #call, offsetof(flux__nccl_calls, call), false },
    FLUX__NCCL_CALLS(FLUX__NCCL_NAME) FLUX__NCCL_NAME(GetErrorString, )
#undef FLUX__NCCL_NAME
#define FLUX__NCCL_NAME(call, parameters) { "nccl" #call, offsetof(flux__nccl_calls, call), true },
    FLUX__NCCL_SPARE_CALLS(FLUX__NCCL_NAME)
#undef FLUX__NCCL_NAME
};

/* Numbers of nccl.h, which are rccl.h's, too. */
enum { FLUX__NCCL_IN_PROGRESS = 7 };      /* of results, of which 0 is success */
enum {                                    /* of types */
    FLUX__NCCL_UINT8 = 1, FLUX__NCCL_INT32 = 2, FLUX__NCCL_INT64 = 4, FLUX__NCCL_FLOAT16 = 6,
    FLUX__NCCL_FLOAT32 = 7, FLUX__NCCL_FLOAT64 = 8, FLUX__NCCL_BFLOAT16 = 9
};
enum { FLUX__NCCL_SUM, FLUX__NCCL_PROD, FLUX__NCCL_MAX, FLUX__NCCL_MIN };  /* of operations */
enum { FLUX__NCCL_MAGIC = (int)0xcafebeef, FLUX__NCCL_VERSION = 21400 };   /* of a config: 2.14 */

typedef struct flux__nccl_library {
    const char *name;                     /* "NCCL"; NULL: not open */
    flux__nccl_calls call;
} flux__nccl_library;
static flux__nccl_library flux__nccls[2]; /* by back end (CUDA, AMDGPU) */

/* Opens the library of a back end's collectives by the names it has. */
static void *flux__nccl_find(int backend) {
#if defined(FLUX_HIP)
    if (backend == FLUX__AMDGPU_BACKEND) {
        void *library = flux__roc_named("librccl.so.1");
        return library ? library : flux__roc_named("librccl.so");
    }
#endif
    (void)backend;
    return flux__library_numbered(flux__library_open, "nccl");
}

/* Opens NCCL for CUDA's GPUs, or RCCL for AMD's. NULL: why is told. */
static const flux__nccl_library *flux__nccl_open(int backend, char *why, size_t n) {
    flux__nccl_library *l = &flux__nccls[backend - FLUX__CUDA_BACKEND];
    const bool cuda = backend == FLUX__CUDA_BACKEND;
    const char *name = cuda ? "NCCL" : "RCCL",
        *variable = cuda ? "FLUX_NCCL_LIBRARY" : "FLUX_RCCL_LIBRARY",
        *set = cuda ? flux__env("FLUX_NCCL_LIBRARY") : flux__env("FLUX_RCCL_LIBRARY");
    if (l->name) return l;
    void *library = set && *set ? flux__library_open(set) : flux__nccl_find(backend);
    if (!library && set && *set) flux__library_why(why, n, name, variable);
    else if (!library)
        snprintf(why, n, "no %s was found (%s names its library)", name, variable);
    if (!library) return NULL;
    for (size_t i = 0; i < sizeof flux__nccl_names / sizeof *flux__nccl_names; i++) {
        const flux__symbol *s = &flux__nccl_names[i];
        if (flux__library_symbol(library, s->name, (char *)&l->call + s->at, sizeof(void *)) ||
            s->spare)
            continue;
        snprintf(why, n, "%s has no %s", name, s->name);
        return NULL;
    }
    l->name = name;
    return l;
}

FLUX__END_COLD
#endif

#endif /* FLUX__DIST_NCCL_LIBRARY_H */
