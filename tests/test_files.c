/* Files: what is written reads back bit for bit; what NumPy and Python's safetensors wrote (tests/fixtures/files, made
   by make_files.py) reads as its values; what is broken is refused with its reason; and whatever fails changes nothing,
   in memory or on the disk. Values come from formulas or from the bytes of the formats' own descriptions. */
#ifdef __linux__
#  define _GNU_SOURCE                     /* fopencookie */
#endif
#ifndef _WIN32
#  define _POSIX_C_SOURCE 200809L
#  define _XOPEN_SOURCE 700
#  include <signal.h>
#  include <sys/resource.h>
#  include <sys/stat.h>
#  include <sys/wait.h>
#  include <unistd.h>
#else
#  include <direct.h>
#endif
#include <locale.h>
#include <stdbool.h>
#include <stdlib.h>

#define FLUX_IMPLEMENTATION               /* also for a device that is not there, and readers of bytes in memory */
#include "scarce.h"

/* ------------------------------------------------------------------ files by hand */

#define FIXTURE(name) "tests/fixtures/files/" name
#define TMP(name) "build/test_files." name

static void make_folder(void) {
#ifdef _WIN32
    _mkdir("build");
#else
    mkdir("build", 0777);
#endif
}

static const char *put(const char *path, const void *data, size_t n) {
    make_folder();
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n) test_fail(__FILE__, __LINE__, "cannot write a temporary file");
    if (f) fclose(f);
    return path;
}
static const char *put_text(const char *path, const char *text) { return put(path, text, strlen(text)); }

/* A file's bytes, in one of two rooms by turns; *n is 0 if there is none. */
static const unsigned char *get(const char *path, size_t *n) {
    static unsigned char room[2][1 << 17];
    static int turn;
    FILE *f = fopen(path, "rb");
    turn = !turn;
    *n = f ? fread(room[turn], 1, sizeof room[turn], f) : 0;
    if (f) fclose(f);
    return room[turn];
}
static bool same_file(const char *a, const char *b) {
    size_t n, m;
    const unsigned char *p = get(a, &n), *q = get(b, &m);
    return n && n == m && memcmp(p, q, n) == 0;
}
static bool exists(const char *path) {
    FILE *f = fopen(path, "rb");
    if (f) fclose(f);
    return f != NULL;
}

/* A safetensors file: length, heading, `data` zero bytes. */
static const char *put_heading(const char *heading, size_t data) {
    static unsigned char room[1 << 16];
    size_t n = strlen(heading);
    memset(room, 0, sizeof room);
    for (int i = 0; i < 8; i++) room[i] = (unsigned char)((uint64_t)n >> (8 * i));
    memcpy(room + 8, heading, n);
    return put(TMP("heading"), room, 8 + n + data);
}
/* A .npy file of version 1 around that dictionary. */
static const char *put_npy(const char *dictionary, size_t data) {
    static unsigned char room[1 << 14];
    size_t n = strlen(dictionary);
    memset(room, 0, sizeof room);
    memcpy(room, "\x93NUMPY\1\0", 8);
    room[8] = (unsigned char)(n & 255);
    room[9] = (unsigned char)(n >> 8);
    memcpy(room + 10, dictionary, n);
    return put(TMP("npy"), room, 10 + n + data);
}

/* ------------------------------------------------------------------ values */

/* Element k of a fixture, counted row by row: see make_files.py. */
static double formula(int64_t k, flux_dtype t, bool signs) {
    double v = (double)(k * 7 % 13) - (signs ? 6 : 0);
    if (t == FLUX_BOOL) return k % 3 == 0;
    return t == FLUX_F32 || t == FLUX_F64 || t == FLUX_F16 || t == FLUX_BF16 ? v / 4 : v;
}

/* Whether x has the formula's values, its elements counted with the first (as NumPy does) or the last dim slowest. */
static bool has_formula(flux_tensor *x, bool numpy, bool signs) {
    flux_tensor *wide = flux_to_dtype(x, FLUX_F64);
    int64_t n = flux_len(x);
    const double *v = (const double *)flux_data(wide);
    flux_shape s = flux_shape_of(x);
    for (int64_t i = 0; v && i < n; i++) {
        int64_t rest = i, k = 0, at[FLUX_MAX_DIMS] = { 0 };
        for (int d = 0; d < s.ndim; d++) at[d] = rest % s.dim[d], rest /= s.dim[d];
        for (int d = 0; d < s.ndim; d++) k = k * s.dim[d] + at[d];
        double want = formula(numpy ? k : i, flux_dtype_of(x), signs);
        if (v[i] != want) {
            fprintf(stderr, "    element %d is %g, not %g\n", (int)i, v[i], want);
            return false;
        }
    }
    return v || n == 0;
}
static bool has_shape(flux_tensor *x, flux_shape s) {
    flux_shape have = flux_shape_of(x);
    if (!x || have.ndim != s.ndim) return false;
    for (int i = 0; i < s.ndim; i++)
        if (have.dim[i] != s.dim[i]) return false;
    return true;
}
static flux_shape scalar_shape(void) {
    flux_shape s;
    memset(&s, 0, sizeof s);
    return s;
}

static uint32_t noise_state = 1;
static unsigned char noise(void) { return (unsigned char)((noise_state = noise_state * 1664525u + 1013904223u) >> 24); }

/* Any bits whatever, NaNs and denormals too. */
static flux_tensor *any_bits(flux_shape s, flux_dtype t) {
    static unsigned char room[1 << 14];
    size_t n = flux_dtype_size(t);
    for (int i = 0; i < s.ndim; i++) n *= (size_t)s.dim[i];
    for (size_t i = 0; i < n; i++) room[i] = t == FLUX_BOOL ? noise() & 1 : noise();
    return flux_from_with(room, t, s);
}
static bool same_bits(flux_tensor *a, flux_tensor *b) {
    size_t n = (size_t)flux_len(a) * flux_dtype_size(flux_dtype_of(a));
    return a && b && flux_dtype_of(a) == flux_dtype_of(b) && has_shape(a, flux_shape_of(b)) &&
           (n == 0 || memcmp(flux_data(a), flux_data(b), n) == 0);
}

/* Shapes of every rank; then some with nothing in them. */
static flux_shape shape_number(int i) {
    static const int64_t sizes[FLUX_MAX_DIMS] = { 2, 3, 1, 2, 3, 2, 1, 2 };
    flux_shape s = scalar_shape();
    s.ndim = i <= FLUX_MAX_DIMS ? i : i - FLUX_MAX_DIMS;
    for (int d = 0; d < s.ndim; d++) s.dim[d] = sizes[d];
    if (i > FLUX_MAX_DIMS) s.dim[(i * 3) % s.ndim] = 0;
    return s;
}
enum { SHAPES = 17 };

/* ------------------------------------------------------------------ what we write reads back */

TEST(safetensors_round_trip) {
    const void *all[SHAPES];
    make_folder();
    for (int t = 0; t < FLUX_NUM_DTYPES; t++) {
        for (int i = 0; i < SHAPES; i++) all[i] = any_bits(shape_number(i), (flux_dtype)t);
        CHECK(flux_save_all_with(TMP("st"), SHAPES, "a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q", all) == 0);
        for (int i = 0; i < SHAPES; i++) {
            char name[2] = { (char)('a' + i), 0 };
            CHECK(same_bits((flux_tensor *)(intptr_t)all[i], flux_load_tensor(TMP("st"), name)));
        }
    }
    CHECK(flux_save(any_bits(shape_number(3), FLUX_F32), TMP("st")) == 0);
    CHECK(has_shape(flux_load_tensor(TMP("st"), NULL), shape_number(3)) && flux_load_tensor(TMP("st"), "tensor") != NULL);
}

TEST(npy_round_trip) {
    make_folder();
    for (int t = 0; t < FLUX_NUM_DTYPES; t++)
        for (int i = 0; i < SHAPES && t != FLUX_BF16; i++) {
            if (t > 0 && i % 6 != t % 6) continue;      /* each save waits for the disk */
            flux_tensor *x = any_bits(shape_number(i), (flux_dtype)t);
            CHECK(flux_save_npy(x, TMP("rt.npy")) == 0);
            CHECK(same_bits(x, flux_load_npy(TMP("rt.npy"))));
        }
    put_text(TMP("kept.npy"), "as it was");
    CHECK_ERROR(flux_save_npy(any_bits(shape_number(2), FLUX_BF16), TMP("kept.npy")), "NumPy has no bf16; convert first: flux_to_dtype");
    size_t n;
    CHECK(memcmp(get(TMP("kept.npy"), &n), "as it was", 9) == 0 && n == 9);
}

TEST(views_are_written_in_order) {
    make_folder();
    float a[6] = { 1, 2, 3, 4, 5, 6 };
    flux_tensor *x = flux_transpose(flux_from(a, 2, 3));
    const double want[6] = { 1, 3, 5, 2, 4, 6 };
    CHECK(flux_save(x, TMP("st")) == 0 && flux_save_npy(x, TMP("rt.npy")) == 0);
    flux_tensor *y = flux_load_tensor(TMP("st"), NULL), *z = flux_load_npy(TMP("rt.npy"));
    CHECK(has_shape(y, FLUX_SHAPE(3, 2)) && has_shape(z, FLUX_SHAPE(3, 2)));
    CHECK_DATA(y, want, 0);
    CHECK_DATA(z, want, 0);
}

TEST(safetensors_bytes) {
    float a[6] = { 0, 1, 2, 3, 4, 5 };
    CHECK(flux_save(flux_add(flux_from(a, 3, 2), 1), TMP("st")) == 0);     /* not computed yet when it is saved */
    size_t n;
    const unsigned char *p = get(TMP("st"), &n);
    const char *want = "{\"__metadata__\":{\"flux.h\":\"1\"},\"tensor\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}";
    REQUIRE(n == 128 + 24);
    CHECK(p[0] == 120 && p[1] == 0 && p[7] == 0);
    CHECK(memcmp(p + 8, want, strlen(want)) == 0);
    for (size_t i = 8 + strlen(want); i < 128; i++) CHECK(p[i] == ' ');
    for (int i = 0; i < 6; i++) {
        float f;
        memcpy(&f, p + 128 + 4 * i, 4);
        CHECK(f == (float)(i + 1));
    }
}

TEST(npy_bytes) {
    int32_t a[6] = { 1, 2, 3, 4, 5, 6 };
    const char *want = "{'descr': '<i4', 'fortran_order': True, 'shape': (3, 2), }";
    size_t n;
    CHECK(flux_save_npy(flux_from(a, 3, 2), TMP("rt.npy")) == 0);
    const unsigned char *p = get(TMP("rt.npy"), &n);
    REQUIRE(n == 128 + 24);
    CHECK(memcmp(p, "\x93NUMPY\1\0\x76\0", 10) == 0 && memcmp(p + 10, want, strlen(want)) == 0 && p[127] == '\n');
    CHECK(memcmp(p + 128, a, 24) == 0);
    flux_save_npy(flux_from(a, 6), TMP("rt.npy"));
    CHECK(strstr((const char *)get(TMP("rt.npy"), &n) + 10, "'fortran_order': False, 'shape': (6,), }") != NULL);
    flux_save_npy(flux_scalar(1), TMP("rt.npy"));
    CHECK(strstr((const char *)get(TMP("rt.npy"), &n) + 10, "'fortran_order': False, 'shape': (), }") != NULL);
}

/* ------------------------------------------------------------------ what Python wrote */

TEST(python_safetensors) {
    const char *f = FIXTURE("all.safetensors");
    static const struct { const char *name; flux_dtype t; } all[] = {
        { "f32", FLUX_F32 }, { "f64", FLUX_F64 }, { "f16", FLUX_F16 }, { "bf16", FLUX_BF16 }, { "i32", FLUX_I32 },
        { "i64", FLUX_I64 }, { "u8", FLUX_U8 }, { "bool", FLUX_BOOL }, { "scalar", FLUX_F32 }, { "empty", FLUX_F32 },
        { "empty.i64", FLUX_I64 }, { "rank8", FLUX_I32 }, { "na\"me\\ \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\n", FLUX_F32 }
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        flux_tensor *x = flux_load_tensor(f, all[i].name);
        CHECK(x != NULL);
        CHECK(flux_dtype_of(x) == all[i].t);
        CHECK(has_formula(x, false, all[i].t != FLUX_U8));
    }
    CHECK(has_shape(flux_load_tensor(f, "f32"), FLUX_SHAPE(3, 2)));        /* (2, 3) there: dimensions in reverse */
    CHECK(has_shape(flux_load_tensor(f, "bf16"), FLUX_SHAPE(3, 2, 2)));
    CHECK(has_shape(flux_load_tensor(f, "empty"), FLUX_SHAPE(3, 0)));
    CHECK(has_shape(flux_load_tensor(f, "rank8"), FLUX_SHAPE(3, 1, 2, 1, 2, 1, 2, 1)));
    CHECK(flux_ndim(flux_load_tensor(f, "scalar")) == 0);
    CHECK_NEAR(flux_item(flux_load_tensor(f, "scalar")), -1.5, 0);
    CHECK_ERROR(flux_load_tensor(f, "f33"), "load_tensor: tests/fixtures/files/all.safetensors: it holds no tensor f33; it has 13: bf16, bool, empty");
    CHECK_ERROR(flux_load_tensor(f, NULL), "it holds 13 tensors, so one must be named: bf16,");
}

TEST(python_safetensors_dtypes) {
    flux_tensor *x = flux_load_tensor(FIXTURE("widen.safetensors"), "i8");
    CHECK(flux_dtype_of(x) == FLUX_I32 && has_shape(x, FLUX_SHAPE(3, 3)) && has_formula(x, false, true));
    x = flux_load_tensor(FIXTURE("widen.safetensors"), "i16");
    CHECK(flux_dtype_of(x) == FLUX_I32 && has_formula(x, false, true));
    x = flux_load_tensor(FIXTURE("widen.safetensors"), "u16");
    CHECK(flux_dtype_of(x) == FLUX_I32 && has_formula(x, false, false));
    x = flux_load_tensor(FIXTURE("widen.safetensors"), "u32");
    CHECK(flux_dtype_of(x) == FLUX_I64 && has_formula(x, false, false));
    CHECK(has_formula(flux_load_tensor(FIXTURE("foreign.safetensors"), "good"), false, true));
    CHECK_ERROR(flux_load_tensor(FIXTURE("foreign.safetensors"), "f8"), "f8 has dtype F8_E4M3, which flux does not have");
    CHECK_ERROR(flux_load_tensor(FIXTURE("foreign.safetensors"), "rank9"), "rank9 has 9 dimensions, but a tensor has at most 8");
    CHECK(has_formula(flux_load_tensor(FIXTURE("one.safetensors"), NULL), false, true));
    CHECK_ERROR(flux_load_tensor(FIXTURE("none.safetensors"), NULL), "it holds no tensor");
    CHECK_ERROR(flux_load_tensor(FIXTURE("none.safetensors"), "x"), "it holds no tensor");
    flux_tensor *a = flux_load_tensor(FIXTURE("tied.safetensors"), "a.weight");
    CHECK(same_bits(a, flux_load_tensor(FIXTURE("tied.safetensors"), "b.weight")));    /* save_model's own remark on ties */
}

