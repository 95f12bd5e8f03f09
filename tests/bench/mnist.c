/* Learns to read MNIST's digits from one of its pairs of files, nine tenths of it, by 5 epochs of
   784-256-10, and prints how many of the rest it reads right, and in what time.
       make -s build/release/tests/bench/mnist
       build/release/tests/bench/mnist t10k-images-idx3-ubyte t10k-labels-idx1-ubyte */
#include "../../flux.h"
#include <stdio.h>
#include <time.h>

static double seconds(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "mnist IMAGES LABELS\n"), 2;
    flux_tensor *image = flux_shuffleobs(flux_load_idx(argv[1]), 1);      /* 28 x 28 x n bytes */
    flux_tensor *label = flux_shuffleobs(flux_load_idx(argv[2]), 1);      /* by the same seed */
    int64_t n = flux_len(label), learnt = n / 10 * 9;
    image = flux_to_dtype(flux_reshape(image, 784, -1), FLUX_F32);
    image = flux_eval(flux_mul(image, 1.0 / 255));
    flux_tensor *x = flux_slice(image, 1, 0, learnt), *held = flux_slice(image, 1, learnt, n);
    flux_tensor *y = flux_onehot(flux_slice(label, 0, 0, learnt), 10);
    flux_tensor *digit = flux_slice(label, 0, learnt, n);

    double start = seconds();
    flux_layer *model = flux_chain(flux_dense(784, 256, flux_relu), flux_dense(256, 10));
    flux_state *opt = flux_setup(flux_adam(1e-3), model);
    flux_loader *data = flux_dataloader(x, y, .batchsize = 64, .shuffle = true);
    flux_times (epoch, 5)
        flux_each (b, data) {
            flux_tensor *loss = flux_logitcrossentropy(flux_call(model, b.x), b.y);
            flux_update(opt, model, flux_gradient(loss, model));
        }
    flux_tensor *guess = flux_onecold(flux_call(model, held));
    double right = flux_item(flux_mean(flux_eq(guess, digit)));
    printf("MNIST %dx784, 5 epochs %12.2f s, held-out accuracy %.4f\n", (int)learnt,
           seconds() - start, right);
    return flux_failed();
}
