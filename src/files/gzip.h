#ifndef FLUX__FILES_GZIP_H
#define FLUX__FILES_GZIP_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__lock */
#include "../base/system.h"
#include "../base/errors.h"
#include "../base/sinks.h" /* flux__short_path */

/* ---------------------------------------------------------------------- files/gzip.h
   Inflating what was compressed by deflate: whole gzip files, and members of zip
   archives. zlib is opened at run time, when the first such bytes are met.
   flux__inflate goes from memory to memory and knows nothing of files.

   Invariant: no byte of the result is used before the whole has been inflated
   and its sum and length, which gzip keeps at the end of each member, agree. The
   result has room for a 0 behind it, so that text can be read from it. It is
   made no larger than FLUX__INFLATED_MAX, as a file of a few kilobytes may
   inflate to gigabytes. zlib takes its memory from FLUX_MALLOC.

   Rejected: an inflater of our own (zlib is on every system that reads such
   files, and faster), and inflating piece by piece while a parser reads (the
   parsers ask for a file's end first). */

#define FLUX__INFLATED_MAX ((uint64_t)1 << 32)         /* bytes of a result: 4 GiB */
#ifndef FLUX__INFLATE_PIECE                            /* a test has small ones */
#  define FLUX__INFLATE_PIECE (1u << 30)               /* bytes at a time: zlib's counts are 32 bits */
#endif

FLUX__BEGIN_COLD

typedef struct flux__z_stream {           /* zlib's z_stream */
    const unsigned char *next_in;
    unsigned avail_in;
    unsigned long total_in;
    unsigned char *next_out;
    unsigned avail_out;
    unsigned long total_out;
    const char *msg;
    void *state;
    void *(*zalloc)(void *opaque, unsigned items, unsigned size);
    void (*zfree)(void *opaque, void *p);
    void *opaque;
    int data_type;
    unsigned long adler, reserved;
} flux__z_stream;

static struct {                           /* zlib; under flux__lock until `known` */
    int (*start)(flux__z_stream *z, int bits, const char *version, int size);
    int (*inflate)(flux__z_stream *z, int flush);
    int (*reset)(flux__z_stream *z);
    int (*end)(flux__z_stream *z);
    bool known;                           /* it was looked for */
    char why[300];                        /* "", or why it can't be used */
} flux__zlib;

/* Looks for zlib and its calls; the caller holds flux__lock. */
static void flux__zlib_find(void) {
    static const char *const names[] = {
#if defined(_WIN32)
        "zlib1.dll", "libz.dll"
#elif defined(__APPLE__)
        "libz.dylib", "libz.1.dylib"
#else
        "libz.so.1", "libz.so"
#endif
    };
    const char *own = flux__env("FLUX_ZLIB_LIBRARY");
    void *library = own ? flux__library_open(own) : NULL;
    if (own && !library)
        flux__library_why(flux__zlib.why, sizeof flux__zlib.why, "zlib", "FLUX_ZLIB_LIBRARY");
    for (int i = 0; !own && i < 2 && !library; i++) library = flux__library_open(names[i]);
    if (!own && !library)
        snprintf(flux__zlib.why, sizeof flux__zlib.why, "%s is not there (Debian: zlib1g; "
                 "FLUX_ZLIB_LIBRARY names its file)", names[0]);
#define FLUX__FIND(field, name) \
    flux__library_symbol(library, name, &flux__zlib.field, sizeof flux__zlib.field)
    if (library && !(FLUX__FIND(start, "inflateInit2_") && FLUX__FIND(inflate, "inflate") &&
                     FLUX__FIND(reset, "inflateReset") && FLUX__FIND(end, "inflateEnd")))
        snprintf(flux__zlib.why, sizeof flux__zlib.why, "%.100s is no zlib", own ? own : names[0]);
#undef FLUX__FIND
    flux__zlib.known = true;
}

/* NULL if zlib is there, else why it is not. */
static const char *flux__zlib_missing(void) {
    flux__mutex_lock(&flux__lock);
    if (!flux__zlib.known) flux__zlib_find();
    flux__mutex_unlock(&flux__lock);
    return flux__zlib.why[0] ? flux__zlib.why : NULL;
}

static void *flux__zlib_malloc(void *opaque, unsigned items, unsigned size) {
    (void)opaque;
    return size && items > SIZE_MAX / size ? NULL : FLUX_MALLOC((size_t)items * size);
}
static void flux__zlib_free(void *opaque, void *p) {
    (void)opaque;
    flux__free(p);
}

typedef struct flux__inflating {          /* one run of flux__inflate */
    flux__z_stream z;
    const unsigned char *from;            /* what has not been handed to zlib yet */
    size_t left;
    unsigned char *out;                   /* the result, with room for a 0 behind it */
    size_t used, room;
    char *why;                            /* 80 bytes: what is wrong */
} flux__inflating;

static const char flux__inflate_scarce[] = "out of memory to inflate it"; /* Z_MEM_ERROR, -4 */
static bool flux__inflate_bad(flux__inflating *f, const char *why) {
    snprintf(f->why, 80, "%s", why);
    return false;
}

/* Makes the room at least `room` bytes, and twice what it was, within the limit. */
static bool flux__inflate_grow(flux__inflating *f, uint64_t room) {
    const uint64_t most = FLUX__INFLATED_MAX < SIZE_MAX / 4 ? FLUX__INFLATED_MAX : SIZE_MAX / 4;
    if (f->room >= most) return flux__inflate_bad(f, "it holds more than 4 GiB: unpack it first");
    if (room < f->room * 2) room = f->room * 2;
    if (room < 256) room = 256;
    if (room > most) room = most;
    unsigned char *more = (unsigned char *)FLUX_REALLOC(f->out, (size_t)room + 1);
    if (!more) return flux__inflate_bad(f, flux__inflate_scarce);
    f->out = more;
    f->room = (size_t)room;
    return true;
}

