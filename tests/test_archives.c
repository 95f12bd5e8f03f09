/* Compressed files and archives: what Python's gzip and NumPy's savez wrote (tests/fixtures/files, by make_files.py) reads as its
   values, in whatever pieces it was written; what is broken, cut off or bombs memory is refused with its reason; NumPy's own
   zip module reads what we write (check_python.sh). */
#ifndef _WIN32
#  define _POSIX_C_SOURCE 200809L
#  include <sys/stat.h>
#  include <unistd.h>
#else
#  include <direct.h>
#endif
#include <stddef.h>
#include <stdlib.h>
#if defined(__has_include)
#  if __has_include(<zlib.h>)
#    include <zlib.h>
#    define HAVE_ZLIB_H
#  endif
#endif

#define FLUX_IMPLEMENTATION               /* bytes in memory, and what was found of zlib */
#include "scarce.h"

#define FIXTURE(name) "tests/fixtures/files/" name
#define TMP(name) "build/test_archives." name
#define ZLIB() do { if (!has_zlib()) SKIP("no zlib; package: zlib1g"); } while (0)

/* Whether this system has zlib, where it is looked for: then it is found. It gets 7 bytes at a time from here on, not
   1 GiB, which is more than a test has. */
static bool has_zlib(void) {
    flux__test_inflate_piece(7);
#if defined(__linux__)
    const bool there = flux__library_open("libz.so.1") || flux__library_open("libz.so");
    CHECK(there == !flux__zlib_missing());
    return there;
#else
    return !flux__zlib_missing();
#endif
}

static const char *put(const char *path, const void *data, size_t n) {
#ifdef _WIN32
    _mkdir("build");
#else
    mkdir("build", 0777);
#endif
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n) test_fail(__FILE__, __LINE__, "cannot write a temporary file");
    if (f) fclose(f);
    return path;
}
static size_t get(const char *path, unsigned char *room, size_t most) {
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(room, 1, most, f) : 0;
    if (f) fclose(f);
    return n;
}
/* Element k of a fixture, counted row by row as NumPy does: see make_files.py. */
static bool has_formula(flux_tensor *x, bool fractions) {
    flux_tensor *wide = x ? flux_to_dtype(x, FLUX_F64) : NULL;
    const double *v = wide ? (const double *)flux_data(wide) : NULL;
    flux_shape s = flux_shape_of(x);
    for (int64_t i = 0; v && i < flux_len(x); i++) {
        int64_t rest = i, k = 0, at[FLUX_MAX_DIMS] = { 0 };
        for (int d = 0; d < s.ndim; d++) at[d] = rest % s.dim[d], rest /= s.dim[d];
        for (int d = 0; d < s.ndim; d++) k = k * s.dim[d] + at[d];
        const double want = (double)(k * 7 % 13 - 6);
        if (v[i] != (fractions ? want / 4 : want)) return false;
    }
    return v != NULL;
}

#ifdef HAVE_ZLIB_H
/* Our declaration of zlib's stream is zlib's own. */
#define SAME(ours, theirs) (offsetof(flux__z_stream, ours) == offsetof(z_stream, theirs) && sizeof ((flux__z_stream *)0)->ours == sizeof ((z_stream *)0)->theirs)
typedef char stream_is_theirs[sizeof(flux__z_stream) == sizeof(z_stream) && SAME(next_in, next_in) && SAME(avail_in, avail_in) &&
    SAME(next_out, next_out) && SAME(avail_out, avail_out) && SAME(msg, msg) && SAME(zalloc, zalloc) && SAME(zfree, zfree) && SAME(opaque, opaque) ? 1 : -1];
#endif

TEST(gzip_files) {
    ZLIB();
    flux_tensor *x = flux_load_npy(FIXTURE("c_order.npy.gz")), *y = flux_load_npy(FIXTURE("c_order.npy"));
    REQUIRE(x && flux_len(x) == flux_len(y));
    CHECK(memcmp(flux_data(x), flux_data(y), 24 * sizeof(float)) == 0);
    x = flux_load_idx(FIXTURE("u8.idx.gz")), y = flux_load_idx(FIXTURE("u8.idx"));
    REQUIRE(x && y && flux_len(x) == 60);
    CHECK(memcmp(flux_data(x), flux_data(y), 60) == 0);
    const double want[6] = { 1, 2, 3, 4, 5, 6 };
    CHECK_DATA(flux_load_csv(FIXTURE("two.csv.gz")), want, 0);       /* two members, the cut within a line */
}

