/* export.c - a network that learns to read digits becomes one file of C, for a program or a chip without flux.h.
       cc -O2 -I. examples/export.c -lm -o export && ./export           in the folder of flux.h: it writes reader.c
       cc -O3 -march=native -DREADER examples/export.c reader.c -lm -o read && ./read
       arm-none-eabi-gcc -mcpu=cortex-m4 -O2 -c reader.c                       the same file for a microcontroller
   reader.c has the weights as constants, which stay in flash, and void reader(const float *in, float *out): no malloc,
   no library but libm. The comment at its start tells how much memory it works in.
   With SHORT=1 in the environment it learns for a moment only. */
#define CSV "examples/data/digits.csv"
#if defined(READER)                       /* the second program: it needs reader.c alone */
#  define reader_DECLARE
#  include "../reader.c"
#  include <stdio.h>

int main(void) {
    FILE *f = fopen(CSV, "r");
    int right = 0, all = 0;
    float image[64], chance[10];
    for (int c = 0; f && c != '\n' && c != EOF;) c = fgetc(f);            /* the heading */
    for (int digit; f; all++) {
        for (int i = 0; i < 64; i++) {
            if (fscanf(f, "%f,", &image[i]) != 1) {
                printf("%d of %d digits read rightly, without flux.h\n", right, all);
                return fclose(f) || right * 100 < all * 85;
            }
            image[i] /= 16;
        }
        if (fscanf(f, "%d", &digit) != 1) break;
        reader(image, chance);
        int best = 0;
        for (int i = 1; i < 10; i++) best = chance[i] > chance[best] ? i : best;
        right += best == digit;
    }
    printf(CSV " is not what was expected\n");
    return 1;
}
#else
#  define FLUX_IMPLEMENTATION
#  include "flux.h"
#  include <stdlib.h>

int main(void) {
    flux_seed(1);
    flux_tensor *all = flux_load_csv(CSV);                                /* 65 x n: 64 pixels and the digit */
    flux_tensor *x = flux_mul(flux_reshape(flux_slice(all, 0, 0, 64), 8, 8, 1, -1), 1.0 / 16);
    flux_tensor *label = flux_to_dtype(flux_select(all, 0, 64), FLUX_I32);
    flux_layer *model = flux_chain(
        flux_conv_layer(FLUX_SHAPE(3, 3), 1, 8, .pad = FLUX_SAMEPAD), flux_batchnorm(8, flux_relu),
        flux_maxpool_layer(FLUX_SHAPE(2, 2)),
        flux_conv_layer(FLUX_SHAPE(3, 3), 8, 16, .pad = FLUX_SAMEPAD), flux_batchnorm(16, flux_relu),
        flux_flatten, flux_dropout(0.2), flux_dense(256, 10));
    flux_loader *data = flux_dataloader(x, label, .batchsize = 32, .shuffle = true);
    flux_state *opt = flux_setup(flux_adam(3e-3), model);
    flux_times (epoch, getenv("SHORT") ? 1 : 8)
        flux_each (b, data)
            flux_update(opt, model, flux_gradient(flux_logitcrossentropy(flux_call(model, b.x), b.y), model));
    double right = 0;
    FLUX_INFER right = flux_item(flux_sum(flux_eq(flux_onecold(flux_call(model, x)), label)));
    printf("%.0f of %lld digits read rightly\n", right, (long long)flux_len(label));
    /* one image at a time, with a softmax behind */
    if (flux_export_c(flux_chain(model, flux_softmax), FLUX_SHAPE(8, 8, 1, 1), "reader.c") == 0)
        printf("reader.c is written: see the comment at its start\n");
    return flux_failed() || right < 0.85 * (double)flux_len(label);
}
#endif
