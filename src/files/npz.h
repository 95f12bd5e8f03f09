#ifndef FLUX__FILES_NPZ_H
#define FLUX__FILES_NPZ_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/text.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/sinks.h"
#include "../base/scopes.h"
#include "gzip.h"
#include "sources.h"
#include "npy.h"
#include "tensors.h" /* flux__things */

/* ---------------------------------------------------------------------- files/npz.h
   NumPy's .npz: a zip archive whose members are .npy files. An archive's
   directory is at its end, and says of each member its name, its method (0
   stored, 8 deflated), its sum, its two sizes and where it begins. Zip64 has
   some of them in longer fields, and is read too; deflated members need zlib
   (gzip.h). Written archives are stored.

   Invariant: what the directory says is checked against the file before memory
   is asked for, and a member's sum before it is parsed. A member's name is
   without its .npy; members of other kinds, which NumPy gives as bytes, are not
   listed. No name is there twice.

   Rejected: the sizes in the members' own headings, which writers of streams
   leave 0, and writing more than 4 GiB, which safetensors is for. */

FLUX__BEGIN_COLD

typedef struct flux__zipped {             /* of a zip archive */
    char *name;                           /* within flux__zip.directory, without its .npy */
    int number;                           /* its place in the directory */
    unsigned method, flags;
    uint32_t sum;                         /* CRC-32 of what it holds */
    uint64_t packed, size, begin;         /* bytes in the archive, inflated; of its heading */
} flux__zipped;

typedef struct flux__zip {                /* an archive, its directory read and checked */
    flux__source source;
    unsigned char *directory;
    flux__zipped *member;                 /* sorted by number once it is open */
    int members, room;
} flux__zip;

/* Writes a number in n bytes. */
static void flux__put_little(unsigned char *p, uint64_t v, int n) {
    for (int i = 0; i < n; i++) p[i] = (unsigned char)(v >> 8 * i);
}

/* CRC-32 as zip and gzip have it, going on from `sum`, which is 0 at first. */
static FLUX__O2 uint32_t flux__crc32(uint32_t sum, const unsigned char *p, size_t n) {
    uint32_t table[4][256];
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c >> 1 ^ (c & 1 ? 0xEDB88320u : 0);
        table[0][i] = c;
    }
    for (int i = 0; i < 256; i++)
        for (int k = 1; k < 4; k++)
            table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 255];
    sum = ~sum;
    for (; n >= 4; n -= 4, p += 4) {
        sum ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        sum = table[3][sum & 255] ^ table[2][sum >> 8 & 255] ^ table[1][sum >> 16 & 255] ^
              table[0][sum >> 24];
    }
    for (; n > 0; n--) sum = sum >> 8 ^ table[0][(sum ^ *p++) & 255];
    return ~sum;
}

/* Where the directory lies, and how many members it has; false: an error. The record that says so
   is the last one of the file, before a comment of at most 65535 bytes. */
static bool flux__zip_end(flux__source *s, uint64_t size, uint64_t *at, uint64_t *bytes,
                          uint64_t *count) {
    unsigned char far[56];
    size_t n = size < 22 + 65535 ? (size_t)size : 22 + 65535, i = n;
    unsigned char *tail = (unsigned char *)flux__malloc(n), *p = NULL;
    bool good = tail && flux__peek(s, size - n, tail, n);
    while (good && !p && i-- >= 22)
        if (memcmp(tail + i - 21, "PK\5\6", 4) == 0 && flux__little(tail + i - 1, 2) == n - i - 1)
            p = tail + i - 21;
    const bool found = p != NULL;
    if (found) {
        *count = flux__little(p + 10, 2), *bytes = flux__little(p + 12, 4);
        *at = flux__little(p + 16, 4);
    }
    /* Zip64: a record right before this one says where there is one with longer fields. */
    uint64_t end = found ? size - n + (uint64_t)(p - tail) : 0, there;
    const bool longer = found && (*count == 0xFFFF || *bytes == UINT32_MAX || *at == UINT32_MAX);
    if (longer && p - tail >= 20 && memcmp(p - 20, "PK\6\7", 4) == 0) {
        there = flux__little(p - 12, 8);
        good = flux__peek(s, there, far, sizeof far) && memcmp(far, "PK\6\6", 4) == 0;
        *count = flux__little(far + 32, 8), *bytes = flux__little(far + 40, 8);
        *at = flux__little(far + 48, 8);
        end = there;
    }
    flux__free(tail);
    if (!tail) return false;
    if (!found) flux__bad(s, "it is no zip archive, as .npz files are, or it was cut off");
    else if (!good || *at > end || *bytes > end - *at || *count > *bytes / 46)
        flux__bad(s, "its directory is broken: %llu members in %llu bytes at byte %llu",
                  (unsigned long long)*count, (unsigned long long)*bytes, (unsigned long long)*at);
    else if (*bytes > 100000000) flux__bad(s, "its directory is too long");
    else return true;
    return false;
}