TEST(gzip_broken) {
    static unsigned char p[4096], q[4096];
    ZLIB();
    size_t n = get(FIXTURE("c_order.npy.gz"), p, sizeof p);
    REQUIRE(n == 131);
    for (size_t cut = 2; cut < n; cut++) {
        flux_on_error(test_silent, NULL);
        CHECK(!flux_load_npy(put(TMP("gz"), p, cut)) && strstr(flux_error(), "c"));
        flux_clear();
    }
    flux_on_error(NULL, NULL);
    CHECK_ERROR(flux_load_npy(put(TMP("gz"), p, n - 1)), "gz: it is compressed by gzip, and can't be inflated: it ends within its compressed data");
    memcpy(q, p, n), q[n - 8] ^= 1;
    CHECK_ERROR(flux_load_npy(put(TMP("gz"), q, n)), "incorrect data check");
    memcpy(q, p, n), q[n - 4] ^= 1;
    CHECK_ERROR(flux_load_npy(put(TMP("gz"), q, n)), "incorrect length check");
    memcpy(q, p, n), q[2] = 9;
    CHECK_ERROR(flux_load_npy(put(TMP("gz"), q, n)), "unknown compression method");
    memcpy(q, p, n), memcpy(q + n, "\0\0\0\0", 4);                  /* what pads a block is not data */
    CHECK(flux_load_npy(put(TMP("gz"), q, n + 4)) != NULL);
    memcpy(q + n, "\0\0x", 3);
    CHECK_ERROR(flux_load_npy(put(TMP("gz"), q, n + 3)), "something follows its compressed data");
    memcpy(q, p, n), memset(q + n - 4, 255, 4);                     /* a length that is not believed */
    CHECK_ERROR(flux_load_npy(put(TMP("gz"), q, n)), "incorrect length check");
    static const unsigned char twice[] = "\x1f\x8b\x08\0\0\0\0\0\x02\x03\x93\xefVH\xccKQ(\xceW\xc8\xcf\x03\0\xdaO\xfd" "E\x0c\0\0";
    CHECK_ERROR(flux_load_csv(put(TMP("gz"), twice, sizeof twice)), "it is compressed by gzip, and within that once more");
    CHECK_ERROR(flux_load_csv(put(TMP("gz"), "\x1f\x8b", 2)), "it ends within its compressed data");
    CHECK_ERROR(flux_load_tensor(FIXTURE("two.csv.gz"), NULL), "two.csv.gz: it is no safetensors file");
}

/* Without zlib the error says what to install, and the library named by the environment is the only one. */
TEST(no_zlib) {
#ifdef _WIN32
    SKIP("no setenv on this system");
#else
    const bool here = !flux__zlib_missing();
    memset((void *)&flux__zlib, 0, sizeof flux__zlib);
    setenv("FLUX_ZLIB_LIBRARY", "/nowhere/libz.so", 1);
    CHECK_ERROR(flux_load_idx(FIXTURE("u8.idx.gz")), "unpack it first (gunzip), for want of zlib: no zlib: FLUX_ZLIB_LIBRARY: /nowhere/libz.so");
    CHECK_ERROR(flux_load_npz(FIXTURE("deflated.npz"), "x"), "deflated.npz(x): it is compressed: save it by numpy.savez, for want of zlib: no zlib");
    CHECK(has_formula(flux_load_npz(FIXTURE("stored.npz"), "x"), true));
    memset((void *)&flux__zlib, 0, sizeof flux__zlib);
    setenv("FLUX_ZLIB_LIBRARY", "libm.so.6", 1);
    flux_on_error(test_silent, NULL);
    CHECK(!flux_load_idx(FIXTURE("u8.idx.gz")) && strstr(flux_error(), "zlib"));
    flux_clear();
    flux_on_error(NULL, NULL);
    unsetenv("FLUX_ZLIB_LIBRARY");
    memset((void *)&flux__zlib, 0, sizeof flux__zlib);
    CHECK(here == !flux__zlib_missing());
#endif
}

