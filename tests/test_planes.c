/* Products of float32 by bf16 planes (src/gpu/gemm_planes.h) beside sums in double: no less accurate than a float32 product, in all
   orders, batched, with an epilogue, of any scale; and what planes can't tell is left to the plain product. Other GPUs than sm_90
   compute all of it plainly, and pass. */
#include "test.h"
#include "inside.h"
#include <math.h>

static bool has_planes(void) { return test_device.backend && !strcmp(flux_device_backend(test_device), "CUDA") && (!getenv("SOFTGPU") || getenv("SOFTGPU_PTX")); }

typedef struct sides { int64_t m, n, k, batch; } sides;
enum { ALIKE, SCALED, CANCELLING };

/* Numbers on the CPU: normal ones; of sizes that differ by many powers of two; near 100, as every second one is less. */
static flux_tensor *numbers(flux_shape s, int kind) {
    flux_tensor *x = flux_randn_with(s, FLUX_F32);
    if (kind == SCALED) x = flux_mul(x, flux_exp(flux_mul(flux_randn_with(s, FLUX_F32), 8)));
    if (kind == CANCELLING) x = flux_mul(flux_add(x, 100), flux_sub(flux_mul(flux_floor(flux_mul(flux_rand_with(s, FLUX_F32), 2)), 2), 1));
    return flux_eval(x);
}
static flux_tensor *turned(flux_tensor *x, bool turn) { return !turn ? x : flux_shape_of(x).ndim == 3 ? flux_permute(x, 1, 0, 2) : flux_transpose(x); }
static flux_shape shape(int64_t rows, int64_t columns, bool turn, int64_t batch) {
    flux_shape s = { batch > 1 ? 3 : 2, { turn ? columns : rows, turn ? rows : columns, batch } };
    return s;
}
static double norm(flux_tensor *x) { return sqrt(flux_item(flux_sum(flux_square(x)))); }

/* The error of a product on the device by that of float32 on the CPU, both beside float64; `shared`: b has no batches. */
static double error(sides s, int order, int kind, bool shared, bool epilogue) {
    const flux_device there = test_device, cpu = { 0, 0 };
    const bool a_turns = order & 1, b_turns = order & 2;
    flux_default_device(cpu);
    flux_tensor *a = numbers(shape(s.m, s.k, a_turns, s.batch), kind), *b = numbers(shape(s.k, s.n, b_turns, shared ? 1 : s.batch), kind ? ALIKE : kind);
    flux_tensor *got = flux_matmul(turned(flux_to(there, a), a_turns), turned(flux_to(there, b), b_turns)), *plain = flux_matmul(turned(a, a_turns), turned(b, b_turns));
    flux_tensor *want = flux_matmul(turned(flux_to_dtype(a, FLUX_F64), a_turns), turned(flux_to_dtype(b, FLUX_F64), b_turns));
    if (epilogue) got = flux_relu(got), plain = flux_relu(plain), want = flux_relu(want);
    got = flux_cpu(flux_eval(got));
    const double off = norm(flux_sub(flux_to_dtype(got, FLUX_F64), want)) / norm(flux_sub(flux_to_dtype(plain, FLUX_F64), want));
    flux_default_device(there);
    return off;
}
static void check_error(sides s, int order, int kind, bool shared, bool epilogue, double most) {
    char text[200];
    const double off = error(s, order, kind, shared, epilogue);
    snprintf(text, sizeof text, "%d x %d x %d, order %d, numbers of kind %d: %g times the plain error", (int)s.m, (int)s.n, (int)s.k, order, kind, off);
    test_check(off < most, __FILE__, __LINE__, text);
}

/* A sum of 8 neighbours by a fused multiply-add is not of the order of a GPU's: so 1.5 times. */
enum { LEAST_OF_TESTS = 1000 };
TEST(errors_are_no_larger) {
    static const sides of[] = { { 520, 1100, 136, 1 }, { 701, 1029, 131, 1 }, { 264, 300, 200, 6 } };
    if (!has_planes()) SKIP("about NVIDIA's GPUs, and the software GPU with NVRTC's PTX, for which: make check-ptx");
    flux__test_planes(LEAST_OF_TESTS);
    for (int i = 0; i < 3; i++)
        for (int order = 0; order < 4; order++) FLUX_SCOPE {
            if (test_left_out(i + order, 3)) continue;
            check_error(of[i], order, i == 0 ? order % 3 : ALIKE, order == 2, order % 2, 1.5);
        }
}