/* Takes the 64-bit fields of a member from its extra field, which has those that are all ones. */
static void flux__zip_longer(flux__zipped *m, const unsigned char *extra, size_t n) {
    uint64_t *field[3] = { &m->size, &m->packed, &m->begin };
    while (n >= 4) {
        size_t id = (size_t)flux__little(extra, 2), length = (size_t)flux__little(extra + 2, 2);
        if (length > n - 4) return;
        const unsigned char *p = extra + 4, *end = p + length;
        for (int i = 0; id == 1 && i < 3; i++)
            if (*field[i] == UINT32_MAX && end - p >= 8) *field[i] = flux__little(p, 8), p += 8;
        extra += 4 + length;
        n -= 4 + length;
    }
}

/* Reads one entry of the directory, which has `left` bytes from p on; returns its length, or 0: it
   is broken, or memory ran out. A member that is no .npy is passed over. */
static size_t flux__zip_entry(flux__zip *z, unsigned char *p, size_t left) {
    if (left < 46 || memcmp(p, "PK\1\2", 4) != 0) return 0;
    size_t name = (size_t)flux__little(p + 28, 2), extra = (size_t)flux__little(p + 30, 2),
           all = 46 + name + extra + (size_t)flux__little(p + 32, 2);
    if (all > left) return 0;
    if (name < 4 || memcmp(p + 46 + name - 4, ".npy", 4) != 0) return all;
    flux__zipped *m = (flux__zipped *)flux__one_more(&z->member, &z->room, z->members, sizeof *m);
    if (!m) return 0;
    m->number = z->members++;
    m->flags = (unsigned)flux__little(p + 8, 2);
    m->method = (unsigned)flux__little(p + 10, 2);
    m->sum = (uint32_t)flux__little(p + 16, 4);
    m->packed = flux__little(p + 20, 4);
    m->size = flux__little(p + 24, 4);
    m->begin = flux__little(p + 42, 4);
    flux__zip_longer(m, p + 46 + name, extra);
    m->name = (char *)p + 46;
    m->name[name - 4] = 0;
    return all;
}

static int flux__by_zipped_name(const void *a, const void *b) {
    return strcmp(((const flux__zipped *)a)->name, ((const flux__zipped *)b)->name);
}
static int flux__by_zipped_number(const void *a, const void *b) {
    return ((const flux__zipped *)a)->number - ((const flux__zipped *)b)->number;
}

/* Whether all names are text, and none is there twice; an error if not. */
static bool flux__zip_names(flux__zip *z) {
    if (!z->members) return true;
    qsort(z->member, (size_t)z->members, sizeof *z->member, flux__by_zipped_name);
    for (int i = 1; i < z->members; i++)
        if (strcmp(z->member[i - 1].name, z->member[i].name) == 0)
            return flux__bad(&z->source, "the name %.100s stands there twice", z->member[i].name),
                   false;
    qsort(z->member, (size_t)z->members, sizeof *z->member, flux__by_zipped_number);
    return true;
}

