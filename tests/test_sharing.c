/* Memory shared with others: addresses, borrowed memory, streams, DLPack. Its structs are declared here as dlpack.h does. */
#include "test.h"

typedef struct { int32_t device_type, device_id; } DLDevice;
typedef struct { uint8_t code, bits; uint16_t lanes; } DLDataType;
typedef struct { void *data; DLDevice device; int32_t ndim; DLDataType dtype; int64_t *shape, *strides; uint64_t byte_offset; } DLTensor;
typedef struct DLManagedTensor { DLTensor dl_tensor; void *manager_ctx; void (*deleter)(struct DLManagedTensor *self); } DLManagedTensor;
typedef struct { uint32_t major, minor; } DLPackVersion;
typedef struct DLManagedTensorVersioned {
    DLPackVersion version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    DLTensor dl_tensor;
} DLManagedTensorVersioned;

static int64_t at_end;                    /* calls of an owner's function */
static void count_end(void *user) { at_end += *(int *)user; }

static const flux_device cpu = { 0, 0 };
static int number_of(flux_device d) { return !strcmp(flux_device_backend(d), "CPU") ? 1 : !strcmp(flux_device_backend(d), "CUDA") ? 2 : 10; }
/* Host memory as the tests' device has it: a tensor that must stay alive while its address is used. */
static flux_tensor *there(const void *data, flux_dtype t, flux_shape s) { return flux_eval(flux_from_with(data, t, s)); }

TEST(addresses) {
    const float v[] = { 1, 2, 3, 4, 5, 6 };
    flux_tensor *x = flux_from(v, 2, 3), *y = flux_add(x, 1);
    REQUIRE(flux_pointer(y) != NULL && flux_pointer(y) == flux_pointer(y));
    CHECK((const char *)flux_pointer(flux_slice(y, 1, 1, 3)) == (const char *)flux_pointer(y) + 2 * sizeof(float));
    if (test_device.backend == cpu.backend) CHECK(flux_pointer(y) == flux_data(y));
    else CHECK(flux_pointer(y) != flux_data(y));
    CHECK_ERROR(flux_pointer(flux_transpose(x)), "pointer: the elements of 3x2 f32, a view, do not follow each other; flux_copy");
    CHECK(flux_pointer(flux_copy(flux_transpose(x))) != NULL);
    CHECK_ERROR(flux_pointer(NULL), "pointer: argument");
    CHECK(flux_pointer(flux_full(3, 2, 2)) != NULL);
}

TEST(borrowed_memory_is_given_back_once) {
    int one = 1;
    const double v[] = { 1, 2, 3, 4, 5, 6 }, more[] = { 2, 3, 4, 5, 6, 7 }, part[] = { 3, 4 };
    at_end = 0;
    flux_tensor *x = there(v, FLUX_F64, FLUX_SHAPE(2, 3)), *kept = NULL;
    FLUX_SCOPE {
        flux_tensor *y = flux_borrow_on(test_device, flux_pointer(x), FLUX_F64, FLUX_SHAPE(2, 3), count_end, &one);
        REQUIRE(y != NULL);
        CHECK(flux_pointer(y) == flux_pointer(x) && flux_device_equal(flux_device_of(y), flux_device_of(x)));
        CHECK_DATA(y, v, 0);
        CHECK_DATA(flux_add(y, 1), more, 0);
        kept = flux_keep(flux_select(y, 1, 1));
    }
    CHECK(at_end == 0);
    FLUX_SCOPE CHECK_DATA(kept, part, 0);
    FLUX_SCOPE {                          /* memory that begins anywhere */
        float f[64];
        double triple[40], product[16];
        for (int i = 0; i < 64; i++) f[i] = (float)i;
        flux_tensor *all = there(f, FLUX_F32, FLUX_SHAPE(64)), *ones = flux_ones(10, 4);
        for (int i = 0; i < 5; i++) {
            flux_tensor *y = flux_borrow_on(test_device, (const float *)flux_pointer(all) + i, FLUX_F32, FLUX_SHAPE(40), NULL, NULL);
            for (int k = 0; k < 40; k++) triple[k] = 3 * f[i + k];
            for (int k = 0; k < 16; k++) product[k] = 10 * (k % 4 + i) + 4 * 45;
            CHECK((const char *)flux_pointer(y) == (const char *)flux_pointer(all) + 4 * i);
            CHECK_DATA(flux_mul(y, 3), triple, 0);
            CHECK_DATA(flux_matmul(flux_reshape(y, 4, 10), ones), product, 0);
        }
    }
    flux_scope_open();
    kept = flux_borrow_on(test_device, flux_pointer(x), FLUX_F64, FLUX_SHAPE(6), NULL, NULL);
    CHECK_DATA(kept, v, 0);
    flux_scope_close();
    FLUX_SCOPE {
        flux_device none = { 3, 0 };
        CHECK_ERROR(flux_borrow_on(none, v, FLUX_F64, FLUX_SHAPE(6), count_end, &one), "borrow_on: device {3, 0} can't be used here");
        CHECK_ERROR(flux_borrow_on(cpu, NULL, FLUX_F64, FLUX_SHAPE(6), count_end, &one), "borrow_on: argument ptr is NULL");
        CHECK_ERROR(flux_borrow_on(cpu, v, FLUX_F64, FLUX_SHAPE(-6), count_end, &one), "borrow_on: ");
        CHECK_ERROR(flux_borrow_on(cpu, (const char *)v + 4, FLUX_F64, FLUX_SHAPE(2), count_end, &one),
                    "borrow_on: the address of the elements, f64, is no multiple of their 8 bytes");
    }
    CHECK(at_end == 0);
    FLUX_SCOPE CHECK(flux_len(flux_borrow_on(cpu, NULL, FLUX_F32, FLUX_SHAPE(0, 2), count_end, &one)) == 0);
    CHECK(at_end == 1);
}

