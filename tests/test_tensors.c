/* Tensors as a user meets them: making, looking, dtypes, broadcasting, views, scopes, errors, messages, memory. Each public
   function of these parts is also called wrongly here, and must say what is wrong in the caller's terms. */
#include "test.h"
#include <limits.h>

static const flux_device cpu = { 0, 0 };

/* ---------------- a world of one */

/* Alone, a rank gets from each collective what it gives: of every shape, in a tuple and by itself. */
TEST(collectives_of_one_rank) {
    flux_comm *c = flux_distributed();
    test_kept++;
    REQUIRE(c && flux_size_of(c) == 1 && flux_rank_of(c) == 0);
    flux_tensor *const xs[] = { flux_scalar(3), flux_values(1, 2, 3), flux_reshape(flux_arange(0, 24, 1), 2, 3, 4), flux_ones(2, 0) };
    for (int i = 0; i < 4; i++) {
        flux_tensor *x = xs[i], *pair = flux_tuple(x, flux_neg(x));
        flux_tensor *const ys[] = { flux_allreduce(c, x, FLUX_SUM), flux_allreduce(c, x, FLUX_MEAN), flux_reduce(c, x, FLUX_MAX),
            flux_broadcast(c, x), flux_nth(flux_allreduce(c, pair, FLUX_SUM), 0), flux_neg(flux_nth(flux_broadcast(c, pair), 1)),
            i ? flux_allgather(c, x) : x, i ? flux_reduce_scatter(c, x, FLUX_SUM) : x };
        for (int k = 0; k < 8; k++) {
            if (!CHECK(ys[k] && flux_ndim(ys[k]) == flux_ndim(x) && flux_len(ys[k]) == flux_len(x))) fprintf(stderr, "    %d, %d\n", i, k);
            CHECK(flux_item(flux_all(flux_eq(ys[k], x))) == 1);
        }
        CHECK(flux_synchronize(c, x) == x);
    }
    const flux_agg ops[] = { FLUX_SUM, FLUX_PROD, FLUX_MIN, FLUX_MAX, FLUX_MEAN };
    for (int i = 0; i < 5; i++)           /* a mean of integers is a float32, all else is as it was */
        for (int t = FLUX_F32; t <= FLUX_BOOL; t++) {
            flux_tensor *x = flux_to_dtype(xs[1], (flux_dtype)t);
            const bool real = t <= FLUX_BF16;
            CHECK(flux_dtype_of(flux_allreduce(c, x, ops[i])) == (ops[i] == FLUX_MEAN && !real ? FLUX_F32 : (flux_dtype)t));
        }
    CHECK_ERROR(flux_reduce_scatter(c, xs[0], FLUX_SUM), "reduce_scatter: the last dim of scalar f32 can't be cut into 1 parts");
    CHECK(flux_barrier(c) == 0 && flux_distributed_end(c) == 0);
}

#ifndef _WIN32
int setenv(const char *name, const char *value, int overwrite);   /* hidden by -std=c11 */
int unsetenv(const char *name);
/* Of every launcher that has started several processes it is told that this program does not know the others. */
TEST(launched_without_mpi) {
    static const char *const names[] = { "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "PALS_SIZE", "ALPS_APP_PE_COUNT" };
    for (int i = 0; i < 5; i++) {
        const char *was = getenv(names[i]);
        if (was) SKIP("a launcher has started this test");
        setenv(names[i], "3", 1);
        CHECK_ERROR(flux_distributed(), "distributed: a launcher has started this program, but the program was compiled without -DFLUX_MPI");
        setenv(names[i], "1", 1);
        flux_comm *c = flux_distributed();
        CHECK(c && flux_distributed_end(c) == 0);
        test_kept += 2;
        unsetenv(names[i]);
    }
}
#endif

/* ---------------- making and looking */

TEST(making) {
    CHECK_DATA(flux_zeros(2, 2), ((double[]){ 0, 0, 0, 0 }), 0);
    CHECK_DATA(flux_ones(3), ((double[]){ 1, 1, 1 }), 0);
    CHECK_DATA(flux_full(2.5, 1, 2), ((double[]){ 2.5, 2.5 }), 0);
    CHECK_DATA(flux_arange(1, 2, 0.25), ((double[]){ 1, 1.25, 1.5, 1.75 }), 0);
    CHECK_DATA(flux_arange(3, 0, -1), ((double[]){ 3, 2, 1 }), 0);
    CHECK(flux_len(flux_arange(0, 0, 1)) == 0);
    CHECK_DATA(flux_eye(2), ((double[]){ 1, 0, 0, 1 }), 0);
    CHECK(flux_ndim(flux_scalar(3)) == 0 && flux_item(flux_scalar(3)) == 3);
    CHECK_ERROR(flux_arange(0, 1, 0), "not a range");
    CHECK_ERROR(flux_arange(0, NAN, 1), "not a range");
    CHECK_ERROR(flux_eye(-1), "-1 rows");
    CHECK_ERROR(flux_zeros(2, -3), "dimension 1 is -3");
    CHECK_ERROR(flux_full_with(FLUX_SHAPE(2), 1, (flux_dtype)77), "77 is not a dtype");
    CHECK_ERROR(flux_zeros(1, 1, 1, 1, 1, 1, 1, 1, 1), "at most 8");
    CHECK_ERROR(flux_zeros(1000000000, 1000000000), "too large");
    CHECK_ERROR(flux_rand_with(FLUX_SHAPE(2), FLUX_I32), "not i32");
}

/* A constant is what its dtype has, before it gets memory as after: what it is cast to, met with and read as. */
TEST(constants_are_what_their_dtype_has) {
    static const struct { double value, want; flux_dtype t; } c[] = {
        { 300, 255, FLUX_U8 }, { -1, 0, FLUX_U8 }, { 2.7, 2, FLUX_U8 }, { 2, 1, FLUX_BOOL }, { 0.5, 1, FLUX_BOOL }, { 0.1, 0.10009765625, FLUX_BF16 },
        { 0.1, 0.0999755859375, FLUX_F16 }, { 1e6, INFINITY, FLUX_F16 }, { 0.1, (double)0.1f, FLUX_F32 }, { 0.1, 0.1, FLUX_F64 },
        { -2.7, -2, FLUX_I32 }, { 3e9, 2147483647, FLUX_I32 }, { 0.1, (double)0.1f, FLUX_F32 } };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        flux_tensor *x = flux_full_with(FLUX_SHAPE(3), c[i].value, c[i].t), *wide = flux_to_dtype(x, FLUX_F64);
        flux_tensor *stretched = flux_to_dtype(flux_broadcast_to(flux_full_with(FLUX_SHAPE(1), c[i].value, c[i].t), 3), FLUX_F64);
        flux_tensor *sum = c[i].t == FLUX_BOOL ? NULL : flux_add(flux_to_dtype(x, FLUX_F64), 0.0);
        CHECK(flux_at(wide, 1) == c[i].want);
        CHECK(flux_at(stretched, 2) == c[i].want);
        if (sum) CHECK(flux_at(sum, 0) == c[i].want);
        CHECK(flux_at(flux_eval(x), 1) == c[i].want);
        CHECK(flux_at(flux_to_dtype(x, FLUX_F64), 1) == c[i].want);
    }
}

TEST(from_c_memory) {
    float a[2][3] = { { 1, 2, 3 }, { 4, 5, 6 } };
    flux_tensor *columns = flux_from(&a[0][0], 3, 2), *rows = flux_from_rows(&a[0][0], 2, 3);
    CHECK(flux_at(columns, 2, 0) == 3 && flux_at(columns, 0, 1) == 4);
    CHECK(flux_dim(rows, 0) == 2 && flux_at(rows, 1, 0) == 4 && flux_at(rows, 0, 2) == 3);
    a[0][0] = 9;
    CHECK(flux_at(columns, 0, 0) == 1);
    flux_tensor *borrowed = flux_borrow(&a[0][0], 3, 2);
    CHECK(test_device.backend || flux_data(borrowed) == (const void *)a);
    CHECK(flux_dtype_of(flux_from(((double[]){ 1 }), 1)) == FLUX_F64);
    CHECK(flux_dtype_of(flux_from(((int32_t[]){ 1 }), 1)) == FLUX_I32);
    CHECK(flux_dtype_of(flux_from(((int64_t[]){ 1 }), 1)) == FLUX_I64);
    CHECK(flux_dtype_of(flux_from(((uint8_t[]){ 1 }), 1)) == FLUX_U8);
    CHECK(flux_dtype_of(flux_from(((bool[]){ true }), 1)) == FLUX_BOOL);
    CHECK_ERROR(flux_from_with(NULL, FLUX_F32, FLUX_SHAPE(2)), "ptr is NULL");
    CHECK_ERROR(flux_borrow_with(NULL, FLUX_F32, FLUX_SHAPE(2)), "ptr is NULL");
}

