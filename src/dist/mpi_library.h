#ifndef FLUX__DIST_MPI_LIBRARY_H
#define FLUX__DIST_MPI_LIBRARY_H
#include "../base/platform.h"
#include "../base/system.h"

/* ---------------------------------------------------------------------- dist/mpi_library.h
   Finding MPI. The library that the launcher speaks is opened when it is first
   needed (flux__mpi_open), and nothing of MPI is needed to compile. Three
   binary interfaces are in use, told apart by the library's name and symbols:
   that of Open MPI, whose handles are addresses of its own variables; that of
   MPICH and its relatives (Intel, MVAPICH, Cray, MS-MPI), whose handles are
   ints; and the standard one of MPI 5, whose handles are pointers with small
   numbers in them. tests/check_mpi.sh compares the declarations with the
   headers of both vendors.

   Invariant: flux__mpi is written once, before the first call. A handle of
   either kind is a flux__mpi_handle, and only FLUX__MPI_CALL chooses by its kind.

   Rejected: int handles passed as pointers (it works on the usual processors,
   and is not C). */

FLUX__BEGIN_COLD

enum { FLUX__MPI_NONE, FLUX__MPI_OPEN, FLUX__MPI_MPICH, FLUX__MPI_ABI };   /* interfaces */
FLUX__UNUSED static const char *const flux__mpi_families[] = {
    "MPI", "Open MPI", "MPICH", "MPI 5"
};

/* ---------------- the launcher */

/* The number in an environment variable; 0: it is not there, or is no positive number. */
static int flux__env_number(const char *name) {
    const char *s = flux__env(name);
    const long v = s ? strtol(s, NULL, 10) : 0;
    return v > 0 && v < INT_MAX ? (int)v : 0;
}

/* How many processes the launcher has started, by its environment; 1: there is no launcher; 0:
   there is one that does not say how many. family: whose launcher it is, if that is known. */
static int flux__mpi_launched(int *family) {
    static const struct { const char *name; int family; } sizes[] = {
        { "OMPI_COMM_WORLD_SIZE", FLUX__MPI_OPEN }, { "PMI_SIZE", FLUX__MPI_MPICH },
        { "SLURM_STEP_NUM_TASKS", FLUX__MPI_NONE }, { "PALS_SIZE", FLUX__MPI_MPICH },
        { "ALPS_APP_PE_COUNT", FLUX__MPI_MPICH }
    };
    *family = flux__env("PMIX_RANK") ? FLUX__MPI_OPEN : FLUX__MPI_NONE;
    for (int i = 0; i < (int)(sizeof sizes / sizeof *sizes); i++) {
        const int n = flux__env_number(sizes[i].name);
        if (!n) continue;
        if (!*family) *family = sizes[i].family;
        return n;
    }
    return *family ? 0 : 1;               /* PMIx does not say */
}

#ifdef FLUX_MPI
typedef union flux__mpi_handle { void *p; int i; } flux__mpi_handle;

/* The calls of MPI that are used: name, and parameters with handles of type H. A status is a
   pointer to memory of 64 bytes, see flux__mpi.source. */
#define FLUX__MPI_CALLS(X, H)                                                                      \
    X(H, Init_thread, (int *argc, char ***argv, int required, int *provided))                      \
    X(H, Initialized, (int *flag)) X(H, Finalized, (int *flag)) X(H, Finalize, (void))             \
    X(H, Comm_rank, (H comm, int *rank)) X(H, Comm_size, (H comm, int *size))                      \
    X(H, Comm_dup, (H comm, H *out)) X(H, Comm_free, (H *comm))                                    \
    X(H, Comm_split_type, (H comm, int type, int key, H info, H *out))                             \
    X(H, Comm_set_errhandler, (H comm, H handler))                                                 \
    X(H, Error_string, (int code, char *text, int *length))                                        \
    X(H, Get_processor_name, (char *name, int *length))                                            \
    X(H, Op_create, (flux__mpi_fold *fold, int commutes, H *op))                                   \
    X(H, Allreduce, (const void *in, void *out, int n, H type, H op, H comm))                      \
    X(H, Reduce, (const void *in, void *out, int n, H type, H op, int root, H comm))               \
    X(H, Bcast, (void *data, int n, H type, int root, H comm))                                     \
    X(H, Allgather, (const void *in, int n, H type, void *out, int m, H out_type, H comm))         \
    X(H, Reduce_local, (const void *in, void *inout, int n, H type, H op))                         \
    X(H, Iallreduce, (const void *in, void *out, int n, H type, H op, H comm, H *request))         \
    X(H, Ireduce, (const void *in, void *out, int n, H type, H op, int root, H comm, H *request))  \
    X(H, Ibcast, (void *data, int n, H type, int root, H comm, H *request))                        \
    X(H, Iallgather,                                                                               \
      (const void *in, int n, H type, void *out, int m, H out_type, H comm, H *request))           \
    X(H, Ireduce_scatter_block,                                                                    \
      (const void *in, void *out, int n, H type, H op, H comm, H *request))                        \
    X(H, Test, (H *request, int *done, void *status))                                              \
    X(H, Isend, (const void *data, int n, H type, int to, int tag, H comm, H *request))            \
    X(H, Recv, (void *data, int n, H type, int from, int tag, H comm, void *status))               \
    X(H, Iprobe, (int from, int tag, H comm, int *flag, void *status))                             \
    X(H, Win_allocate_shared,                                                                      \
      (intptr_t bytes, int unit, H info, H comm, void *at, H *window))                             \
    X(H, Win_set_errhandler, (H window, H handler))                                                \
    X(H, Win_shared_query, (H window, int rank, intptr_t *bytes, int *unit, void *at))             \
    X(H, Win_fence, (int promises, H window)) X(H, Win_free, (H *window))