TEST(python_npy) {
    static const struct { const char *code; flux_dtype t; bool signs, big; } all[] = {
        { "f2", FLUX_F16, 1, 1 }, { "f4", FLUX_F32, 1, 1 }, { "f8", FLUX_F64, 1, 1 }, { "i1", FLUX_I32, 1, 0 }, { "i2", FLUX_I32, 1, 1 },
        { "i4", FLUX_I32, 1, 1 }, { "i8", FLUX_I64, 1, 1 }, { "u1", FLUX_U8, 0, 0 }, { "u2", FLUX_I32, 0, 1 }, { "u4", FLUX_I64, 0, 1 },
        { "b1", FLUX_BOOL, 0, 0 }
    };
    char path[200];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int big = 0; big <= all[i].big; big++) {
            snprintf(path, sizeof path, "tests/fixtures/files/%s%s.npy", big ? "big_" : "", all[i].code);
            flux_tensor *x = flux_load_npy(path);
            CHECK(flux_dtype_of(x) == all[i].t);
            CHECK(has_shape(x, FLUX_SHAPE(2, 3)));     /* NumPy's own shape */
            CHECK(has_formula(x, true, all[i].signs));
        }
    flux_tensor *x = flux_load_npy(FIXTURE("c_order.npy")), *y = flux_load_npy(FIXTURE("fortran.npy"));
    CHECK(has_shape(x, FLUX_SHAPE(2, 3, 4)) && has_shape(y, FLUX_SHAPE(2, 3, 4)));
    CHECK(has_formula(x, true, true) && has_formula(y, true, true));
    CHECK_NEAR(flux_at(x, 1, 2, 3), formula(23, FLUX_F32, true), 0);
    CHECK_NEAR(flux_at(y, 1, 0, 2), formula(14, FLUX_F32, true), 0);
    CHECK(has_formula(flux_load_npy(FIXTURE("vector.npy")), true, true));
    CHECK(has_shape(flux_load_npy(FIXTURE("empty.npy")), FLUX_SHAPE(0, 3)));
    x = flux_load_npy(FIXTURE("rank8.npy"));
    CHECK(has_shape(x, FLUX_SHAPE(1, 2, 1, 2, 1, 2, 1, 3)) && has_formula(x, true, true));
    CHECK(flux_ndim(flux_load_npy(FIXTURE("scalar.npy"))) == 0);
    CHECK_NEAR(flux_item(flux_load_npy(FIXTURE("scalar.npy"))), -1.5, 0);
    CHECK(has_formula(flux_load_npy(FIXTURE("version2.npy")), true, true));
    CHECK(has_formula(flux_load_npy(FIXTURE("version3.npy")), true, true));
    CHECK_ERROR(flux_load_npy(FIXTURE("bad_u8.npy")), "bad_u8.npy: its dtype is '<u8'; f2 f4 f8 i1");
    CHECK_ERROR(flux_load_npy(FIXTURE("bad_complex.npy")), "its dtype is '<c8'");
    CHECK_ERROR(flux_load_npy(FIXTURE("bad_text.npy")), "its dtype is '<U2'");
    CHECK_ERROR(flux_load_npy(FIXTURE("bad_record.npy")), "its dtype is a record of several fields");
    CHECK_ERROR(flux_load_npy(FIXTURE("bad_rank9.npy")), "it has 9 dimensions, but a tensor has at most 8");
    CHECK_ERROR(flux_load_npy(FIXTURE("archive.npz")), "it is a zip archive, as .npz files are: flux_load_npz reads those");
}

/* As many dims as a tensor has are read from every format, in order. */
TEST(files_of_eight_dims) {
    unsigned char idx[4 + 4 * 8 + 6] = { 0, 0, 8, 8 };
    static const int64_t dims[8] = { 1, 3, 1, 1, 2, 1, 1, 1 };
    const flux_shape shape = FLUX_SHAPE(1, 3, 1, 1, 2, 1, 1, 1);
    size_t n = 0;
    for (int i = 0; i < 8; i++) idx[4 + 4 * i + 3] = (unsigned char)dims[7 - i];
    for (int i = 0; i < 6; i++) idx[4 + 4 * 8 + i] = (unsigned char)(i + 1);
    flux_tensor *x = flux_load_idx(put(TMP("eight"), (const char *)idx, sizeof idx));
    const double want[] = { 1, 2, 3, 4, 5, 6 };
    CHECK(has_shape(x, shape));
    CHECK_DATA(x, want, 0);
    CHECK(flux_save_npy(x, TMP("eight")) == 0);
    CHECK(has_shape(flux_load_npy(TMP("eight")), shape));
    CHECK_DATA(flux_load_npy(TMP("eight")), want, 0);
    CHECK(strstr((const char *)get(TMP("eight"), &n) + 10, "(1, 3, 1, 1, 2, 1, 1, 1)") != NULL);
    CHECK(flux_save(x, TMP("eight")) == 0);
    CHECK(has_shape(flux_load_tensor(TMP("eight"), NULL), shape));
    CHECK_DATA(flux_load_tensor(TMP("eight"), NULL), want, 0);
}

TEST(idx) {
    flux_tensor *x = flux_load_idx(FIXTURE("u8.idx"));
    CHECK(has_shape(x, FLUX_SHAPE(3, 4, 5)) && flux_dtype_of(x) == FLUX_U8 && has_formula(x, false, false));
    CHECK_NEAR(flux_at(x, 2, 1, 3), formula(3 * 12 + 1 * 3 + 2, FLUX_U8, false), 0);
    x = flux_load_idx(FIXTURE("i8.idx"));
    CHECK(has_shape(x, FLUX_SHAPE(7)) && flux_dtype_of(x) == FLUX_I32 && has_formula(x, false, true));
    x = flux_load_idx(FIXTURE("i16.idx"));
    CHECK(has_shape(x, FLUX_SHAPE(2, 3)) && flux_dtype_of(x) == FLUX_I32 && has_formula(x, false, true));
    x = flux_load_idx(FIXTURE("i32.idx"));
    CHECK(flux_dtype_of(x) == FLUX_I32 && has_formula(x, false, true));
    x = flux_load_idx(FIXTURE("f32.idx"));
    CHECK(flux_dtype_of(x) == FLUX_F32 && has_formula(x, false, true));
    x = flux_load_idx(FIXTURE("f64.idx"));
    CHECK(flux_dtype_of(x) == FLUX_F64 && has_formula(x, false, true));
    CHECK(flux_ndim(flux_load_idx(FIXTURE("scalar.idx"))) == 0);
    CHECK(has_shape(flux_load_idx(FIXTURE("empty.idx")), FLUX_SHAPE(3, 0)));
}

#define BYTES(text) put(TMP("bytes"), text, sizeof(text) - 1)
/* A file of a kind that has a reader of its own, or none, is called by its name, whoever reads it. */
static flux_tensor *table_of(const char *path) { flux_table *t = flux_load_table(path); return t ? flux_columns(t, "0") : NULL; }
static flux_tensor *tensor_of(const char *path) { return flux_load_tensor(path, NULL); }
static flux_tensor *idx_of(const char *path) { return flux_load_idx(path); }
static flux_tensor *npy_of(const char *path) { return flux_load_npy(path); }
static flux_tensor *csv_of(const char *path) { return flux_load_csv(path); }
TEST(files_of_other_kinds) {
    static flux_tensor *(*const readers[])(const char *) = { idx_of, npy_of, csv_of, table_of, tensor_of };
    static const struct { const char *bytes; int n; const char *kind; } kinds[] = {
        { "PK\3\4", 4, "it is a zip archive, as .npz files are: flux_load_npz reads those" },
        { "\xff\xfe", 2, "it is UTF-16 text: save it as UTF-8" }, { "\x89HDF", 4, "it is an HDF5 file, which is not read here" },
        { "\x80\2", 2, "it is a Python pickle, which is not read here: save as safetensors" } };
    unsigned char bytes[64];
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 4; k++)
            for (int more = 0; more < 2; more++) {             /* with and without lines of numbers behind */
                const size_t n = (size_t)kinds[k].n;
                memcpy(bytes, kinds[k].bytes, n);
                memcpy(bytes + n, "\n1,2\n3,4\n", 9);
                CHECK_ERROR(readers[i](put(TMP("bytes"), bytes, more ? n + 9 : n)), kinds[k].kind);
            }
}

TEST(idx_malformed) {
    CHECK_ERROR(flux_load_idx(TMP("nothing here")), "load_idx: cannot open build/test_files.nothing here: ");
    CHECK_ERROR(flux_load_idx("build"), "load_idx: ");
    CHECK_ERROR(flux_load_idx(NULL), "load_idx: argument path is NULL");
    CHECK_ERROR(flux_load_idx(BYTES("")), "it is empty");
    CHECK_ERROR(flux_load_idx(BYTES("\0\0\10")), "it is too short for an IDX file");
    CHECK_ERROR(flux_load_idx(BYTES("\1\2\10\1")), "it is no IDX file: it begins with bytes 1 2, not 0 0");
    CHECK_ERROR(flux_load_idx(BYTES("\0\0\12\1\0\0\0\1x")), "element type 0x0a is not one that IDX has");
    CHECK_ERROR(flux_load_idx(BYTES("\0\0\0\1\0\0\0\1x")), "element type 0x00");
    CHECK_ERROR(flux_load_idx(BYTES("\0\0\10\11\0\0\0\1x")), "it has 9 dimensions, but a tensor has at most 8");
    CHECK_ERROR(flux_load_idx(BYTES("\0\0\10\2\0\0\0\1\0\0")), "it ends within its 2 sizes");
    CHECK_ERROR(flux_load_idx(BYTES("\0\0\10\2\0\0\0\2\0\0\0\3abcde")), "it ends before its data do: 3x2 needs 18 bytes");
    CHECK_ERROR(flux_load_idx(BYTES("\0\0\10\2\0\0\0\2\0\0\0\3abcdefg")), "it goes on after its data: 3x2 needs 18 bytes");
    CHECK_ERROR(flux_load_idx(BYTES("\0\0\10\3\377\377\377\377\377\377\377\377\377\377\377\377x")), "a tensor of that shape is too large");
    CHECK_ERROR(flux_load_idx(BYTES("\0\0\10\1\377\377\377\377x")), "it ends before its data do: 4294967295-element needs 4294967303 bytes");
    CHECK_ERROR(flux_load_idx(BYTES("\0\0\10\3\377\377\377\377\377\377\377\377\0\0\0\0")), "too large");    /* even with nothing in it */
}

/* Blanks of every kind may stand before each word of a heading, and nothing may be missing at its end. */
TEST(npy_words) {
    static const char *const words[] = { "{", "'descr'", ":", "'<f4'", ",", "'fortran_order'", ":", "False", ",", "'shape'", ":", "(", "2",
                                         ",", "1", ",", ")", ",", "}" };
    char text[400];
    for (int where = -1; where <= 19; where++) {               /* -1: before each */
        text[0] = 0;
        for (int i = 0; i < 19; i++) strcat(strcat(text, where < 0 || where == i ? " \t\n\r " : ""), words[i]);
        if (where == 19) strcat(text, "\t\r\n ");
        flux_tensor *x = flux_load_npy(put_npy(text, 8));
        CHECK(has_shape(x, FLUX_SHAPE(2, 1)));
    }
    text[0] = 0;
    for (int i = 0; i < 18; i++) {
        strcat(text, words[i]);
        CHECK_ERROR(flux_load_npy(put_npy(text, 8)), "should stand there");
    }
}