/* An update never writes to memory that is borrowed, and lets it go. */
TEST(updates_leave_borrowed_memory_alone) {
    int one = 1;
    const float v[] = { 1, 2, 3, 4 };
    const double same[] = { 1, 2, 3, 4 };
    at_end = 0;
    flux_tensor *w = there(v, FLUX_F32, FLUX_SHAPE(2, 2));
    FLUX_SCOPE {
        flux_layer *m = NULL;
        FLUX_SCOPE m = flux_keep(flux_dense(.weight = flux_borrow_on(test_device, flux_pointer(w), FLUX_F32, FLUX_SHAPE(2, 2), count_end, &one)));
        flux_state *opt = flux_setup(flux_descent(0.1), m);
        flux_times (i, 3) flux_update(opt, m, flux_gradient(flux_sum(flux_square(flux_call(m, flux_ones(2)))), m));
        CHECK(flux_at(flux_param(m, "weight"), 0, 0) < 0.9);
        CHECK(at_end == 1);
    }
    CHECK_DATA(w, same, 0);
}

static void check_same(flux_tensor *x, flux_tensor *y) {
    flux_shape s = flux_shape_of(x), t = flux_shape_of(y);
    REQUIRE(x && y && s.ndim == t.ndim && flux_dtype_of(x) == flux_dtype_of(y));
    for (int i = 0; i < s.ndim; i++) CHECK(s.dim[i] == t.dim[i]);
    CHECK(memcmp(flux_data(x), flux_data(y), (size_t)flux_len(x) * flux_dtype_size(flux_dtype_of(x))) == 0);
}

TEST(dlpack_there_and_back) {
    static const uint8_t code[] = { 2, 2, 2, 4, 0, 0, 1, 6 };
    for (int t = 0; t < FLUX_NUM_DTYPES; t++)
        for (int n = 0; n <= FLUX_MAX_DIMS; n++) FLUX_SCOPE {
            flux_shape s = FLUX_SHAPE(3, 2, 1, 2, 1, 3, 1, 2);
            s.ndim = n;
            flux_tensor *x = flux_to_dtype(flux_mul(flux_rand_with(s, FLUX_F32), 9), (flux_dtype)t);
            DLManagedTensor *m = flux_to_dlpack(x);
            REQUIRE(m && m->dl_tensor.ndim == n && m->dl_tensor.dtype.code == code[t] && m->dl_tensor.dtype.lanes == 1 && m->deleter);
            CHECK(m->dl_tensor.dtype.bits == 8 * flux_dtype_size((flux_dtype)t) && m->dl_tensor.byte_offset == 0);
            CHECK(m->dl_tensor.device.device_type == number_of(test_device) && m->dl_tensor.device.device_id == test_device.id);
            CHECK(m->dl_tensor.data == flux_pointer(x));
            for (int i = 0; i < n; i++) CHECK(m->dl_tensor.shape[i] == s.dim[n - 1 - i]);
            if (n) CHECK(m->dl_tensor.strides[n - 1] == 1);
            if (n > 2) CHECK(m->dl_tensor.strides[n - 3] == 6);
            flux_tensor *y = flux_from_dlpack(m);
            CHECK(flux_pointer(y) == flux_pointer(x));
            check_same(x, y);
            DLManagedTensorVersioned *v = flux_to_dlpack_versioned(y);
            REQUIRE(v && v->version.major == 1 && v->version.minor == 0 && v->flags == 1);
            check_same(x, flux_from_dlpack_versioned(v));
        }
}