TEST(looking) {
    flux_tensor *x = flux_from(((float[]){ 1, 2, 3, 4 }), 2, 2);
    float out[4];
    CHECK(flux_read(x, out, sizeof out) == 0 && out[3] == 4);
    CHECK(flux_ndim(x) == 2 && flux_dim(x, 1) == 2 && flux_dim(x, 5) == 1 && flux_dim(x, INT_MAX) == 1 && flux_len(x) == 4);
    for (int d = -8; d < 0; d++) CHECK(flux_dim(x, d) == -1);
    CHECK(flux_dim(x, INT_MIN) == -1);
    CHECK(flux_ndim(NULL) == -1 && flux_dim(NULL, 0) == -1 && (flux_len)(NULL) == -1 && flux_shape_of(NULL).ndim == -1);
    CHECK_STR(flux_dtype_name(FLUX_BF16), "bf16");
    CHECK(flux_dtype_size(FLUX_I64) == 8);
    CHECK_ERROR(flux_read(x, out, 8), "16 bytes, 8 were asked for");
    CHECK_ERROR(flux_item(x), "2x2 f32 is not one number");
    CHECK_ERROR(flux_at(x, 2, 0), "index 2 is not within dim 0");
    CHECK_ERROR(flux_at(x, 0), "1 indices into 2x2");
    CHECK_ERROR(flux_item(NULL), "NULL");
    CHECK_ERROR(flux_data(NULL), "NULL");
    CHECK_ERROR(flux_eval(NULL), "NULL");
    CHECK_ERROR(flux_eval_all(1, ((flux_tensor *[]){ NULL })), "NULL");
    CHECK(flux_eval_all(2, ((flux_tensor *[]){ flux_add(x, 1), flux_mul(x, 2) })) == 0);
}

TEST(null_in_null_out_silently) {
    flux_on_error(test_silent, NULL);
    flux_tensor *bad = flux_add(flux_zeros(2), flux_zeros(3));
    CHECK(!bad && flux_failed());
    char first[512];
    snprintf(first, sizeof first, "%s", flux_error());
    CHECK(!flux_relu(flux_matmul(bad, flux_sum(bad))) && isnan(flux_item(bad)) && !flux_reshape(bad, 3) && !flux_cat(0, bad, bad));
    CHECK_STR(flux_error(), first);
    flux_clear();
    flux_on_error(NULL, NULL);
    CHECK(!flux_failed());
    CHECK_STR(flux_error(), "");
}

/* ---------------- dtypes: which one comes of two */

TEST(dtypes_meet) {
    static const flux_dtype by_rank[] = { FLUX_BOOL, FLUX_U8, FLUX_I32, FLUX_I64, FLUX_F16, FLUX_F32, FLUX_F64 };
    for (int i = 1; i < 7; i++)
        for (int j = 0; j < i; j++) {
            flux_tensor *y = flux_add(flux_full_with(FLUX_SHAPE(2), 1, by_rank[i]), flux_full_with(FLUX_SHAPE(2), 1, by_rank[j]));
            CHECK(flux_dtype_of(y) == by_rank[i] && flux_at(y, 1) == 2);
        }
    CHECK(flux_dtype_of(flux_mul(flux_full_with(FLUX_SHAPE(2), 1, FLUX_F16), flux_full_with(FLUX_SHAPE(2), 1, FLUX_BF16))) == FLUX_F32);
    CHECK(flux_dtype_of(flux_div(flux_full_with(FLUX_SHAPE(2), 1, FLUX_I32), flux_full_with(FLUX_SHAPE(2), 2, FLUX_I32))) == FLUX_F32);
    CHECK(flux_dtype_of(flux_exp(flux_full_with(FLUX_SHAPE(2), 1, FLUX_U8))) == FLUX_F32);
    CHECK(flux_dtype_of(flux_sum(flux_full_with(FLUX_SHAPE(2), 1, FLUX_BOOL))) == FLUX_I64);
    CHECK(flux_dtype_of(flux_mean(flux_full_with(FLUX_SHAPE(2), 1, FLUX_I32))) == FLUX_F32);
    CHECK(flux_dtype_of(flux_lt(flux_zeros(2), 1)) == FLUX_BOOL);
}

TEST(numbers_take_the_tensors_dtype) {
    flux_tensor *i = flux_from(((int32_t[]){ 1, 2, 3 }), 3), *h = flux_to_dtype(flux_ones(3), FLUX_F16);
    CHECK(flux_dtype_of(flux_mul(i, 2)) == FLUX_I32);
    CHECK_DATA(flux_sub(10, i), ((double[]){ 9, 8, 7 }), 0);
    CHECK(flux_dtype_of(flux_add(h, 0.5)) == FLUX_F16);
    CHECK(flux_dtype_of(flux_mul(flux_ones(2), 2)) == FLUX_F32);
    CHECK(flux_dtype_of(flux_mul(flux_full_with(FLUX_SHAPE(2), 1, FLUX_F64), 0.1f)) == FLUX_F64);
    CHECK(flux_dtype_of(flux_mul(flux_lt(i, 2), 3)) == FLUX_I32 && flux_dtype_of(flux_mul(flux_lt(i, 2), 0.5)) == FLUX_F32);
    CHECK_ERROR(flux_mul(i, 0.5), "the number 0.5 has no place in a tensor of i32");
    CHECK_ERROR(flux_add(flux_full_with(FLUX_SHAPE(2), 1, FLUX_U8), 300), "300");
    CHECK_ERROR(flux_add(i, NAN), "i32");
    CHECK_ERROR(flux_and(i, i), "must be bool");
    CHECK_ERROR(flux_to_dtype(i, (flux_dtype)9), "9 is not a dtype");
    CHECK_ERROR(flux_to_dtype(NULL, FLUX_F32), "NULL");
}

TEST(casts) {
    flux_tensor *x = flux_from(((float[]){ -1.7f, 0, 0.4f, 255.9f, 300, NAN, 1e20f }), 7);
    CHECK_DATA(flux_to_dtype(x, FLUX_I32), ((double[]){ -1, 0, 0, 255, 300, 0, 2147483647 }), 0);
    CHECK_DATA(flux_to_dtype(x, FLUX_BOOL), ((double[]){ 1, 0, 1, 1, 1, 1, 1 }), 0);
    CHECK_DATA(flux_to_dtype(flux_take(x, 5), FLUX_U8), ((double[]){ 0, 0, 0, 255, 255 }), 0);
    CHECK_DATA(flux_to_dtype(flux_from(((float[]){ 1.0009765625f, 65520, 1e-8f }), 3), FLUX_F16), ((double[]){ 1.0009765625, INFINITY, 0 }), 0);
    CHECK_DATA(flux_to_dtype(flux_from(((float[]){ 1.00390625f, 1.01171875f }), 2), FLUX_BF16), ((double[]){ 1, 1.015625 }), 0);
}

/* ---------------- broadcasting and views */

TEST(broadcasting_errors) {
    CHECK_ERROR(flux_add(flux_zeros(2, 3), flux_zeros(3)), "2x3 f32 with 3-element f32 differ in dim 0 (2 and 3)");
    CHECK_ERROR(flux_where(flux_lt(flux_zeros(4), 1), flux_zeros(2), 0), "do not broadcast");
    CHECK_ERROR(flux_matmul(flux_zeros(64, 128), flux_zeros(127, 10)), "matmul: inner sizes differ: a is 64x128 f32, b is 127x10 f32");
    CHECK_ERROR(flux_matmul(flux_scalar(1), flux_zeros(2)), "scalar");
    CHECK_ERROR(flux_matmul(flux_zeros(2, 2, 3), flux_zeros(2, 2, 2)), "batch dims differ");
    CHECK_ERROR(flux_matmul(flux_zeros(2, 2, 3), flux_zeros(2)), "matrices on both sides");
    CHECK_ERROR(flux_dot(flux_zeros(2), flux_zeros(3)), "lengths differ");
    CHECK_ERROR(flux_dot(flux_zeros(2, 2), flux_zeros(3)), "two vectors");
    CHECK_ERROR(flux_outer(flux_zeros(2, 2), flux_zeros(3)), "two vectors");
}