/* Two planes have 16 bits, and products of the lower ones are missing. */
TEST(tf32_takes_two_planes) {
    static const sides of = { 520, 1100, 136, 1 };
    if (!has_planes()) SKIP("about NVIDIA's GPUs, and the software GPU with NVRTC's PTX, for which: make check-ptx");
    flux__test_planes(LEAST_OF_TESTS);
    flux_allow_tf32(true);
    check_error(of, 1, ALIKE, false, true, 3000);     /* 11 bits of a plain tf32: 1,500 */
    flux_allow_tf32(false);
}

/* An infinity, a NaN, what rounds to infinity, and what is below the smallest plane. */
TEST(what_planes_do_not_tell) {
    static const float odd[] = { INFINITY, -INFINITY, NAN, 3.4e38f, 1e-34f, 1e-42f };
    const flux_device there = test_device, cpu = { 0, 0 };
    if (!has_planes()) SKIP("about NVIDIA's GPUs, and the software GPU with NVRTC's PTX, for which: make check-ptx");
    flux__test_planes(LEAST_OF_TESTS);
    for (int i = 0; i < 6; i++) FLUX_SCOPE {
        if (test_left_out(i, 3)) continue;
        flux_default_device(cpu);
        flux_tensor *b = numbers(FLUX_SHAPE(136, 1100), ALIKE), *small = flux_eval(flux_mul(flux_ones(520, 136), odd[i]));
        flux_tensor *one = numbers(FLUX_SHAPE(520, 136), ALIKE);
        float *const at = (float *)malloc(520 * 136 * sizeof *at);
        REQUIRE(at && flux_read(one, at, 520 * 136 * sizeof *at) == 0);
        at[777] = odd[i], one = flux_eval(flux_from(at, 520, 136));
        free(at);
        for (int all = 0; all < 2; all++) {
            flux_tensor *a = all ? small : one, *want = flux_matmul(flux_to_dtype(a, FLUX_F64), flux_to_dtype(b, FLUX_F64));
            flux_tensor *got = flux_cpu(flux_eval(flux_matmul(flux_to(there, a), flux_to(there, b))));
            const float *g = flux_floats(got);
            const double *w = (const double *)flux_data(want);
            int wrong = !g || !w;
            for (int at = 0; at < 520 * 1100 && !wrong; at++) {
                const double size = fabs(w[at]) < 3.3e38 ? fabs(w[at]) : 0;
                if (isnan(w[at])) wrong = !isnan(g[at]);
                else if (isinf(w[at])) wrong = (double)g[at] != w[at] && !(isnan(g[at]) && i > 2);
                else if (size > 0 && !(all && i == 3)) wrong = !(fabs((double)g[at] - w[at]) < 1e-4 * (all ? 136 * fabs(odd[i]) * 5 : odd[i] > 1e30f ? 1e38 : 100));
            }
            CHECK_NEAR(wrong, 0, 0);
        }
        flux_default_device(there);
    }
}

/* The flag is cleared for each run, and a step that is replayed as a graph has it, too. */
TEST(again_and_again) {
    if (!has_planes()) SKIP("about NVIDIA's GPUs, and the software GPU with NVRTC's PTX, for which: make check-ptx");
    flux__test_planes(LEAST_OF_TESTS);
    flux_tensor *b = flux_eval(flux_randn(136, 264)), *sound = NULL;
    for (int step = 0; step < 8; step++) {
        flux_tensor *a = flux_eval(flux_full_with(FLUX_SHAPE(2048, 136), step == 3 ? (double)INFINITY : 0.7, FLUX_F32));
        flux_tensor *y = flux_eval(flux_matmul(a, b));
        if (!step) sound = y;
        if (step != 3) CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(y, sound)))), 0, 0);
        else CHECK(!isfinite(flux_item(flux_sum(y))));
    }
}

TEST_MAIN()
