/* Faults of ranks: what the others are told, and that they can go on without collectives. The mode is the first argument:
     differ   rank 1 calls another collective           late   rank 1 comes after the time-out
     ends     rank 1 ends while the others go on        shape  rank 1 has fewer elements
     rule     rank 1 has another model                  fails  rank 1 could not compute its operand
     signal   SIGTERM comes to rank 1: all leave their loops after the same step
     cut      the file faults.go says that the cable of the last rank may be cut: goes on until that has happened
   Each rank prints "rank R: ", what it was told, and whether values can be looked at and saved. Run by tests/check_mpi.sh. */
#define _POSIX_C_SOURCE 200809L
#include <string.h>
#include <signal.h>
#include "flux.h"
#include "meet.h"

static void wait_seconds(double s) {
    struct timespec t = { (time_t)s, (long)((s - (double)(time_t)s) * 1e9) };
    nanosleep(&t, NULL);
}

int main(int argc, char **argv) {
    flux_comm *comm = flux_distributed(.argc = &argc, .argv = &argv, .timeout = 1);
    if (!comm || argc < 2) return 1;
    const char *mode = argv[1];
    const int rank = flux_rank_of(comm), size = flux_size_of(comm);
    const bool odd = rank == 1;
    char path[64];
    flux_layer *m = flux_dense(2, odd && !strcmp(mode, "rule") ? 3 : 2);
    flux_tensor *x = flux_full(rank, odd && !strcmp(mode, "shape") ? 9 : 10), *before = flux_allreduce(comm, flux_ones(2), FLUX_SUM);
    if (flux_at(before, 0) != size) printf("rank %d: a wrong sum\n", rank);
    if (!strcmp(mode, "signal")) {
        int step = 0;
        flux_interrupted();
        for (; step < 50 && !flux_interrupted(comm); step++) {
            if (odd && step == 6) raise(SIGTERM);
            FLUX_SCOPE flux_eval(flux_allreduce(comm, x, FLUX_SUM));
        }
        const int rc = flux_distributed_end(comm);
        printf("rank %d: after step %d, ended with %d; saved\n", rank, step, rc);
        return 0;
    }
    if (odd && !strcmp(mode, "late")) wait_seconds(2.5);
    if (odd && !strcmp(mode, "fails")) x = flux_reshape(x, 3, 7);
    if (odd && !strcmp(mode, "ends")) {
        const int rc = flux_distributed_end(comm);
        printf("rank %d: ended with %d: %s\n", rank, rc, flux_error()), fflush(stdout);
        meet(rank, size, 6);
        return 0;
    }
    if (!strcmp(mode, "rule")) {
        flux_state *s = flux_setup(flux_distributed_optimiser(comm, flux_descent()), m);
        flux_update(s, m, flux_gradient(flux_sum(flux_call(m, flux_ones(2))), m));
    } else if (!strcmp(mode, "cut")) {
        FILE *go = rank == 0 ? fopen("faults.go", "wb") : NULL;
        flux_tensor *big = flux_eval(flux_ones(1000000));
        if (go) fclose(go);
        for (int i = 0; i < 100000 && !flux_failed(); i++) FLUX_SCOPE flux_eval(flux_allreduce(comm, big, FLUX_SUM));
    } else if (odd && !strcmp(mode, "differ")) flux_eval(flux_broadcast(comm, flux_ones(3), .root = 0));
    else flux_eval(flux_allreduce(comm, x, FLUX_SUM));
    char told[600];
    snprintf(told, sizeof told, "%s", flux_error());
    if (strcmp(mode, "fails")) flux_clear();     /* else the others are told of the error */
    snprintf(path, sizeof path, "faults.%d.safetensors", rank);
    const bool saved = flux_save(m, path) == 0 && flux_item(flux_sum(flux_ones(3))) == 3;
    remove(path);
    printf("rank %d: %s; %s\n", rank, told, saved ? "saved" : "not saved");
    fflush(stdout);
    flux_distributed_end(comm);
    meet(rank, size, 6);
    return 0;
}