/* Every dtype in either byte order: 1 and 2, and what their bytes are the other way round. */
TEST(npy_dtypes) {
    static const struct { const char *name; flux_dtype dtype; unsigned char one[8], two[8]; int size; } kinds[] = {
        { "f2", FLUX_F16, { 0x3c, 0 }, { 0x40, 0 }, 2 }, { "f4", FLUX_F32, { 0x3f, 0x80 }, { 0x40, 0 }, 4 },
        { "f8", FLUX_F64, { 0x3f, 0xf0 }, { 0x40, 0 }, 8 }, { "i1", FLUX_I32, { 1 }, { 2 }, 1 }, { "i2", FLUX_I32, { 0, 1 }, { 0, 2 }, 2 },
        { "i4", FLUX_I32, { 0, 0, 0, 1 }, { 0, 0, 0, 2 }, 4 }, { "i8", FLUX_I64, { 0, 0, 0, 0, 0, 0, 0, 1 }, { 0, 0, 0, 0, 0, 0, 0, 2 }, 8 },
        { "u1", FLUX_U8, { 1 }, { 2 }, 1 }, { "u2", FLUX_I32, { 0, 1 }, { 0, 2 }, 2 }, { "u4", FLUX_I64, { 0, 0, 0, 1 }, { 0, 0, 0, 2 }, 4 } };
    const union { uint16_t word; unsigned char first; } native = { 1 };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (const char *order = "<>=|x"; *order; order++) {   /* x: none is said, which is = */
            unsigned char file[200] = "\x93NUMPY\1";
            char text[100];
            const int size = kinds[i].size, n = snprintf(text, sizeof text, "{'descr': '%.*s%s', 'fortran_order': False, 'shape': (2,)}",
                                                         *order != 'x', order, kinds[i].name);
            const bool little = *order == '<' || (*order != '>' && native.first);
            file[8] = (unsigned char)n;
            memcpy(file + 10, text, (size_t)n);
            for (int k = 0; k < size; k++) {
                file[10 + n + (little ? size - 1 - k : k)] = kinds[i].one[k];
                file[10 + n + size + (little ? size - 1 - k : k)] = kinds[i].two[k];
            }
            put(TMP("npy"), file, (size_t)(10 + n + 2 * size));
            if (*order == '|' && size > 1) {
                CHECK_ERROR(flux_load_npy(TMP("npy")), "its dtype is '|");
                continue;
            }
            flux_tensor *x = flux_load_npy(TMP("npy"));
            const double want[2] = { 1, 2 };
            CHECK(flux_dtype_of(x) == kinds[i].dtype);
            CHECK_DATA(x, want, 0);
        }
    CHECK_ERROR(flux_load_npy(put_npy("{'descr': '<f1', 'fortran_order': False, 'shape': (2,)}", 8)), "its dtype is '<f1'; f2 f4 f8 i1 i2 i4 i8");
    CHECK_ERROR(flux_load_npy(put_npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}", 8)), "its dtype is a record of several fields");
}

TEST(npy_malformed) {
    static const struct { const char *dictionary; const char *error; } bad[] = {
        { "", "'{' should stand there" },
        { "[]", "'{' should stand there" },
        { "{", "a string should stand there" },
        { "{'descr': '<f4'", "',' or '}' should stand there" },
        { "{'descr' '<f4', 'fortran_order': False, 'shape': (2,), }", "':' should stand there" },
        { "{'descr': '<f4' 'fortran_order': False, 'shape': (2,), }", "',' or '}' should stand there" },
        { "{'descr': '<f4', 'fortran_order': False, }", "descr, fortran_order or shape is missing" },
        { "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", "that key stands there twice" },
        { "{'descr': '<f4', 'order': False, 'shape': (2,), }", "that key is not one of descr, fortran_order, shape" },
        { "{'descr': '<f4, 'fortran_order': False, 'shape': (2,), }", "its dtype is '<f4, '" },
        { "{'descr': '<f4\\n', 'fortran_order': False, 'shape': (2,), }", "a string does not end" },
        { "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (2,), }", "True or False should stand there" },
        { "{'descr': '<f4', 'fortran_order': Trux, 'shape': (2,), }", "True or False should stand there" },
        { "{'descr': '<f4', 'fortran_order': Falsx, 'shape': (2,), }", "True or False should stand there" },
        { "{'descr': '<f4', 'fortran_order': xrue, 'shape': (2,), }", "True or False should stand there" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': 2, }", "'(' should stand there" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2), }", "a shape of one dimension is written (n,)" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2 3), }", "',' or ')' should stand there" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }", "a whole number that is not negative should stand there" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (02,), }", "a number begins with 0" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", "that number is too large" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }", "a tensor of that shape is too large" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4, 0), }", "a tensor of that shape is too large" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", "it ends before its data do: 3-element needs" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", "it goes on after its data: 1-element needs" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), } x", "something follows the dictionary" },
        { "{'descr': '|f4', 'fortran_order': False, 'shape': (2,), }", "its dtype is '|f4'" },
        { "{'descr': '<f4x', 'fortran_order': False, 'shape': (2,), }", "its dtype is '<f4x'" },
        { "{'descr': '', 'fortran_order': False, 'shape': (2,), }", "its dtype is ''" },
        { "{'descr': '|O', 'fortran_order': False, 'shape': (2,), }", "its dtype is '|O'" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) CHECK_ERROR(flux_load_npy(put_npy(bad[i].dictionary, 8)), bad[i].error);
    CHECK(flux_load_npy(put_npy("{ \"shape\" :( 2L ,),'fortran_order':False,'descr':'<f4'}", 8)) != NULL);    /* Python 2 wrote so */
    CHECK_ERROR(flux_load_npy(BYTES("\x93NUMPX\1\0\0\0")), "it is no .npy file");
    CHECK_ERROR(flux_load_npy(BYTES("\x93NUMPY\1\0\0")), "it is no .npy file");
    CHECK_ERROR(flux_load_npy(BYTES("\x93NUMPY\1\5\0\0\0\0\0\0")), "it has version 1.5 of the format");
    CHECK_ERROR(flux_load_npy(BYTES("\x93NUMPY\4\0\0\0\0\0\0\0")), "it has version 4.0 of the format; 1 to 3 can be read");
    CHECK_ERROR(flux_load_npy(BYTES("\x93NUMPY\1\0\xff\0{")), "it ends within its heading of 255 bytes");
    CHECK_ERROR(flux_load_npy(BYTES("\x93NUMPY\2\0\xff\0\0")), "it ends within its heading");
    CHECK_ERROR(flux_load_npy(BYTES("\x93NUMPY\2\0\xff\xff\xff\xff{")), "its heading has 4294967295 bytes: too many");
    CHECK_ERROR(flux_load_npy(BYTES("\x93NUMPY\2\0\1\0\x10\0{")), "its heading has 1048577 bytes: too many");
    CHECK_ERROR(flux_load_npy(BYTES("\x93NUMPY\2\0\0\0\x10\0{")), "it ends within its heading of 1048576 bytes");
}

/* ------------------------------------------------------------------ CSV */

static flux_tensor *csv(const char *text) { return flux_load_csv(put_text(TMP("csv"), text)); }

TEST(csv_forms) {
    const double want[6] = { 1, 2.5, -3, 4, 5e-3, 600 };
    static const char *const same[] = {
        "1,2.5,-3\n4,5e-3,6E+2\n", "1,2.5,-3\r\n4,.005,600.\r\n", "1;2.5;-3\n4;5e-3;600", "1\t2.5\t-3\n4\t5e-3\t600\n",
        "1 2.5 -3\n4 5e-3 600\n", "\t1 2.5 -3\t\n4 5e-3 600\n", "  1   2.5  -3 \n\t4  5e-3  600  \n", " 1 , 2.5 ,\t-3\n\n4,5e-3,+600 # the end\n# really\n",
        "a,b,c\n1,2.5,-3\n4,5e-3,600\n", "\"first, of all\";\"b\";c d\n1;2.5;-3\n4;5e-3;600\n", "# made by hand\n\nx y z\n1 2.5 -3\n4 5e-3 600\n",
        "\xef\xbb\xbf" "1,2.5,-3\n4,5e-3,600\n", "1,2.5,-3\r4,5e-3,600\r", "1,2.5,-3\n4,0.0005e1,0.6e3"
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        flux_tensor *x = csv(same[i]);
        if (!CHECK(has_shape(x, FLUX_SHAPE(3, 2)))) fprintf(stderr, "    form %d\n", (int)i);   /* columns x lines */
        CHECK_DATA(x, want, 1e-7);
    }
    CHECK(has_shape(csv("7\n8\n9"), FLUX_SHAPE(1, 3)));
    CHECK(has_shape(csv("1,2\n"), FLUX_SHAPE(2, 1)));
    flux_tensor *x = csv("nan,inf,-Infinity,NaN\n");
    REQUIRE(has_shape(x, FLUX_SHAPE(4, 1)));
    CHECK(flux_at(x, 0, 0) != flux_at(x, 0, 0) && flux_at(x, 1, 0) > 1e300 && flux_at(x, 2, 0) < -1e300);
}

TEST(csv_errors) {
    CHECK_ERROR(flux_load_csv(TMP("nothing here")), "load_csv: cannot open build/test_files.nothing here: ");
    CHECK_ERROR(flux_load_csv(NULL), "load_csv: argument path is NULL");
    CHECK_ERROR(csv(""), "build/test_files.csv: it has no line of numbers");
    CHECK_ERROR(csv("a,b\n"), "it has no line of numbers");
    CHECK_ERROR(csv("# 1\n\n   \n"), "it has no line of numbers");
    CHECK_ERROR(csv("1,2\n3,4,5\n"), "line 2 has 3 numbers, but line 1 has 2");
    CHECK_ERROR(csv("1,2\n3\n\n5,6\n7,8\n9,10\n"), "line 2 has 1 numbers, but line 1 has 2");
    CHECK_ERROR(csv("a,b\n\n1,2\n# x\n3\n"), "line 5 has 1 numbers, but line 3 has 2");
    CHECK_ERROR(csv("1,2\n3,x y\n"), "line 2, column 2: \"x y\" is not a number");
    CHECK_ERROR(csv("1,2\n3,0x10\n"), "line 2, column 2: \"0x10\" is not a number");
    CHECK_ERROR(csv("1,2\n1e,3\n"), "line 2, column 1: \"1e\" is not a number");
    CHECK_ERROR(csv("1,2\n-,3\n"), "line 2, column 1: \"-\" is not a number");
    CHECK_ERROR(csv("1,2\n1.2.3,3\n"), "line 2, column 1: \"1.2.3\" is not a number");
    CHECK_ERROR(csv("1,2\n3,\n"), "line 2, column 2: \"\" should be a number");
    CHECK_ERROR(csv("1\t2\t\n3\t4\t5\n"), "line 1, column 3: \"\" should be a number");
    CHECK_ERROR(csv("1,2\n3,4,\n5,6\n7,8\n"), "line 2, column 3: \"\" should be a number");
    CHECK_ERROR(csv("1,2\n,3\n"), "line 2, column 1: \"\" should be a number");
    CHECK_ERROR(csv("1;2\n1,5;2\n"), "line 2, column 1: \"1,5\" is not a number: a point is needed");
    CHECK_ERROR(csv("1,2\n3,4e38\n"), "line 2, column 2: \"4e38\" is too large for float32");
    CHECK_ERROR(csv("1,2\n3,-1e999\n"), "line 2, column 2: \"-1e999\" is too large for float32");
    CHECK_ERROR(csv("1\n2\n333333333333333333333333333333x\n"), "line 3, column 1: \"333333333333333333333333...\" is not a number");
    CHECK_ERROR(flux_load_csv(BYTES("1\n2\0003\n")), "line 2, column 1: \"2?3\" is not a number");
    CHECK_ERROR(flux_load_csv(BYTES("\xff\xfe" "1\0,\0")), "it is UTF-16 text: save it as UTF-8");
    CHECK_ERROR(flux_load_csv(FIXTURE("u8.idx.gz")), flux__zlib_missing() ? "for want of zlib" : "is not a number");
    static char wide[40000];               /* many columns, then many lines of one: never the room for all of both */
    memset(wide, ',', 20000);
    for (int i = 20000; i < 40000; i += 2) memcpy(wide + i, "\n1", 2);
    wide[0] = '1';
    CHECK_ERROR(flux_load_csv(put(TMP("csv"), wide, sizeof wide)), "line 2 has 1 numbers, but line 1 has 20000");
}

/* Numbers of every length and size, against the C library's own reading of them (in the C locale). */
#ifdef _WIN32
TEST(csv_without_end) { SKIP("no /dev/zero on this system"); }
#else
/* Devices and pipes that never end are given up, those that end are read. */
TEST(csv_without_end) {
    char line[4096];
    if (exists("/dev/zero")) CHECK_ERROR(flux_load_csv("/dev/zero"), "load_csv: cannot read /dev/zero: it is no text");
    remove(TMP("pipe"));
    REQUIRE(mkfifo(TMP("pipe"), 0600) == 0);
    for (size_t i = 0; i < sizeof line; i += 4) memcpy(line + i, "1,2\n", 4);
    for (int ends = 0; ends < 2; ends++) {
        pid_t writer = fork();
        if (writer == 0) {
            FILE *f = fopen(TMP("pipe"), "wb");
            while (f && fwrite(line, 1, sizeof line, f) == sizeof line && !ends) continue;
            if (f) fclose(f);
            _exit(0);
        }
        if (ends) CHECK(flux_dim(flux_load_csv(TMP("pipe")), 1) == 1024);
        else CHECK_ERROR(flux_load_csv(TMP("pipe")), "it gives more than 256 MiB: save that as a file");
        waitpid(writer, NULL, 0);
    }
    remove(TMP("pipe"));
}

/* Readers that go to and fro in a file refuse what has no places. */
TEST(pipes_have_no_places) {
    remove(TMP("pipe"));
    REQUIRE(mkfifo(TMP("pipe"), 0600) == 0);
    for (int reader = 0; reader < 4; reader++) {
        pid_t writer = fork();
        if (writer == 0) {
            FILE *f = fopen(TMP("pipe"), "wb");
            if (f) fwrite("\x93NUMPY", 1, 6, f), fclose(f);
            _exit(0);
        }
        const char *const path = TMP("pipe");
        CHECK_ERROR(reader == 0 ? flux_load_npy(path) : reader == 1 ? flux_load_idx(path) : reader == 2 ? flux_load_tensor(path, NULL) : flux_load_npz(path, NULL),
                    "cannot seek in it: Illegal seek");
        waitpid(writer, NULL, 0);
    }
    remove(TMP("pipe"));
}
#endif

TEST(csv_numbers) {
    char text[1000], line[2200];
    int bad = 0;
    for (int i = 0; i < 3000; i++) {
        int digits = 1 + noise() % (i % 50 == 0 ? 250 : 30), point = noise() % (digits + 1), n = 0;
        const bool none = noise() % 16 == 0;   /* 0.00e7 */
        if (noise() & 1) text[n++] = '-';
        for (int k = 0; k < digits; k++) {
            if (k == point) text[n++] = '.';
            text[n++] = (char)('0' + (noise() % 4 && !none ? noise() % 10 : 0));
        }
        if (noise() & 1) n += sprintf(text + n, "e%d", noise() % 60 - 40);
        text[n] = 0;
        if (fabs(strtod(text, NULL)) > 3e38) continue;
        snprintf(line, sizeof line, "1,%s\n%s,12345678\n", text, text);   /* at an end, and with more behind it */
        float want = strtof(text, NULL), got[4] = { NAN, NAN, NAN, NAN };
        flux_tensor *read = csv(line);
        if (read) memcpy(got, flux_floats(read), sizeof got);
        if ((memcmp(&want, &got[1], 4) || memcmp(&want, &got[2], 4)) && bad++ < 5)
            fprintf(stderr, "    %s is %.9g, read as %.9g and %.9g\n", text, (double)want, (double)got[1], (double)got[2]);
        flux_scope_close();
        flux_scope_open();
    }
    CHECK(bad == 0);
    for (int n = 1, many = 5; n <= 4; n++, many *= 5)      /* each text of so many of these: a number to both readers, or to none */
        for (int i = 0, k = 0, left = i; i < many; i++, k = 0) {
            for (left = i; k < n; left /= 5) text[k++] = "-+.e1"[left % 5];
            text[n] = 0;
            char *end;
            const float want = strtof(text, &end);
            snprintf(line, sizeof line, "15,16\n%s,17\n18,%s\n12345678,19\n12345678,19\n", text, text);     /* with enough behind it */
            flux_scope_open();
            flux_on_error(test_silent, NULL);
            flux_tensor *read = csv(line);
            const bool good = *end ? !read && flux_failed() : read && flux_floats(read)[2] == want && flux_floats(read)[5] == want;
            flux_clear();
            flux_on_error(NULL, NULL);
            if (!CHECK(good)) fprintf(stderr, "    %s\n", text);
            flux_scope_close();
        }
    static char longest[3000];             /* more digits than are kept, and the one that matters is past them */
    memset(longest, '0', sizeof longest - 1);
    memcpy(longest, "16777217.", 9);       /* half way between two float32: just above rounds up */
    longest[2500] = '1';
    longest[sizeof longest - 1] = 0;
    CHECK_NEAR(flux_item(csv(longest)), 16777218, 0);
    CHECK_NEAR(flux_item(csv("16777217.00000000000000000")), 16777216, 0);
    CHECK_NEAR(flux_item(csv("16777217.0000001")), 16777218, 0);
    CHECK_NEAR(flux_item(csv("16777217.00000000001")), 16777218, 0);       /* half way as a double: the text decides */
    CHECK_NEAR(flux_item(csv("16777218.99999999999")), 16777218, 0);
    CHECK_NEAR(flux_item(csv("-1.677721700000000001e7")), -16777218, 0);
    CHECK_NEAR(flux_item(csv("1677721899999999999e-11")), 16777218, 0);
    CHECK_NEAR(flux_item(csv("1.4e-45")), 1.401298464324817e-45, 0);
    CHECK_NEAR(flux_item(csv("1e-400")), 0, 0);
    CHECK_NEAR(flux_item(csv("0e999")), 0, 0);
    CHECK_NEAR(flux_item(csv("0.000000000000000000000000000000000000000000000001e48")), 1, 1e-7);
    CHECK_NEAR(flux_item(csv("1000000000000000000000000000000000000000000000000e-48")), 1, 1e-7);
    CHECK_NEAR(flux_item(csv("3.4028235e38")), 3.4028234663852886e38, 0);
}

TEST(csv_in_a_comma_locale) {
    static const char *const names[] = { "de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8", "fr_FR.utf8", "German" };
    size_t i = 0;
    while (i < 6 && !setlocale(LC_NUMERIC, names[i])) i++;
#ifndef _WIN32
    if (i == 6) {                          /* glibc can make one here */
        make_folder();
        mkdir(TMP("locale"), 0777);
        int rc = system("localedef -i de_DE -f UTF-8 " TMP("locale") "/de_DE.UTF-8 >/dev/null 2>&1");
        setenv("LOCPATH", TMP("locale"), 1);
        if (setlocale(LC_NUMERIC, "de_DE.UTF-8")) i = rc == -1 ? 6 : 0;
        unsetenv("LOCPATH");
    }
#endif
    if (i == 6) SKIP("no locale with a decimal comma; package: locales-all");
    const double want[3] = { 1.5, 2.00000000000000000001, 0.25 };
    CHECK(strtod("1,5", NULL) == 1.5);
    flux_tensor *x = csv("1.5,2.00000000000000000001,25e-2\n");
    flux_tensor *y = flux_from(want, 3);
    flux_save(y, TMP("st"));
    setlocale(LC_NUMERIC, "C");
    CHECK_DATA(x, want, 1e-7);
    CHECK(same_bits(y, flux_load_tensor(TMP("st"), NULL)));
}

/* ------------------------------------------------------------------ safetensors that are not */

TEST(safetensors_malformed) {
#define T4 "{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}"
    static const struct { const char *heading; size_t data; const char *error; } bad[] = {
        { "", 0, "it does not begin with {" },
        { " {}", 0, "it does not begin with {" },
        { "[]", 0, "it does not begin with {" },
        { "{", 0, "'\"' should stand there" },
        { "{\"a\"", 0, "':' should stand there" },
        { "{\"a\":", 0, "'{' should stand there" },
        { "{\"a\":1}", 0, "'{' should stand there" },
        { "{\"a\":" T4, 4, "',' should stand there" },
        { "{\"a\":" T4 ",}", 4, "'\"' should stand there" },
        { "{\"a\":" T4 "}x", 4, "something follows the last }" },
        { "{\"a\":" T4 "}{}", 4, "something follows the last }" },
        { "{a:" T4 "}", 4, "'\"' should stand there" },
        { "{'a':" T4 "}", 4, "'\"' should stand there" },
        { "{\"a:" T4 "}", 4, "should stand there" },
        { "{\"a\nb\":" T4 "}", 4, "a string does not end, or holds a control character" },
        { "{\"a\\q\":" T4 "}", 4, "that escape is not one that JSON has" },
        { "{\"a\\u00g0\":" T4 "}", 4, "that escape is not one that JSON has" },
        { "{\"a\\u12", 0, "that escape is not one that JSON has" },
        { "{\"a\\", 0, "that escape is not one that JSON has" },
        { "{\"a\\u0000\":" T4 "}", 4, "or U+0000" },
        { "{\"a\\ud800\":" T4 "}", 4, "half a character" },
        { "{\"a\\ud800\\u0041\":" T4 "}", 4, "half a character" },
        { "{\"a\\udc00\":" T4 "}", 4, "that escape is not one" },
        { "{\"a\\udfff\":" T4 "}", 4, "that escape is not one" },
        { "{\"a\\udbff\":" T4 "}", 4, "half a character" },
        { "{\"a\\ud800\\udbff\":" T4 "}", 4, "half a character" },
        { "{\"a\\ud800\\ue000\":" T4 "}", 4, "half a character" },
        { "{\"a\xff\":" T4 "}", 4, "that string is not UTF-8" },
        { "{\"a\xc0\x80\":" T4 "}", 4, "that string is not UTF-8" },
        { "{\"a\xe0\x80\x80\":" T4 "}", 4, "that string is not UTF-8" },
        { "{\"a\xed\xa0\x80\":" T4 "}", 4, "that string is not UTF-8" },
        { "{\"a\xf4\x90\x80\x80\":" T4 "}", 4, "that string is not UTF-8" },
        { "{\"a\xc3\":" T4 "}", 4, "that string is not UTF-8" },
        { "{\"a\":{}}", 0, "dtype, shape or data_offsets is missing" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "dtype, shape or data_offsets is missing" },
        { "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "that key stands there twice" },
        { "{\"a\":{\"dtype\":\"F32\",\"shapes\":[1],\"data_offsets\":[0,4]}}", 4, "a tensor has no such key" },
        { "{\"a\":{\"dtype\":32,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "'\"' should stand there" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, "'[' should stand there" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[[1]],\"data_offsets\":[0,4]}}", 4, "a whole number" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "',' should stand there" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "a whole number that is not negative" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[01],\"data_offsets\":[0,4]}}", 4, "a number begins with 0" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[9223372036854775808],\"data_offsets\":[0,4]}}", 4, "that number is too large" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387905],\"data_offsets\":[0,4]}}", 4, "a tensor of that shape is too large" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, "a tensor of that shape is too large" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,0,4294967296],\"data_offsets\":[0,0]}}", 0, "a tensor of that shape is too large" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "data_offsets are not a beginning and an end" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "data_offsets are not a beginning and an end" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "data_offsets are not a beginning and an end" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "a, 2-element of F32, takes 8 bytes, not the 4 that" },
        { "{\"a\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, "a, scalar of F64, takes 8 bytes, not the 4" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "its data have a hole before a: at byte 4, not 0" },
        { "{\"a\":" T4 ",\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}", 12, "a hole before b: at byte 8, not 4" },
        { "{\"a\":" T4 ",\"b\":" T4 "}", 4, "its data have an overlap before " },
        { "{\"a\":" T4 ",\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[2,10]}}", 10, "an overlap before b: at byte 2, not 4" },
        { "{\"a\":" T4 "}", 3, "it ends before its data do" },
        { "{\"a\":" T4 "}", 5, "it goes on after its data" },
        { "{}", 1, "it goes on after its data" },
        { "{\"a\":" T4 ",\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "the name a stands there twice" },
        { "{\"__metadata__\":{},\"__metadata__\":{},\"a\":" T4 "}", 4, "__metadata__ stands there twice" },
        { "{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"},\"a\":" T4 "}", 4, "the name k stands there twice" },
        { "{\"__metadata__\":{\"k\":1},\"a\":" T4 "}", 4, "'\"' should stand there" },
        { "{\"__metadata__\":[],\"a\":" T4 "}", 4, "'{' should stand there" },
        { "{\"__metadata__\":{\"k\":{\"deep\":\"er\"}}}", 0, "'\"' should stand there" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,9223372036854775807]}}", 4, "takes 4 bytes, not the" },
        { "{\"a\":{\"dtype\":\"F8_E5M2\",\"shape\":[1],\"data_offsets\":[0,9223372036854775807]}}", 4, "it ends before its data do" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_ERROR(flux_load_tensor(put_heading(bad[i].heading, bad[i].data), "a"), bad[i].error);
    CHECK_ERROR(flux_load_tensor(put_heading("{\"a\" 1}", 0), NULL), "build/test_files.heading: its heading is broken at byte 13: ':' should");
    CHECK(flux_load_tensor(put_heading("{ \"a\" : { \"data_offsets\" : [ 0 , 4 ] ,\n\t\"shape\" : [ 1 ] , \"dtype\" : \"F32\" } }\r\n  ", 4), "a") != NULL);
    static const struct { const char *escape, *utf8; } escapes[] = {      /* the first and the last of so many bytes, and beside halves */
        { "\\u0001", "\x01" }, { "\\u007f", "\x7f" }, { "\\u0080", "\xc2\x80" }, { "\\u07ff", "\xdf\xbf" }, { "\\u0800", "\xe0\xa0\x80" },
        { "\\ud7ff", "\xed\x9f\xbf" }, { "\\uE000", "\xee\x80\x80" }, { "\\uffff", "\xef\xbf\xbf" }, { "\\ud800\\udc00", "\xf0\x90\x80\x80" },
        { "\\ud800\\udfff", "\xf0\x90\x8f\xbf" }, { "\\uDBFF\\uDC00", "\xf4\x8f\xb0\x80" }, { "\\udbff\\udfff", "\xf4\x8f\xbf\xbf" },
        { "\\\"\\\\\\/\\b\\f\\n\\r\\t", "\"\\/\b\f\n\r\t" }
    };
    for (size_t i = 0; i < sizeof escapes / sizeof *escapes; i++) {
        char heading[200], name[40];
        snprintf(heading, sizeof heading, "{\"<%s>\":" T4 "}", escapes[i].escape);
        snprintf(name, sizeof name, "<%s>", escapes[i].utf8);
        CHECK(flux_load_tensor(put_heading(heading, 4), name) != NULL);
    }
    CHECK(flux_load_tensor(put_heading("{\"\\u0061\\/\\ud83d\\ude00\\t\":" T4 "}", 4), "a/\xf0\x9f\x98\x80\t") != NULL);
    CHECK(flux_load_tensor(put_heading("{\"\":" T4 "}", 4), "") != NULL);
    CHECK_ERROR(flux_load_tensor(BYTES("\2\0\0\0\0\0\0"), NULL), "it is too short for a safetensors file");
    CHECK_ERROR(flux_load_tensor(BYTES("\2\0\0\0\0\0\0\0{"), NULL), "it ends within its heading of 2 bytes");
    CHECK_ERROR(flux_load_tensor(BYTES("\1\xe1\xf5\5\0\0\0\0{}"), NULL), "a heading of 100000001 bytes is too long");
    CHECK_ERROR(flux_load_tensor(BYTES("\0\xe1\xf5\5\0\0\0\0{}"), NULL), "it ends within its heading of 100000000 bytes");
    CHECK_ERROR(flux_load_tensor(BYTES("\377\377\377\377\377\377\377\377{}"), NULL), "a heading of 18446744073709551615 bytes is too long");
    CHECK_ERROR(flux_load_tensor(BYTES("PK\3\4 and so on"), NULL), "it is a zip archive");
    CHECK_ERROR(flux_load_tensor(BYTES("\x80\2}q\0"), NULL), "a Python pickle");
    CHECK_ERROR(flux_load_tensor(TMP("nothing here"), NULL), "load_tensor: cannot open build/test_files.nothing here: ");
    CHECK_ERROR(flux_load_tensor("build", NULL), "Is a directory");
    CHECK_ERROR(flux_load_tensor(NULL, NULL), "load_tensor: argument path is NULL");
}

/* With a byte that is another one, or is not there, a file is read, or is refused in one sentence. */
static flux_tensor *load_any(const char *name, const char *path) {
    return strstr(name, ".idx") ? flux_load_idx(path) : strstr(name, ".npy") ? flux_load_npy(path) :
        strstr(name, ".npz") ? flux_load_npz(path, NULL) : strstr(name, ".csv") ? flux_load_csv(path) : flux_load_tensor(path, NULL);
}
TEST(a_byte_that_is_another_one) {
    static const char *const files[] = {
        FIXTURE("one.safetensors"), FIXTURE("foreign.safetensors"), FIXTURE("version2.npy"), FIXTURE("u8.idx"), FIXTURE("archive.npz"), ".csv"
    };
    static const unsigned char other[] = { ',', '}', ']', '"', '0', '\n', 255 };
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        unsigned char room[400];
        size_t n, refused = 0;
        const unsigned char *p = get(f < 5 ? files[f] : put_text(TMP("changed"), "1,2,3\n-4.5e1,.6,+7\n\n8,nan,9 # so\n"), &n);
        REQUIRE(n > 0 && n < sizeof room);
        memcpy(room, p, n);
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0; k <= sizeof other; k++) {
                const unsigned char was = room[i];
                if (k < sizeof other) room[i] = other[k];
                else memmove(room + i, room + i + 1, n - 1 - i);
                put(TMP("changed"), room, n - (k == sizeof other));
                flux_scope_open();
                flux_on_error(test_silent, &test_sentences);
                test_sentences = 0;
                const bool good = load_any(files[f], TMP("changed")) != NULL;
                refused += !good;
                if (!CHECK(flux_failed() == !good && test_sentences == !good))
                    fprintf(stderr, "    %s, byte %d, change %d: %d sentences, the last: %s\n", files[f], (int)i, (int)k, test_sentences, flux_error());
                flux_clear();
                flux_on_error(NULL, NULL);
                flux_scope_close();
                if (k == sizeof other) memmove(room + i + 1, room + i, n - 1 - i);
                room[i] = was;
            }
        CHECK(refused > n / 8);
    }
}

/* Nothing that was cut off, and nothing with a byte too many, is taken for whole. */
TEST(truncated) {
    static const char *const files[] = {
        FIXTURE("all.safetensors"), FIXTURE("widen.safetensors"), FIXTURE("tied.safetensors"), FIXTURE("none.safetensors"),
        FIXTURE("f4.npy"), FIXTURE("version2.npy"), FIXTURE("scalar.npy"), FIXTURE("empty.npy"), FIXTURE("u8.idx"), FIXTURE("f64.idx"),
        FIXTURE("empty.idx")
    };
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        static unsigned char room[1 << 14];
        size_t n, let_through = 0;
        const unsigned char *p = get(files[f], &n);
        REQUIRE(n > 0 && n + 1 < sizeof room);
        memcpy(room, p, n);
        room[n] = ' ';
        for (size_t cut = 0; cut <= n + 1; cut++) {
            flux_on_error(test_silent, NULL);
            put(TMP("cut"), room, cut);
            flux_tensor *x = strstr(files[f], ".idx") ? flux_load_idx(TMP("cut")) : strstr(files[f], ".npy") ? flux_load_npy(TMP("cut"))
                             : flux_load_tensor(TMP("cut"), cut % 2 ? "f32" : "i8");
            if (cut != n) let_through += x != NULL || !flux_failed();
            flux_clear();
        }
        flux_on_error(NULL, NULL);
        CHECK(let_through == 0);
    }
}

