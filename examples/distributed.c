/* distributed.c - several processes learn to read handwritten digits together, or one alone.
       cc -O2 -DFLUX_MPI -I. examples/distributed.c -lm -o distributed           in the folder of flux.h
       ./distributed                            alone, with or without MPI on the machine
       mpirun -np 4 ./distributed               or: srun -n 4 ./distributed
   Every rank takes its part of each batch, gradients are averaged, and the parameters stay the same
   bits everywhere. A checkpoint is written after each epoch; a run that was interrupted (Ctrl-C, or
   SIGTERM of a scheduler) goes on from it, also with another number of ranks. With -DFLUX_CUDA each
   rank takes the GPU of its number on its machine. With SHORT=1 it learns for a moment only. */
#define FLUX_IMPLEMENTATION
#include "flux.h"
#include <stdlib.h>

#define MODEL "distributed.safetensors"
#define STATE "distributed.state.safetensors"
enum { IMAGES = 1797, BATCH = 64, EPOCHS = 12 };

/* Every fifth image is held out, the others are learnt from. */
static flux_tensor *pick(flux_tensor *all, bool held) {
    int64_t at[IMAGES], n = 0;
    for (int64_t i = 0; i < IMAGES && i < flux_dim(all, 1); i++)
        if ((i % 5 == 0) == held) at[n++] = i;
    return flux_gather(all, 1, flux_from(at, n));                         /* 65 x n */
}
static flux_tensor *image(flux_tensor *part) { return flux_mul(flux_slice(part, 0, 0, 64), 1.0 / 16); }
static flux_tensor *label(flux_tensor *part) { return flux_to_dtype(flux_select(part, 0, 64), FLUX_I32); }

/* How many of this rank's share of the held-out images are read right, as a share of all. */
static double accuracy(flux_comm *comm, flux_layer *model, flux_loader *held) {
    flux_tensor *right = flux_zeros(2);                                   /* right ones, all */
    FLUX_INFER {
        flux_each (b, held) {
            flux_tensor *same = flux_sum(flux_to_dtype(flux_eq(flux_onecold(flux_call(model, b.x)), b.y), FLUX_F32));
            right = flux_carry(right, flux_add(right, flux_stack(0, same, flux_scalar((double)b.size))));
        }
        right = flux_keep(flux_allreduce(comm, right, FLUX_SUM));
    }
    return flux_at(right, 0) / flux_at(right, 1);
}

int main(int argc, char **argv) {
    flux_comm *comm = flux_distributed(.argc = &argc, .argv = &argv);
    if (!comm) return 1;
    const bool first = flux_rank_of(comm) == 0;
    flux_tensor *all = flux_load_csv("examples/data/digits.csv");         /* 65 x 1797 */
    if (!all) return 1;
    flux_tensor *learn = pick(all, false), *rest = pick(all, true);

    flux_seed(1);
    flux_layer *model = flux_gpu(flux_chain(flux_dense(64, 256, flux_relu), flux_dropout(0.1),
                                            flux_dense(256, 128, flux_relu), flux_dense(128, 10)));
    model = flux_synchronize(comm, model);                                /* rank 0's numbers */
    flux_state *opt = flux_setup(flux_distributed_optimiser(comm, flux_adam(3e-3)), model);
    FILE *checkpoint = getenv("RESUME") ? fopen(MODEL, "rb") : NULL;
    if (checkpoint) fclose(checkpoint), flux_load(model, MODEL), flux_load(opt, STATE);

    /* of a batch of 64 images each rank takes its part */
    const int each = BATCH / flux_size_of(comm) ? BATCH / flux_size_of(comm) : 1;
    flux_loader *train = flux_gpu(flux_dataloader(image(learn), flux_onehot(label(learn), 10),
                                                  .batchsize = each, .shuffle = true, .comm = comm)),
                *held = flux_gpu(flux_dataloader(image(rest), label(rest), .batchsize = 16, .comm = comm));
    if (first) printf("%d ranks by %s\n", flux_size_of(comm), flux_comm_name(comm));
    bool stop = false;
    double right = 1;
    flux_times (epoch, getenv("SHORT") ? 3 : EPOCHS) {
        if (stop) break;
        flux_tensor *sum = flux_scalar(0);
        flux_each (b, train) {
            flux_tensor *loss = flux_logitcrossentropy(flux_call(model, b.x), b.y);
            flux_update(opt, model, flux_gradient(loss, model));
            sum = flux_carry(sum, flux_add(sum, flux_cpu(loss)));
        }
        const double loss = flux_item(flux_allreduce(comm, sum, FLUX_MEAN)) / (double)flux_len(train);
        right = accuracy(comm, model, held);
        if (first) printf("epoch %2d: loss %.4f, held-out accuracy %.4f\n", (int)epoch + 1, loss, right);
        if (flux_distributed_save(comm, model, MODEL) || flux_distributed_save(comm, opt, STATE)) return 1;
        stop = flux_interrupted(comm);                                    /* the same on all ranks */
        if (flux_failed()) return 1;
    }
    if (first && stop) printf("interrupted: RESUME=1 goes on from " MODEL "\n");
    return flux_distributed_end(comm) || flux_failed() || (!stop && right < 0.85);
}
