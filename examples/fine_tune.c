/* fine_tune.c - a network that PyTorch has trained gets used to other images by a few examples.
       cc -O2 -I. examples/fine_tune.c -lm -o fine_tune && ./fine_tune           in the folder of flux.h
   It reads handwritten digits of one scanner. Another scanner is pale and noisy and moves them by a pixel, so that the
   network reads half of those. It goes on learning from 50 of them, while its first layer stays as it is. The same network
   that has seen nothing before learns from these 50, too, to compare.
   The file would come from Python: safetensors.torch.save_file(net.state_dict(), "fine_tune.safetensors"), with
       net.features = Sequential(Conv2d(1, 16, 3, padding=1), ReLU(), MaxPool2d(2), Conv2d(16, 32, 3, padding=1), ReLU(),
                                 Flatten(), Linear(512, 64), ReLU())
       net.head = Linear(64, 10)
   Here flux_save_torch writes it as load_state_dict takes it. With SHORT=1 the first training is shorter. */
#define FLUX_IMPLEMENTATION
#include "flux.h"
#include <stdlib.h>

#define PRETRAINED "fine_tune.safetensors"
enum { FEW = 50 };

typedef struct digits { flux_tensor *x, *label; } digits;                 /* 8 x 8 x 1 x n in 0 to 1, and their classes */

static digits part(digits all, int64_t start, int64_t stop) {
    digits d;
    d.x = flux_slice(all.x, 3, start, stop), d.label = flux_slice(all.label, 0, start, stop);
    return d;
}

static digits of_other_scanner(digits d) {
    flux_tensor *moved = flux_slice(flux_pad(d.x, 0, 1, 0), 0, 0, flux_dim(d.x, 0));
    flux_tensor *noise = flux_to(flux_device_of(d.x), flux_randn_with(flux_shape_of(d.x), FLUX_F32));
    d.x = flux_eval(flux_add(flux_mul(moved, 0.6), flux_mul(noise, 0.1)));
    return d;
}

static flux_layer *new_network(flux_device device) {
    flux_layer *body = flux_chain(
        flux_conv_layer(FLUX_SHAPE(3, 3), 1, 16, .pad = FLUX_SHAPE(1)), flux_relu, flux_maxpool_layer(FLUX_SHAPE(2, 2)),
        flux_conv_layer(FLUX_SHAPE(3, 3), 16, 32, .pad = FLUX_SHAPE(1)), flux_relu,
        flux_flatten, flux_dense(512, 64), flux_relu);
    return flux_to(device, flux_chain(flux_named("body", body), flux_named("head", flux_dense(64, 10))));
}

static void train(flux_layer *model, digits d, double eta, int epochs) {
    flux_loader *data = flux_dataloader(d.x, d.label, .batchsize = 25, .shuffle = true);
    flux_state *opt = flux_setup(flux_adam(eta), model);
    flux_times (epoch, epochs)
        flux_each (b, data)
            flux_update(opt, model, flux_gradient(flux_logitcrossentropy(flux_call(model, b.x), b.y), model));
}

static double accuracy(flux_layer *model, digits d) {
    double right = 0;
    FLUX_INFER right = flux_item(flux_accuracy(flux_call(model, d.x), d.label));
    return right;
}

int main(void) {
    flux_device device = flux_get_device();
    flux_tensor *all = flux_load_csv("examples/data/digits.csv");         /* 65 x 1797 */
    if (!all) return 1;
    digits old, moved;
    old.x = flux_to(device, flux_mul(flux_reshape(flux_slice(all, 0, 0, 64), 8, 8, 1, -1), 1.0 / 16));
    old.label = flux_to(device, flux_to_dtype(flux_select(all, 0, 64), FLUX_I32));
    flux_seed(1);
    int64_t n = flux_len(old.label), half = n / 2;
    moved = of_other_scanner(part(old, half, n));
    digits few = part(moved, 0, FEW), rest = part(moved, FEW, n - half);

    flux_layer *theirs = new_network(device);                             /* what was done in PyTorch, with the first half */
    const char *map = "layers.body = features";                           /* a name here = its name there */
    train(theirs, part(old, 0, half), 3e-3, getenv("SHORT") ? 5 : 15);
    if (flux_save_torch(theirs, PRETRAINED, map) != 0) return 1;

    flux_layer *model = new_network(device);
    if (flux_load_torch(model, PRETRAINED, map) != 0) return 1;
    printf("%s reads %.1f %% of its scanner's digits, ", PRETRAINED, 100 * accuracy(model, part(old, half, n)));
    printf("%.1f %% of the other's\n", 100 * accuracy(model, rest));
    flux_freeze(flux_child(flux_child(model, 0), 0));    /* the first convolution */
    train(model, few, 1e-3, 60);
    double found = accuracy(model, rest);

    flux_layer *other = new_network(device);
    train(other, few, 3e-3, 60);
    double compared = accuracy(other, rest);
    printf("after %d digits of that one it reads %.1f %% of the others\n", FEW, 100 * found);
    printf("a network that had seen nothing before reads %.1f %%\n", 100 * compared);
    return flux_failed() || found < 0.7 || found < compared + 0.05;
}