/* Reads the directory of an archive of `size` bytes. */
static bool flux__zip_read(flux__zip *z, uint64_t size) {
    flux__source *s = &z->source;
    uint64_t at, bytes, count, i = 0;
    int64_t failures = flux__failures();
    size_t used = 0, n;
    if (!flux__zip_end(s, size, &at, &bytes, &count)) return false;
    z->directory = (unsigned char *)flux__malloc((size_t)bytes);
    if (!z->directory) return false;
    bool good = flux__peek(s, at, z->directory, (size_t)bytes);
    for (; good && i < count; i++, used += n) {
        n = flux__zip_entry(z, z->directory + used, (size_t)bytes - used);
        good = n > 0;
    }
    if (!good && !flux__failed_since(failures))
        flux__bad(s, "its directory is broken at member %llu", (unsigned long long)i);
    return good && flux__zip_names(z);
}

static void flux__zip_close(flux__zip *z) {
    flux__source_close(&z->source);
    flux__free(z->directory);
    flux__free(z->member);
}

/* Opens the archive at `path`, or in memory if that is given. False: an error, nothing to close. */
static bool flux__zip_open(flux__zip *z, const char *call, const char *path,
                           const flux__source *memory) {
    int64_t stamp[2] = { 0, 0 };
    memset(z, 0, sizeof *z);
    if (memory) z->source = *memory;
    else if (!flux__source_open(&z->source, call, path)) return false;
    else if (z->source.file && !flux__file_stamp(path, stamp)) stamp[0] = 0;
    if (flux__zip_read(z, z->source.file ? (uint64_t)stamp[0] : z->source.size)) return true;
    flux__zip_close(z);
    return false;
}

/* What a member holds, of m->size bytes, which the caller frees; NULL: an error. */
static unsigned char *flux__zipped_bytes(flux__source *s, const flux__zipped *m) {
    unsigned char head[30];
    char why[80];
    size_t size = (size_t)m->packed;
    if (m->flags & 1) return (unsigned char *)flux__bad(s, "it is encrypted");
    if (m->method != 0 && m->method != 8)
        return (unsigned char *)flux__bad(s, "it is compressed by method %u; stored (0) and "
                                          "deflated (8) can be read", m->method);
    const char *missing = m->method == 8 ? flux__zlib_missing() : NULL;
    if (missing)
        return (unsigned char *)flux__bad(s, "it is compressed: save it by numpy.savez, for want "
                                          "of zlib: %s", missing);
    bool good = flux__peek(s, m->begin, head, 30) && memcmp(head, "PK\3\4", 4) == 0;
    uint64_t at = m->begin + 30;
    if (good) at += flux__little(head + 26, 2) + flux__little(head + 28, 2);
    good = good && m->packed < SIZE_MAX - at && flux__reaches(s, at + m->packed) &&
           (m->method == 8 || m->packed == m->size) && m->size <= FLUX__INFLATED_MAX;
    if (!good) return (unsigned char *)flux__bad(s, "its place in the archive is broken");
    unsigned char *p = (unsigned char *)flux__malloc(size), *out = p;
    if (p && !flux__peek(s, at, p, size)) {
        flux__free(p);
        return (unsigned char *)flux__bad(s, "cannot read it: the archive is shorter now");
    }
    if (p && m->method == 8) {
        out = (unsigned char *)flux__inflate(p, size, true, m->size, &size, why);
        flux__free(p);
        if (!out) return (unsigned char *)flux__bad(s, "it can't be inflated: %s", why);
    }
    if (out && size == m->size && flux__crc32(0, out, size) == m->sum) return out;
    flux__free(out);
    return out ? (unsigned char *)flux__bad(s, "its bytes are not those that were saved: their "
                                            "sum differs") : NULL;
}

/* Reads the tensor of a member. Messages name it: "runs.npz(x)". */
static flux_tensor *flux__zipped_read(flux__zip *z, const flux__zipped *m) {
    char path[300];
    flux__source s = z->source;
    snprintf(path, sizeof path, "%s(%.60s)", flux__short_path(s.path), m->name);
    s.path = path;
    unsigned char *bytes = flux__zipped_bytes(&s, m);
    if (!bytes) return NULL;
    flux__source own = { s.call, path, NULL, bytes, m->size, NULL };
    flux_tensor *t = flux__parse_npy(&own);
    flux__free(bytes);
    return t;
}