/* Headings that end at each of their bytes, behind which the rest of the text lies as if it were data, and headings that lack each
   one of them: refused, or what is read is what the whole one says (where a blank is gone, or a comma that may be). */
static const float six[6] = { 1, 2, 3, 4, 5, 6 };
static const char *put_cut(bool npy, const char *text, size_t length) {
    static unsigned char room[2000];
    const size_t n = strlen(text), start = npy ? 10 : 8;
    memcpy(room, npy ? "\x93NUMPY\1\0" : "\0\0\0\0\0\0\0\0", 8);
    room[npy ? 8 : 0] = (unsigned char)(length & 255), room[npy ? 9 : 1] = (unsigned char)(length >> 8);
    memcpy(room + start, text, n), memcpy(room + start + n, six, sizeof six);
    return put(npy ? TMP("npy") : TMP("heading"), room, start + n + sizeof six);
}
static bool is_six(flux_tensor *x) {
    return x && flux_ndim(x) == 2 && flux_dim(x, 0) * 10 + flux_dim(x, 1) == 32 && flux_dtype_of(x) == FLUX_F32 && !memcmp(flux_data(x), six, sizeof six);
}
TEST(headings_that_end_or_lack_a_byte) {
    static const struct { bool npy; const char *text; } all[] = {
        { true, "{'descr': '<f4', 'fortran_order': True, 'shape': (3, 2), }  \n" }, { true, "{\"shape\":(3L ,2L),\"fortran_order\":True,\"descr\":\"=f4\"}" },
        { true, "{ 'shape' : ( 3 , 2 , ) , 'descr' : '<f4' , 'fortran_order' : True }" },
        { false, "{\"__metadata__\":{\"a\\u00e9\\ud83d\\ude00\":\"\\\"\\\\\\n\"},\"x\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}  " },
        { false, "{ \"x\" : { \"shape\" : [ 2 , 3 ] , \"data_offsets\" : [ 0 , 24 ] , \"dtype\" : \"F32\" } }" }
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char text[400];
        const bool npy = all[i].npy;
        const size_t n = strlen(all[i].text);
        size_t end = n;
        while (all[i].text[end - 1] != '}') end--;
#define READ(path) (npy ? flux_load_npy(path) : flux_load_tensor(path, NULL))
        CHECK(is_six(READ(put_cut(npy, all[i].text, n))));
        flux_on_error(test_silent, NULL);
        for (size_t k = 0; k < end; k++) FLUX_SCOPE {
            CHECK(READ(put_cut(npy, all[i].text, k)) == NULL && strstr(flux_error(), "load_"));
            flux_clear();
            snprintf(text, sizeof text, "%.*s%s", (int)k, all[i].text, all[i].text + k + 1);
            flux_tensor *x = READ(put_cut(npy, text, n - 1));
            if (!CHECK((x && is_six(x) && !flux_failed()) || (!x && flux_failed()))) fprintf(stderr, "    %s\n", text);
            flux_clear();
        }
        flux_on_error(NULL, NULL);
    }
}

/* ------------------------------------------------------------------ models */

static flux_layer *model(void) { return flux_chain(flux_dense(3, 4, flux_tanh), flux_named("head", flux_dense(4, 2, .bias = FLUX_OFF))); }

