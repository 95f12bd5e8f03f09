/* A program that has started MPI itself, with its own level of threads, and gives flux.h a communicator of half of its ranks. MPI
   goes on when flux.h has left. Linked with MPI (mpicc); run by tests/check_mpi.sh on 4 ranks. */
#include <mpi.h>
#include <stdio.h>
#include "flux.h"

int main(int argc, char **argv) {
    int level, rank, size, after = 0;
    MPI_Comm half;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    double sums[2] = { 0, 0 };
    for (int i = 0; i < 2; i++) {                        /* joined, left and joined again */
        flux_comm *comm = flux_distributed(.comm = &half);
        if (!comm) return 1;
        sums[i] = flux_item(flux_allreduce(comm, flux_scalar(rank), FLUX_SUM)) + 100 * flux_size_of(comm);
        if (flux_distributed_end(comm)) return 1;
    }
    int one = 1;
    MPI_Allreduce(&one, &after, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    double want = 100.0 * (size / 2);
    for (int r = rank % 2; r < size; r += 2) want += r;
    const bool ok = sums[0] == want && sums[1] == want && after == size && !flux_failed();
    printf("rank %d of %d: %s\n", rank, size, ok ? "ok" : "wrong");
    MPI_Comm_free(&half);
    MPI_Finalize();
    return !ok;
}