TEST(views_copy_nothing) {
    ONLY_ON_CPU();
    flux_tensor *x = flux_eval(flux_rand(4, 6, 5));
    const char *p = (const char *)flux_data(x);
    int64_t live = flux_mem_stats(cpu).live;
    CHECK(flux_data(flux_reshape(x, 24, 5)) == (const void *)p);
    CHECK(flux_data(flux_drop(x, 2)) == (const void *)(p + 2 * 24 * 4));
    CHECK(flux_data(flux_select(x, 2, 1)) == (const void *)(p + 24 * 4));
    CHECK(flux_data(flux_squeeze(flux_unsqueeze(x, 1))) == (const void *)p);
    flux_eval(flux_transpose(x)), flux_eval(flux_flip(x, 0, 1)), flux_eval(flux_broadcast_to(x, 4, 6, 5, 9)), flux_eval(flux_permute(x, 2, 1, 0));
    CHECK(flux_mem_stats(cpu).live == live);
    CHECK(flux_at(flux_transpose(x), 5, 3, 4) == flux_at(x, 3, 5, 4));
    CHECK(flux_at(flux_reshape(flux_permute(x, 1, 0, 2), 24, 5), 1, 0) == flux_at(x, 0, 1, 0));
}

TEST(eight_dims) {
    flux_tensor *x = flux_eval(flux_rand(2, 3, 1, 2, 2, 1, 3, 2));
    flux_tensor *y = flux_permute(x, 7, 6, 5, 4, 3, 2, 1, 0);
    CHECK(flux_ndim(y) == 8 && flux_at(y, 1, 2, 0, 1, 0, 0, 2, 1) == flux_at(x, 1, 2, 0, 0, 1, 0, 2, 1));
    CHECK_NEAR(flux_item(flux_sum(flux_mul(y, 2))), 2 * flux_item(flux_sum(x)), 1e-5);
    CHECK(flux_len(flux_sum(x, 0, 2, 4, 6)) == 3 * 2 * 1 * 2);
    CHECK_ERROR(flux_unsqueeze(x, 0), "no new dim");
    CHECK_ERROR(flux_reshape(x, 1, 1, 1, 1, 1, 1, 1, 2),
                "reshape: 2x3x1x2x2x1x3x2 f32 has 144 elements, 1x1x1x1x1x1x1x2 has 2");
    CHECK_ERROR(flux_reshape(x, 2, 150, 150, 150, 150, 1, 1, 2),
                "2x150x150x150x150x1x1x2 has 2025000000");
}

TEST(shape_errors) {
    flux_tensor *x = flux_zeros(2, 3);
    CHECK_ERROR(flux_reshape(x, 4), "2x3 f32 has 6 elements");
    CHECK_ERROR(flux_dot(flux_ones(2), flux_ones(3)),
                "dot: lengths differ: a is 2-element f32, b is 3-element f32");
    CHECK_ERROR(flux_eval_all(2, ((flux_tensor *[]){ x, NULL })), "eval: argument x is NULL");
    CHECK_ERROR(flux_reshape(x, -1, 4), "elements");
    CHECK_ERROR(flux_reshape(x, -1, -1), "-1");
    CHECK_ERROR(flux_permute(x, 0, 0), "each of the 2 dims");
    CHECK_ERROR(flux_slice(x, 2, 0, 1), "no dim 2");
    CHECK_ERROR(flux_slice(x, 1, 2, 4), "2 to 4 by 1");
    CHECK_ERROR(flux_slice(x, 1, 2, 1), "2 to 1");
    CHECK_ERROR(flux_slice_step(x, 1, 0, 3, 0), "by 0");
    CHECK_ERROR(flux_take(x, 4), "4 observations");
    CHECK_ERROR(flux_drop(x, -1), "-1 observations");
    CHECK_ERROR(flux_take(flux_scalar(1), 1), "observations");
    CHECK_ERROR(flux_select(x, 0, 2), "index 2");
    CHECK_ERROR(flux_select(x, 3, 0), "no dim 3");
    CHECK_ERROR(flux_broadcast_to(x, 2, 4), "does not stretch to 2x4");
    CHECK_ERROR(flux_broadcast_to(x, 2), "does not stretch");
    CHECK_ERROR(flux_flip(x, 2), "no dim 2");
    CHECK_ERROR(flux_repeat(x, -1), "by -1");
    CHECK_ERROR(flux_pad(x, 0, 1), "needs two");
    CHECK_ERROR(flux_pad(x, 0, -1, 0), "negative");
    CHECK_ERROR(flux_pad(x, 0, 0, 0, 0, 0, 1, 1), "3 dims to pad");
    CHECK_ERROR(flux_cat(0, x, flux_zeros(2, 4)), "differ in dim 1");
    CHECK_ERROR(flux_cat(9, x, x), "dim 9");
    CHECK_ERROR(flux_cat_with(0, 0, NULL), "0 tensors");
    CHECK_ERROR(flux_stack(0, x, flux_zeros(3, 2)), "shapes differ");
    CHECK_ERROR(flux_stack(4, x, x), "no new dim");
    CHECK_ERROR(flux_gather(x, 0, flux_zeros(2)), "must be integers");
    CHECK_ERROR(flux_gather(x, 5, flux_from(((int[]){ 0 }), 1)), "no dim 5");
    CHECK_ERROR(flux_data(flux_gather(x, 1, flux_from(((int[]){ 0, 3 }), 2))), "index 3 (number 1) is not within dim 1 of size 3");
    CHECK_ERROR(flux_data(flux_gather(x, 1, flux_from(((int[]){ -1 }), 1))), "index -1");
    CHECK_ERROR(flux_scatter_add(x, 1, flux_from(((int[]){ 0 }), 1), flux_zeros(2)), "src must be 2x1");
    CHECK_ERROR(flux_nth(x, 1), "no tensor 1 among 1");
    CHECK_ERROR(flux_add(flux_tuple(x, x), 1), "a tuple of 2 tensors");
    CHECK_ERROR(flux_nth(NULL, 0), "NULL");
    CHECK_ERROR(flux_clamp(x, 2, 1), "not in order");
    CHECK_ERROR(flux_sum(x, -1), "no dim -1");
    CHECK_ERROR(flux_argmax(x, 0, 1), "one dim or all");
    CHECK_ERROR(flux_glu(x, 1), "");
    CHECK_ERROR(flux_conv(x, x), "spatial dims");
    CHECK_ERROR(flux_conv(flux_zeros(5, 1, 1), flux_zeros(3, 2, 1)), "channels do not fit");
    CHECK_ERROR(flux_conv(flux_zeros(2, 1, 1), flux_zeros(3, 1, 1)), "does not fit");
    CHECK_ERROR(flux_crosscor(flux_zeros(5, 1, 1), flux_zeros(3, 1, 1), .stride = FLUX_SHAPE(0)), "stride is 0");
    CHECK_ERROR(flux_conv(flux_zeros(5, 1, 1), flux_zeros(3, 1, 1), .pad = FLUX_SHAPE(-1)), "pad is -1");
    CHECK_ERROR(flux_conv(flux_zeros(5, 1, 1), flux_zeros(3, 1, 1), .dilation = FLUX_SHAPE(1, 2)), "dilation has 2 numbers for 1 dims");
    CHECK_ERROR(flux_conv_transpose(flux_zeros(5, 1, 1), flux_zeros(3, 1, 1), .pad = FLUX_SHAPE(9)), "padding leaves nothing");
    CHECK_ERROR(flux_maxpool(x, FLUX_SHAPE(2)), "spatial dims");
    CHECK_ERROR(flux_meanpool(flux_zeros(4, 1, 1), FLUX_SHAPE(5)), "does not fit");
    CHECK_ERROR(flux_lpnormpool(flux_zeros(4, 1, 1), FLUX_SHAPE(2), .p = -1), "p is -1");
    CHECK_ERROR(flux_gradient(x, x), "one real number, not 2x3 f32");
    CHECK_ERROR(flux_gradient(flux_argmax(x), x), "one real number");
    CHECK_ERROR(flux_grad(NULL, x), "NULL");
}

