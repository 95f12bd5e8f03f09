/* A classifier trained from idx files, in batches, with dropout; evaluated and saved. The pictures are made here: a dot
   in one of ten places, in noise.
   C only: options stand after plain arguments.
   expect: Chain(
   expect: Dropout
   expect: epoch 5: held-out accuracy
   expect: learnt: yes
   expect: saved */
#define FLUX_IMPLEMENTATION
#include "flux.h"

enum { N = 600, SIDE = 8 };

static void put_size(FILE *f, unsigned n) {
    for (int i = 3; i >= 0; i--) fputc((int)(n >> 8 * i & 255), f);
}

static void make_files(const char *images, const char *labels) {
    FILE *x = fopen(images, "wb"), *y = fopen(labels, "wb");
    unsigned random = 1;
    if (!x || !y) return;
    put_size(x, 0x803), put_size(x, N), put_size(x, SIDE), put_size(x, SIDE);
    put_size(y, 0x801), put_size(y, N);
    for (int i = 0; i < N; i++) {
        int label = i * 7 % 10;
        fputc(label, y);
        for (int p = 0; p < SIDE * SIDE; p++) {
            random = random * 1664525u + 1013904223u;
            fputc(p == 3 + 6 * label ? 255 : (int)(random >> 25), x);
        }
    }
    fclose(x);
    fclose(y);
}

int main(void) {
    make_files("images.idx", "labels.idx");
    flux_tensor *X = flux_load_idx("images.idx"), *L = flux_load_idx("labels.idx");
    if (flux_failed()) return 1;
    int64_t n = flux_dim(L, 0), held = n / 10;
    X = flux_mul(flux_to_dtype(flux_reshape(X, SIDE * SIDE, n), FLUX_F32), 1.0 / 255);
    flux_tensor *Y = flux_onehot(L, 10);

    flux_seed(1);
    flux_layer *model = flux_gpu(flux_chain(flux_dense(SIDE * SIDE, 32, flux_relu), flux_dropout(0.1), flux_dense(32, 10)));
    flux_state *opt = flux_setup(flux_adam(1e-2), model);
    flux_print(model);

    double accuracy = 0;
    flux_loader *train = flux_gpu(flux_dataloader(flux_drop(X, held), flux_drop(Y, held), .batchsize = 16, .shuffle = true));
    flux_times (epoch, 5) {
        flux_each (b, train, .progress = "epoch") {
            flux_tensor *loss = flux_logitcrossentropy(flux_call(model, b.x), b.y);
            flux_update(opt, model, flux_gradient(loss, model));
            flux_progress("loss", loss);
        }
        FLUX_SCOPE {
            flux_testmode(model, true);
            flux_tensor *guess = flux_onecold(flux_call(model, flux_gpu(flux_take(X, held))));
            flux_tensor *right = flux_mean(flux_eq(flux_cpu(guess), flux_onecold(flux_take(Y, held))));
            accuracy = flux_item(right);
            printf("epoch %d: held-out accuracy %.4f\n", epoch + 1, accuracy);
            flux_testmode(model, false);
        }
    }
    printf("learnt: %s\n", accuracy > 0.95 ? "yes" : "no");
    if (flux_save(model, "dots.safetensors") == 0) puts("saved");
    return flux_failed();
}