static void compare_visit(flux_tensor *x, const char *path, bool trained, void *user) {
    flux_tensor *y = flux_param((flux_layer *)user, path);
    (void)trained;
    if (!CHECK(same_bits(x, y))) fprintf(stderr, "    %s\n", path);
}
static bool compare_models(flux_layer *a, flux_layer *b) {
    int bad = test_bad;
    flux_visit(a, compare_visit, b);
    return bad == test_bad;
}

TEST(model_round_trip) {
    flux_layer *m = model(), *same = model();
    flux_tensor *x = flux_rand(3, 5), *old = flux_param(same, "layers.0.weight");
    double before = flux_item(flux_sum(old));
    CHECK(!same_bits(flux_param(m, "layers.0.weight"), old));
    CHECK(flux_save(m, TMP("m.safetensors")) == 0);
    CHECK(flux_load(same, TMP("m.safetensors")) == 0);
    CHECK(compare_models(m, same));
    CHECK(same_bits(flux_call(m, x), flux_call(same, x)));
    CHECK(flux_item(flux_sum(old)) == before);         /* tensors are values: the one that was replaced is as it was */
    CHECK(flux_save(same, TMP("again.safetensors")) == 0);
    CHECK(same_file(TMP("m.safetensors"), TMP("again.safetensors")));
    flux_tensor *w = flux_load_tensor(TMP("m.safetensors"), "layers.head.weight");
    CHECK(same_bits(w, flux_param(m, "layers.head.weight")) || w == NULL);
    CHECK(flux_load_tensor(TMP("m.safetensors"), "layers.0.bias") != NULL);
}

typedef struct { flux_layer base; flux_tensor *seen, *scale; } counter;
static flux_tensor *counter_call(flux_layer *self, flux_tensor *x) {
    counter *m = (counter *)self;
    flux_assign(&m->seen, flux_add(m->seen, flux_sum(x)));
    return flux_mul(x, m->scale);
}
FLUX_LAYER(counter, "Counter", counter_call, FLUX_STATE(seen), FLUX_PARAM(scale))
static flux_layer *new_counter(double scale) {
    counter c;
    memset(&c, 0, sizeof c);
    c.seen = flux_scalar(0);
    c.scale = flux_full(scale, 2);
    return flux_new_with(counter_type(), &c);
}

/* A map may name one tensor, ours and theirs, and leave out another. */
TEST(a_map_names_single_tensors) {
    const double want[] = { 5 };
    flux_tensor *theirs = flux_full(5, 1), *extra = flux_ones(2), *none = flux_zeros(1);
    flux_tensor *count = flux_to_dtype(flux_full(7, 1), FLUX_I64);
    flux_layer *m = flux_new(counter, .seen = flux_to_dtype(none, FLUX_I64), .scale = none);
    REQUIRE(flux_save_all(TMP("map"), theirs, count, extra) == 0);
    CHECK(flux_load_torch(m, TMP("map"), "scale = theirs, seen = count, = extra") == 0);
    CHECK_DATA(flux_param(m, "scale"), want, 0);
    CHECK(flux_item(flux_param(m, "seen")) == 7);
    CHECK_ERROR(flux_load_torch(m, TMP("map"), "scale = theirs, seen = count, = ext"),
                "it has \"extra\"");
    CHECK_ERROR(flux_load_torch(m, TMP("map"), "scal = theirs, seen = count, = extra"),
                "it has no \"scale\"");
    CHECK(flux_load_torch(m, TMP("map"), "scal = theirs, seen = count, = extra") == -1);
    flux_clear();
}

TEST(state_of_layers_is_saved) {
    flux_layer *m = flux_chain(new_counter(2)), *same = flux_chain(new_counter(3));
    flux_call(m, flux_ones(2, 3));
    flux_call(m, flux_ones(2));                         /* its state is a graph that nobody has computed yet */
    CHECK(flux_save(m, TMP("m.safetensors")) == 0 && flux_load(same, TMP("m.safetensors")) == 0);
    CHECK(compare_models(m, same));
    CHECK_NEAR(flux_item(flux_param(same, "layers.0.seen")), 8, 0);
    CHECK_NEAR(flux_item(flux_sum(flux_param(same, "layers.0.scale"))), 4, 0);
}

TEST(half_precision_models) {
    flux_layer *m = flux_bf16(model()), *same = flux_bf16(model());
    CHECK(flux_save(m, TMP("m.safetensors")) == 0 && flux_load(same, TMP("m.safetensors")) == 0);
    CHECK(compare_models(m, same));
    CHECK(flux_dtype_of(flux_param(same, "layers.0.weight")) == FLUX_BF16);
}

static flux_layer *tied_model(flux_tensor *w) { return flux_chain(flux_dense(.weight = w), flux_dense(.weight = w)); }

TEST(ties) {
    flux_layer *m = tied_model(flux_rand(3, 3)), *same = tied_model(flux_rand(3, 3));
    CHECK(flux_save(m, TMP("tied.safetensors")) == 0);
    size_t n;
    const char *text = (const char *)get(TMP("tied.safetensors"), &n) + 8;
    CHECK(strstr(text, "\"tie:layers.1.weight\":\"layers.0.weight\"") != NULL);
    CHECK(strstr(text, "\"layers.1.weight\":{") == NULL);
    CHECK(flux_load(same, TMP("tied.safetensors")) == 0);
    CHECK(compare_models(m, same));
    CHECK(flux_param(same, "layers.0.weight") == flux_param(same, "layers.1.weight"));
    CHECK(same_bits(flux_load_tensor(TMP("tied.safetensors"), "layers.1.weight"), flux_param(m, "layers.0.weight")));
    flux_layer *loose = flux_chain(flux_dense(3, 3), flux_dense(3, 3));
    CHECK(flux_load(loose, TMP("tied.safetensors")) == 0);                 /* one tensor there, two here: each its own */
    CHECK(compare_models(m, loose));
    CHECK(flux_param(loose, "layers.0.weight") != flux_param(loose, "layers.1.weight"));
    CHECK(flux_save(loose, TMP("loose.safetensors")) == 0);
    CHECK(flux_load(same, TMP("loose.safetensors")) == 0);                 /* two there that are equal, one here */
    flux_set_param(loose, "layers.1.weight", flux_rand(3, 3));
    CHECK(flux_save(loose, TMP("loose.safetensors")) == 0);
    CHECK_ERROR(flux_load(same, TMP("loose.safetensors")), "load: build/test_files.loose.safetensors: layers.0.weight and layers.1.weight are one tensor here, but differ there");
    CHECK(compare_models(m, same));
}

/* A name that is only tied there is as unknown as one with a tensor. */
TEST(a_tied_name_that_is_unknown) {
    flux_tensor *w = flux_rand(3, 3);
    flux_layer *m = flux_chain(flux_dense(.weight = w, .bias = FLUX_OFF), flux_dense(.weight = w, .bias = FLUX_OFF));
    REQUIRE(flux_save(m, TMP("tied.safetensors")) == 0);
    CHECK_ERROR(flux_load(flux_chain(flux_dense(3, 3, .bias = FLUX_OFF)), TMP("tied.safetensors")), "it does not fit: 1 unknown here (layers.1.weight)");
}

/* The same where the tie is all that the file says of itself. */
TEST(a_file_whose_first_word_is_a_tie) {
    static const char heading[] = "{\"__metadata__\":{\"tie:layers.1.weight\":\"layers.0.weight\"},\"layers.0.weight\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[0,4]}}";
    char file[8 + sizeof heading - 1 + 4] = { (char)(sizeof heading - 1) };
    memcpy(file + 8, heading, sizeof heading - 1);
    put(TMP("first.safetensors"), file, sizeof file);
    flux_layer *one = flux_chain(flux_dense(1, 1, .bias = FLUX_OFF));
    CHECK(sizeof heading < 256);
    CHECK_ERROR(flux_load(one, TMP("first.safetensors")), "it does not fit: 1 unknown here (layers.1.weight)");
}

TEST(layers_are_numbered_in_tens) {
    flux_layer *ls[130];
    for (int i = 0; i < 130; i++) ls[i] = flux_scale(FLUX_SHAPE(1));
    for (int i = 0; i < 130; i++) flux_set_param(ls[i], "bias", flux_full(i, 1));
    REQUIRE(flux_save(flux_chain_with(130, ls, NULL), TMP("many.safetensors")) == 0);
    const int some[] = { 0, 9, 10, 18, 19, 99, 100, 129 };
    for (int i = 0; i < 8; i++) {
        char name[40];
        snprintf(name, sizeof name, "layers.%d.bias", some[i]);
        CHECK(flux_item(flux_load_tensor(TMP("many.safetensors"), name)) == some[i]);
    }
}

/* A message has the last 120 bytes of a long path. */
TEST(long_paths_in_messages) {
    char path[400], want[500];
    memset(path, 'p', 300);
    strcpy(path + 300, "/none.idx");
    snprintf(want, sizeof want, "load_idx: cannot open %s: ", path + 309 - 120);
    CHECK_ERROR(flux_load_idx(path), want);
    snprintf(want, sizeof want, "load_idx: cannot open %s: ", path + 309 - 119);
    CHECK_ERROR(flux_load_idx(path + 309 - 119), want);
}

#ifndef _WIN32
/* A new file may be read and written by whom the process' mask allows. */
TEST(rights_of_a_new_file) {
    struct stat s;
    remove(TMP("new.npy"));
    mode_t mask = umask(027);
    bool saved = flux_save_npy(flux_ones(2), TMP("new.npy")) == 0;
    umask(mask);
    REQUIRE(saved && stat(TMP("new.npy"), &s) == 0);
    CHECK((s.st_mode & 0777) == 0640);
}
#endif

TEST(a_layer_twice) {
    flux_layer *d = flux_dense(3, 3), *m = flux_chain(d, flux_relu, d), *e = flux_dense(3, 3), *same = flux_chain(e, flux_relu, e);
    CHECK(flux_save(m, TMP("m.safetensors")) == 0 && flux_load(same, TMP("m.safetensors")) == 0);
    CHECK(compare_models(m, same));
}

/* A file for another model changes nothing, and the sentence names what differs. */
TEST(misfits) {
    flux_layer *m = model(), *copy = flux_copy_layer(m);
    struct { flux_layer *other; const char *error; } bad[] = {
        { flux_chain(flux_dense(3, 5, flux_tanh), flux_named("head", flux_dense(5, 2, .bias = FLUX_OFF))),
          "it does not fit: layers.0.weight is 4x3 F32 here and 5x3 F32 there (and 2 more differ)" },
        { flux_f64(model()), "layers.0.weight is 4x3 F32 here and 4x3 F64 there (and 2 more differ)" },
        { flux_chain(flux_dense(3, 4), flux_dense(4, 2, .bias = FLUX_OFF)), "1 missing there (layers.head.weight); 1 unknown here (layers.1.weight)" },
        { flux_chain(flux_dense(3, 4), flux_named("head", flux_dense(4, 2))), "it does not fit: 1 unknown here (layers.head.bias)" },
        { flux_chain(flux_dense(3, 4)), "it does not fit: 1 missing there (layers.head.weight)" },
        { flux_chain(flux_relu), "it does not fit: 3 missing there (layers.0.weight, ...)" },
        { flux_chain(flux_dense(4, 4), flux_dense(4, 2)), "layers.0.weight is 4x3 F32 here and 4x4 F32 there; 1 missing there (layers.head.weight); 2 unknown here (layers.1." },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(flux_save(bad[i].other, TMP("other.safetensors")) == 0);
        CHECK_ERROR(flux_load(m, TMP("other.safetensors")), bad[i].error);
        CHECK(compare_models(copy, m));
    }
    CHECK_ERROR(flux_load(m, FIXTURE("all.safetensors")), "it does not fit: 3 missing there (layers.0.weight, ...); 13 unknown here (bf16, ...)");
    CHECK_ERROR(flux_load(m, FIXTURE("foreign.safetensors")), "it does not fit");
    CHECK_ERROR(flux_load(m, TMP("nothing here")), "load: cannot open");
    CHECK_ERROR(flux_load_layer(m, NULL), "load: argument path is NULL");
    CHECK_ERROR(flux_load_layer(NULL, TMP("m.safetensors")), "load: argument m is NULL");
    CHECK_ERROR(flux_save_layer(NULL, TMP("m.safetensors")), "save: argument m is NULL");
    CHECK_ERROR(flux_save_tensor(NULL, TMP("m.safetensors")), "save: argument x is NULL");
    CHECK_ERROR(flux_save_state(NULL, TMP("m.safetensors")), "save: argument s is NULL");
    CHECK_ERROR(flux_load_state(NULL, TMP("m.safetensors")), "load: argument s is NULL");
    CHECK_ERROR(flux_save_layer(m, NULL), "save: argument path is NULL");
    CHECK_ERROR(flux_save_npy(NULL, TMP("x.npy")), "save_npy: argument x is NULL");
    CHECK_ERROR(flux_save_npy(flux_scalar(1), NULL), "save_npy: argument path is NULL");
    CHECK_ERROR(flux_save_tensor(flux_tuple(flux_scalar(1), flux_scalar(2)), TMP("x")), "is a tuple of 2 tensors; take one with flux_nth");
    CHECK_ERROR(flux_save_npy(flux_tuple(flux_scalar(1), flux_scalar(2)), TMP("x")), "is a tuple of 2 tensors; take one with flux_nth");
    CHECK(compare_models(copy, m));
}

TEST(several_things) {
    flux_layer *encoder = flux_dense(3, 2), *other = model(), *encoder2 = flux_dense(3, 2), *other2 = model();
    flux_tensor *step = flux_scalar(41), *mask = any_bits(FLUX_SHAPE(3), FLUX_BOOL);
    CHECK(flux_save_all(TMP("run.safetensors"), encoder, other, step, mask) == 0);
    CHECK(same_bits(flux_load_tensor(TMP("run.safetensors"), "mask"), mask));
    CHECK_NEAR(flux_item(flux_load_tensor(TMP("run.safetensors"), "step")), 41, 0);
    CHECK(same_bits(flux_load_tensor(TMP("run.safetensors"), "encoder.weight"), flux_weight(encoder)));
    struct { flux_layer *encoder, *other; } two = { encoder2, other2 };
    const void *items[] = { two.encoder, two.other };
    CHECK(flux_load_all_with(TMP("run.safetensors"), 2, " encoder,other ", items) == 0);
    CHECK(compare_models(encoder, encoder2) && compare_models(other, other2));
    flux_layer *keep = encoder;
    encoder = flux_dense(3, 2);
    CHECK(flux_load_all(TMP("run.safetensors"), encoder) == 0);            /* one of several */
    CHECK(compare_models(keep, encoder));
    CHECK_ERROR(flux_load_all(TMP("run.safetensors"), keep), "2 missing there (keep.weight, ...)");
    CHECK_ERROR(flux_load_all(TMP("run.safetensors"), encoder, step), "load_all: step is a tensor, which never changes: flux_load_tensor(path, \"step\")");
    CHECK_ERROR(flux_load(encoder, TMP("run.safetensors")), "2 missing there (weight, ...)");
    CHECK_ERROR(flux_save_all_with(TMP("x"), 2, "a", items), "save_all: \"a\" does not name 2 things");
    CHECK_ERROR(flux_save_all_with(TMP("x"), 2, "a, b, c", items), "does not name 2 things");
    CHECK_ERROR(flux_save_all_with(TMP("x"), 2, "a, ", items), "does not name 2 things");
    CHECK_ERROR(flux_save_all_with(TMP("x"), 2, "", items), "does not name 2 things");
    const void *twice[] = { encoder, encoder2 };
    CHECK_ERROR(flux_save_all_with(TMP("x"), 2, "a, a", twice), "save_all: two tensors have the name a.bias");
    CHECK_ERROR(flux_save_all_with(TMP("x"), 2, NULL, items), "save_all: argument names is NULL");
    CHECK_ERROR(flux_save_all_with(TMP("x"), 0, "", items), "save_all: 0 things were given");
    CHECK_ERROR(flux_save_all_with(NULL, 2, "a, b", items), "save_all: argument path is NULL");
    CHECK_ERROR(flux_save_all_with(TMP("x"), 2, "a\xff, b", items), "a tensor can't have the name a\xff.");
    CHECK(!exists(TMP("x")));
    const void *with_null[] = { encoder, NULL };
    CHECK_ERROR(flux_save_all_with(TMP("x"), 2, "a, b", with_null), "save_all: argument b is NULL");
    const void *three[] = { step, step, mask };
    CHECK(flux_save_all_with(TMP("x"), 3, "f(a, \"b,\", ','), g[1, 2], h{1, 2}", three) == 0);     /* names are expressions of C */
    CHECK_NEAR(flux_item(flux_load_tensor(TMP("x"), "f(a, \"b,\", ',')")), 41, 0);
    CHECK_NEAR(flux_item(flux_load_tensor(TMP("x"), "g[1, 2]")), 41, 0);
    CHECK(same_bits(flux_load_tensor(TMP("x"), "h{1, 2}"), mask));
    const void *grads[] = { flux_gradient(flux_sum(flux_weight(encoder)), flux_weight(encoder)) };
    CHECK_ERROR(flux_save_all_with(TMP("y"), 1, "l", grads), "save_all: l is no tensor, layer, loader or optimiser state");
    flux_tensor *meta = flux_scalar(1);
    const void *metas[] = { meta };
    CHECK_ERROR(flux_save_all_with(TMP("y"), 1, "__metadata__", metas), "can't have the name __metadata__");
    remove(TMP("x"));
}

