/* Each call of MPI fails, one after the other: what is told must have its name, and nothing may crash or hang. The argument is the
   call that fails on every rank, always. Prints "rank R of N: ok" if that was told, or if the call has nothing to tell. Run by
   tests/check_mpi.sh. */
#define _POSIX_C_SOURCE 200809L
#define FLUX_IMPLEMENTATION
#include "flux.h"
#include "meet.h"

/* for the programs that are linked with this */
void take_pieces(int64_t most);
void take_pieces(int64_t most) { flux__mpi_most = most; }
void take_window(size_t from, size_t half);
void take_window(size_t from, size_t half) { flux__mpi_window_from = from, flux__mpi_window_used = half; }
void take_apart(flux_comm *comm, bool apart);
void take_apart(flux_comm *comm, bool apart) { comm->one_host = !apart && comm->window.part; }

enum { FAILED = 16 };            /* MPI_ERR_OTHER or near it */
#define POINTERS(H, name, parameters) static int pointers_##name parameters { return FAILED; }
#define INTS(H, name, parameters) static int ints_##name parameters { return FAILED; }
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-parameter"
#endif
FLUX__MPI_CALLS(POINTERS, void *)
FLUX__MPI_CALLS(INTS, int)

static int listed;
static bool spoil(const char *call) {
    bool found = false;
#define SPOIL_POINTERS(H, name, parameters) if (!strcmp(call, #name)) flux__mpi.p.name = pointers_##name, found = true;
#define SPOIL_INTS(H, name, parameters) if (!strcmp(call, #name)) flux__mpi.i.name = ints_##name;
#define LIST(H, name, parameters) if (!strcmp(call, "list")) puts(#name), listed++;
    FLUX__MPI_CALLS(SPOIL_POINTERS, void *)
    FLUX__MPI_CALLS(SPOIL_INTS, int)
    FLUX__MPI_CALLS(LIST, H)
    return found;
}

int main(int argc, char **argv) {
    char why[300], name[64];
    const char *call = argc > 1 ? argv[1] : "list";
    if (!strcmp(call, "list")) return spoil(call), listed < 10;
    if (!flux__mpi_open(why, sizeof why) || !spoil(call)) return 1;
    flux_comm *comm = flux_distributed(.timeout = 2);
    bool right = true;
    const int rank = comm ? flux_rank_of(comm) : 0, size = comm ? flux_size_of(comm) : 0;
    if (comm) {
        take_apart(comm, call[0] == 'I' && strcmp(call, "Initialized") != 0);
        take_window(0, 1 << 10);
        flux_eval(flux_allreduce(comm, flux_ones(3), FLUX_MAX));        /* an operation of our own */
        flux_tensor *sum = flux_eval(flux_allreduce(comm, flux_ones(3), FLUX_SUM));
        right = sum && flux_at(sum, 1) == size;
        flux_eval(flux_reduce(comm, flux_ones(3), FLUX_SUM));
        flux_eval(flux_broadcast(comm, flux_ones(3)));
        flux_eval(flux_allgather(comm, flux_ones(3)));
        flux_eval(flux_reduce_scatter(comm, flux_ones(size), FLUX_SUM));
    }
    snprintf(name, sizeof name, "MPI_%s", call);
    const bool told = strstr(flux_error(), name) != NULL;
    /* these have no way to fail, or no one to tell; Error_string, Recv and Isend are for faults alone; without a window the data go
       another way */
    static const char *const quiet[] = { "Initialized", "Finalized", "Finalize", "Comm_rank", "Comm_size", "Comm_free", "Error_string",
                                         "Get_processor_name", "Isend", "Recv", "Iprobe", "Win_allocate_shared", "Win_set_errhandler",
                                         "Win_shared_query", "Win_free" };
    bool silent = false;
    for (int i = 0; i < (int)(sizeof quiet / sizeof *quiet); i++) silent = silent || !strcmp(call, quiet[i]);
    if (told || (silent && right)) printf("rank %d of %d: ok, %s\n", rank, size, told ? flux_error() : "quiet");
    else printf("rank %d of %d: %s fails, and it is told: %s\n", rank, size, call, flux_error());
    fflush(stdout);
    if (comm && silent) flux_distributed_end(comm);
    meet(rank, comm ? size : 2, comm ? 3 : 0.3);
    return 0;
}
