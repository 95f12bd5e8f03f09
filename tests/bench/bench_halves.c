/* Products in half formats and, beside them, in f32: GFLOP/s, fastest of fifteen, of an n x k by a k x m matrix as PyTorch counts them
   (rows contiguous), both so; the second one transposed; the first one transposed. Then convolutions of eight images with padding:
   milliseconds of the convolution, and of it and its gradients by the images and the weight. `peer_halves.py` prints the same for PyTorch.
   FLUX_SIMD=avx512_bf16 leaves out AMX's tiles, FLUX_SIMD=avx512 the processor's own products of bf16. Usage: bench_halves [threads] */
#define FLUX_IMPLEMENTATION
#include "../../flux.h"

static flux_tensor *matrix(int64_t m, int64_t n, bool turned, flux_dtype t) {
    flux_tensor *x = flux_eval(flux_to_dtype(flux_randn(turned ? n : m, turned ? m : n), t));
    return turned ? flux_transpose(x) : x;
}

enum { FORMATS = 3 };
static const struct { flux_dtype t; const char *name; } formats[FORMATS] = { { FLUX_BF16, "bf16" }, { FLUX_F16, "f16" }, { FLUX_F32, "f32" } };

/* Milliseconds of a convolution, and with `gradients` of these, too. */
static double convolution(flux_tensor *x, flux_tensor *w, int64_t pad, int64_t by, bool gradients) {
    double best = 1e9;
    const int64_t wide = (flux_dim(x, 0) - 1) / by + 1;
    flux_tensor *g = flux_eval(flux_to_dtype(flux_ones(wide, wide, flux_dim(w, 3), flux_dim(x, 3)), flux_dtype_of(x)));
    for (int i = 0; i < 15; i++) FLUX_SCOPE {
        const double start = flux__now();
        flux_tensor *y = flux_conv(x, w, .pad = FLUX_SHAPE(pad, pad), .stride = FLUX_SHAPE(by, by));
        if (gradients) {
            flux_grads *d = flux_gradient(flux_sum(flux_mul(y, g)), x, w);
            flux_eval(flux_tuple(y, flux_grad(d, x), flux_grad(d, w)));   /* the gradients need no y */
        } else flux_eval(y);
        const double took = flux__now() - start;
        if (took < best) best = took;
    }
    return 1e3 * best;
}

int main(int argc, char **argv) {
    static const int64_t shape[][3] = { { 128, 1024, 1024 }, { 512, 512, 512 }, { 1024, 1024, 1024 }, { 2048, 2048, 2048 },
                                        { 128, 10, 1024 }, { 256, 1024, 784 }, { 1024, 784, 128 }, { 3136, 64, 576 },
                                        { 2, 2048, 2048 }, { 8, 3072, 768 }, { 32, 3072, 768 } };
    static const int64_t image[][5] = { { 56, 64, 64, 3, 1 }, { 28, 128, 128, 3, 1 }, { 14, 256, 256, 3, 1 }, { 7, 512, 512, 3, 1 },
                                        { 56, 64, 256, 1, 1 }, { 28, 128, 128, 5, 1 }, { 224, 3, 64, 7, 2 }, { 56, 64, 128, 3, 2 },
                                        { 28, 128, 256, 3, 2 }, { 128, 16, 16, 3, 1 } };
    flux_threads(argc > 1 ? atoi(argv[1]) : 1);
    for (int t = 0; t < FORMATS; t++)
        for (size_t s = 0; s < sizeof shape / sizeof *shape; s++) {
            const int64_t n = shape[s][0], m = shape[s][1], k = shape[s][2];
            printf("%-4s %4d x %4d x %4d", formats[t].name, (int)n, (int)m, (int)k);
            for (int turned = 0; turned < 3; turned++) FLUX_SCOPE {
                flux_tensor *a = matrix(m, k, turned == 1, formats[t].t), *b = matrix(k, n, turned == 2, formats[t].t);
                double best = 1e9;
                for (int i = 0; i < 15; i++) FLUX_SCOPE FLUX_INFER {
                    const double start = flux__now();
                    flux_eval(flux_matmul(a, b));
                    const double took = flux__now() - start;
                    if (took < best) best = took;
                }
                printf(" %6.0f", 2.0 * (double)(m * n * k) / best / 1e9);
            }
            printf("\n");
        }
    for (int t = 0; t < FORMATS; t++)
        for (size_t s = 0; s < sizeof image / sizeof *image; s++) FLUX_SCOPE {
            const int64_t size = image[s][0], in = image[s][1], out = image[s][2], window = image[s][3], by = image[s][4];
            flux_tensor *x = flux_eval(flux_to_dtype(flux_randn(size, size, in, 8), formats[t].t)),
                        *w = flux_eval(flux_to_dtype(flux_randn(window, window, in, out), formats[t].t));
            printf("%-4s %2d x %2d, %3d to %3d channels, %d x %d by %d: %7.2f %7.2f\n", formats[t].name, (int)size, (int)size, (int)in,
                   (int)out, (int)window, (int)window, (int)by, convolution(x, w, window / 2, by, false),
                   convolution(x, w, window / 2, by, true));
        }
    return flux_failed();
}