TEST(shapes_by_value) {
    flux_tensor *x = flux_from(((float[]){ 1, 2, 3, 4, 5, 6 }), 2, 3);
    CHECK_DATA(flux_slice_step(x, 1, 0, 3, 2), ((double[]){ 1, 2, 5, 6 }), 0);
    CHECK_DATA(flux_flip(x, 1), ((double[]){ 5, 6, 3, 4, 1, 2 }), 0);
    CHECK_DATA(flux_repeat(x, 1, 2), ((double[]){ 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6 }), 0);
    CHECK_DATA(flux_repeat(flux_take(x, 1), 2, 2), ((double[]){ 1, 2, 1, 2, 1, 2, 1, 2 }), 0);
    CHECK_DATA(flux_pad(flux_take(x, 1), 7, 0, 1, 1, 0), ((double[]){ 7, 7, 7, 1, 2, 7 }), 0);
    CHECK_DATA(flux_stack(0, flux_take(x, 1), flux_take(x, 1)), ((double[]){ 1, 1, 2, 2 }), 0);
    CHECK_DATA(flux_gather(x, 1, flux_from(((int[]){ 2, 0 }), 2)), ((double[]){ 5, 6, 1, 2 }), 0);
    CHECK_DATA(flux_scatter_add(flux_zeros(3), 0, flux_from(((int[]){ 2, 0, 2 }), 3), flux_ones(3)), ((double[]){ 1, 0, 2 }), 0);
    CHECK_DATA(flux_outer(flux_arange(1, 3, 1), flux_arange(1, 3, 1)), ((double[]){ 1, 2, 2, 4 }), 0);
    CHECK_DATA(flux_softmax(flux_from(((float[]){ INFINITY, 0, INFINITY }), 3)), ((double[]){ 0.5, 0, 0.5 }), 0);
    CHECK(flux_item(flux_any(flux_gt(x, 5))) == 1 && flux_item(flux_all(flux_gt(x, 5))) == 0);
    flux_tensor *none = flux_eval(flux_gt(flux_zeros(0, 3), 5));
    CHECK(flux_item(flux_any(none)) == 0 && flux_item(flux_all(none)) == 1 && flux_item(flux_any(flux_gt(flux_zeros(0, 3), 5))) == 0);
    CHECK(flux_item(flux_sum(flux_any(none, 0))) == 0 && flux_item(flux_sum(flux_all(none, 0))) == 3);
    CHECK(flux_item(flux_argmin(flux_neg(x))) == 5);
    CHECK(isnan(flux_item(flux_max(flux_from(((float[]){ 1, NAN, 2 }), 3)))));
    CHECK_NEAR(flux_item(flux_norm(x)), sqrt(91), 1e-6);
}

/* ---------------- random numbers */

TEST(random_numbers) {
    flux_seed(42);
    flux_tensor *a = flux_eval(flux_rand(1000)), *b = flux_rand(1000);
    flux_seed(42);
    flux_tensor *c = flux_rand(1000);
    CHECK(flux_item(flux_max(flux_abs(flux_sub(a, c)))) == 0);
    CHECK(flux_item(flux_max(flux_abs(flux_sub(a, b)))) > 0.5);
    flux_tensor *n = flux_eval(flux_randn(200000)), *u = flux_eval(flux_rand(200000));
    CHECK_NEAR(flux_item(flux_mean(n)), 0, 0.01);
    CHECK_NEAR(flux_item(flux_var(n)), 1, 0.02);
    CHECK_NEAR(flux_item(flux_mean(u)), 0.5, 0.005);
    CHECK(flux_item(flux_min(u)) >= 0 && flux_item(flux_max(u)) < 1);
    flux_seed(42);                        /* a part of a tensor is the same numbers: they are counted, not drawn */
    CHECK_NEAR(flux_item(flux_sum(flux_take(flux_rand(1000), 10))), flux_item(flux_sum(flux_take(a, 10))), 1e-6);
}

static double share(flux_tensor *cond) { return flux_item(flux_mean(flux_to_dtype(cond, FLUX_F64))); }

/* In every dtype uniform numbers are below 1, also when rounded to few digits; f64's have 53 random bits, of which the first 24 are
   f32's. f32's numbers stay what they always were. */
TEST(random_numbers_of_each_dtype) {
    const double uniform[] = { 0.612959862, 0.468586504, 0.0732316971 }, normal[] = { 2.12769079, 2.16137409, -0.408270836 };
    flux_seed(42);
    CHECK_DATA(flux_rand(3), uniform, 1e-8);
    CHECK_DATA(flux_randn(3), normal, 1e-7);
    for (int bf = 0; bf < 2; bf++) {
        flux_dtype t = bf ? FLUX_BF16 : FLUX_F16;
        double most = bf ? 1 - 1 / 256.0 : 1 - 1 / 2048.0;
        flux_tensor *h = flux_eval(flux_rand_with(FLUX_SHAPE(100000), t));
        CHECK(flux_dtype_of(h) == t && flux_item(flux_min(h)) >= 0);
        CHECK_NEAR(flux_item(flux_max(h)), most, 0);
        CHECK_NEAR(flux_item(flux_mean(flux_to_dtype(h, FLUX_F32))), 0.5, 0.005);
    }
    flux_seed(7);
    flux_tensor *f = flux_eval(flux_rand(20000)), *next = flux_eval(flux_rand(10));
    flux_seed(7);
    flux_tensor *d = flux_eval(flux_rand_with(FLUX_SHAPE(20000), FLUX_F64)), *ticks = flux_mul(d, 9007199254740992.0);
    CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_rand(10), next)))) == 0);      /* one draw, whatever the dtype */
    CHECK(flux_dtype_of(d) == FLUX_F64 && flux_item(flux_min(d)) >= 0 && flux_item(flux_max(d)) < 1);
    CHECK(flux_item(flux_max(flux_abs(flux_sub(ticks, flux_floor(ticks))))) == 0);
    CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_div(flux_floor(flux_mul(d, 16777216.0)), 16777216.0), f)))) == 0);
    for (double scale = 1; scale < 5e15; scale *= 2) {     /* each bit is set in half of them */
        flux_tensor *whole = flux_floor(flux_mul(d, 2 * scale));
        CHECK_NEAR(share(flux_ne(flux_sub(whole, flux_mul(flux_floor(flux_mul(whole, 0.5)), 2)), 0)), 0.5, 0.02);
    }
    flux_tensor *n = flux_eval(flux_randn_with(FLUX_SHAPE(100000), FLUX_F64));
    CHECK_NEAR(flux_item(flux_mean(n)), 0, 0.02);
    CHECK_NEAR(flux_item(flux_var(n)), 1, 0.02);
    CHECK_NEAR(share(flux_lt(n, -1)), 0.158655, 0.005);
    CHECK_NEAR(share(flux_gt(flux_abs(n), 3)), 0.0027, 0.0008);
    CHECK(share(flux_ne(flux_to_dtype(flux_to_dtype(n, FLUX_F32), FLUX_F64), n)) > 0.99);
}

/* ---------------- memory and scopes */

TEST(scopes) {
    int64_t live = flux_mem_stats(test_device).live;
    flux_tensor *kept = NULL, *held = NULL;
    FLUX_SCOPE {
        flux_tensor *x = flux_eval(flux_rand(100000));
        CHECK(flux_mem_stats(test_device).live >= live + 400000);
        kept = flux_keep(flux_detach(flux_eval(flux_mul(x, 2))));
        FLUX_SCOPE { held = (flux_tensor *)flux_retain(flux_detach(flux_eval(flux_add(x, 1)))); }
    }
    CHECK(flux_mem_stats(test_device).live < live + 2 * 500000 && flux_len(kept) == 100000);
    CHECK(flux_item(flux_sum(held)) > 0);
    flux_release(held);
    flux_scope_open();
    flux_scope_open();
    flux_eval(flux_rand(1000000));
    flux_scope_close();
    flux_scope_close();
    CHECK(flux_mem_stats(test_device).live < live + 2 * 500000);
    flux_release(NULL);
    CHECK(flux_retain(NULL) == NULL);
}

static int leave_by_return(void) {
    FLUX_SCOPE {
        flux_eval(flux_rand(100000));
        return 1;
    }
    return 0;
}

TEST(a_scope_may_be_left_by_return) {
    int64_t live = flux_mem_stats(test_device).live;
    CHECK(leave_by_return() == 1);
#if defined(__GNUC__) && !defined(__TINYC__)
    CHECK(flux_mem_stats(test_device).live == live);
#else
    (void)live;
#endif
}

static int calls;
static int how_many(void) { return ++calls, 4; }

