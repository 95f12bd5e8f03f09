#ifndef FLUX__FILES_SOURCES_H
#define FLUX__FILES_SOURCES_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/sinks.h"
#include "../graph/leaves.h"
#include "gzip.h"

/* ---------------------------------------------------------------------- files/sources.h
   Reading: a flux__source is a file, or bytes in memory in place of one: of a
   file that was compressed by gzip, of a member of an archive, or those that a
   test gives the parsers. The table of element types as files
   name them, decoding to the host's byte order, and reading a tensor at a
   position (flux__read_tensor) are here as well. The readers of IDX (MNIST's
   format), .npy, CSV and safetensors, and the writers of .npy and safetensors,
   use this room.

   Invariant: nothing that a file says is used before it is checked. No memory
   is allocated for data that a heading announces before these bytes are known
   to be in the file. What is in memory, or on the disk under the name asked
   for, changes at the very end of a call or not at all. Files are little-endian
   (IDX and some .npy are not) and row-major, and tensors are column-major: a
   tensor of reversed dims has its elements in the file's order, so they are
   read without a transpose.

   Rejected: mapping files into memory. If another process cuts a mapped file off,
   private or not, looking at it kills this one, and no guard in a library can
   promise otherwise; and reading what a tensor needs right into its buffer is
   one copy at memcpy's pace (tests/bench/bench_files.c), which a mapping that is
   copied from would need too. Also rejected: a JSON parser for more than
   safetensors allows: three fixed levels need no recursion. */

FLUX__BEGIN_COLD

/* Element types as files name them. The first ones are our dtypes, in the order of flux_dtype, so
   that a dtype is an index; only these are written. The others are converted to the next wider
   dtype when they are read. */
typedef struct flux__element {
    const char *name;                     /* name in safetensors */
    char letter;                          /* NumPy's letter; 0: NumPy has no such type */
    uint8_t idx;                          /* IDX's number; 0: IDX has no such type */
    uint8_t size;                         /* bytes of an element in the file */
    uint8_t dtype;                        /* flux_dtype that it is read as */
} flux__element;
static const flux__element flux__elements[] = {
    { "F32", 'f', 0x0D, 4, FLUX_F32 }, { "F64", 'f', 0x0E, 8, FLUX_F64 },
    { "F16", 'f', 0, 2, FLUX_F16 },    { "BF16", 0, 0, 2, FLUX_BF16 },
    { "I32", 'i', 0x0C, 4, FLUX_I32 }, { "I64", 'i', 0, 8, FLUX_I64 },
    { "U8", 'u', 0x08, 1, FLUX_U8 },   { "BOOL", 'b', 0, 1, FLUX_BOOL },
    { "I8", 'i', 0x09, 1, FLUX_I32 },  { "I16", 'i', 0x0B, 2, FLUX_I32 },
    { "U16", 'u', 0, 2, FLUX_I32 },    { "U32", 'u', 0, 4, FLUX_I64 }
};
enum { FLUX__NUM_ELEMENTS = (int)(sizeof flux__elements / sizeof *flux__elements) };

/* ---------------- sources */

typedef struct flux__source {
    const char *call, *path;              /* for messages */
    FILE *file;                           /* NULL: the source is `bytes` */
    const unsigned char *bytes;           /* owned by the caller; NULL if there is a file */
    uint64_t size;                        /* number of bytes; of a file not known: 0 */
    void *held;                           /* the memory of `bytes` if it goes with the source */
} flux__source;

/* Raises an error about a source, "CALL: PATH: what is wrong", and returns NULL. */
static void *flux__bad(const flux__source *s, const char *format, ...) FLUX__PRINTF(2, 3);
static void *flux__bad(const flux__source *s, const char *format, ...) {
    char why[400];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    return flux__fail("%s: %s: %s", s->call, flux__short_path(s->path), why);
}

#define flux__refuse(...) ((flux_tensor *)flux__bad(__VA_ARGS__))

/* Seeks to byte `at`. fseek takes a long, which may have 32 bits, so a far position is reached in
   steps of LONG_MAX + 1; after each one fgetc proves that the file is that long. */
static bool flux__seek(FILE *f, uint64_t at) {
    if (fseek(f, 0, SEEK_SET) != 0) return false;
    while (at > (uint64_t)LONG_MAX) {
        if (fseek(f, LONG_MAX, SEEK_CUR) != 0 || fgetc(f) == EOF) return false;
        at -= (uint64_t)LONG_MAX + 1;
    }
    return fseek(f, (long)at, SEEK_CUR) == 0;
}