/* A zlib that does not begin, for want of memory or for another reason. */
static int start_code;
static int start_not(flux__z_stream *z, int bits, const char *version, int size) { return (void)z, (void)bits, (void)version, (void)size, start_code; }
TEST(a_zlib_that_does_not_begin) {
    ZLIB();
    int (*const start)(flux__z_stream *, int, const char *, int) = flux__zlib.start;
    flux__zlib.start = start_not;
    start_code = -6;                                                /* Z_VERSION_ERROR */
    CHECK_ERROR(flux_load_idx(FIXTURE("u8.idx.gz")), "it is compressed by gzip, and can't be inflated: zlib refuses to begin");
    CHECK_ERROR(flux_load_npz(FIXTURE("deflated.npz"), "x"), "it can't be inflated: zlib refuses to begin");
    start_code = -4;
    CHECK_ERROR(flux_load_idx(FIXTURE("u8.idx.gz")), "can't be inflated: out of memory to inflate it");
    flux__zlib.start = start;
    CHECK(flux_load_idx(FIXTURE("u8.idx.gz")) != NULL);
}

TEST(numpy_archives) {
    static const char *const files[] = { FIXTURE("stored.npz"), FIXTURE("deflated.npz") };
    char names[100];
    for (int i = 0; i < 2; i++) {
        if (i && !has_zlib()) SKIP("no zlib; package: zlib1g");
        CHECK(flux_npz_names(files[i], names, sizeof names) == 4);
        CHECK_STR(names, "x, labels, c, scalar");
        flux_tensor *x = flux_load_npz(files[i], "x"), *c = flux_load_npz(files[i], "c");
        CHECK(flux_dim(x, 0) == 2 && flux_dim(x, 1) == 3 && flux_dtype_of(x) == FLUX_F32 && has_formula(x, true));
        CHECK(flux_ndim(c) == 3 && flux_dim(c, 2) == 4 && flux_dtype_of(c) == FLUX_F64 && has_formula(c, true));
        CHECK(flux_dtype_of(flux_load_npz(files[i], "labels")) == FLUX_I64 && has_formula(flux_load_npz(files[i], "labels"), false));
        CHECK_NEAR(flux_item(flux_load_npz(files[i], "scalar")), -1.5, 0);
    }
    CHECK(has_formula(flux_load_npz(FIXTURE("stream.npz"), "x"), true) && has_formula(flux_load_npz(FIXTURE("stream.npz"), NULL), true));
    CHECK(flux_npz_names(FIXTURE("archive.npz"), NULL, 0) == 1);
    CHECK(flux_npz_names(FIXTURE("stored.npz"), names, 4) == 4);
    CHECK_STR(names, "x, ");
    CHECK_ERROR(flux_load_npz(FIXTURE("stored.npz"), NULL), "stored.npz: it holds 4 arrays, so one must be named: x, labels, c, scalar");
    CHECK_ERROR(flux_load_npz(FIXTURE("stored.npz"), "y"), "it holds no array y; it has 4: x, labels, c, scalar");
    CHECK_ERROR(flux_load_npz(FIXTURE("f4.npy"), NULL), "it is no zip archive, as .npz files are, or it was cut off");
    CHECK_ERROR(flux_load_npz(NULL, NULL), "load_npz: argument path is NULL");
    CHECK_ERROR(flux_load_npz("no/such.npz", NULL), "load_npz: cannot open no/such.npz");
}

TEST(archives_round_trip) {
    static const flux_dtype types[] = { FLUX_F32, FLUX_F64, FLUX_F16, FLUX_I32, FLUX_I64, FLUX_U8, FLUX_BOOL };
    char names[100];
    for (int i = 0; i < 7; i++) {
        flux_tensor *a = flux_to_dtype(flux_reshape(flux_arange(0, 30, 1), 2, 3, 5), types[i]), *empty = flux_zeros(0, 3);
        CHECK(flux_save_npz(TMP("npz"), a, empty) == 0);
        CHECK(flux_npz_names(TMP("npz"), names, sizeof names) == 2);
        CHECK_STR(names, "a, empty");
        flux_tensor *b = flux_load_npz(TMP("npz"), "a");
        REQUIRE(b && flux_dtype_of(b) == types[i] && flux_dim(b, 2) == 5);
        CHECK(memcmp(flux_data(a), flux_data(b), 30 * flux_dtype_size(types[i])) == 0);
        CHECK(flux_len(flux_load_npz(TMP("npz"), "empty")) == 0);
    }
    flux_tensor *a = flux_ones(3);
    const void *twice[] = { a, a }, *other[] = { a, flux_dense(2, 2) };
    CHECK_ERROR(flux_save_npz(TMP("npz"), flux_to_dtype(a, FLUX_BF16)), "NumPy has no bf16; convert first");
    CHECK_ERROR(flux_save_npz_with(TMP("npz"), 2, "a, a", twice), "save_npz: two arrays have the name a");
    CHECK_ERROR(flux_save_npz_with(TMP("npz"), 2, "a, m", other), "save_npz: m is no tensor");
    CHECK_ERROR(flux_save_npz_with(NULL, 2, "a, b", twice), "save_npz: argument path is NULL");
    CHECK_ERROR(flux_save_npz_with(TMP("npz"), 2, "a", twice), "save_npz: \"a\" does not name 2 things");
    CHECK(flux_npz_names(TMP("npz"), names, sizeof names) == 2);    /* what was there stays */
}

