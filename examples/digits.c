/* digits.c - learns to read handwritten digits, on the best device there is.
       cc -O2 -I. examples/digits.c -lm -o digits && ./digits           in the folder of flux.h
   It writes digits.svg, how the loss fell, and digits.safetensors, which a second process reads.
   The data: examples/data/README.txt. With SHORT=1 in the environment it learns for a moment only. */
#define FLUX_IMPLEMENTATION
#include "flux.h"
#include "plot.h"
#include <stdlib.h>

#define CSV "examples/data/digits.csv"
#define MODEL "digits.safetensors"
enum { IMAGES = 1797, EPOCHS = 20, STEPS = 45 }; /* 1,437 images are 45 batches of 32 */

typedef struct samples { flux_tensor *x, *label; } samples;

/* Every fifth image is held out, the others are learnt from. */
static samples pick(flux_tensor *all, bool held) {
    int64_t at[IMAGES], n = 0;
    samples s;
    for (int64_t i = 0; i < IMAGES && i < flux_dim(all, 1); i++)
        if ((i % 5 == 0) == held) at[n++] = i;
    flux_tensor *part = flux_gather(all, 1, flux_from(at, n));            /* 65 x n */
    s.x = flux_mul(flux_slice(part, 0, 0, 64), 1.0 / 16);                 /* 64 x n, 0 to 1 */
    s.label = flux_to_dtype(flux_select(part, 0, 64), FLUX_I32);          /* n */
    return s;
}

static flux_layer *new_model(flux_device device) {
    return flux_to(device, flux_chain(flux_dense(64, 256, flux_relu), flux_dropout(0.1),
                                      flux_dense(256, 128, flux_relu), flux_dense(128, 10)));
}

static flux_tensor *guess(flux_layer *model, flux_device device, flux_tensor *x) {
    flux_tensor *digit = NULL;
    FLUX_INFER digit = flux_keep(flux_cpu(flux_onecold(flux_call(model, flux_to(device, x)))));
    return digit;
}

/* A little noise on each image, new in every epoch, so that none is learnt by heart. */
static flux_batch with_noise(flux_batch b, void *user) {
    (void)user;
    b.x = flux_add(b.x, flux_mul(flux_randn_with(flux_shape_of(b.x), FLUX_F32), 0.2));
    return b;
}

/* The second process: the model from the file must guess what it did when it was saved. */
static int check(samples held, flux_device device) {
    flux_layer *model = new_model(device);
    if (flux_load_all(MODEL, model) != 0) return 1;
    flux_tensor *then = flux_load_tensor(MODEL, "guesses"), *now = guess(model, device, held.x);
    int same = (int)flux_item(flux_sum(flux_to_dtype(flux_eq(now, then), FLUX_I64)));
    printf("another process read " MODEL ": %d of %d guesses are the same\n", same, (int)flux_len(now));
    return flux_failed() || same != flux_len(now);
}

static void print_confusion(flux_tensor *guesses, flux_tensor *labels) {
    const int64_t *count = (const int64_t *)flux_data(flux_confusion(guesses, flux_onehot(labels, 10)));
    if (!count) return;
    printf("\nis \\ read as   0   1   2   3   4   5   6   7   8   9\n");
    for (int i = 0; i < 100; i++) {
        if (i % 10 == 0) printf("%12d", i / 10);
        if (count[i]) printf("%4d", (int)count[i]);
        else printf("   .");
        if (i % 10 == 9) printf("\n");
    }
}

int main(int argc, char **argv) {
    flux_device device = flux_get_device();
    flux_tensor *all = flux_load_csv(CSV);                                /* 65 x 1797 */
    if (!all) return 1;
    samples learn = pick(all, false), held = pick(all, true);
    if (argc > 1 && !strcmp(argv[1], "--check")) return check(held, device);

    flux_seed(1);
    flux_layer *model = new_model(device);
    flux_state *opt = flux_setup(flux_adam(3e-3), model);
    flux_loader *train = flux_dataloader(learn.x, flux_onehot(learn.label, 10), .batchsize = 32,
                                         .shuffle = true, .transform = with_noise);
    train = flux_to(device, train);                                       /* moves each batch, one ahead */
    printf("%s\n", flux_device_name(device));
    flux_print(model);

    static double at[EPOCHS * STEPS], fell[EPOCHS * STEPS], smooth[EPOCHS * STEPS];
    double right = 0;
    int steps = 0, epochs = getenv("SHORT") ? 3 : EPOCHS;
    flux_times (turn, epochs) {
        flux_tensor *seen[STEPS];
        char label[32];
        int epoch = turn + 1, n = 0;
        snprintf(label, sizeof label, "epoch %2d", epoch);
        if (epoch == 15) flux_adjust(opt, .eta = 6e-4);
        flux_each (b, train, .progress = label) {
            flux_tensor *loss = flux_logitcrossentropy(flux_call(model, b.x), b.y);
            flux_update(opt, model, flux_gradient(loss, model));
            flux_progress("loss", loss);
            seen[n++] = flux_keep(loss);                                  /* no step waits for it */
        }
        for (int i = 0; i < n; i++, steps++)
            at[steps] = epoch - 1 + (i + 1.0) / n, fell[steps] = flux_item(seen[i]);
        right = flux_item(flux_accuracy(guess(model, device, held.x), held.label));
        printf("epoch %2d: held-out accuracy %.4f\n", epoch, right);
        if (flux_failed()) return 1;
    }

    flux_tensor *guesses = guess(model, device, held.x);
    print_confusion(guesses, held.label);
    plot_smooth(fell, smooth, steps, 20);
    plot_series curves[] = { { "each batch", PLOT_FAINT, 0, steps, at, fell },
                             { "smoothed", PLOT_LINE, 0, steps, at, smooth } };
    if (plot_svg("digits.svg", "Learning to read digits", "epochs", "loss", curves, 2)) return 1;
    printf("\ndigits.svg shows how the loss fell\n");
    if (flux_save_all(MODEL, model, guesses) != 0) return 1;

    char command[1000];
    snprintf(command, sizeof command, "\"%s\" --check", argv[0]);
    fflush(stdout);
    return system(command) != 0 || flux_failed() || right < 0.9;
}