/* Reads n bytes from position `at`; false, without raising an error, if the file ends before. */
static bool flux__peek(flux__source *s, uint64_t at, void *out, size_t n) {
    if (s->file) return flux__seek(s->file, at) && fread(out, 1, n, s->file) == n;
    if (at > s->size || n > s->size - at) return false;
    if (n) memcpy(out, s->bytes + at, n);
    return true;
}

/* Whether the file has at least n bytes. */
static bool flux__reaches(flux__source *s, uint64_t n) {
    char last;
    return n == 0 || flux__peek(s, n - 1, &last, 1);
}

/* Whether the file has exactly n bytes; an error if not, which names `what` as what needs them. */
static bool flux__exactly(flux__source *s, uint64_t n, const char *what) {
    if (!flux__reaches(s, n))
        flux__bad(s, "it ends before its data do: %s needs %llu bytes", what,
                  (unsigned long long)n);
    else if (flux__reaches(s, n + 1))
        flux__bad(s, "it goes on after its data: %s needs %llu bytes", what, (unsigned long long)n);
    else return true;
    return false;
}

static void flux__source_close(flux__source *s) {
    if (s->file) fclose(s->file);
    s->file = NULL;
    flux__free(s->held);
    s->held = NULL;
}

/* Where the file of a source is compressed by gzip, puts what it holds in its place, in memory.
   False: an error. */
static bool flux__source_inflate(flux__source *s, const char *head, size_t n) {
    size_t size;
    if (!flux__is_gzip(head, n)) return true;
    flux__source_close(s);
    void *data = flux__read_file(s->path, &size, s->call);
    s->held = flux__gunzip(data, &size, s->call, s->path);
    s->bytes = (const unsigned char *)s->held;
    s->size = size;
    return s->held != NULL;
}

/* Opens a file, and reads its first bytes, so that a file that is empty or cannot be read, as a
   folder, is an error here. False: an error, and nothing to close. */
static bool flux__source_open(flux__source *s, const char *call, const char *path) {
    char head[2];
    size_t n;
    memset(s, 0, sizeof *s);
    s->call = call;
    s->path = path;
    if (!path) return flux__null(call, "path", path), false;
    s->file = flux__fopen(path, "rb");
    if (!s->file)
        flux__fail("%s: cannot open %s: %s", call, flux__short_path(path), strerror(errno));
    else if ((n = fread(head, 1, 2, s->file)) < 1) {
        if (ferror(s->file)) flux__bad(s, "cannot read it: %s", strerror(errno));
        else flux__bad(s, "it is empty");
    } else if (fseek(s->file, 0, SEEK_SET) != 0)
        flux__bad(s, "cannot seek in it: %s", strerror(errno));
    else if (flux__source_inflate(s, head, n)) return true;
    flux__source_close(s);
    return false;
}

/* The n first bytes of a kind of file that no parser here reads. */
typedef struct flux__magic { const char *bytes; size_t n; const char *what; } flux__magic;

/* Whether a file is of such a kind: compressed, an archive, a pickle. The error says which, and
   what to do. */
static bool flux__foreign(flux__source *s) {
    static const flux__magic known[] = {
        { "\x1f\x8b", 2, "compressed by gzip, and within that once more: unpack it (gunzip)" },
        { "PK\3\4", 4, "a zip archive, as .npz files are: flux_load_npz reads those" },
        { "\xff\xfe", 2, "UTF-16 text: save it as UTF-8" },
        { "\x89HDF", 4, "an HDF5 file, which is not read here" },
        { "\x80\x02", 2, "a Python pickle, which is not read here: save as safetensors" }
    };
    char head[4] = { 0, 0, 0, 0 };
    size_t n = 4;
    while (n > 0 && !flux__peek(s, 0, head, n)) n--;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (n >= known[i].n && memcmp(head, known[i].bytes, known[i].n) == 0) {
            flux__bad(s, "it is %s", known[i].what);
            return true;
        }
    return false;
}

/* ---------------- decoding and encoding elements */

static bool flux__big_endian(void) {
    const uint16_t one = 1;
    unsigned char low;
    memcpy(&low, &one, 1);
    return low == 0;
}

