/* torch.c - runs a model that was trained and saved with PyTorch.
       cc -O2 -I. examples/torch.c -lm -o torch && ./torch           in the folder of flux.h
   In Python:  from safetensors.torch import save_file; save_file(net.state_dict(), "net.safetensors")
   Here the same architecture is built, and the map says which of its layers were which of the network's attributes.
   Everything else (matrices and kernels the other way round, other names) flux_load_torch sees to. A PyTorch tensor
   N x C x H x W lies in memory as ours of W x H x C x N: inputs need no change at all. */
#define FLUX_IMPLEMENTATION
#include "flux.h"
#include <math.h>

/* class Net: conv1 = Conv2d(1, 4, 3, padding=1); bn1 = BatchNorm2d(4); conv2 = Conv2d(4, 6, (3, 5), stride=2, padding=1,
   groups=2, bias=False); norm = GroupNorm(3, 6); up = ConvTranspose2d(6, 3, 2, stride=2); ln = LayerNorm([6, 4]);
   fc = Linear(72, 5). A window is width x height here: PyTorch's (3, 5) is FLUX_SHAPE(5, 3). */
static flux_layer *build(void) {
    return flux_chain(
        flux_conv_layer(FLUX_SHAPE(3, 3), 1, 4, .pad = FLUX_SHAPE(1)), flux_batchnorm(4, flux_relu), flux_maxpool_layer(FLUX_SHAPE(2, 2)),
        flux_conv_layer(FLUX_SHAPE(5, 3), 4, 6, .stride = FLUX_SHAPE(2), .pad = FLUX_SHAPE(1), .groups = 2, .bias = FLUX_OFF),
        flux_groupnorm(6, 3, flux_relu), flux_conv_transpose_layer(FLUX_SHAPE(2, 2), 6, 3, .stride = FLUX_SHAPE(2)),
        flux_layernorm(FLUX_SHAPE(4, 6)), flux_flatten, flux_dense(72, 5));
}

int main(void) {
    flux_layer *model = build();
    const char *map = "layers.0 = conv1, layers.1 = bn1, layers.3 = conv2, layers.4 = norm, layers.5 = up, layers.6 = ln, layers.8 = fc";
    if (flux_load_torch(model, "tests/fixtures/torch.safetensors", map) != 0) return 1;
    flux_testmode(model, true);                                           /* as net.eval() */
    flux_print(model);

    static float image[2][1][12][12];                                     /* N x C x H x W, as in PyTorch */
    float *pixel = &image[0][0][0][0];
    for (int i = 0; i < 2 * 12 * 12; i++) pixel[i] = (float)sin(0.5 + 0.71 * i);
    flux_tensor *y = flux_call(model, flux_from(pixel, 12, 12, 1, 2));
    static const double theirs[] = {                                      /* net(x), printed by PyTorch */
        -1.01744473, -1.37309098, 2.98570371, -1.29182696, 2.30340266,
        -4.27183151, 7.03907442, -5.73680878, 2.51519561, -0.389376283
    };
    double worst = 0;
    printf("\n%12s %12s\n", "PyTorch", "flux.h");
    for (int i = 0; i < 10; i++) {
        double ours = flux_at(y, i % 5, i / 5);
        worst = fmax(worst, fabs(ours - theirs[i]));
        printf("%12.6f %12.6f\n", theirs[i], ours);
    }
    printf("largest difference: %.1e\n", worst);
    return flux_failed() || !(worst < 1e-5);
}