/* ------------------------------------------------------------------ devices */

static bool fake_yes(char *why, size_t n) { (void)why, (void)n; return true; }
static int fake_count(void) { return 1; }
static void *fake_alloc(int id, size_t bytes) { (void)id; return malloc(bytes); }
static void fake_free(int id, void *p, size_t bytes) { (void)id, (void)bytes; free(p); }
static int fake_move(int id, void *to, const void *from, size_t bytes) { (void)id; memcpy(to, from, bytes); return 0; }
static int fake_broken(int id, void *to, const void *from, size_t bytes) { (void)id, (void)to, (void)from, (void)bytes; return -1; }
static int fake_wait(int id) { (void)id; return 0; }

static flux_tensor *to_card(flux_tensor *x, const char *path, void *user) {
    (void)path;
    return flux__move(x, *(flux_device *)user);            /* flux_to would make a float64 float32 */
}

/* A model on a device is saved from there, its file says nothing of it, and what is loaded goes where the old was. */
TEST(devices) {
    ONLY_ON_CPU();                                              /* the card stands in for one */
    static flux__backend card;
    card = *flux__backend_of(FLUX__CPU_BACKEND);
    flux_device gpu = { FLUX__CUDA_BACKEND, 0 };
    card.available = card.functional = fake_yes;
    card.count = fake_count;
    card.alloc = fake_alloc;
    card.free = fake_free;
    card.upload = card.download = fake_move;
    card.wait = fake_wait;
    flux__backend_set(FLUX__CUDA_BACKEND, &card);
    FLUX_SCOPE {
        flux_layer *m = flux_f64(model()), *old = flux_f64(model());
        flux_layer *there = flux_fmap_with(to_card, &gpu, m, NULL), *back = flux_fmap_with(to_card, &gpu, old, NULL);
        CHECK(flux_device_of(there).backend == FLUX__CUDA_BACKEND);
        CHECK(flux_save(m, TMP("host.safetensors")) == 0 && flux_save(there, TMP("card.safetensors")) == 0);
        CHECK(same_file(TMP("host.safetensors"), TMP("card.safetensors")));
        CHECK(flux_load(back, TMP("host.safetensors")) == 0);
        CHECK(flux_device_of(back).backend == FLUX__CUDA_BACKEND);
        CHECK(flux_dtype_of(flux_param(back, "layers.0.weight")) == FLUX_F64);
        CHECK(compare_models(m, back));
        CHECK(flux_save_npy(flux_param(there, "layers.0.weight"), TMP("card.npy")) == 0);
        CHECK(same_bits(flux_load_npy(TMP("card.npy")), flux_param(m, "layers.0.weight")));
        CHECK(flux_device_of(flux_load_tensor(TMP("card.safetensors"), "layers.0.weight")).backend == FLUX__CPU_BACKEND);
        card.upload = fake_broken;                         /* the card fails while a file is loaded: nothing changes */
        flux_tensor *was = flux_param(there, "layers.0.bias");
        flux_save(old, TMP("other.safetensors"));
        CHECK_ERROR(flux_load(there, TMP("other.safetensors")), "");    /* whoever notices words it */
        card.upload = fake_move;
        CHECK(flux_param(there, "layers.0.bias") == was && compare_models(m, there));
    }
    flux_mem_trim(gpu);
    flux__backend_set(FLUX__CUDA_BACKEND, NULL);
}

/* Memory may run out at any allocation of any of these calls: an error then, and nothing has changed. */
static int scarce_call(int which, flux_layer *m, flux_state *opt) {
    const void *both[] = { m, opt };
    switch (which) {
    case 0: return flux_load(m, TMP("scarce.safetensors"));
    case 1: return flux_save(m, TMP("scarce.out"));
    case 2: return flux_load_all_with(TMP("scarce.all"), 2, "m, opt", both);
    case 3: return flux_save_all_with(TMP("scarce.out"), 2, "m, opt", both);
    case 4: return flux_load_tensor(FIXTURE("widen.safetensors"), "i8") == NULL;
    case 5: return flux_load_npy(FIXTURE("c_order.npy")) == NULL;
    case 6: return flux_load_idx(FIXTURE("u8.idx")) == NULL;
    case 7: return csv("a,b\n1,2\n3,4\n") == NULL;
    default: return flux_save_npy(flux_param(m, "layers.0.weight"), TMP("scarce.out"));
    }
}

TEST(out_of_memory) {
    flux_layer *m = model(), *other = model(), *copy = flux_copy_layer(m);
    flux_state *opt = flux_setup(flux_adam(0.01), m), *opt2 = flux_setup(flux_adam(0.01), other);
    CHECK(flux_save(m, TMP("scarce.safetensors")) == 0);
    {
        const void *both[] = { other, opt2 };
        CHECK(flux_save_all_with(TMP("scarce.all"), 2, "m, opt", both) == 0);
    }
    for (int which = 0; which < 9; which++) {
        int failures = 0, rc = 1;
        put_text(TMP("scarce.out"), "as it was");
        flux_on_error(test_silent, &test_sentences);
        for (long n = 0; n < 1000 && rc != 0; n++) {
            test_sentences = 0;
            flux_scope_open();
            for (int b = 0; b < 2; b++) {               /* no spare memory of earlier calls */
                flux_device d = { b, 0 };
                flux_mem_trim(d);
            }
            flux__test_memory(n);
            rc = scarce_call(which, m, opt);
            flux__test_memory(-1);
            if (rc != 0) {
                size_t size;
                failures++;
                CHECK(flux_failed() && test_sentences == 1);
                CHECK(memcmp(get(TMP("scarce.out"), &size), "as it was", 9) == 0 && size == 9);
                flux_clear();
                if (which == 0 || which == 2) CHECK(compare_models(copy, m));
            }
            flux_scope_close();
        }
        flux_on_error(NULL, NULL);
        CHECK(rc == 0 && failures > 0 && !flux_failed());
        if (rc != 0 || failures == 0) fprintf(stderr, "    call %d: %d failures\n", which, failures);
    }
    CHECK(compare_models(m, other));                    /* the last load went through */
}

/* Bytes in memory: what the fuzzer hands in, and parts of files that lie further in than a long may count. */
TEST(sources) {
    static const unsigned char bytes[] = "0123456789";
    flux__source s = { "call", "memory", NULL, bytes, 10, NULL };
    char out[4] = "";
    CHECK(flux__peek(&s, 7, out, 3) && memcmp(out, "789", 3) == 0);
    CHECK(!flux__peek(&s, 8, out, 3) && !flux__peek(&s, 11, out, 0) && !flux__peek(&s, UINT64_MAX, out, 1) && flux__peek(&s, 10, out, 0));
    CHECK(flux__reaches(&s, 10) && !flux__reaches(&s, 11));
    s.file = fopen(put(TMP("bytes"), bytes, 10), "rb");
    REQUIRE(s.file != NULL);
    CHECK(flux__peek(&s, 7, out, 3) && memcmp(out, "789", 3) == 0);
    CHECK(!flux__peek(&s, 8, out, 3) && !flux__peek(&s, 1000000, out, 1) && !flux__peek(&s, UINT64_MAX, out, 1));
    CHECK(flux__reaches(&s, 10) && !flux__reaches(&s, 11) && !flux__reaches(&s, (uint64_t)1 << 40));
    flux__source_close(&s);
}

/* Each reader of a file whose reads fail from the k-th on, or the k-th alone, for each k: an error that says so once, or, where
   nothing was lost by it, what the file holds. */
#ifdef __linux__
typedef struct disk { const unsigned char *bytes; size_t n, at; int reads, bad_from, bad_to; } disk;
static ssize_t disk_read(void *cookie, char *out, size_t n) {
    disk *d = (disk *)cookie;
    const int k = d->reads++;
    if (k >= d->bad_from && k < d->bad_to) return errno = EIO, -1;
    if (d->at > d->n) return 0;
    if (n > d->n - d->at) n = d->n - d->at;
    memcpy(out, d->bytes + d->at, n);
    d->at += n;
    return (ssize_t)n;
}
static int disk_seek(void *cookie, off64_t *to, int from) {
    disk *d = (disk *)cookie;
    *to += from == SEEK_SET ? 0 : (off64_t)(from == SEEK_CUR ? d->at : d->n);
    d->at = (size_t)*to;
    return 0;
}
static flux_tensor *parse_safetensors(flux__source *s) {
    flux__archive z;
    if (!flux__archive_open(&z, "call", NULL, s)) return s->file = NULL, NULL;
    flux_tensor *t = flux__entry_read(&z, &z.entry[z.entries - 1]);
    flux__archive_close(&z);
    s->file = NULL;
    return t;
}
static uint64_t read_from(flux_tensor *(*parse)(flux__source *), const char *path, disk *d, int from, int to) {
    uint64_t sum = 0;
    flux__source s = { "call", path, NULL, NULL, 0, NULL };
    d->at = 0, d->reads = 0, d->bad_from = from, d->bad_to = to;
    s.file = fopencookie(d, "rb", (cookie_io_functions_t){ .read = disk_read, .seek = disk_seek });
    setvbuf(s.file, NULL, _IONBF, 0);
    const int h = flux__hide();
    flux_tensor *t = parse(&s);
    const size_t bytes = t ? (size_t)flux_len(t) * (size_t)flux__dtypes[t->dtype].size : 0;
    for (size_t i = 0; i < bytes; i++) sum = (sum + ((const unsigned char *)flux_data(t))[i] + 1) * 1099511628211u;
    flux__reveal(h, NULL);
    flux__source_close(&s);
    return sum;
}
/* A drawing to stdout of which one write fails. */
static ssize_t disk_write(void *cookie, const char *from, size_t n) {
    disk *d = (disk *)cookie;
    const int k = d->reads++;
    (void)from;
    if (k >= d->bad_from && k < d->bad_to) return errno = EIO, 0;
    return (ssize_t)n;
}
TEST(a_write_error_at_every_write) {
    flux_tensor *x = flux_exp(flux_matmul(flux_ones(3, 3), flux_ones(3, 2)));
    FILE *const was = stdout;
    disk d;
    memset(&d, 0, sizeof d);
    for (int k = -1, writes = 0; k < writes; k++) {
        d.reads = 0, d.bad_from = k, d.bad_to = k + 1;
        FILE *f = fopencookie(&d, "wb", (cookie_io_functions_t){ .write = disk_write });
        REQUIRE(f != NULL);
        setvbuf(f, NULL, _IONBF, 0);
        fflush(stdout);
        stdout = f;
        flux_on_error(test_silent, NULL);
        const int code = flux_graph_dot(x, NULL);
        const bool told = strstr(flux_error(), "graph_dot: cannot write to stdout: ") != NULL;
        flux_clear();
        flux_on_error(NULL, NULL);
        stdout = was;
        fclose(f);
        if (k < 0) writes = d.reads;
        if (!CHECK(k < 0 ? code == 0 && writes > 3 : code != 0 && told)) fprintf(stderr, "    write %d of %d\n", k, writes);
    }
}
TEST(a_read_error_at_every_read) {
    static const struct { flux_tensor *(*parse)(flux__source *); const char *path; } reader[] = {
        { flux__parse_npy, FIXTURE("f4.npy") }, { flux__parse_npy, FIXTURE("version3.npy") }, { flux__parse_npy, FIXTURE("c_order.npy") },
        { flux__parse_idx, FIXTURE("f32.idx") }, { parse_safetensors, FIXTURE("all.safetensors") }, { parse_safetensors, FIXTURE("one.safetensors") },
    };
    for (size_t i = 0; i < sizeof reader / sizeof *reader; i++) {
        disk d;
        d.bytes = get(reader[i].path, &d.n);
        const uint64_t whole = read_from(reader[i].parse, reader[i].path, &d, -1, -1);
        const int reads = d.reads;
        CHECK(whole && reads > 3 && !flux_failed());
        for (int k = 0; k < 2 * reads; k++) {
            flux_on_error(test_silent, &test_sentences);
            test_sentences = 0;
            const uint64_t sum = read_from(reader[i].parse, reader[i].path, &d, k / 2, k % 2 ? k / 2 + 1 : INT_MAX);
            const bool told = test_sentences == 1 && flux_failed(), silent = !test_sentences && !flux_failed();
            flux_clear();
            flux_on_error(NULL, NULL);
            if (!CHECK(sum ? k % 2 && sum == whole && silent : told)) fprintf(stderr, "    %s, read %d of %d%s\n", reader[i].path, k / 2, reads, k % 2 ? " alone" : "");
        }
    }
}
#endif

#ifdef _WIN32
TEST(a_file_that_shrinks) { SKIP("no truncate on this system"); }
#else
/* A file that another process cuts off while it is read is an error, never a signal; a model stays as it was. */
TEST(a_file_that_shrinks) {
    flux_layer *m = flux_chain(flux_dense(300, 300), flux_dense(300, 300)), *was = flux_copy_layer(m);
    flux__archive z;
    flux__list l;
    flux__thing all = { "", 0, m };
    CHECK(flux_save(flux_chain(flux_dense(300, 300), flux_dense(300, 300)), TMP("shrinks")) == 0);
    memset(&l, 0, sizeof l);
    l.call = "load";
    REQUIRE(flux__archive_open(&z, "load", TMP("shrinks"), NULL));
    REQUIRE(flux__list_visit(&l, &all, true) && flux__list_finish(&l));
    CHECK(truncate(TMP("shrinks"), 500000) == 0);      /* within the second weight */
    CHECK_ERROR((void)flux__load_archive(&z, &l, NULL, 0), "it is shorter now");
    CHECK(compare_models(m, was));
    flux__list_free(&l);
    flux__archive_close(&z);
}
#endif

