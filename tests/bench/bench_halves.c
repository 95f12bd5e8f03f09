/* Products in half formats and, beside them, in f32: GFLOP/s, fastest of fifteen, of an n x k by a k x m matrix as PyTorch counts them
   (rows contiguous), both so; the second one transposed; the first one transposed. `peer_halves.py` prints the same for PyTorch.
   FLUX_SIMD=avx512_bf16 leaves out AMX's tiles, FLUX_SIMD=avx512 the processor's own products of bf16. Usage: bench_halves [threads] */
#define FLUX_IMPLEMENTATION
#include "../../flux.h"

static flux_tensor *matrix(int64_t m, int64_t n, bool turned, flux_dtype t) {
    flux_tensor *x = flux_eval(flux_to_dtype(flux_randn(turned ? n : m, turned ? m : n), t));
    return turned ? flux_transpose(x) : x;
}

int main(int argc, char **argv) {
    static const int64_t shape[][3] = { { 128, 1024, 1024 }, { 512, 512, 512 }, { 1024, 1024, 1024 }, { 2048, 2048, 2048 },
                                        { 128, 10, 1024 }, { 256, 1024, 784 }, { 1024, 784, 128 }, { 3136, 64, 576 } };
    static const struct { flux_dtype t; const char *name; } types[] = { { FLUX_BF16, "bf16" }, { FLUX_F16, "f16" }, { FLUX_F32, "f32" } };
    flux_threads(argc > 1 ? atoi(argv[1]) : 1);
    for (int t = 0; t < 3; t++)
        for (int s = 0; s < 8; s++) {
            const int64_t n = shape[s][0], m = shape[s][1], k = shape[s][2];
            printf("%-4s %4d x %4d x %4d", types[t].name, (int)n, (int)m, (int)k);
            for (int turned = 0; turned < 3; turned++) FLUX_SCOPE {
                flux_tensor *a = matrix(m, k, turned == 1, types[t].t), *b = matrix(k, n, turned == 2, types[t].t);
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
    return flux_failed();
}