/* A reduction of one's own: inout[i] = in[i] op inout[i]. */
typedef void flux__mpi_fold(void *in, void *inout, int *n, void *type);
#define FLUX__MPI_FIELD(H, name, parameters) int (*name) parameters;
typedef struct flux__mpi_pointers { FLUX__MPI_CALLS(FLUX__MPI_FIELD, void *) } flux__mpi_pointers;
typedef struct flux__mpi_ints { FLUX__MPI_CALLS(FLUX__MPI_FIELD, int) } flux__mpi_ints;

/* Types and operations, in the order of flux__mpi_names. */
enum {
    FLUX__MPI_FLOAT, FLUX__MPI_DOUBLE, FLUX__MPI_INT32, FLUX__MPI_INT64, FLUX__MPI_UINT16,
    FLUX__MPI_UINT8, FLUX__MPI_SUM, FLUX__MPI_PROD, FLUX__MPI_MIN, FLUX__MPI_MAX,
    FLUX__MPI_WORLD, FLUX__MPI_RETURNS, FLUX__MPI_NO_INFO, FLUX__MPI_CONSTANTS
};
/* The constants: Open MPI's are variables of these names, the others' are numbers. */
static const struct { const char *symbol; int mpich, abi; } flux__mpi_names[] = {
    { "ompi_mpi_float", 0x4c00040a, 0x210 },     { "ompi_mpi_double", 0x4c00080b, 0x214 },
    { "ompi_mpi_int32_t", 0x4c000439, 0x250 },   { "ompi_mpi_int64_t", 0x4c00083a, 0x258 },
    { "ompi_mpi_uint16_t", 0x4c00023c, 0x249 },  { "ompi_mpi_uint8_t", 0x4c00013b, 0x241 },
    { "ompi_mpi_op_sum", 0x58000003, 0x21 },     { "ompi_mpi_op_prod", 0x58000004, 0x24 },
    { "ompi_mpi_op_min", 0x58000002, 0x22 },     { "ompi_mpi_op_max", 0x58000001, 0x23 },
    { "ompi_mpi_comm_world", 0x44000000, 0x101 },
    { "ompi_mpi_errors_return", 0x54000001, 0x143 },
    { "ompi_mpi_info_null", 0x1c000000, 0x130 }
};
/* Numbers that differ between the interfaces, by FLUX__MPI_OPEN and others. */
typedef struct flux__mpi_numbers {
    intptr_t in_place;                    /* MPI_IN_PLACE */
    int any_source, shared, serialized;   /* MPI_ANY_SOURCE, MPI_COMM_TYPE_SHARED,
                                             MPI_THREAD_SERIALIZED */
    int source;                           /* which int of a status is MPI_SOURCE */
} flux__mpi_numbers;
static const flux__mpi_numbers flux__mpi_all_numbers[] = {
    { 0, 0, 0, 0, 0 }, { 1, -1, 0, 2, 0 }, { -1, -2, 1, 2, 2 }, { 1, -1, 221, 2048, 0 }
};

static struct {
    int family;                           /* FLUX__MPI_NONE: not opened yet */
    bool started, ours;                   /* MPI runs; flux_distributed has started it, and ends
                                             it */
    flux__mpi_numbers is;
    flux__mpi_pointers p;                 /* calls of Open MPI and MPI 5 */
    flux__mpi_ints i;                     /* calls of MPICH */
    flux__mpi_handle constant[FLUX__MPI_CONSTANTS];
    char file[300];                       /* the library */
} flux__mpi;

/* ---------------- the library */

/* The interface of an opened library: by the name of the file that has MPI_Init_thread, then by
   Open MPI's variables. Not the other way round: its own libmpi_abi.so has them behind it, too. */
static int flux__mpi_family_of(void *library, const char *name) {
    void (*any)(void);
    char file[300];
    if (!flux__library_symbol(library, "MPI_Init_thread", &any, sizeof any)) return FLUX__MPI_NONE;
    if (flux__library_file(&any, file, sizeof file)) name = file;
    const char *slash = name ? strrchr(name, '/') : NULL;
    if (name && strstr(slash ? slash : name, "mpi_abi")) return FLUX__MPI_ABI;
    const bool open = flux__library_symbol(library, "ompi_mpi_comm_world", &any, sizeof any);
    return open ? FLUX__MPI_OPEN : FLUX__MPI_MPICH;
}