/* An archive by hand, of one member, whose sizes stand in a 64-bit field: behind another field of so many bytes, or, as no reader
   may believe, in the comment. */
static size_t zip64_of_one(unsigned char *p, size_t other, bool in_comment) {
    static unsigned char npy[200];
    const size_t n = get(FIXTURE("vector.npy"), npy, sizeof npy);
    size_t at = 0, directory;
    memset(p, 0, 1024);
    memcpy(p, "PK\3\4", 4), flux__put_little(p + 26, 5, 2), memcpy(p + 30, "v.npy", 5), memcpy(p + 35, npy, n);
    at = directory = 35 + n;
    unsigned char *d = p + at;
    memcpy(d, "PK\1\2", 4);
    flux__put_little(d + 16, flux__crc32(0, npy, n), 4);
    memset(d + 20, 255, 8), memset(d + 42, 255, 4);
    flux__put_little(d + 28, 5, 2), flux__put_little(d + 30, 4 + other + (in_comment ? 0 : 28), 2);
    flux__put_little(d + 32, in_comment ? 28 : 0, 2);
    memcpy(d + 46, "v.npy", 5);
    flux__put_little(d + 51, 0x7075, 2), flux__put_little(d + 53, other, 2);
    unsigned char *field = d + 55 + other;
    flux__put_little(field, 1, 2), flux__put_little(field + 2, 24, 2);
    flux__put_little(field + 4, n, 8), flux__put_little(field + 12, n, 8);
    at += 46 + 5 + 4 + other + 28;
    d = p + at;
    memcpy(d, "PK\6\6", 4), flux__put_little(d + 32, 1, 8), flux__put_little(d + 40, at - directory, 8), flux__put_little(d + 48, directory, 8);
    memcpy(d + 56, "PK\6\7", 4), flux__put_little(d + 64, at, 8);
    d += 76, at += 76;
    memcpy(d, "PK\5\6", 4), memset(d + 8, 255, 12), flux__put_little(d + 20, 3, 2), memcpy(d + 22, "foo", 3);
    return at + 25;
}

TEST(zip64) {
    static unsigned char p[1024], q[1024];
    size_t n = zip64_of_one(p, 24, true);
    CHECK_ERROR(flux_load_npz(put(TMP("zip64"), p, n), "v"), "its place in the archive is broken");
    n = zip64_of_one(p, 6, false);
    flux_tensor *v = flux_load_npz(put(TMP("zip64"), p, n), "v");
    CHECK(v && flux_len(v) == 5 && has_formula(v, false));
    for (size_t cut = 0; cut < n; cut++) {              /* cut off anywhere, or one byte another: an error or the value, never more */
        flux_on_error(test_silent, NULL);
        CHECK(!flux_load_npz(put(TMP("cut"), p, cut), "v"));
        flux_clear();
        memcpy(q, p, n), q[cut] ^= 0x55;
        v = flux_load_npz(put(TMP("cut"), q, n), "v");
        CHECK(v ? has_formula(v, false) : flux_failed());
        flux_clear();
    }
    flux_on_error(NULL, NULL);
    memcpy(q, p, n), q[n - 25 - 76 + 40] += 10;          /* a directory that goes on into the record that says where it is */
    CHECK_ERROR(flux_load_npz(put(TMP("cut"), q, n), "v"), "its directory is broken");
    memcpy(q, p, n), q[4 + 26 + 5 + 100] ^= 1;
    CHECK_ERROR(flux_load_npz(put(TMP("cut"), q, n), "v"), "cut(v): its bytes are not those that were saved: their sum differs");
}