TEST(a_loop_whose_turns_are_scopes) {
    int64_t live = flux_mem_stats(test_device).live, most = 0;
    int sum = 0, inner = 0;
    flux_times (i, how_many()) {
        flux_eval(flux_rand(100000));
        sum += i;
        most = flux_mem_stats(test_device).live;
    }
    CHECK(calls == 1 && sum == 6);
    CHECK(most < live + 2 * 500000 && flux_mem_stats(test_device).live == live);
    flux_times (i, 3) flux_times (j, 4) {             /* two on one line; each `break` leaves its own */
        flux_eval(flux_rand(1000));
        if (i == 1) continue;
        if (j == 2) break;
        inner += 10 * i + j;
    }
    CHECK(inner == 0 + 1 + 20 + 21 && flux_mem_stats(test_device).live == live);
    const int64_t long_one = 5;
    int64_t last = -1;
    flux_times (i, long_one) last = i;                 /* as wide as its count */
    CHECK(last == 4);
    flux_times (i, -2) calls++;
    flux_times (i, 0) calls++;
    CHECK(calls == 1);
}

static int leave_loop_by_return(void) {
    flux_times (i, 10) {
        flux_eval(flux_rand(100000));
        if (i == 3) return i;
    }
    return -1;
}

TEST(a_loop_may_be_left_by_return) {
    int64_t live = flux_mem_stats(test_device).live;
    CHECK(leave_loop_by_return() == 3);
#if defined(__GNUC__) && !defined(__TINYC__)
    CHECK(flux_mem_stats(test_device).live == live);
#else
    (void)live;
#endif
}

TEST(no_turn_follows_an_error) {
    int turns = 0;
    flux_on_error(test_silent, NULL);
    flux_times (i, 5) {
        turns++;
        if (i == 1) flux_zeros(-1);
    }
    CHECK(turns == 2 && strstr(flux_error(), "-1"));
    flux_clear();
    flux_zeros(-1);                       /* one from before is the caller's affair, */
    flux_times (i, 3) {
        turns++;
        if (i == 1) flux_clear();         /* and so is one that he forgot */
    }
    flux_on_error(NULL, NULL);
    CHECK(turns == 5 && !flux_failed());
}

/* A recurrence: what goes from turn to turn is one tensor at a time, without the graph behind it. */
TEST(carried_from_turn_to_turn) {
    flux_tensor *start = flux_eval(flux_ones(1000)), *h = start, *best = NULL, *sum = flux_scalar(0), *last = NULL;
    int64_t after_ten = 0;
    flux_times (i, 100) {
        flux_tensor *before = h, *next = flux_add(flux_mul(h, 0.5), (double)i);
        sum = flux_carry(sum, flux_add(sum, flux_mean(next)));
        h = flux_carry(h, next);
        if (i % 40 == 0) best = flux_carry(best, h);
        CHECK_NEAR(flux_at(before, 0), i ? flux_at(last, 0) : 1, 0);     /* lives until the turn ends */
        last = flux_carry(last, h);
        flux_grads *g = flux_gradient(flux_sum(next), before, start);
        CHECK(flux_at(flux_grad(g, before), 0) == 0.5);                  /* the turn's own graph is still there */
        CHECK(i == 0 || flux_grad(g, start) == NULL);                    /* none goes further back */
        if (i == 10) after_ten = flux_mem_stats(test_device).live;
        if (i > 10) CHECK(flux_mem_stats(test_device).live <= after_ten + 4096);
    }
    double want = 1, total = 0, at_80 = 0;
    for (int i = 0; i < 100; i++) {
        total += want = want * 0.5 + i;
        if (i == 80) at_80 = want;
    }
    CHECK_NEAR(flux_at(h, 999), want, 1e-6);
    CHECK_NEAR(flux_item(sum), total, 1e-5);
    CHECK_NEAR(flux_at(best, 5), at_80, 1e-6);
    CHECK(flux_at(start, 0) == 1);        /* was not carried: it is still its owner's */
    CHECK_ERROR(flux_carry(h, (flux_tensor *)NULL), "carry: argument value is NULL");
}

TEST(carried_out_of_what_lies_in_a_turn) {
    int64_t live = flux_mem_stats(test_device).live;
    FLUX_SCOPE {
        flux_tensor *h = NULL, *state = NULL, *view = NULL, *number = NULL;
        flux_times (i, 20) FLUX_INFER {   /* out of the turn, not only of the block in it */
            h = flux_carry(h, h ? flux_add(h, 1) : flux_zeros(1000));
            state = flux_carry(state, flux_tuple(flux_mul(h, 2), state ? flux_nth(state, 0) : flux_ones(7)));
            view = flux_carry(view, flux_transpose(flux_reshape(h, 10, 100)));
            number = flux_carry(number, flux_full(i, 3));
        }
        CHECK(flux_at(h, 999) == 19 && flux_at(flux_nth(state, 0), 3) == 38 && flux_at(flux_nth(state, 1), 3) == 36);
        CHECK(flux_dim(view, 0) == 100 && flux_at(view, 99, 9) == 19 && flux_at(number, 2) == 19);
        CHECK(flux_mem_stats(test_device).live <= live + 5 * 8192);
        flux_tensor *plain = NULL;
        for (int i = 0; i < 10; i++) FLUX_SCOPE { plain = flux_carry(plain, flux_eval(flux_full(i, 1000))); }
        CHECK(flux_at(plain, 0) == 9);
    }
    CHECK(flux_mem_stats(test_device).live == live);
}

/* What a loop within a loop takes along is gone when the outer turn ends; each turn has one at a time,
   also where it is the first object that there is. */
TEST(carried_in_a_loop_within_a_loop) {
    const int64_t before = flux_mem_stats(test_device).live;
    flux_times (i, 3) {
        flux_tensor *h = NULL;
        flux_times (k, 20) {
            h = flux_carry(h, flux_eval(h ? flux_add(h, 1) : flux_zeros(1000)));
            CHECK(flux_mem_stats(test_device).live <= before + 2 * 4096);
        }
        CHECK(flux_at(h, 999) == 19);
    }
    CHECK(flux_mem_stats(test_device).live == before);
    flux_tensor *h = NULL;
    flux_times (k, 20) {
        h = flux_carry(h, flux_eval(h ? flux_add(h, 1) : flux_zeros(1000)));
        CHECK(flux_mem_stats(test_device).live <= before + 2 * 4096);
    }
    CHECK(flux_at(h, 999) == 19);
}

TEST(a_model_is_carried) {
    flux_layer *m = flux_dense(30, 30), *target = m;
    double w = flux_at(flux_weight(m), 2, 1);
    int64_t live = 0;
    flux_times (i, 50) {
        target = flux_carry(target, flux_fmap(flux_sin, target));
        if (i == 2) live = flux_mem_stats(test_device).live;
        if (i > 2) CHECK(flux_mem_stats(test_device).live <= live);
    }
    CHECK(flux_at(flux_weight(m), 2, 1) == w);
    for (int i = 0; i < 50; i++) w = sin(w);
    CHECK_NEAR(flux_at(flux_weight(target), 2, 1), w, 2e-7);
    flux_layer *same = flux_carry(target, m);              /* nothing behind its tensors: itself */
    CHECK(same == m);
}

TEST(inference_is_a_scope_without_gradients) {
    int64_t live = flux_mem_stats(test_device).live;
    flux_tensor *x = flux_eval(flux_ones(1000)), *y = NULL;
    flux_layer *drop = flux_dropout(0.5);
    for (int i = 0; i < 100; i++) FLUX_INFER {
        y = flux_eval(flux_mul(flux_call(drop, x), 2));
        CHECK(!flux_training(drop) && flux_mem_stats(test_device).live <= live + 3 * 8192);
    }
    FLUX_INFER y = flux_keep(flux_sum(flux_square(x)));
    CHECK(flux_item(y) == 1000 && flux_training(drop));
    CHECK(flux_grad(flux_gradient(y, x), x) == NULL && !flux_failed());
}

TEST(memory_limit) {
    flux_tensor *held = flux_eval(flux_rand(700, 1100));   /* 3080000 bytes */
    flux_mem before = flux_mem_stats(test_device);
    flux_mem_trim(test_device);
    flux_mem_limit(test_device, before.live + 1000000);
    CHECK(flux_mem_stats(test_device).limit == before.live + 1000000);
    CHECK_ERROR(flux_eval(flux_rand(1000000)), "4000000 bytes asked for");
    if (!test_device.backend) CHECK_ERROR(flux_eval(flux_rand(1000000)), "f32 700x1100 (2.94 MiB)");
    CHECK(held && flux_eval(flux_rand(1000)) != NULL);
    flux_mem_limit(test_device, 0);
    CHECK(flux_eval(flux_rand(1000000)) != NULL);
    CHECK_ERROR(flux_mem_limit(test_device, -1), "-1 bytes");
    CHECK_ERROR(flux_mem_stats((flux_device){ 99, 0 }), "{99, 0} does not exist");
    CHECK_ERROR(flux_mem_trim((flux_device){ 0, -1 }), "does not exist");
}