/* Gives zlib its next piece if it has read the last one; false if nothing is left. */
static bool flux__inflate_more(flux__inflating *f) {
    const size_t most = FLUX__INFLATE_PIECE;
    if (f->z.avail_in == 0) {
        f->z.next_in = f->from;
        f->z.avail_in = (unsigned)(f->left < most ? f->left : most);
        f->from += f->z.avail_in;
        f->left -= f->z.avail_in;
    }
    return f->z.avail_in > 0;
}

/* Inflates to the end of one stream. */
static bool flux__inflate_stream(flux__inflating *f) {
    flux__z_stream *z = &f->z;
    for (int code = 0; code != 1;) {      /* Z_STREAM_END */
        if (f->used == f->room && !flux__inflate_grow(f, 0)) return false;
        const size_t most = FLUX__INFLATE_PIECE;
        const size_t room = f->room - f->used < most ? f->room - f->used : most;
        flux__inflate_more(f);
        z->next_out = f->out + f->used;
        z->avail_out = (unsigned)room;
        code = flux__zlib.inflate(z, 0);
        f->used += room - z->avail_out;
        if (code == -4) return flux__inflate_bad(f, flux__inflate_scarce);
        if (code != 0 && code != 1 && code != -5)                /* Z_BUF_ERROR: see below */
            return flux__inflate_bad(f, z->msg ? z->msg : "its compressed data are broken");
        if (code != 1 && z->avail_in == 0 && f->left == 0 && z->avail_out > 0)
            return flux__inflate_bad(f, "it ends within its compressed data");
    }
    return true;
}

/* Inflates all members of a gzip file, or the one stream of a zip's member. Zeros may follow. */
static bool flux__inflate_members(flux__inflating *f, bool raw) {
    for (;;) {
        if (!flux__inflate_stream(f)) return false;
        bool more = flux__inflate_more(f);
        while (!raw && more && *f->z.next_in == 0) {
            f->z.avail_in--, f->z.next_in++;
            more = flux__inflate_more(f);
        }
        if (!more) return true;
        if (raw || *f->z.next_in != 0x1f)
            return flux__inflate_bad(f, "something follows its compressed data");
        flux__zlib.reset(&f->z);
    }
}

/* Inflates n bytes: a gzip file, or raw deflate data as in a zip archive. `expected` is how many
   bytes will come; 0: not known. The caller frees the result, which has a 0 behind its *size bytes,
   with flux__free. NULL: why[80] says what is wrong. */
static void *flux__inflate(const void *from, size_t n, bool raw, uint64_t expected, size_t *size,
                           char *why) {
    FLUX__ZEROED(flux__inflating, f);
    f.from = (const unsigned char *)from;
    f.left = n;
    f.why = why;
    f.z.zalloc = flux__zlib_malloc;
    f.z.zfree = flux__zlib_free;
    /* deflate makes at most 1032 of one byte: what is announced beyond that is not believed */
    if (expected / 1032 > n) expected = 0;
    if (!flux__inflate_grow(&f, expected ? expected : (uint64_t)n * 4)) return NULL;
    const int code = flux__zlib.start(&f.z, raw ? -15 : 15 + 16, "1", (int)sizeof f.z);
    bool good = code == 0;
    if (!good)
        flux__inflate_bad(&f, code == -4 ? flux__inflate_scarce : "zlib refuses to begin");
    else {
        good = flux__inflate_members(&f, raw);
        flux__zlib.end(&f.z);
    }
    if (!good) {
        flux__free(f.out);
        return NULL;
    }
    f.out[f.used] = 0;
    *size = f.used;
    return f.out;
}

/* A number of n bytes, little-endian. */
static uint64_t flux__little(const unsigned char *p, int n) {
    uint64_t v = 0;
    while (n-- > 0) v = v << 8 | p[n];
    return v;
}

static bool flux__is_gzip(const void *bytes, size_t n) {
    return n >= 2 && memcmp(bytes, "\x1f\x8b", 2) == 0;
}

/* Replaces a text or file in memory that is compressed by gzip by what it holds; other bytes stay.
   NULL: the error says what is wrong with the file at `path`, and `data` is freed. */
static void *flux__gunzip(void *data, size_t *size, const char *call, const char *path) {
    const unsigned char *p = (const unsigned char *)data;
    size_t n = *size;
    char why[80];
    if (!data || !flux__is_gzip(data, n)) return data;
    const char *missing = flux__zlib_missing();
    void *out = NULL;
    if (missing)
        flux__fail("%s: %s: it is compressed by gzip: unpack it first (gunzip), for want of zlib: "
                   "%s", call, flux__short_path(path), missing);
    else {
        /* the last four bytes are the length of the last member, of most files the only one */
        uint64_t length = n < 18 ? 0 : flux__little(p + n - 4, 4);
        out = flux__inflate(data, n, false, length, size, why);
        if (!out)
            flux__fail("%s: %s: it is compressed by gzip, and can't be inflated: %s", call,
                       flux__short_path(path), why);
    }
    flux__free(data);
    return out;
}

FLUX__END_COLD

#endif /* FLUX__FILES_GZIP_H */
