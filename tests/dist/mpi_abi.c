/* A library of the standard interface of MPI 5 (libmpi_abi.so) on top of an MPI that has another one, so that the standard one can be
   tried where no library has it: handles and numbers, written down here as the standard's appendix has them, are translated, and a
   handle that is none ends the program. Linked with Open MPI it is as that one's own libmpi_abi will be: behind it there is a library
   with Open MPI's variables. Only what flux.h calls is here. Compiled by tests/check_mpi.sh with mpicc. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void stranger(const char *what, long long h) {
    fprintf(stderr, "mpi_abi: 0x%llx is no %s of MPI 5\n", (unsigned long long)h, what);
    abort();
}

/* Handles made here: the address of a place, which begins with whether it is in use, and holds MPI's own. */
#define PLACES(T, what)                                                                                                \
    static struct { int used; T is; } what##_places[512];                                                              \
    static void *new_##what(T is) {                                                                                    \
        int i = 0;                                                                                                     \
        while (what##_places[i].used) if (++i == 512) stranger("place for one more " #what, i);                        \
        what##_places[i].is = is, what##_places[i].used = 1;                                                           \
        return &what##_places[i];                                                                                      \
    }                                                                                                                  \
    static T *made_##what(void *h) {                                                                                   \
        for (int i = 0; i < 512; i++) if (h == &what##_places[i] && what##_places[i].used) return &what##_places[i].is; \
        stranger(#what, (intptr_t)h);                                                                                  \
        return NULL;                                                                                                   \
    }
PLACES(MPI_Comm, comm)
PLACES(MPI_Op, op)
PLACES(MPI_Request, request)
PLACES(MPI_Win, window)
static void drop(void **h, intptr_t null) { *(int *)*h = 0, *h = (void *)null; }

static MPI_Comm comm(void *h) { return (intptr_t)h == 0x101 ? MPI_COMM_WORLD : *made_comm(h); }
static MPI_Op op(void *h) {
    switch ((intptr_t)h) {
    case 0x21: return MPI_SUM;
    case 0x22: return MPI_MIN;
    case 0x23: return MPI_MAX;
    case 0x24: return MPI_PROD;
    }
    return *made_op(h);
}
static MPI_Datatype type(void *h) {
    switch ((intptr_t)h) {
    case 0x210: return MPI_FLOAT;
    case 0x214: return MPI_DOUBLE;
    case 0x241: return MPI_UINT8_T;
    case 0x249: return MPI_UINT16_T;
    case 0x250: return MPI_INT32_T;
    case 0x258: return MPI_INT64_T;
    }
    stranger("type", (intptr_t)h);
    return MPI_BYTE;
}
static const void *data(const void *p) { return p == (const void *)1 ? MPI_IN_PLACE : p; }
static int source(int rank) { return rank == -1 ? MPI_ANY_SOURCE : rank; }
static int level(int of_abi) {
    if (of_abi != 0 && of_abi != 1024 && of_abi != 2048 && of_abi != 4096) stranger("level of threads", of_abi);
    return of_abi == 0 ? MPI_THREAD_SINGLE : of_abi == 1024 ? MPI_THREAD_FUNNELED : of_abi == 2048 ? MPI_THREAD_SERIALIZED : MPI_THREAD_MULTIPLE;
}
static void give(const MPI_Status *s, int out[8]) { memset(out, -1, 32), out[0] = s->MPI_SOURCE, out[1] = s->MPI_TAG, out[2] = s->MPI_ERROR; }

/* ABI(Test, (parameters)): the function that programs know as MPI_Test; mpi.h has declared it otherwise. */
#define ABI(name, parameters)                      \
    int abi_##name parameters __asm__("MPI_" #name); \
    int abi_##name parameters

ABI(Init_thread, (int *argc, char ***argv, int required, int *provided)) {
    const int rc = PMPI_Init_thread(argc, argv, level(required), provided);
    *provided = *provided == MPI_THREAD_SINGLE ? 0 : *provided == MPI_THREAD_FUNNELED ? 1024 : *provided == MPI_THREAD_SERIALIZED ? 2048 : 4096;
    return rc;
}
ABI(Initialized, (int *flag)) { return PMPI_Initialized(flag); }
ABI(Finalized, (int *flag)) { return PMPI_Finalized(flag); }
ABI(Finalize, (void)) { return PMPI_Finalize(); }
ABI(Comm_rank, (void *c, int *rank)) { return PMPI_Comm_rank(comm(c), rank); }
ABI(Comm_size, (void *c, int *size)) { return PMPI_Comm_size(comm(c), size); }
ABI(Comm_dup, (void *c, void **out)) {
    MPI_Comm d;
    const int rc = PMPI_Comm_dup(comm(c), &d);
    *out = new_comm(d);
    return rc;
}
ABI(Comm_free, (void **c)) {
    const int rc = PMPI_Comm_free(made_comm(*c));
    drop(c, 0x100);
    return rc;
}
ABI(Comm_split_type, (void *c, int split, int key, void *info, void **out)) {
    MPI_Comm d;
    if (split != 221) stranger("way to split", split);
    if ((intptr_t)info != 0x130) stranger("info", (intptr_t)info);
    const int rc = PMPI_Comm_split_type(comm(c), MPI_COMM_TYPE_SHARED, key, MPI_INFO_NULL, &d);
    *out = new_comm(d);
    return rc;
}
ABI(Comm_set_errhandler, (void *c, void *handler)) {
    if ((intptr_t)handler != 0x143) stranger("handler of errors", (intptr_t)handler);
    return PMPI_Comm_set_errhandler(comm(c), MPI_ERRORS_RETURN);
}
ABI(Error_string, (int code, char *text, int *length)) { return PMPI_Error_string(code, text, length); }
ABI(Get_processor_name, (char *name, int *length)) { return PMPI_Get_processor_name(name, length); }
ABI(Op_create, (MPI_User_function *fold, int commutes, void **out)) {
    MPI_Op o;
    const int rc = PMPI_Op_create(fold, commutes, &o);
    *out = new_op(o);
    return rc;
}
ABI(Allreduce, (const void *in, void *out, int n, void *t, void *o, void *c)) { return PMPI_Allreduce(data(in), out, n, type(t), op(o), comm(c)); }
ABI(Iallreduce, (const void *in, void *out, int n, void *t, void *o, void *c, void **request)) {
    MPI_Request r;
    const int rc = PMPI_Iallreduce(data(in), out, n, type(t), op(o), comm(c), &r);
    *request = new_request(r);
    return rc;
}
ABI(Reduce, (const void *in, void *out, int n, void *t, void *o, int root, void *c)) {
    return PMPI_Reduce(data(in), out, n, type(t), op(o), root, comm(c));
}
ABI(Bcast, (void *p, int n, void *t, int root, void *c)) { return PMPI_Bcast(p, n, type(t), root, comm(c)); }
ABI(Allgather, (const void *in, int n, void *t, void *out, int m, void *u, void *c)) {
    return PMPI_Allgather(data(in), n, type(t), out, m, type(u), comm(c));
}
ABI(Reduce_local, (const void *in, void *inout, int n, void *t, void *o)) {
    return PMPI_Reduce_local(data(in), inout, n, type(t), op(o));
}
ABI(Ireduce, (const void *in, void *out, int n, void *t, void *o, int root, void *c, void **request)) {
    MPI_Request r;
    const int rc = PMPI_Ireduce(data(in), out, n, type(t), op(o), root, comm(c), &r);
    *request = new_request(r);
    return rc;
}
ABI(Ibcast, (void *p, int n, void *t, int root, void *c, void **request)) {
    MPI_Request r;
    const int rc = PMPI_Ibcast(p, n, type(t), root, comm(c), &r);
    *request = new_request(r);
    return rc;
}
ABI(Iallgather, (const void *in, int n, void *t, void *out, int m, void *u, void *c, void **request)) {
    MPI_Request r;
    const int rc = PMPI_Iallgather(data(in), n, type(t), out, m, type(u), comm(c), &r);
    *request = new_request(r);
    return rc;
}
ABI(Ireduce_scatter_block, (const void *in, void *out, int n, void *t, void *o, void *c, void **request)) {
    MPI_Request r;
    const int rc = PMPI_Ireduce_scatter_block(data(in), out, n, type(t), op(o), comm(c), &r);
    *request = new_request(r);
    return rc;
}
ABI(Test, (void **request, int *done, void *status)) {
    MPI_Status s;
    const int rc = PMPI_Test(made_request(*request), done, &s);
    if (*done) give(&s, (int *)status), drop(request, 0x180);
    return rc;
}
ABI(Isend, (const void *p, int n, void *t, int to, int tag, void *c, void **request)) {
    MPI_Request r;
    const int rc = PMPI_Isend(p, n, type(t), to, tag, comm(c), &r);
    *request = new_request(r);
    return rc;
}
ABI(Recv, (void *p, int n, void *t, int from, int tag, void *c, void *status)) {
    MPI_Status s;
    const int rc = PMPI_Recv(p, n, type(t), source(from), tag, comm(c), &s);
    give(&s, (int *)status);
    return rc;
}
ABI(Iprobe, (int from, int tag, void *c, int *flag, void *status)) {
    MPI_Status s;
    const int rc = PMPI_Iprobe(source(from), tag, comm(c), flag, &s);
    if (*flag) give(&s, (int *)status);
    return rc;
}
ABI(Win_allocate_shared, (intptr_t bytes, int unit, void *info, void *c, void *at, void **w)) {
    MPI_Win made;
    if ((intptr_t)info != 0x130) stranger("info", (intptr_t)info);
    const int rc = PMPI_Win_allocate_shared((MPI_Aint)bytes, unit, MPI_INFO_NULL, comm(c), at, &made);
    *w = new_window(made);
    return rc;
}
ABI(Win_set_errhandler, (void *w, void *handler)) {
    if ((intptr_t)handler != 0x143) stranger("handler of errors", (intptr_t)handler);
    return PMPI_Win_set_errhandler(*made_window(w), MPI_ERRORS_RETURN);
}
ABI(Win_shared_query, (void *w, int rank, intptr_t *bytes, int *unit, void *at)) {
    MPI_Aint n;
    const int rc = PMPI_Win_shared_query(*made_window(w), rank, &n, unit, at);
    *bytes = (intptr_t)n;
    return rc;
}
ABI(Win_fence, (int promises, void *w)) {
    if (promises != 0) stranger("promise to a fence", promises);
    return PMPI_Win_fence(0, *made_window(w));
}
ABI(Win_free, (void **w)) {
    const int rc = PMPI_Win_free(made_window(*w));
    drop(w, 0x110);
    return rc;
}