/* An error about memory names the three largest sizes in use, and how often each is. */
TEST(what_takes_the_memory) {
    ONLY_ON_CPU();
    static uint8_t bytes[100000];
    flux_mem_trim(test_device);
    flux_tensor *held[] = { flux_eval(flux_full_with(FLUX_SHAPE(512, 512), 2, FLUX_F64)), flux_eval(flux_rand(700, 1100)),
                            flux_eval(flux_full_with(FLUX_SHAPE(3), 1, FLUX_F64)), flux_eval(flux_ones(1024, 512)),
                            flux_from(bytes, 100000) };
    const flux_mem now = flux_mem_stats(test_device);
    char want[300];
    snprintf(want, sizeof want, "out of memory on CPU: 4000000 bytes asked for (3.81 MiB), %.2f MiB in use, %.2f MiB held, under the "
             "limit of flux_mem_limit, 7.75 MiB; the largest: f32 700x1100 (2.94 MiB), 2 x f32 1024x512 (2.00 MiB), u8 100000 (97.66 KiB)",
             (double)now.live / 1048576, (double)now.reserved / 1048576);
    flux_mem_limit(test_device, 31 << 18);
    test_before_error(__FILE__, __LINE__);
    flux_tensor *none = flux_eval(flux_rand(1000000));
    char said[700];
    snprintf(said, sizeof said, "%s", flux_error());
    test_error(want, __FILE__, __LINE__, "flux_rand");
    CHECK(!none && held[4]);
    CHECK_STR(said, want);
    flux_mem_limit(test_device, 0);
}

TEST(a_memory_limit_can_be_reached) {
    ONLY_ON_CPU();
    int64_t most = 0;
    for (int less = -1; less < 2; less++) {       /* no limit, just enough, one byte less */
        flux_mem_trim(test_device);
        flux_mem_limit(test_device, less < 0 ? 0 : most - less);
        FLUX_SCOPE {
            if (less == 1) CHECK_ERROR(flux_eval(flux_rand(3000000)), "under the limit");
            else CHECK(flux_eval(flux_rand(3000000)) != NULL);
            most = less < 0 ? flux_mem_stats(test_device).reserved : most;
        }
    }
    flux_mem_limit(test_device, 0);
}

TEST(no_gradient_inside_nograd) {
    flux_tensor *x = flux_ones(3), *y = NULL;
    FLUX_NOGRAD { y = flux_eval(flux_sum(flux_square(x))); }
    flux_grads *g = flux_gradient(y, x);
    CHECK(g && flux_grad(g, x) == NULL && !flux_failed());
    CHECK(flux_grad(flux_gradient(flux_sum(x), x), flux_ones(2)) == NULL);
}

/* ---------------- messages */

static int notes;
static char last_note[300];
static void count_note(flux_level level, const char *id, const char *message, void *user) {
    (void)level, (void)user;
    notes++;
    snprintf(last_note, sizeof last_note, "%s: %s", id, message);
}

static int leave_block_by_return(void) {
    FLUX_SCOPE return 1;
    return 0;
}

TEST(break_out_of_a_block_is_told) {
    int turns = 0;
    notes = 0;
    flux_silence(NULL);
    flux_on_log(count_note, NULL);
    for (int i = 0; i < 3; i++) FLUX_SCOPE { if (i < 3) continue; }
    flux_times (i, 3) { if (i == 1) break; }
    CHECK(leave_block_by_return() == 1 && notes == 0);
    for (int i = 0; i < 3; i++) FLUX_SCOPE { if (turns++ >= 1) break; }
    CHECK(turns == 3 && notes == 1);      /* the loop went on */
    CHECK(strstr(last_note, "scope.break: ") && strstr(last_note, "test_tensors.c:") && strstr(last_note, "flux_times"));
    flux_silence(NULL);
    flux_silence("scope.break");
    for (int i = 0; i < 3; i++) FLUX_INFER { if (i < 3) break; }
    flux_on_log(NULL, NULL);
    flux_silence(NULL);
    CHECK(notes == 1);
}

TEST(messages_once_and_silenced) {
    flux_on_log(count_note, NULL);
    flux_silence(NULL);
    notes = 0;
    flux_gpu(flux_ones(2)), flux_gpu(flux_ones(2));
    CHECK(notes <= 1);
    flux_silence(NULL);
    flux_silence("gpu.none");
    notes = 0;
    flux_gpu(flux_ones(2));
    CHECK(notes == 0);
    flux_silence(NULL);
    flux_log_level(FLUX_LOG_ERROR);
    flux_gpu(flux_ones(2));
    CHECK(notes == 0);
    flux_log_level(FLUX_LOG_INFO);
    flux_on_log(NULL, NULL);
}

static char told[300];
static int tellings;
static void tell(const char *message, void *user) { snprintf(told, sizeof told, "%s%s", (const char *)user, message), tellings++; }

TEST(an_error_handler_is_told_each_sentence_once) {
    tellings = 0;
    flux_on_error(tell, (void *)(intptr_t)"!");
    for (int i = 0; i < 3; i++) flux_add(flux_zeros(2), flux_zeros(3));
    CHECK(tellings == 1 && strncmp(told, "!add: shapes do not broadcast: 2-element", 40) == 0);
    for (int i = 0; i < 100; i++) flux_add(flux_zeros(4), flux_zeros(5 + i % 20)), flux_add(flux_zeros(2), flux_zeros(3));
    CHECK(tellings == 21 && strncmp(told, "!add: shapes do not broadcast: 4-element", 40) == 0);
    CHECK(strstr(flux_error(), "2-element") != NULL);            /* the first stays what is pending */
    flux_clear();
    flux_add(flux_zeros(2), flux_zeros(3));                      /* forgotten: news again */
    CHECK(tellings == 22 && strstr(flux_error(), "2-element") != NULL);
    flux_clear();
    flux_on_error(NULL, NULL);
}

/* A kernel makes 0 of a result below the smallest normal number; a number that a program gives is no result. */
TEST(numbers_given_are_kept_however_small) {
    const float tiny[] = { 1e-45f, -1e-45f, 1e-39f, -1.1e-38f, 1.17549435e-38f, -3e-42f };
    flux_shape one = { 1, { 1 } };
    flux_tensor *large = flux_eval(flux_full(1e30, 3));
    for (int i = 0; i < 6; i++) {
        const float *looked = (const float *)flux_data(flux_full(tiny[i], 3));
        for (int j = 0; j < 3; j++) CHECK(looked && memcmp(&looked[j], &tiny[i], sizeof *tiny) == 0);
        CHECK_NEAR(flux_item(flux_max(flux_mul(flux_full(tiny[i], 3), large))), (double)tiny[i] * 1e30, 1e-14);  /* within a kernel */
        CHECK_NEAR(flux_item(flux_max(flux_mul(large, (double)tiny[i]))), (double)tiny[i] * 1e30, 1e-14);
    }
    CHECK_NEAR(flux_item(flux_full_with(one, 1e-39, FLUX_BF16)), 1.0102e-39, 1e-43);
    CHECK_NEAR(flux_item(flux_full_with(one, 1e-310, FLUX_F64)), 1e-310, 0);
}

/* ---- eight dims */

