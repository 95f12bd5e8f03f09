// Whether the calls and numbers of src/dist/mpi_library.h are those of the mpi.h that is included: each of our declarations
// must be MPI's own, with handles of one type. Compiled, and for the numbers run, by tests/check_mpi.sh. It has that room alone,
// since all of flux.h takes a compiler twenty seconds.
#include <mpi.h>
#include <cstdio>
#include <type_traits>
#define FLUX_MPI
#define FLUX_IMPLEMENTATION
#include "src/dist/mpi_library.h"

#ifdef OPEN_MPI
typedef void *handle;
typedef flux__mpi_pointers calls;
enum { family = FLUX__MPI_OPEN };
#else
typedef int handle;
typedef flux__mpi_ints calls;
enum { family = FLUX__MPI_MPICH };
#endif

// Plain<T>: MPI's type T as ours.
template <class T> struct Plain { typedef T type; };
#define HANDLE(T) template <> struct Plain<T> { typedef handle type; }; template <> struct Plain<T *> { typedef handle *type; };
#ifdef OPEN_MPI
HANDLE(MPI_Comm) HANDLE(MPI_Datatype) HANDLE(MPI_Op) HANDLE(MPI_Request) HANDLE(MPI_Info) HANDLE(MPI_Errhandler) HANDLE(MPI_Win)
#endif
template <> struct Plain<MPI_Status *> { typedef void *type; };
template <> struct Plain<MPI_User_function *> { typedef flux__mpi_fold *type; };
template <class F> struct Call;
template <class... P> struct Call<int(P...)> { typedef int (*type)(typename Plain<P>::type...); };
#define SAME(H, name, parameters)                                                                                          \
    static_assert(std::is_same<Call<decltype(MPI_##name)>::type, decltype(calls::name)>::value, "MPI_" #name " differs");
FLUX__MPI_CALLS(SAME, handle)

static void flux__fork_locks(int) {}      // of a room above

static int wrong;
static void same(const char *what, long long have, long long want) {
    if (have != want) std::printf("%s is %lld, not %lld\n", what, want, have), wrong++;
}

int main() {
    const flux__mpi_numbers *is = &flux__mpi_all_numbers[family];
    MPI_Status status;
    same("MPI_IN_PLACE", is->in_place, (long long)(intptr_t)MPI_IN_PLACE);
    same("MPI_ANY_SOURCE", is->any_source, MPI_ANY_SOURCE);
    same("MPI_COMM_TYPE_SHARED", is->shared, MPI_COMM_TYPE_SHARED);
    same("MPI_THREAD_SERIALIZED", is->serialized, MPI_THREAD_SERIALIZED);
    same("MPI_SOURCE", is->source, (int *)&status.MPI_SOURCE - (int *)&status);
    same("a status fits", sizeof status <= 64, 1);
#ifndef OPEN_MPI
    const int have[] = { MPI_FLOAT, MPI_DOUBLE, MPI_INT32_T, MPI_INT64_T, MPI_UINT16_T, MPI_UINT8_T, MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX,
                         MPI_COMM_WORLD, MPI_ERRORS_RETURN, MPI_INFO_NULL };
    for (int i = 0; i < FLUX__MPI_CONSTANTS; i++) same(flux__mpi_names[i].symbol, flux__mpi_names[i].mpich, have[i]);
#endif
    return wrong != 0;
}