/* The other byte order, which this machine most likely does not have. */
TEST(elements_are_turned_in_their_room) {
    for (int i = 0; i < FLUX__NUM_ELEMENTS; i++)
        for (int big = 0; big < 2; big++) {
            const flux__element *e = &flux__elements[i];
            const size_t wide = flux__dtypes[e->dtype].size;
            unsigned char room[5 * 8 + 16];
            memset(room, 0x5a, sizeof room);
            flux__decode(room, 5, e, big != 0);
            for (size_t k = 5 * wide; k < sizeof room; k++) CHECK(room[k] == 0x5a);
        }
}

TEST(byte_orders) {
    unsigned char four[16] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFE, 0x01, 0x02 };
    int32_t v[4];
    flux__decode(four + 8, 2, &flux__elements[9], true);   /* two I16 at the end of room for two int32 */
    memcpy(v, four + 8, 8);
    CHECK(v[0] == -2 && v[1] == 0x0102);
    unsigned char eight[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    int64_t w;
    flux__decode(eight, 1, &flux__elements[FLUX_I64], true);
    memcpy(&w, eight, 8);
    CHECK(w == 0x0102030405060708);
    unsigned char truth[3] = { 0, 1, 7 };
    flux__decode(truth, 3, &flux__elements[FLUX_BOOL], false);
    CHECK(truth[0] == 0 && truth[1] == 1 && truth[2] == 1);
}

/* ------------------------------------------------------------------ optimiser states */

static void train_step(flux_layer *m, flux_state *opt, int k) {
    FLUX_SCOPE {
        flux_tensor *x = flux_add(flux_mul(flux_eye(3), 0.5), 0.1 * k), *y = flux_full(0.25, 2, 3);
        flux_update(opt, m, flux_gradient(flux_mse(flux_call(m, x), y), m));
    }
}

/* A run that is saved, loaded into new objects and goes on is the run that was not interrupted, bit for bit. */
TEST(training_goes_on) {
    flux_rule rules[] = {
        flux_descent(0.1), flux_momentum(0.05), flux_adam(0.01), flux_adamw(0.01, .lambda = 0.01), flux_radam(0.01), flux_nadam(0.01),
        flux_adagrad(0.1), flux_adadelta(), flux_rprop(), flux_accumgrad(2, flux_adam(0.01)),
        flux_optimiser_chain(flux_clipgrad(.delta = 1.0), flux_adam(0.01))
    };
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++) {
        flux_layer *model_a = model(), *model_b = model(), *keep;
        flux_state *opt_a = flux_setup(rules[r], model_a), *opt_b = flux_setup(rules[r], model_b);
        for (int k = 0; k < 3; k++) train_step(model_a, opt_a, k);
        {
            flux_layer *net = model_a;
            flux_state *opt = opt_a;
            CHECK(flux_save_all(TMP("run.safetensors"), net, opt) == 0);
        }
        {
            flux_layer *net = model_b;
            flux_state *opt = opt_b;
            CHECK(flux_load_all(TMP("run.safetensors"), net, opt) == 0);
        }
        CHECK(compare_models(model_a, model_b));
        for (int k = 3; k < 6; k++) train_step(model_a, opt_a, k);
        for (int k = 3; k < 6; k++) train_step(model_b, opt_b, k);
        if (!compare_models(model_a, model_b)) fprintf(stderr, "    rule %d\n", (int)r);
        CHECK(flux_save(opt_a, TMP("a.safetensors")) == 0 && flux_save(opt_b, TMP("b.safetensors")) == 0);
        CHECK(same_file(TMP("a.safetensors"), TMP("b.safetensors")));
        keep = model();
        flux_state *opt_c = flux_setup(rules[r], keep);
        CHECK(flux_load(opt_c, TMP("a.safetensors")) == 0);
        CHECK(flux_save(opt_c, TMP("c.safetensors")) == 0);
        CHECK(same_file(TMP("a.safetensors"), TMP("c.safetensors")));
    }
}

/* A run with dropout, batch normalisation, shuffling and a learning rate that changes, from one epoch to another. */
typedef struct run { flux_layer *model; flux_state *opt; flux_loader *loader; } run;

static run run_new(uint64_t shuffling) {
    float x[3 * 20], y[20];
    for (int i = 0; i < 60; i++) x[i] = (float)((i * 37) % 23) / 23 - 0.5f;
    for (int i = 0; i < 20; i++) y[i] = x[3 * i] - 2 * x[3 * i + 1] * x[3 * i + 2];
    run r;
    r.model = flux_chain(flux_dense(3, 8, flux_tanh), flux_batchnorm(8), flux_dropout(0.3), flux_dense(8, 1));
    r.opt = flux_setup(flux_optimiser_chain(flux_clipnorm(5), flux_adamw(0.01, .lambda = 0.001)), r.model);
    r.loader = flux_dataloader(flux_from(x, 3, 20), flux_from(y, 1, 20), .batchsize = 4, .shuffle = true, .seed = shuffling);
    return r;
}
static flux_tensor *run_loss(flux_layer *m, flux_tensor *x, flux_tensor *y) { return flux_mse(flux_call(m, x), y); }
static void run_epochs(run *r, int from, int to) {
    for (int epoch = from; epoch < to; epoch++) {
        if (epoch == 1) CHECK(flux_adjust(r->opt, .eta = 0.1 / 3) == 0);
        if (epoch == 2) CHECK(flux_adjust_part_with(r->opt, flux_child(r->model, 0), (flux_rule_opts){ .beta = { 0.7, 0.9 } }) == 0);
        CHECK(flux_train(run_loss, r->model, r->loader, r->opt) == 0);
    }
}
static int run_save(run *r, const char *path) {
    const void *items[] = { r->model, r->opt, r->loader, flux_random_state() };
    return flux_save_all_with(path, 4, "model, opt, loader, random", items);
}
static int run_load(run *r, const char *path) {
    const void *items[] = { r->model, r->opt, r->loader };
    if (flux_load_all_with(path, 3, "model, opt, loader", items) != 0) return -1;
    return flux_set_random_state(flux_load_tensor(path, "random"));
}

TEST(a_resumed_run_is_the_run) {
    for (uint64_t shuffling = 0; shuffling < 2; shuffling++) {
        flux_seed(17);
        run whole = run_new(shuffling);
        run_epochs(&whole, 0, 3);
        CHECK(run_save(&whole, TMP("half.safetensors")) == 0);
        run_epochs(&whole, 3, 6);
        CHECK(run_save(&whole, TMP("whole.safetensors")) == 0);
        flux_seed(4711);                                        /* nothing is as it was then, as in another process */
        (void)flux_randn(7);
        run again = run_new(shuffling);
        CHECK(run_load(&again, TMP("half.safetensors")) == 0);
        run_epochs(&again, 3, 6);
        CHECK(run_save(&again, TMP("again.safetensors")) == 0);
        CHECK(same_file(TMP("whole.safetensors"), TMP("again.safetensors")));
    }
}

static const char *state_text(flux_state *s) {
    static char text[2][2000];
    static int turn;
    turn = !turn;
    flux_state_text(s, text[turn], sizeof text[0]);
    return text[turn];
}

/* A file's text with one word for another of its length. */
static void put_word(const char *from, const char *to, const char *word, const char *other) {
    size_t n, length = strlen(word);
    const unsigned char *data = get(from, &n);
    unsigned char *copy = (unsigned char *)malloc(n);
    bool found = false;
    for (size_t i = 0; copy && i < n; i++) copy[i] = data[i];
    for (size_t i = 0; copy && i + length <= n; i++)
        if (memcmp(copy + i, word, length) == 0) memcpy(copy + i, other, length), found = true;
    CHECK(found && strlen(other) == length);
    put(to, copy, n);
    free(copy);
}

static int notes_heard;
static char note_heard[600];
static void hear_note(flux_level level, const char *id, const char *message, void *user) {
    (void)level, (void)id, (void)user;
    notes_heard++;
    snprintf(note_heard, sizeof note_heard, "%s", message);
}

/* The rules' numbers come back, to the bit; from files of earlier versions, which have none, nothing does. */
TEST(numbers_of_rules) {
    flux_rule rules[] = {
        flux_descent(0.1), flux_rmsprop(0.2, .centred = true), flux_adamw(1.0 / 3, .beta = { 0.1, 0.7 }, .couple = FLUX_OFF), flux_rprop(),
        flux_accumgrad(3, flux_clipgrad(.delta = HUGE_VAL)), flux_mixed_precision(flux_adam()), flux_optimiser_chain_with(0, NULL),
        flux_optimiser_chain(flux_clipnorm(1e300, .p = HUGE_VAL, .global = true), flux_adabelief(1e-300), flux_lion(DBL_EPSILON))
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        flux_layer *m = model();
        flux_state *a = flux_setup(rules[i], m), *b = flux_setup(rules[i], m);
        if (i != 3 && i != 4 && i != 6) {
            CHECK(flux_adjust(a, .eta = 0.1 / 7) == 0);
            CHECK(flux_adjust_part_with(a, flux_child(m, 0), (flux_rule_opts){ .eta = 1e-5 / 3 }) == 0);
        }
        CHECK(flux_save(a, TMP("a.safetensors")) == 0);
        CHECK(flux_load(b, TMP("a.safetensors")) == 0);
        CHECK_STR(state_text(b), state_text(a));
        CHECK(flux_save(b, TMP("b.safetensors")) == 0 && same_file(TMP("a.safetensors"), TMP("b.safetensors")));
    }
    flux_layer *m = model();
    flux_state *adam = flux_setup(flux_adam(0.5), m), *other = flux_setup(flux_adam(0.25), m), *oadam = flux_setup(flux_nadam(0.125), m);
    CHECK(flux_save(adam, TMP("a.safetensors")) == 0);
    put_word(TMP("a.safetensors"), TMP("older.safetensors"), "rules:", "older:");
    CHECK(flux_load(other, TMP("older.safetensors")) == 0 && strstr(state_text(other), "Adam(0.25,") != NULL);
    put_word(TMP("a.safetensors"), TMP("older.safetensors"), "eps=1e-08", "epsilon=1");     /* the name that 0.1 wrote */
    CHECK(flux_load(other, TMP("older.safetensors")) == 0 && strstr(state_text(other), "Adam(0.5, beta=(0.9, 0.999), eps=1)") != NULL);
    CHECK(flux_load(other, TMP("a.safetensors")) == 0 && flux_adjust(other, 0.25) == 0);
    flux_on_log(hear_note, NULL);
    CHECK(notes_heard == 0 && flux_load(oadam, TMP("a.safetensors")) == 0 && notes_heard == 1);
    CHECK(strstr(note_heard, "it was saved by Adam(0.5, beta=(0.9, 0.999), eps=1e-08)") && strstr(state_text(oadam), "NAdam(0.125,"));
    const char *const broken[][2] = { { "(0.9,", "(1.9," }, { "(0.5,", "(nan," }, { "(0.5,", "(-.5," }, { "Adam", "adam" }, { "e-08)", "e-08 " } };
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        put_word(TMP("a.safetensors"), TMP("b.safetensors"), broken[i][0], broken[i][1]);
        CHECK(flux_load(other, TMP("b.safetensors")) == 0 && notes_heard == 2 + (int)i && strstr(state_text(other), "Adam(0.25,") != NULL);
    }
    flux_on_log(NULL, NULL);
}

/* The rules' text with any one character made a space, or any one number taken out, is no rules' text: nothing of it is taken. */
static void broken_text(flux_state *s, const char *text, const char *broken) {
    const int notes = notes_heard;
    char was[2000];
    snprintf(was, sizeof was, "%s", state_text(s));
    put_word(TMP("a.safetensors"), TMP("b.safetensors"), text, broken);
    if (!CHECK(flux_load(s, TMP("b.safetensors")) == 0 && notes_heard == notes + 1)) fprintf(stderr, "    %s\n", broken);
    CHECK_STR(state_text(s), was);
}
TEST(broken_rules) {
    static const char number[] = "0123456789.-+einf";
    flux_layer *m = model();
    flux_rule rules[] = {
        flux_descent(0.5), flux_adamw(0.5, .beta = { 0.5, 0.25 }, .couple = FLUX_OFF), flux_rmsprop(0.5, .centred = true),
        flux_accumgrad(3, flux_clipnorm(2.5, .p = 3, .global = true)), flux_optimiser_chain(flux_rprop(0.5), flux_lion(0.25))
    };
    flux_on_log(hear_note, NULL);
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++) FLUX_SCOPE {
        flux_state *s = flux_setup(rules[r], m);
        char text[400], broken[400];
        REQUIRE(flux_save(s, TMP("a.safetensors")) == 0);
        snprintf(text, sizeof text, "%s", state_text(s));
        char *end = strstr(text, "  #");                         /* behind it: how much it is of */
        REQUIRE(end);
        strcpy(end, "\"");
        const size_t n = strlen(text);
        for (size_t i = 0; i + 1 < n; i++) {
            memcpy(broken, text, n + 1);
            if (text[i] != ' ') broken[i] = ' ', broken_text(s, text, broken);
            if (!i || !strchr("(=", text[i - 1]) || !strchr(number, text[i])) continue;
            const size_t size = strspn(text + i, number);        /* what follows moves up; blanks behind the text's end */
            memcpy(broken + i, text + i + size, n - i - size);
            memset(broken + n - size, ' ', size);
            broken_text(s, text, broken);
        }
    }
    flux_on_log(NULL, NULL);
}

TEST(epochs_of_loaders) {
    flux_loader *loader = flux_dataloader(flux_ones(2, 4), .shuffle = true, .seed = 5);
    flux_each (b, loader) (void)b;
    flux_tensor *other = flux_ones(1);
    CHECK(flux_save_all(TMP("l.safetensors"), loader) == 0 && flux_load_all(TMP("l.safetensors"), loader) == 0 && loader->epoch == 1);
    put_word(TMP("l.safetensors"), TMP("m.safetensors"), "loader\":\"1", "loader\":\"x");
    CHECK_ERROR(flux_load_all(TMP("m.safetensors"), loader), "the epoch of loader is \"x\", no count");
    CHECK(flux_save_all(TMP("m.safetensors"), other) == 0);
    CHECK_ERROR(flux_load_all(TMP("m.safetensors"), loader), "it does not fit: it has no epoch of a loader loader");
    const void *twice[] = { loader, loader };
    CHECK_ERROR(flux_save_all_with(TMP("x"), 2, "a, a", twice), "save_all: two things have the name a");
    CHECK_ERROR(flux_save_all_with(TMP("x"), 1, "a\xff", twice), "save_all: nothing can have the name a\xff in a safetensors file");
    CHECK_ERROR(flux_set_random_state(flux_ones(2)), "set_random_state: 2-element f32 is not what flux_random_state gives");
    CHECK_ERROR(flux_set_random_state(NULL), "set_random_state: argument state is NULL");
}

TEST(state_misfits) {
    flux_layer *m = model();
    flux_state *adam = flux_setup(flux_adam(0.01), m), *momentum = flux_setup(flux_momentum(0.01), m);
    train_step(m, adam, 0);
    CHECK(flux_save(adam, TMP("a.safetensors")) == 0);
    CHECK(flux_save(momentum, TMP("b.safetensors")) == 0);
    CHECK_ERROR(flux_load(adam, TMP("b.safetensors")), "it does not fit: ");
    CHECK(flux_save(adam, TMP("c.safetensors")) == 0);
    CHECK(same_file(TMP("a.safetensors"), TMP("c.safetensors")));
    CHECK_ERROR(flux_load(m, TMP("a.safetensors")), "it does not fit: ");
}

/* ------------------------------------------------------------------ the disk */