TEST(zip_malformed) {
    static unsigned char p[2048];
    size_t n = get(FIXTURE("stored.npz"), p, sizeof p), at = n;
    REQUIRE(n == 1238);
    while (at > 0 && memcmp(p + at - 4, "PK\1\2", 4) != 0) at--;     /* the last entry, of scalar */
    at -= 4;
    p[at + 10] = 12;
    CHECK_ERROR(flux_load_npz(put(TMP("bad"), p, n), "scalar"), "bad(scalar): it is compressed by method 12; stored (0) and deflated (8)");
    p[at + 10] = 0, p[at + 8] |= 1;
    CHECK_ERROR(flux_load_npz(put(TMP("bad"), p, n), "scalar"), "it is encrypted");
    p[at + 8] &= 0xFE, p[at + 44] = 1;
    CHECK_ERROR(flux_load_npz(put(TMP("bad"), p, n), "scalar"), "its place in the archive is broken");
    p[at + 44] = 0, p[at + 24]++;
    CHECK_ERROR(flux_load_npz(put(TMP("bad"), p, n), "scalar"), "its place in the archive is broken");
    p[at + 24]--, memcpy(p + at + 46, "labels.npy", 10);
    CHECK_ERROR(flux_load_npz(put(TMP("bad"), p, n), "scalar"), "the name labels stands there twice");
    p[at] = 'x';
    CHECK_ERROR(flux_load_npz(put(TMP("bad"), p, n), "scalar"), "its directory is broken at member 4");
    p[n - 6]++;
    CHECK_ERROR(flux_load_npz(put(TMP("bad"), p, n), "scalar"), "its directory is broken: 4 members in");
}

/* A directory of so many members has at least 46 bytes for each, lies before its end, and is no longer than 100 MB. */
TEST(zip_directories_that_cannot_be) {
    static unsigned char p[2116 + 22];
    static const struct { int count, bytes, at; const char *error; } ends[] = {
        { 47, 2116, 0, "its directory is broken: 47 members in 2116 bytes at byte 0" }, { 46, 2116, 0, "its directory is broken at member 1" },
        { 46, 2116, 1, "its directory is broken: 46 members in 2116 bytes at byte 1" }, { 1, 0, 2117, "its directory is broken: 1 members in 0 bytes" },
        { 45, 2115, 1, "its directory is broken at member 1" }, { 1, 45, 0, "its directory is broken: 1 members in 45" } };
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        memcpy(p + 2116, "PK\5\6", 4);
        flux__put_little(p + 2126, (uint64_t)ends[i].count, 2), flux__put_little(p + 2128, (uint64_t)ends[i].bytes, 4);
        flux__put_little(p + 2132, (uint64_t)ends[i].at, 4);
        CHECK_ERROR(flux_load_npz(put(TMP("bad"), p, sizeof p), "v"), ends[i].error);
    }
}

/* CRC-32's check value, and a sum that is taken in parts. */
TEST(sums) {
    const unsigned char *text = (const unsigned char *)"123456789";
    CHECK(flux__crc32(0, text, 9) == 0xCBF43926u);
    for (size_t i = 0; i <= 9; i++) CHECK(flux__crc32(flux__crc32(0, text, i), text + i, 9 - i) == 0xCBF43926u);
}

/* Memory may run out at any allocation, zlib's too. */
static bool scarce_call(int which) {
    flux_tensor *a = which == 5 ? flux_ones(2, 3) : NULL;
    switch (which) {
    case 0: return flux_load_npy(FIXTURE("c_order.npy.gz")) != NULL;
    case 1: return flux_load_csv(FIXTURE("two.csv.gz")) != NULL;
    case 2: return flux_load_npz(FIXTURE("deflated.npz"), "labels") != NULL;
    case 3: return flux_load_npz(FIXTURE("stored.npz"), "labels") != NULL;
    case 4: return flux_npz_names(FIXTURE("stored.npz"), NULL, 0) == 4;
    default: return a && flux_save_npz(TMP("scarce"), a) == 0;
    }
}
TEST(out_of_memory) {
    ZLIB();
    for (int which = 0; which < 6; which++) SCARCE(scarce_call(which), 0, 1);
}

TEST_MAIN()