/* Writes the names of all members, "x, y", up to about n bytes, and returns how long they are. */
static size_t flux__zip_list(const flux__zip *z, char *out, size_t n) {
    flux__sink s = flux__sink_to(out, n);
    for (int i = 0; i < z->members; i++) flux__putf(&s, "%s%s", i ? ", " : "", z->member[i].name);
    flux__sink_end(&s);
    return s.len;
}

/* The member of this name, or with NULL the only one; NULL is an error that lists the names. */
static const flux__zipped *flux__zipped_wanted(const flux__zip *z, const char *name) {
    char list[200];
    if (!name && z->members == 1) return z->member;
    for (int i = 0; name && i < z->members; i++)
        if (strcmp(z->member[i].name, name) == 0) return &z->member[i];
    flux__zip_list(z, list, sizeof list);
    if (!z->members) flux__bad(&z->source, "it holds no array");
    else if (name)
        flux__bad(&z->source, "it holds no array %.80s; it has %d: %s", name, z->members, list);
    else flux__bad(&z->source, "it holds %d arrays, so one must be named: %s", z->members, list);
    return NULL;
}

FLUX_DEF flux_tensor *flux_load_npz(const char *path, const char *name) {
    flux__zip z;
    if (!flux__zip_open(&z, "load_npz", path, NULL)) return NULL;
    int h = flux__hide();
    const flux__zipped *m = flux__zipped_wanted(&z, name);
    flux_tensor *t = m ? flux__zipped_read(&z, m) : NULL;
    flux__zip_close(&z);
    return flux__reveal(h, t);
}

FLUX_DEF int flux_npz_names(const char *path, char *out, size_t n) {
    flux__zip z;
    if (!out && n) return flux__null("npz_names", "out", out), -1;
    if (!flux__zip_open(&z, "npz_names", path, NULL)) return -1;
    int count = z.members;
    flux__zip_list(&z, out, n);
    flux__zip_close(&z);
    return count;
}

/* ---------------- writing */

typedef struct flux__zipping {             /* an array that is written */
    char head[512];                       /* of the .npy */
    size_t head_bytes;
    const flux__element *type;
    const void *data;
    uint64_t count, begin, size;          /* elements; bytes: where it begins, how many */
    uint32_t sum;
} flux__zipping;

/* Evaluates an array and finds what its entry says. False: an error. */
static bool flux__zip_array(flux__zipping *p, const flux__thing *t) {
    flux_tensor *x = (flux_tensor *)(intptr_t)t->object;
    char name[64];
    snprintf(name, sizeof name, "%.*s", t->length < 63 ? t->length : 63, t->name);
    if (x->head.kind != FLUX__TENSOR) return FLUX__REFUSE("save_npz: %s is no tensor", name);
    if (!flux__plain("save_npz", name, x)) return false;
    p->type = &flux__elements[x->dtype];
    if (!p->type->letter)
        return FLUX__REFUSE("save_npz: NumPy has no %s; convert first: flux_to_dtype(%.60s, "
                            "FLUX_F32)", flux__dtypes[x->dtype].name, name);
    flux_shape shape = flux__dims(x);
    p->count = (uint64_t)flux__count(&shape);
    p->head_bytes = flux__npy_head(p->head, sizeof p->head, p->type, &shape);
    p->size = p->head_bytes + p->count * p->type->size;
    p->data = flux__host_data(x);
    if (!p->data) return false;
    if (p->size > UINT32_MAX)
        return FLUX__REFUSE("save_npz: %.60s takes more than 4 GiB: flux_save writes that", name);
    if (flux__big_endian() && p->type->size > 1)
        return FLUX__REFUSE("save_npz: this machine is big-endian: flux_save_npy writes there");
    p->sum = flux__crc32(0, (const unsigned char *)p->head, p->head_bytes);
    p->sum = flux__crc32(p->sum, (const unsigned char *)p->data, (size_t)(p->size - p->head_bytes));
    return true;
}

/* Writes what a member's heading and its entry in the directory have in common: from the version
   that is needed to the length of the extra field. */