TEST(saving_replaces_a_file) {
    flux_layer *m = model();
    put_text(TMP("old.safetensors"), "something else, of another length and with no meaning at all");
    CHECK(flux_save(m, TMP("old.safetensors")) == 0);
    CHECK(flux_load(m, TMP("old.safetensors")) == 0);
    CHECK(flux_save(m, TMP("new.safetensors")) == 0 && same_file(TMP("old.safetensors"), TMP("new.safetensors")));
    CHECK_ERROR(flux_save(m, "build"), "save: cannot write ");
    CHECK_ERROR(flux_save(m, "build/no such folder/x"), "save: cannot write ");
    CHECK_ERROR(flux_save(m, ""), "save: the path is empty");
    CHECK_ERROR(flux_save_npy(flux_scalar(1), "build/no such folder/x"), "save_npy: cannot write ");
}

#ifdef _WIN32
TEST(full_disk) { SKIP("no RLIMIT_FSIZE on this system"); }
TEST(unwritable_folder) { SKIP("no permissions of that kind on this system"); }
#else
static int files_left(const char *folder) {    /* whatever lies there, by the shell's own counting */
    char command[200];
    snprintf(command, sizeof command, "ls -A %s | wc -l", folder);
    FILE *p = popen(command, "r");
    int n = -1;
    if (p && fscanf(p, "%d", &n) != 1) n = -1;
    if (p) pclose(p);
    return n;
}

TEST(full_disk) {
    make_folder();
    if (system("rm -rf " TMP("folder")) != 0 || mkdir(TMP("folder"), 0777) != 0) SKIP("no folder could be made");
    const char *st = TMP("folder") "/x.safetensors", *npy = TMP("folder") "/x.npy";
    flux_tensor *small = flux_rand(10), *large = flux_rand(100, 1000);
    CHECK(flux_save(small, st) == 0 && flux_save_npy(small, npy) == 0);
    CHECK(flux_save(small, TMP("keep.st")) == 0 && flux_save_npy(small, TMP("keep.npy")) == 0);
    flux_eval(large);
    struct rlimit old, limit;
    getrlimit(RLIMIT_FSIZE, &old);
    limit = old;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);   /* so that writing fails in place of the program */
    static const int sizes[] = { 0, 1, 100, 64 * 1024, 399999 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        limit.rlim_cur = (rlim_t)sizes[i];
        setrlimit(RLIMIT_FSIZE, &limit);
        flux_on_error(test_silent, NULL);
        int a = flux_save(large, st);
        bool told = strstr(flux_error(), "save: cannot write ") != NULL;
        flux_clear();
        int b = flux_save_npy(large, npy);
        bool told_too = strstr(flux_error(), "save_npy: cannot write ") != NULL;
        flux_clear();
        flux_on_error(NULL, NULL);
        setrlimit(RLIMIT_FSIZE, &old);
        CHECK(a != 0 && b != 0 && told && told_too);
        CHECK(same_file(st, TMP("keep.st")) && same_file(npy, TMP("keep.npy")));
        CHECK(files_left(TMP("folder")) == 2);
    }
    signal(SIGXFSZ, handler);
    CHECK(flux_save(large, st) == 0 && flux_save_npy(large, npy) == 0);
    CHECK(same_bits(large, flux_load_tensor(st, NULL)) && same_bits(large, flux_load_npy(npy)));
    remove(st);
    remove(npy);
    rmdir(TMP("folder"));
}

/* Whatever writes a file, on a disk that is full at its first byte, after one, half way and before the last: there is an error
   that says so, and nothing beside the file of before. (What is not freed shows at the end.) But for drawings, files are
   larger than what waits to be written (sinks.h), so that writing fails on the way as well as at the end. */
static flux_layer *written;
static flux_state *written_state;
static flux_tensor *picture;
static int write_layer(const char *path) { return flux_save(written, path); }
static int write_state(const char *path) { return flux_save(written_state, path); }
static int write_all(const char *path) { return flux_save_all(path, written, written_state); }
static int write_torch(const char *path) { return flux_save_torch(written, path, NULL); }
static int write_npz(const char *path) { return flux_save_npz(path, picture); }
static int write_image(const char *path) { return flux_save_image(picture, path); }
static int write_images(const char *path) { return flux_save_images(flux_reshape(picture, 128, 128, 1, 4), path, 2); }
static int write_dot(const char *path) { return flux_graph_dot(flux_call(written, flux_ones(4, 2)), path); }
static int write_c(const char *path) { return flux_export_c(written, FLUX_SHAPE(4, 2), path); }
TEST(a_full_disk_for_each_writer) {
    static const struct { const char *name; int (*write)(const char *path); } writer[] = {
        { "x.safetensors", write_layer }, { "x.state", write_state }, { "x.all", write_all }, { "x.torch", write_torch }, { "x.npz", write_npz },
        { "x.pgm", write_image }, { "all.pgm", write_images }, { "x.dot", write_dot }, { "x.c", write_c },
    };
    make_folder();
    if (system("rm -rf " TMP("folder")) != 0 || mkdir(TMP("folder"), 0777) != 0) SKIP("no folder could be made");
    written = flux_chain(flux_dense(4, 1500, flux_tanh), flux_dense(1500, 2));
    written_state = flux_setup(flux_adam(0.1), written);
    picture = flux_eval(flux_rand(256, 256));
    struct rlimit old, limit;
    getrlimit(RLIMIT_FSIZE, &old);
    limit = old;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    for (size_t i = 0; i < sizeof writer / sizeof *writer; i++) {
        char path[200];
        struct stat there;
        snprintf(path, sizeof path, "%s/%s", TMP("folder"), writer[i].name);
        REQUIRE(writer[i].write(path) == 0 && stat(path, &there) == 0 && there.st_size > (writer[i].write == write_dot ? 1 : 1 << 15));
        const long most = (long)there.st_size - 1, at[4] = { 0, 1, most / 2, most };
        CHECK(rename(path, TMP("keep.st")) == 0);
        for (int k = 0; k < 4; k++) {
            limit.rlim_cur = (rlim_t)at[k];
            setrlimit(RLIMIT_FSIZE, &limit);
            flux_on_error(test_silent, NULL);
            const int code = writer[i].write(path);
            const bool told = strstr(flux_error(), "cannot write ") != NULL;
            flux_clear();
            flux_on_error(NULL, NULL);
            setrlimit(RLIMIT_FSIZE, &old);
            if (writer[i].write == write_dot) remove(path);       /* a drawing is written where it is to be */
            if (!CHECK(code != 0 && told && files_left(TMP("folder")) == 0)) fprintf(stderr, "    %s, %ld bytes\n", writer[i].name, at[k]);
        }
        CHECK(writer[i].write(path) == 0 && files_left(TMP("folder")) == 1 && remove(path) == 0);
    }
    signal(SIGXFSZ, handler);
    remove(TMP("keep.st"));
    rmdir(TMP("folder"));
}

TEST(unwritable_folder) {
    make_folder();
    if (system("rm -rf " TMP("locked")) != 0 || mkdir(TMP("locked"), 0777) != 0) SKIP("no folder could be made");
    chmod(TMP("locked"), 0555);
    FILE *f = fopen(TMP("locked") "/probe", "wb");
    if (f) {
        fclose(f);
        remove(TMP("locked") "/probe");
    } else CHECK_ERROR(flux_save(flux_scalar(1), TMP("locked") "/x"), "save: cannot write ");
    bool all_powerful = f != NULL;
    chmod(TMP("locked"), 0777);
    CHECK(files_left(TMP("locked")) == 0);
    rmdir(TMP("locked"));
    if (all_powerful) SKIP("this user may write anywhere");
}
#endif

/* Pixels of 1 to 4 channels, alpha the last of 2 and 4, as 1 to 4: grey is all colours, colours are their luminance, no alpha is 1. */
TEST(channels_of_pixels) {
    unsigned char byte[4] = { 51, 102, 204, 153 };
    for (int from = 1; from <= 4; from++)
        for (int to = 1; to <= 4; to++) {
            const flux__pixels p = { 1, 1, from, byte, false };
            float out[4];
            flux__pixels_numbers(&p, out, to);
            for (int c = 0; c < to; c++) {
                const bool alpha = to % 2 == 0 && c == to - 1;
                double want = from < 3 ? 51 : to < 3 ? 0.299 * 51 + 0.587 * 102 + 0.114 * 204 : byte[c];
                if (alpha) want = from % 2 == 0 ? byte[from - 1] : 255;
                CHECK_NEAR(out[c], want / 255, 1e-6);
            }
        }
}

/* The rules that a file names are read back to the bit, by a state of these rules alone; a text that ends before or goes on
   behind is none. */
TEST(rules_are_read_by_those_that_wrote_them) {
    const flux_rule rules[] = {
        flux_descent(0.1 + 1e-17), flux_adam(1.0 / 3, .beta = { 0.7, 1 - 1e-9 }), flux_nadam(), flux_adamw(.lambda = 0.01), flux_momentum(1e-30),
        flux_rmsprop(), flux_rmsprop(.centred = true), flux_rprop(), flux_clipnorm(), flux_clipnorm(1, .global = true), flux_mixed_precision(flux_descent()),
        flux_optimiser_chain(flux_clipgrad(), flux_descent()), flux_optimiser_chain(flux_clipgrad(), flux_descent(), flux_descent()),
        flux_mixed_precision(flux_optimiser_chain(flux_clipgrad(), flux_descent())), flux_adamw(.couple = FLUX_OFF), };
    enum { N = (int)(sizeof rules / sizeof *rules) };
    char text[N][400], back[400];
    flux_state *of[N];
    flux_layer *m = flux_dense(1, 1);
    flux_rule_opts o[FLUX_MAX_RULES];
    for (int i = 0; i < N; i++) {
        of[i] = flux_setup(rules[i], m);
        REQUIRE(of[i] && flux__rules_text(of[i], NULL, text[i], sizeof text[i]) < sizeof text[i]);
    }
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            const bool same = i == j || (of[i]->nrules == 1 && of[j]->nrules == 1 && of[i]->mixed == of[j]->mixed && !strncmp(text[i], "AdamW", 5) && !strncmp(text[j], "AdamW", 5));
            bool took = flux__read_rules(text[i], of[j], o);
            if (took) flux__rules_text(of[j], o, back, sizeof back);
            if (!CHECK(took == same && (!same || !strcmp(back, text[i])))) fprintf(stderr, "    %s by %s\n", text[i], text[j]);
        }
    for (int i = 0; i < N; i++) {
        const size_t n = strlen(text[i]);
        for (size_t k = 0; k < n; k++) {
            snprintf(back, sizeof back, "%.*s", (int)k, text[i]);
            if (!CHECK(!flux__read_rules(back, of[i], o))) fprintf(stderr, "    %s\n", back);
        }
        snprintf(back, sizeof back, "%.390s)", text[i]);
        CHECK(!flux__read_rules(back, of[i], o));
    }
}

/* What a message says there is: names with commas, each up to `cut` bytes, until these are `most`; then three dots, or nothing. */
enum { LISTED = 9 };
static bool lists(const char name[LISTED][64], const char *before, const char *after, int cut, size_t most, bool dots) {
    char want[1200] = "";
    int i = 0;
    for (; i < LISTED && strlen(want) < most; i++) {
        char one[200];
        snprintf(one, sizeof one, "%s%s%s", before, name[i], after);
        snprintf(want + strlen(want), sizeof want - strlen(want), "%s%.*s", i ? ", " : "", cut, one);
    }
    if (i < LISTED && dots) strcat(want, ", ...");
    const char *at = strstr(flux_error(), want);
    const bool good = at && at > flux_error() && at[-1] == ' ' && !at[strlen(want)];
    if (!good) fprintf(stderr, "    \"%s\" does not end with \"%s\"\n", flux_error(), want);
    flux_clear();
    return good;
}
TEST(names_in_messages) {
    flux_layer *layers[LISTED];
    const void *things[LISTED];
    for (int i = 0; i < LISTED; i++) things[i] = flux_ones(1);
    flux_on_error(test_silent, NULL);
    for (int n = 1; n < 63; n++) {
        static char name[LISTED][64], all[1000], table[1000];
        *all = *table = 0;
        for (int i = 0; i < LISTED; i++) {
            snprintf(name[i], sizeof name[i], "%c%.*s", 'a' + i, i ? 20 : n - 1, "bcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz");
            layers[i] = flux_named(name[i], flux_dense(1, 1, .bias = false));
            snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "", name[i]);
            snprintf(table + strlen(table), sizeof table - strlen(table), "%s%s", i ? "," : "", name[i]);
        }
        strcat(table, "\n1,2,3,4,5,6,7,8,9\n");
        CHECK(!flux_param(flux_chain_with(LISTED, layers, NULL), "none") && lists((const char (*)[64])name, "layers.", ".weight", 80, 300, true));
        CHECK(flux_save_all_with(TMP("named"), LISTED, all, things) == 0);
        CHECK(!flux_load_tensor(TMP("named"), "none") && lists((const char (*)[64])name, "", "", 60, 120, true));
        CHECK(!flux_load_tensor(TMP("named"), NULL) && lists((const char (*)[64])name, "", "", 60, 120, true));
        CHECK(!flux_columns(flux_load_table(put(TMP("named.csv"), table, strlen(table))), "none") && lists((const char (*)[64])name, "", "", 40, 150, false));
    }
    flux_on_error(NULL, NULL);
}

/* A folder is no file, to whatever reads or writes one. */
TEST(folders_in_place_of_files) {
#ifdef _WIN32
    SKIP("a folder cannot be opened");
#else
    static const char path[] = "build/test_files.folder";
    flux_layer *m = flux_dense(2, 2);
    flux_tensor *x = flux_ones(2, 2);
    mkdir(path, 0777);
#define FOLDER(call, text) CHECK_ERROR((call) ? x : NULL, text)
    FOLDER(flux_load_npy(path), "load_npy: build/test_files.folder: cannot read it: ");
    FOLDER(flux_load_idx(path), "load_idx: build/test_files.folder: cannot read it: ");
    FOLDER(flux_load_npz(path, NULL), "load_npz: build/test_files.folder: cannot read it: ");
    FOLDER(flux_npz_names(path, NULL, 0) >= 0, "npz_names: build/test_files.folder: cannot read it: ");
    FOLDER(flux_load_tensor(path, NULL), "load_tensor: build/test_files.folder: cannot read it: ");
    FOLDER(flux_load(m, path) == 0, "load: build/test_files.folder: cannot read it: ");
    FOLDER(flux_load_torch(m, path, NULL) == 0, "load_torch: build/test_files.folder: cannot read it: ");
    FOLDER(flux_load_csv(path), "load_csv: cannot read build/test_files.folder: ");
    FOLDER(flux_load_table(path), "load_table: cannot read build/test_files.folder: ");
    FOLDER(flux_load_image(path), "load_image: cannot read build/test_files.folder: ");
    FOLDER(flux_save(m, path) == 0, "save: cannot write build/test_files.folder: ");
    FOLDER(flux_save(x, path) == 0, "save: cannot write build/test_files.folder: ");
    FOLDER(flux_save_npy(x, path) == 0, "save_npy: cannot write build/test_files.folder: ");
    FOLDER(flux_save_npz(path, x) == 0, "save_npz: cannot write build/test_files.folder: ");
    FOLDER(flux_save_all(path, x) == 0, "save_all: cannot write build/test_files.folder: ");
    FOLDER(flux_export_c(m, FLUX_SHAPE(2), path) == 0, "export_c: cannot write build/test_files.folder: ");
    FOLDER(flux_graph_dot(x, path) == 0, "graph_dot: cannot open build/test_files.folder: ");
#undef FOLDER
    CHECK(rmdir(path) == 0);              /* and nothing was put into it */
#endif
}

TEST_MAIN()