/* Stores the low `size` bytes of v at `to`, in the host's byte order. */
static FLUX__O1 void flux__put_element(unsigned char *to, uint64_t v, size_t size) {
    if (size == 1) *to = (unsigned char)v;
    if (size == 2) { uint16_t w = (uint16_t)v; memcpy(to, &w, 2); }
    if (size == 4) { uint32_t w = (uint32_t)v; memcpy(to, &w, 4); }
    if (size == 8) memcpy(to, &v, 8);
}

/* Decodes n elements in place, from the file's type e to e->dtype. `to` has room for the decoded
   elements, and the encoded ones are at the end of that room. The result has the host's byte
   order, integers of other sizes widened, and bools that are 0 or 1. Going forward is safe: an
   element is never written past the start of the next one that is to be read. */
static FLUX__O1 void flux__decode(unsigned char *to, size_t n, const flux__element *e, bool big) {
    size_t size = e->size, wide = flux__dtypes[e->dtype].size;
    const unsigned char *from = to + n * (wide - size);
    uint64_t sign = e->letter == 'i' && wide > size ? (uint64_t)1 << (8 * size - 1) : 0;
    if (wide == size && e->dtype != FLUX_BOOL && (size == 1 || big == flux__big_endian())) return;
    for (size_t i = 0; i < n; i++, from += size, to += wide) {
        uint64_t v = 0;
        for (size_t k = 0; k < size; k++) v |= (uint64_t)from[big ? size - 1 - k : k] << (8 * k);
        v = (v ^ sign) - sign;            /* extends the sign bit */
        flux__put_element(to, e->dtype == FLUX_BOOL ? v != 0 : v, wide);
    }
}

/* Computes how many bytes a tensor of this shape takes in the file. False, with an error: it is
   larger than a tensor may be, or than an integer can count. */
static bool flux__file_bytes(const flux__source *s, const flux__element *e, const flux_shape *shape,
                             uint64_t *bytes) {
    uint64_t n = 1, most = (uint64_t)7e13 / 8;         /* the limit of flux__check_shape */
    if (most > SIZE_MAX / 8) most = SIZE_MAX / 8;
    for (int i = 0; i < shape->ndim; i++) {
        uint64_t d = shape->dim[i] > 0 ? (uint64_t)shape->dim[i] : 1;
        if (d > most / n)
            return flux__bad(s, "a tensor of that shape is too large (dimension %d is %lld)", i,
                             (long long)shape->dim[i]), false;
        n *= d;
    }
    *bytes = flux__count(shape) > 0 ? n * e->size : 0;
    return true;
}

/* Makes a tensor in host memory from the file's elements at position `at`, which are of type e and
   big-endian if `big` says so. The caller has checked that the file has them. */
static flux_tensor *flux__read_tensor(flux__source *s, uint64_t at, const flux__element *e,
                                      flux_shape shape, bool big) {
    flux_device cpu = { 0, 0 };
    flux_tensor *t = flux__leaf(shape, (flux_dtype)e->dtype, cpu);
    if (!t) return NULL;
    size_t n = (size_t)flux__count(&shape);
    unsigned char *p = (unsigned char *)t->buf->ptr;
    if (n &&
        !flux__peek(s, at, p + n * ((size_t)flux__dtypes[e->dtype].size - e->size), n * e->size))
        return flux__refuse(s, "cannot read %llu bytes at position %llu: %s",
                            (unsigned long long)n * e->size, (unsigned long long)at,
                            s->file && ferror(s->file) ? strerror(errno) : "it is shorter now");
    flux__decode(p, n, e, big);
    return t;
}

/* Writes n elements of `size` bytes each as little-endian; on a big-endian machine their bytes are
   reversed in blocks of at most 1024 bytes. */
static FLUX__O1 bool flux__write_elements(flux__out *o, const void *data, uint64_t n, size_t size) {
    const unsigned char *p = (const unsigned char *)data;
    unsigned char swapped[1024];
    if (!flux__big_endian() || size == 1) return flux__out_write(o, data, (size_t)n * size);
    for (size_t part = 0; n > 0; n -= part, p += part * size) {
        part = n < sizeof swapped / size ? (size_t)n : sizeof swapped / size;
        for (size_t i = 0; i < part * size; i++)
            swapped[i] = p[i - i % size + size - 1 - i % size];
        if (!flux__out_write(o, swapped, part * size)) return false;
    }
    return true;
}

FLUX__END_COLD

#endif /* FLUX__FILES_SOURCES_H */
