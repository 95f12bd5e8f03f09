/* cnn.c - a convolutional network that reads handwritten digits, and shows what it sees.
       cc -O2 -I. examples/cnn.c -lm -o cnn && ./cnn           in the folder of flux.h: 1,797 digits of 8 x 8
       ./cnn t10k-images-idx3-ubyte t10k-labels-idx1-ubyte     any of MNIST's pairs of files: 28 x 28
   A window of 3 x 3 weights slides over the image and answers where it finds its pattern; what it answers is an image
   again, on which the next windows slide. The same few weights serve every place, so a digit may stand anywhere.
   With SHORT=1 in the environment it learns for a moment only. */
#define FLUX_IMPLEMENTATION
#include "flux.h"
#include <stdlib.h>

typedef struct digits { flux_tensor *image, *label; } digits;      /* w x h x 1 x n in 0 to 1, and n numbers */

static digits load(int argc, char **argv) {
    digits d = { NULL, NULL };
    if (argc > 2) {
        flux_tensor *x = flux_load_idx(argv[1]);                          /* 28 x 28 x n bytes */
        d.image = flux_mul(flux_to_dtype(flux_unsqueeze(x, 2), FLUX_F32), 1.0 / 255);
        d.label = flux_to_dtype(flux_load_idx(argv[2]), FLUX_I32);
    } else {
        flux_tensor *all = flux_load_csv("examples/data/digits.csv");     /* 65 x n: 64 pixels and the digit */
        d.image = flux_mul(flux_reshape(flux_slice(all, 0, 0, 64), 8, 8, 1, -1), 1.0 / 16);
        d.label = flux_to_dtype(flux_select(all, 0, 64), FLUX_I32);
    }
    flux_tensor *pairs = flux_shuffleobs(flux_tuple(d.image, d.label), 1);
    d.image = flux_eval(flux_nth(pairs, 0)), d.label = flux_eval(flux_nth(pairs, 1));
    return d;
}

/* Any size of image: the last pooling takes the mean over all of it. */
static flux_layer *new_model(void) {
    return flux_chain(
        flux_conv_layer(FLUX_SHAPE(3, 3), 1, 16, .pad = FLUX_SAMEPAD), flux_batchnorm(16, flux_relu),
        flux_maxpool_layer(FLUX_SHAPE(2, 2)),
        flux_conv_layer(FLUX_SHAPE(3, 3), 16, 32, .pad = FLUX_SAMEPAD), flux_batchnorm(32, flux_relu),
        flux_maxpool_layer(FLUX_SHAPE(2, 2)),
        flux_conv_layer(FLUX_SHAPE(3, 3), 32, 64, .pad = FLUX_SAMEPAD), flux_batchnorm(64, flux_relu),
        flux_globalmeanpool(), flux_flatten, flux_dropout(0.1), flux_dense(64, 10));
}

static flux_tensor *chances(flux_layer *model, flux_tensor *x) {          /* 10 x n; INFER is test mode too */
    flux_tensor *p = NULL;
    FLUX_INFER p = flux_keep(flux_cpu(flux_softmax(flux_call(model, flux_to(flux_device_of(model), x)))));
    return p;
}

static double accuracy(flux_layer *model, digits d) {
    flux_layer *right = flux_metric(flux_accuracy);
    flux_each (b, flux_dataloader(d.image, d.label, .batchsize = 500))    /* in parts: less memory */
        flux_metric_add(right, chances(model, b.x), b.y);
    return flux_item(flux_metric_value(right));
}

/* Four images side by side, below each what the network makes of it. */
static void show(digits d, flux_tensor *p, const int64_t *which, int n) {
    static const char *const shade[] = { "  ", ". ", ": ", "+ ", "# ", "@ " };
    int w = (int)flux_dim(d.image, 0), h = (int)flux_dim(d.image, 1), step = w > 16 ? 2 : 1;
    const float *pixel = flux_floats(d.image), *chance = flux_floats(p);
    const int32_t *label = (const int32_t *)flux_data(d.label);
    if (!pixel || !chance || !label) return;
    for (int y = 0; y < h; y += step, printf("\n"))
        for (int k = 0; k < n; k++, printf("   "))
            for (int x = 0; x < w; x += step) {
                float v = 0;                                              /* of a large image, the mean of 2 x 2 */
                for (int i = 0; i < step * step; i++) v += pixel[(which[k] * h + y + i / step) * w + x + i % step];
                printf("%s", shade[(int)(v / (float)(step * step) * 5.999f)]);
            }
    for (int k = 0; k < n; k++) {
        int best = 0;
        for (int i = 1; i < 10; i++) best = chance[which[k] * 10 + i] > chance[which[k] * 10 + best] ? i : best;
        char text[64];
        snprintf(text, sizeof text, "a %d, %.0f%% sure%s", best, 100 * (double)chance[which[k] * 10 + best],
                 best == label[which[k]] ? "" : ": wrong");
        printf("%-*s   ", 2 * (w / step), text);
    }
    printf("\n\n");
}

int main(int argc, char **argv) {
    digits all = load(argc, argv), learn, held;
    int64_t n = flux_len(all.label), part = n * 4 / 5;
    if (n < 1) return 1;
    learn.image = flux_take(all.image, part), learn.label = flux_take(all.label, part);
    held.image = flux_copy(flux_drop(all.image, part)), held.label = flux_copy(flux_drop(all.label, part));

    flux_seed(1);
    flux_layer *model = flux_to(flux_get_device(), new_model());
    flux_loader *data = flux_dataloader(learn.image, flux_onehot(learn.label, 10), .batchsize = 64, .shuffle = true);
    data = flux_to(flux_get_device(), data);
    flux_state *opt = flux_setup(flux_adam(3e-3), model);
    double right = 0;
    int epochs = getenv("SHORT") ? 2 : argc > 2 ? 4 : 15;
    printf("%d digits to learn from, %d held out\n", (int)part, (int)(n - part));
    flux_print(model);
    flux_times (turn, epochs) {
        char label[32];
        int epoch = turn + 1;
        snprintf(label, sizeof label, "epoch %2d", epoch);
        if (epoch > epochs * 2 / 3) flux_adjust(opt, .eta = 5e-4);
        flux_each (b, data, .progress = label) {
            flux_tensor *loss = flux_logitcrossentropy(flux_call(model, b.x), b.y);
            flux_update(opt, model, flux_gradient(loss, model));
            flux_progress("loss", loss);
        }
        right = accuracy(model, held);
        printf("epoch %2d: %.2f%% of the digits held out are read right\n", epoch, 100 * right);
        if (flux_failed()) return 1;
    }

    flux_tensor *p = flux_eval(chances(model, held.image));
    const int64_t *g = (const int64_t *)flux_data(flux_onecold(p));
    const int32_t *l = (const int32_t *)flux_data(held.label);
    int64_t good[4], bad[4], r = 0, w = 0;
    for (int64_t i = 0; g && l && i < n - part; i++)
        if (g[i] == l[i] && r < 4) good[r++] = i;
        else if (g[i] != l[i] && w < 4) bad[w++] = i;
    printf("\nSome that it reads:\n\n"), show(held, p, good, (int)r);
    if (w) printf("And what it stumbles over:\n\n"), show(held, p, bad, (int)w);
    return flux_failed() || right < (getenv("SHORT") ? 0.6 : 0.95);
}