/* Along the last of eight dims, of which six are 1, all is as along the last of two: results, and gradients. */
static flux_tensor *along(int k, flux_tensor *x, int dim, flux_tensor *at) {
    switch (k) {
    case 0: return flux_slice(x, dim, 1, 4);
    case 1: return flux_slice_step(x, dim, 0, 5, 2);
    case 2: return flux_flip(x, dim);
    case 3: return flux_select(x, dim, 3);
    case 4: return flux_sum(x, dim);
    case 5: return flux_max(x, dim);
    case 6: return flux_softmax(x, dim);
    case 7: return flux_cumsum(x, dim);
    case 8: return flux_cat(dim, x, flux_mul(x, 2));
    case 9: return flux_sort(x, .dim = dim);
    case 10: return flux_var(x, dim);
    case 11: return flux_take_along(x, dim, at);
    case 12: return flux_pad_by(x, 7, dim == 7 ? FLUX_SHAPE(0, 0, 0, 0, 0, 0, 0, 2) : FLUX_SHAPE(0, 2), dim == 7 ? FLUX_SHAPE(0, 0, 0, 0, 0, 0, 0, 1) : FLUX_SHAPE(0, 1));
    case 13: return flux_repeat_with(x, dim == 7 ? FLUX_SHAPE(1, 1, 1, 1, 1, 1, 1, 3) : FLUX_SHAPE(1, 3));
    case 14: return flux_mul(x, flux_mean(x, dim));
    case 15: return flux_to_dtype(flux_argmax(x, dim), FLUX_F32);
    case 16: return flux_permute_with(x, dim == 7 ? FLUX_SHAPE(7, 1, 2, 3, 4, 5, 6, 0) : FLUX_SHAPE(1, 0));
    case 17: return flux_nth(flux_split(x, dim, 2, 3), 1);
    case 18: return flux_scatter_add(x, dim, flux_to_dtype(flux_values(4, 1), FLUX_I32), flux_slice(x, dim, 0, 2));
    case 19: return flux_gather(x, dim, flux_to_dtype(flux_values(4, 1, 1), FLUX_I32));
    default: return NULL;
    }
}
TEST(eight_dims_are_as_two) {
    flux_tensor *two = flux_eval(flux_randn(3, 5)), *eight = flux_eval(flux_reshape(two, 3, 1, 1, 1, 1, 1, 1, 5));
    flux_tensor *at = flux_eval(flux_to_dtype(flux_mul(flux_rand(3, 2), 4.99), FLUX_I32));
    for (int k = 0; k < 20; k++) FLUX_SCOPE {
        flux_tensor *a = along(k, two, 1, at), *b = along(k, eight, 7, flux_reshape(at, 3, 1, 1, 1, 1, 1, 1, 2));
        const int64_t n = flux_len(a);
        flux_tensor *r = flux_eval(flux_randn(n)), *flat[2] = { flux_reshape(a, n), flux_reshape(b, flux_len(b)) }, *d[2];
        const flux_shape s = flux_shape_of(b);
        CHECK(flux_len(b) == n && (s.ndim < 8 || s.dim[7] == flux_dim(a, 1)) && s.dim[1] == 1);
        if (flux_len(b) != n) continue;
        d[0] = flux_grad(flux_gradient(flux_sum(flux_mul(flat[0], r)), two), two), d[1] = flux_grad(flux_gradient(flux_sum(flux_mul(flat[1], r)), eight), eight);
        if (!CHECK(flux_item(flux_max(flux_abs(flux_sub(flat[0], flat[1])))) == 0)) fprintf(stderr, "    case %d\n", k);
        if (k == 15) { flux_clear(); continue; }
        if (!CHECK(d[0] && d[1] && flux_ndim(d[1]) == 8 && flux_item(flux_max(flux_abs(flux_sub(flux_reshape(d[0], 15), flux_reshape(d[1], 15))))) < 1e-6)) fprintf(stderr, "    gradient, case %d\n", k);
    }
}

/* A scalar is treated as a vector of one element is: its result has the same dtype and bits, and its gradient as well. */
static flux_tensor *sorted(flux_tensor *x) { return flux_sort(x); }
static flux_tensor *order_of(flux_tensor *x) { return flux_argsort(x, .descending = true); }
static flux_tensor *first_alone(flux_tensor *x) { return flux_sum(x, 0); }
static flux_tensor *sums_along_first(flux_tensor *x) { return flux_cumsum(x, 0); }
static flux_tensor *stacked(flux_tensor *x) { return flux_sum(flux_stack(0, x, x, x)); }
static flux_tensor *in_a_row(flux_tensor *x) { return flux_sum(flux_cat(0, x, x)); }
static flux_tensor *stretched(flux_tensor *x) { return flux_mean(flux_mul(flux_broadcast_to(x, 3, 2), 2)); }
static flux_tensor *chosen(flux_tensor *x) { return flux_where(flux_gt(x, 0), x, flux_neg(x)); }
static flux_tensor *bounded(flux_tensor *x) { return flux_clamp(x, 0, 1); }
TEST(a_scalar_is_a_vector_of_one) {
    static const struct { const char *name; flux_fn f; } all[] = {
        { "cumsum", (flux_cumsum) }, { "cumprod", (flux_cumprod) }, { "cumsum of dim 0", sums_along_first }, { "sum", (flux_sum) }, { "mean", (flux_mean) }, { "prod", (flux_prod) },
        { "max", (flux_max) }, { "min", (flux_min) }, { "any", (flux_any) }, { "all", (flux_all) }, { "norm", (flux_norm) }, { "var", (flux_var) }, { "std", (flux_std) },
        { "logsumexp", (flux_logsumexp) }, { "argmax", (flux_argmax) }, { "argmin", (flux_argmin) }, { "softmax", (flux_softmax) }, { "logsoftmax", (flux_logsoftmax) },
        { "sort", sorted }, { "argsort", order_of }, { "sum of dim 0", first_alone }, { "stack", stacked }, { "cat", in_a_row }, { "broadcast", stretched },
        { "where", chosen }, { "clamp", bounded }, { "flatten", flux_flatten }, { "transpose", flux_transpose }, { "copy", flux_copy }, { "abs", flux_abs },
        { "sign", flux_sign }, { "square", flux_square }, { "floor", flux_floor }, { "exp", flux_exp }, { "relu", flux_relu }, { "gelu", (flux_gelu) }, { "isnan", flux_isnan },
        { "isfinite", flux_isfinite }, { "hardswish", (flux_hardswish) }, { "mish", (flux_mish) }, { "neg", flux_neg }
    };
    static const double values[] = { 1, 0, -2.5, 3 };
    for (int i = 0; i < (int)(sizeof all / sizeof *all); i++)
        for (int k = 0; k < FLUX_NUM_DTYPES * 4; k++) FLUX_SCOPE {
            const flux_dtype t = (flux_dtype)(k / 4);
            if (test_left_out(i * 3 + k, 61) || (test_device.backend && (i * 3 + k) % 5) || (t == FLUX_U8 && values[k % 4] < 0)) continue;
            flux_tensor *x = flux_eval(flux_to_dtype(flux_full(values[k % 4], 1), t)), *s = flux_eval(flux_select(x, 0, 0));
            flux_on_error(test_silent, NULL);
            flux_tensor *a = all[i].f(s), *b = all[i].f(x);
            const bool neither = !a && !b;
            if (neither) flux_clear();
            flux_on_error(NULL, NULL);
            if (neither) continue;                /* -true is refused of both */
            bool good = a && b && flux_dtype_of(a) == flux_dtype_of(b) && flux_len(a) == 1 && flux_len(b) == 1;
            const size_t n = flux_dtype_size(flux_dtype_of(b));
            good = good && !memcmp(flux_data(flux_cpu(a)), flux_data(flux_cpu(b)), n);
            if (good && t < FLUX_I32 && flux_dtype_of(a) == t) {
                flux_tensor *ga = flux_grad(flux_gradient(flux_sum(a), s), s), *gb = flux_grad(flux_gradient(flux_sum(b), x), x);
                good = (!ga && !gb) || (ga && gb && flux_ndim(ga) == 0 && flux_dtype_of(ga) == t && !memcmp(flux_data(flux_cpu(ga)), flux_data(flux_cpu(gb)), n));
            }
            if (!CHECK(good)) fprintf(stderr, "    %s of %g in %s\n", all[i].name, values[k % 4], flux_dtype_name(t));
        }
}