/* Views go there with their strides, and come back as views of the same memory; what was given away outlives its scope. */
TEST(dlpack_of_views) {
    for (int k = 0; k < 6; k++) FLUX_SCOPE {
        flux_tensor *x = NULL, *want = NULL;
        DLManagedTensor *m = NULL;
        FLUX_SCOPE {
            x = flux_eval(flux_rand(4, 5, 3));
            flux_tensor *v[] = { flux_transpose(flux_select(x, 2, 1)), flux_slice(x, 0, 1, 3), flux_slice_step(x, 1, 0, 5, 2),
                                 flux_broadcast_to(flux_slice(x, 0, 2, 3), 4, 5, 3), flux_flip(x, 1), flux_slice(x, 1, 2, 2) };
            want = flux_keep(flux_eval(flux_copy(v[k])));
            m = flux_to_dlpack(v[k]);
            REQUIRE(m != NULL);
            const char *first = (const char *)flux_pointer(x), *data = (const char *)m->dl_tensor.data;
            if (k < 4) CHECK(data >= first && data < first + 60 * sizeof(float));
            if (k == 4) CHECK(data < first || data >= first + 60 * sizeof(float));
            for (int i = 0; i < m->dl_tensor.ndim; i++) CHECK(m->dl_tensor.strides[i] >= 0);
        }
        flux_tensor *y = flux_from_dlpack(m), *twice = flux_mul(y, 2);
        check_same(want, y);
        check_same(flux_mul(want, 2), twice);
        check_same(flux_sum(want, 0), flux_sum(y, 0));
    }
}

/* An array of another library in host memory, with what its deleter counts. */
typedef struct foreign { DLManagedTensor m; DLManagedTensorVersioned v; int64_t shape[9], strides[9]; } foreign;
static void foreign_end(DLManagedTensor *m) { at_end += m->manager_ctx != NULL; }
static void foreign_end_now(DLManagedTensorVersioned *m) { at_end += m->manager_ctx != NULL; }
static void foreign_array(foreign *f, void *data, int ndim, const int64_t *shape, const int64_t *strides) {
    memset(f, 0, sizeof *f);
    for (int i = 0; i < ndim && i < 9; i++) f->shape[i] = shape[i], f->strides[i] = strides ? strides[i] : 0;
    f->m.dl_tensor.data = data;
    f->m.dl_tensor.device.device_type = 1;
    f->m.dl_tensor.ndim = ndim;
    f->m.dl_tensor.dtype.code = 2, f->m.dl_tensor.dtype.bits = 32, f->m.dl_tensor.dtype.lanes = 1;
    f->m.dl_tensor.shape = f->shape;
    f->m.dl_tensor.strides = strides ? f->strides : NULL;
    f->v.dl_tensor = f->m.dl_tensor;
    f->v.version.major = 1, f->v.version.minor = 3;
    f->m.manager_ctx = f->v.manager_ctx = f;
    f->m.deleter = foreign_end, f->v.deleter = foreign_end_now;
}

TEST(arrays_of_others) {
    float a[24];
    foreign f;
    const int64_t shape[] = { 2, 3 }, back[] = { 3, -1 }, every[] = { 12, 4 }, none[] = { 0, 1 }, zero[] = { 0, 3 };
    const double plain[] = { 0, 1, 2, 3, 4, 5 }, reversed[] = { 7, 6, 5, 10, 9, 8 }, steps[] = { 0, 4, 8, 12, 16, 20 }, same[] = { 0, 1, 2, 0, 1, 2 };
    for (int i = 0; i < 24; i++) a[i] = (float)i;
    at_end = 0;
    FLUX_SCOPE {
        foreign_array(&f, a, 2, shape, NULL);
        flux_tensor *x = flux_from_dlpack(&f.m);
        REQUIRE(x != NULL);
        CHECK(flux_dim(x, 0) == 3 && flux_dim(x, 1) == 2 && flux_data(x) == a && flux_device_equal(flux_device_of(x), cpu));
        CHECK_DATA(x, plain, 0);
    }
    CHECK(at_end == 1);
    FLUX_SCOPE {
        foreign_array(&f, a + 3, 2, shape, back);
        f.v.dl_tensor.byte_offset = 4 * sizeof(float);
        flux_tensor *x = flux_from_dlpack_versioned(&f.v), *g, *y;
        CHECK_DATA(x, reversed, 0);
        y = flux_sum(flux_mul(flux_square(x), 0.5));
        g = flux_grad(flux_gradient(y, x), x);
        CHECK_DATA(g, reversed, 0);
    }
    CHECK(at_end == 2);
    FLUX_SCOPE {
        foreign_array(&f, a, 2, shape, every);
        f.m.dl_tensor.device.device_type = 3;                    /* pinned */
        CHECK_DATA(flux_from_dlpack(&f.m), steps, 0);
    }
    FLUX_SCOPE {
        foreign_array(&f, a, 2, shape, none);
        CHECK_DATA(flux_from_dlpack(&f.m), same, 0);
    }
    FLUX_SCOPE {
        foreign_array(&f, NULL, 2, zero, NULL);
        CHECK(flux_len(flux_from_dlpack(&f.m)) == 0);
    }
    CHECK(at_end == 5);
    FLUX_SCOPE {
        foreign_array(&f, a, 0, NULL, NULL);
        f.m.deleter = NULL;
        CHECK(flux_item(flux_from_dlpack(&f.m)) == 0);
    }
    CHECK(at_end == 5);
}