static void flux__zip_put_entry(unsigned char *h, const flux__zipping *p, const flux__thing *t) {
    flux__put_little(h, 20, 2);
    flux__put_little(h + 2, 1 << 11, 2);                        /* the name is UTF-8 */
    flux__put_little(h + 4, 0, 2);
    flux__put_little(h + 6, 0x00210000, 4);                     /* 1980: no time is kept */
    flux__put_little(h + 10, p->sum, 4);
    flux__put_little(h + 14, p->size, 4);
    flux__put_little(h + 18, p->size, 4);
    flux__put_little(h + 22, (uint64_t)t->length + 4, 2);
    flux__put_little(h + 24, 0, 2);
}

/* Writes the archive; it is committed by the caller. Returns whether it is below 4 GiB. */
static bool flux__zip_write(flux__out *o, flux__zipping *p, const flux__thing *t, int n) {
    unsigned char h[46];
    uint64_t at = 0, directory;
    for (int i = 0; i < n; at += p[i++].size) {
        memcpy(h, "PK\3\4", 4);
        flux__zip_put_entry(h + 4, &p[i], &t[i]);
        flux__out_write(o, h, 30);
        flux__out_write(o, t[i].name, (size_t)t[i].length);
        flux__out_write(o, ".npy", 4);
        flux__out_write(o, p[i].head, p[i].head_bytes);
        flux__write_elements(o, p[i].data, p[i].count, p[i].type->size);
        p[i].begin = at;
        at += 34 + (uint64_t)t[i].length;
    }
    directory = at;
    for (int i = 0; i < n; i++) {
        memset(h, 0, sizeof h);
        memcpy(h, "PK\1\2\24\0", 6);
        flux__zip_put_entry(h + 6, &p[i], &t[i]);
        flux__put_little(h + 42, p[i].begin, 4);
        flux__out_write(o, h, 46);
        flux__out_write(o, t[i].name, (size_t)t[i].length);
        flux__out_write(o, ".npy", 4);
        at += 50 + (uint64_t)t[i].length;
    }
    memset(h, 0, sizeof h);
    memcpy(h, "PK\5\6", 4);
    flux__put_little(h + 8, (uint64_t)n, 2);
    flux__put_little(h + 10, (uint64_t)n, 2);
    flux__put_little(h + 12, at - directory, 4);
    flux__put_little(h + 16, directory, 4);
    flux__out_write(o, h, 22);
    return at < UINT32_MAX;
}

/* Whether all arrays have names that a member may have, each its own; an error if not. */
static bool flux__zip_name_all(const flux__thing *t, int n) {
    if (n > 65534) return FLUX__REFUSE("save_npz: %d arrays are too many: at most 65534", n);
    for (int i = 0; i < n; i++) {
        if (t[i].length > 60000) return FLUX__REFUSE("save_npz: a name of %d bytes", t[i].length);
        for (int k = 0; k < i; k++)
            if (t[i].length == t[k].length && !memcmp(t[i].name, t[k].name, (size_t)t[i].length))
                return FLUX__REFUSE("save_npz: two arrays have the name %.*s",
                                    t[i].length < 200 ? t[i].length : 200, t[i].name);
    }
    return true;
}

FLUX_DEF int flux_save_npz_with(const char *path, int n, const char *names,
                                 const void *const *items) {
    if (!path) return flux__null("save_npz", "path", path), -1;
    flux__thing *t = flux__things("save_npz", n, names, items);
    if (!t) return -1;
    flux__zipping *p = (flux__zipping *)flux__malloc((size_t)n * sizeof *p);
    int h = flux__hide();
    bool good = p && flux__zip_name_all(t, n);
    for (int i = 0; good && i < n; i++) good = flux__zip_array(&p[i], &t[i]);
    flux__out *o = good ? flux__out_open(path, "save_npz") : NULL;
    good = o != NULL;
    if (good && flux__zip_write(o, p, t, n)) good = flux__out_commit(o);
    else if (good) {
        good = FLUX__REFUSE("save_npz: the arrays take more than 4 GiB: flux_save_all writes that");
        flux__out_abort(o);
    }
    flux__reveal(h, NULL);
    flux__free(p);
    flux__free(t);
    return good ? 0 : -1;
}

FLUX__END_COLD

#endif /* FLUX__FILES_NPZ_H */