/* A view is treated as its copy is, whatever its strides: turned, cut, backward, stretched, and several of these at once. */
static flux_tensor *places(void) { return flux_from(((const int32_t[]){ 1, 0, 2, 1 }), 4); }
#define OF_MATRIX(X)                                                                                                              \
    X(sum, flux_sum(x)) X(sum_0, flux_sum(x, 0)) X(sum_1, flux_sum(x, 1)) X(prod, flux_prod(x, 1)) X(max, flux_max(x, 0)) X(min, flux_min(x, 1)) X(mean, flux_mean(x, 1)) \
    X(argmax, flux_argmax(x, 0)) X(argmin, flux_argmin(x, 1)) X(any, flux_any(x, 0)) X(all, flux_all(x, 1)) X(cumsum, flux_cumsum(x, 0)) X(cumprod, flux_cumprod(x, 1))    \
    X(sort, flux_sort(x, .dim = 1)) X(argsort, flux_argsort(x, .dim = 0, .descending = true)) X(topk, flux_nth(flux_topk(x, 2, 1), 0)) X(softmax, flux_softmax(x, 0))     \
    X(logsumexp, flux_logsumexp(x, 1)) X(var, flux_var(x, 0)) X(norm, flux_norm(x, 1)) X(gather, flux_gather(x, 0, places())) X(gather_1, flux_gather(x, 1, places()))     \
    X(take_along, flux_take_along(x, 0, flux_full_with(FLUX_SHAPE(2, 3), 1, FLUX_I32))) X(scatter, flux_scatter_add(x, 1, places(), flux_cat(1, x, flux_slice(x, 1, 0, 1)))) \
    X(cat, flux_cat(0, x, flux_neg(x))) X(stack, flux_stack(1, x, x)) X(pad, flux_pad(x, 1, 1, 2, 0, 1)) X(repeat, flux_repeat(x, 2, 3)) X(flip, flux_flip(x, 0, 1))         \
    X(slice, flux_slice_step(x, 0, 1, 4, 2)) X(select, flux_select(x, 1, 2)) X(permute, flux_permute(x, 1, 0)) X(reshape, flux_reshape(x, 2, 6)) X(flatten, flux_flatten(x)) \
    X(tril, flux_tril(x)) X(triu, flux_triu(x)) X(square, flux_square(x)) X(where, flux_where(flux_gt(x, 1), x, 3)) X(add, flux_add(x, flux_select(x, 1, 0)))              \
    X(matmul, flux_matmul(x, flux_transpose(x))) X(matmul_t, flux_matmul(flux_transpose(x), x)) X(einsum, flux_einsum("ij->ji", x)) X(einsum_sum, flux_einsum("ij->i", x)) \
    X(to_f64, flux_to_dtype(x, FLUX_F64)) X(to_f16, flux_to_dtype(x, FLUX_F16)) X(to_i64, flux_to_dtype(x, FLUX_I64)) X(to_u8, flux_to_dtype(flux_abs(x), FLUX_U8))         \
    X(to_bool, flux_to_dtype(x, FLUX_BOOL)) X(conv, flux_conv(flux_reshape(x, 4, 3, 1, 1), flux_reshape(flux_slice(x, 0, 0, 2), 2, 3, 1, 1)))                            \
    X(maxpool, flux_maxpool(flux_reshape(x, 4, 3, 1, 1), FLUX_SHAPE(2, 2), .stride = FLUX_SHAPE(1))) X(meanpool, flux_meanpool(flux_reshape(x, 4, 3, 1, 1), FLUX_SHAPE(2, 1)))
#define DEFINE_OF_MATRIX(name, expression) static flux_tensor *matrix_##name(flux_tensor *x) { return expression; }
#define ROW_OF_MATRIX(name, expression) { #name, matrix_##name },
OF_MATRIX(DEFINE_OF_MATRIX)
static flux_tensor *view_number(int i, flux_tensor *x) {      /* x: 9 x 7 x 5; the view: 4 x 3 */
    flux_tensor *y = flux_select(x, 2, i % 5);
    switch (i) {
    case 0: return flux_slice(flux_slice(y, 0, 2, 6), 1, 3, 6);
    case 1: return flux_slice(flux_slice_step(y, 0, 1, 9, 2), 1, 0, 3);
    case 2: return flux_transpose(flux_slice(flux_slice(y, 0, 1, 4), 1, 2, 6));
    case 3: return flux_flip(flux_slice(flux_slice(y, 0, 5, 9), 1, 1, 4), 0, 1);
    case 4: return flux_broadcast_to(flux_slice(flux_select(y, 1, 3), 0, 4, 8), 4, 3);
    case 5: return flux_transpose(flux_broadcast_to(flux_slice(flux_select(y, 1, 2), 0, 1, 4), 3, 4));
    case 6: return flux_flip(flux_transpose(flux_slice(flux_slice_step(y, 0, 0, 9, 3), 1, 0, 4)), 0);
    case 7: return flux_slice(flux_slice(flux_select(x, 0, 4), 0, 3, 7), 1, 1, 4);
    case 8: return flux_flip(flux_slice(flux_slice_step(flux_select(x, 1, 6), 1, 0, 5, 2), 0, 5, 9), 1);
    default: return flux_broadcast_to(flux_reshape(flux_select(flux_select(y, 0, 8), 0, 2), 1, 1), 4, 3);
    }
}
TEST(a_view_is_treated_as_its_copy) {
    static const struct { const char *name; flux_fn f; } all[] = { OF_MATRIX(ROW_OF_MATRIX) };
    static const flux_dtype dtypes[] = { FLUX_F32, FLUX_F64, FLUX_F16, FLUX_BF16, FLUX_I32, FLUX_I64 };
    flux_seed(4);
    flux_tensor *numbers = flux_eval(flux_sub(flux_floor(flux_mul(flux_rand(9, 7, 5), 7)), 3));      /* whole ones: sums and products are exact */
    for (int i = 0; i < (int)(sizeof all / sizeof *all); i++)
        for (int k = 0; k < 60; k++) FLUX_SCOPE {
            if (test_left_out(i * 7 + k, 97) || (test_device.backend && (i * 7 + k) % 11)) continue;      /* each has kernels of its own */
            flux_tensor *x = flux_eval(flux_to_dtype(numbers, dtypes[k / 10])), *v = view_number(k % 10, x), *w = flux_eval(flux_copy(v));
            flux_tensor *a = flux_eval(all[i].f(v)), *b = flux_eval(all[i].f(w));
            bool good = a && b && flux_dtype_of(a) == flux_dtype_of(b) && flux_ndim(a) == flux_ndim(b) && flux_len(a) == flux_len(b);
            good = good && flux_item(flux_all(flux_le(flux_abs(flux_sub(flux_to_dtype(a, FLUX_F64), flux_to_dtype(b, FLUX_F64))), 1e-6))) == 1;
            if (good && k < 20 && flux_dtype_of(a) == flux_dtype_of(v)) {      /* and its gradient */
                flux_tensor *ga = flux_grad(flux_gradient(flux_sum(flux_square(a)), v), v), *gb = flux_grad(flux_gradient(flux_sum(flux_square(b)), w), w);
                good = (!ga && !gb) || (ga && gb && flux_item(flux_max(flux_abs(flux_sub(ga, gb)))) <= 1e-5 * (1 + flux_item(flux_max(flux_abs(gb)))));
            }
            if (!CHECK(good)) fprintf(stderr, "    %s of view %d in %s\n", all[i].name, k % 10, flux_dtype_name(dtypes[k / 10]));
        }
}

/* Elements of any size, each repeated, and every second one: rows of vectors and of less. */
TEST(repeated_and_left_out) {
    static const flux_dtype dtypes[] = { FLUX_U8, FLUX_BF16, FLUX_F32, FLUX_F64 };
    static const int rows[] = { 1, 3, 7, 8, 15, 16, 17, 33 };
    for (int i = 0; i < 4 * 8 * 4; i++) FLUX_SCOPE {
        const int n = rows[i / 4 % 8], times = 1 + i / 32, down = 3;
        flux_tensor *x = flux_eval(flux_to_dtype(flux_floor(flux_mul(flux_rand(2 * n, down), 100)), dtypes[i % 4]));
        flux_tensor *part = flux_slice(x, 0, 1, 1 + n);
        flux_tensor *each = flux_reshape(flux_broadcast_to(flux_reshape(flux_eval(flux_copy(part)), 1, n, 1, down), times, n, 2, down), -1);
        flux_tensor *twos = flux_copy(flux_slice_step(x, 0, 1, 2 * n, 2));
        const float *all = flux_floats(flux_eval(flux_to_dtype(x, FLUX_F32))), *e = flux_floats(flux_eval(flux_to_dtype(each, FLUX_F32))),
                    *two = flux_floats(flux_eval(flux_to_dtype(twos, FLUX_F32)));
        int bad = 0;
        REQUIRE(all && e && two && flux_len(each) == times * n * 2 * down && flux_len(twos) == n * down);
        for (int at = 0; at < times * n * 2 * down; at++) bad += e[at] != all[at / (times * n * 2) * 2 * n + 1 + at / times % n];
        for (int at = 0; at < n * down; at++) bad += two[at] != all[at / n * 2 * n + 1 + at % n * 2];
        CHECK(bad == 0);
    }
}

TEST_MAIN()