TEST(arrays_that_are_not_taken_stay_their_owners) {
    float a[6] = { 0 };
    foreign f;
    const int64_t shape[] = { 2, 3 }, huge[] = { INT64_MAX, 1 }, wrong[] = { 2, -3 }, nine[] = { 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    at_end = 0;
    foreign_array(&f, a, 2, shape, NULL);
    f.m.dl_tensor.dtype.code = 5, f.m.dl_tensor.dtype.bits = 64;
    CHECK_ERROR(flux_from_dlpack(&f.m), "from_dlpack: there is no dtype of DLPack's code 5, 64 bits, 1 lanes");
    f.m.dl_tensor.dtype.code = 2, f.m.dl_tensor.dtype.bits = 32, f.m.dl_tensor.dtype.lanes = 4;
    CHECK_ERROR(flux_from_dlpack(&f.m), "from_dlpack: there is no dtype of DLPack's code 2, 32 bits, 4 lanes");
    foreign_array(&f, a, 2, shape, NULL);
    f.m.dl_tensor.device.device_type = 7;
    CHECK_ERROR(flux_from_dlpack(&f.m), "from_dlpack: memory of DLPack's kind 7 can't be used here");
    f.m.dl_tensor.device.device_type = 2, f.m.dl_tensor.device.device_id = 99;
    CHECK_ERROR(flux_from_dlpack(&f.m), "from_dlpack: device {1, 99} can't be used here");
    f.v.version.major = 2;
    CHECK_ERROR(flux_from_dlpack_versioned(&f.v), "from_dlpack: it is of DLPack 2, and 1 is known here");
    foreign_array(&f, a, 2, shape, huge);
    CHECK_ERROR(flux_from_dlpack(&f.m), "from_dlpack: a stride of 9223372036854775807 elements is too long");
    for (int i = 0; i < f.m.dl_tensor.ndim; i++) f.strides[i] = INT64_MIN;
    CHECK_ERROR(flux_from_dlpack(&f.m), "from_dlpack: a stride of -9223372036854775808 elements is too long");
    foreign_array(&f, a, 2, wrong, NULL);
    CHECK_ERROR(flux_from_dlpack(&f.m), "from_dlpack: ");
    foreign_array(&f, a, 9, nine, NULL);
    CHECK_ERROR(flux_from_dlpack(&f.m), "from_dlpack: it has 9 dimensions, a tensor has 0 to 8");
    foreign_array(&f, NULL, 2, shape, NULL);
    CHECK_ERROR(flux_from_dlpack(&f.m), "from_dlpack: argument ptr is NULL");
    foreign_array(&f, (char *)a + 1, 2, shape, NULL);
    CHECK_ERROR(flux_from_dlpack(&f.m), "from_dlpack: the address of the elements, f32, is no multiple of their 4 bytes");
    CHECK_ERROR(flux_from_dlpack(NULL), "from_dlpack: argument t is NULL");
    CHECK_ERROR(flux_from_dlpack_versioned(NULL), "from_dlpack: argument t is NULL");
    CHECK_ERROR(flux_to_dlpack(NULL), "to_dlpack: argument");
    CHECK_ERROR(flux_to_dlpack_versioned(NULL), "to_dlpack: argument");
    CHECK_ERROR(flux_to_dlpack(flux_tuple(flux_ones(2), flux_ones(2))), "to_dlpack: ");
    CHECK(at_end == 0);
}

TEST(no_streams_here) {
    CHECK_ERROR(flux_stream(cpu), "stream: CPU has no streams");
    CHECK_ERROR(flux_use_stream(cpu, NULL), "use_stream: CPU has no streams");
    flux_device none = { 3, 1 };
    CHECK_ERROR(flux_stream(none), "stream: device {3, 1} can't be used here");
}

TEST_MAIN()