/* Fills flux__mpi from an opened library. name: what it was opened by, NULL for the program
   itself. False: it is not a whole MPI, and why is told. */
static bool flux__mpi_take(void *library, const char *name, char *why, size_t n) {
    const int family = flux__mpi_family_of(library, name);
    const char *missing = family ? NULL : "MPI_Init_thread";
    void (*init)(void) = NULL;
#define FLUX__MPI_FIND(H, name, parameters)                                                        \
    if (!missing && !flux__library_symbol(library, "MPI_" #name, &to->name, sizeof to->name))      \
        missing = "MPI_" #name;
    if (family == FLUX__MPI_MPICH) {
        flux__mpi_ints *to = &flux__mpi.i;
        FLUX__MPI_CALLS(FLUX__MPI_FIND, int)
    } else {
        flux__mpi_pointers *to = &flux__mpi.p;
        FLUX__MPI_CALLS(FLUX__MPI_FIND, void *)
    }
    for (int i = 0; i < FLUX__MPI_CONSTANTS && !missing; i++) {
        flux__mpi_handle *c = &flux__mpi.constant[i];
        if (family == FLUX__MPI_MPICH) c->i = flux__mpi_names[i].mpich;
        else if (family == FLUX__MPI_ABI) c->p = (void *)(intptr_t)flux__mpi_names[i].abi;
        else if (!flux__library_symbol(library, flux__mpi_names[i].symbol, &c->p, sizeof c->p))
            missing = flux__mpi_names[i].symbol;
    }
    if (missing) {
        snprintf(why, n, "%s has no %s", name ? name : "the program", missing);
        return false;
    }
    flux__mpi.is = flux__mpi_all_numbers[family];
    flux__library_symbol(library, "MPI_Init_thread", &init, sizeof init);
    if (!flux__library_file(&init, flux__mpi.file, sizeof flux__mpi.file))
        snprintf(flux__mpi.file, sizeof flux__mpi.file, "%s", name ? name : "the program");
    flux__mpi.family = family;
    return true;
}

/* Names of libraries: Open MPI's, then MPICH's and its relatives'; the standard ones, whose number
   has been 0 and is 1, are either's. Some names are both's: symbols tell. */
static const char *const flux__mpi_files[2][12] = {
#if defined(_WIN32)
    { NULL }, { "msmpi.dll", NULL }
#elif defined(__APPLE__)
    { "libmpi.40.dylib", "libmpi.dylib", "libmpi_abi.1.dylib", "libmpi_abi.0.dylib", NULL },
    { "libmpi.12.dylib", "libmpich.12.dylib", "libmpi_abi.1.dylib", "libmpi_abi.0.dylib", NULL }
#else
    { "libmpi.so.40", "libmpi.so.80", "libmpi.so.20", "libmpi_ibm.so.3", "libmpi.so",
      "libmpi_abi.so.1", "libmpi_abi.so.0", NULL },
    { "libmpich.so.12", "libmpi.so.12", "libmpi_cray.so.12", "libmpi_gnu.so.12",
      "libmpi_intel.so.12", "libmpich.so", "libmpi_abi.so.1", "libmpi_abi.so.0", NULL }
#endif
};

/* Finds MPI: the file FLUX_MPI_LIBRARY; the one that the program is linked with; else the one whose
   launcher has started it, and the other kind where that is not here: a launcher of PMIx may be
   either's, and whether they fit shows when MPI has started. False: why is told. */
static bool flux__mpi_open(char *why, size_t n) {
    const char *own = flux__env("FLUX_MPI_LIBRARY");
    void (*any)(void);
    int family;
    if (flux__mpi.family) return true;
    if (own && *own) {
        void *library = flux__library_open_global(own);
        if (!library) flux__library_why(why, n, "MPI", "FLUX_MPI_LIBRARY");
        return library && flux__mpi_take(library, own, why, n);
    }
    void *program = flux__library_open(NULL);
    if (program && flux__library_symbol(program, "MPI_Init_thread", &any, sizeof any))
        return flux__mpi_take(program, NULL, why, n);
    flux__mpi_launched(&family);
    snprintf(why, n, "no MPI was found (Debian: openmpi-bin or mpich; FLUX_MPI_LIBRARY names its "
                     "library)");
    for (int i = 0; i < 2; i++) {
        const char *const *file = flux__mpi_files[family == FLUX__MPI_MPICH ? 1 - i : i];
        for (; *file; file++) {
            void *library = flux__library_open_global(*file);
            if (library && flux__mpi_take(library, *file, why, n)) return true;
        }
    }
    return false;
}

/* Whether the program has started MPI itself, being linked with it. */
static bool flux__mpi_running(void) {
    int (*initialized)(int *flag), flag = 0;
    void *program = flux__library_open(NULL);
    return program && flux__library_symbol(program, "MPI_Initialized", &initialized,
                                           sizeof initialized) &&
           initialized(&flag) == 0 && flag;
}

#endif /* FLUX_MPI */

FLUX__END_COLD

#endif /* FLUX__DIST_MPI_LIBRARY_H */
