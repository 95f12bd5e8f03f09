#ifndef FLUX__FILES_SAFETENSORS_H
#define FLUX__FILES_SAFETENSORS_H
#include "../base/platform.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/text.h"
#include "sources.h"
#include "npy.h"

/* ---------------------------------------------------------------------- files/safetensors.h
   The heading of a safetensors file. The file begins with 8 bytes, the length
   of the heading. The heading is JSON,
   {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...,
   "__metadata__": {"any": "text"}}, and the data follow it. flux__archive_open
   reads and checks the heading, flux__find looks a name up, and flux__entry_read
   makes the tensor.

   Invariant: in an open archive every entry's shape, dtype and offsets agree,
   the tensors' data follow each other to the file's end without a hole or an
   overlap, and no name is there twice. Entries and pairs of the metadata are
   sorted by name; strings point into the heading, where they are unescaped in
   place. A name that no entry has may be tied to another one by the metadata:
   the pair's key is "tie:name" in our files, and plain "name" in those of
   PyTorch's save_model. An entry of a dtype or number of dims that flux.h does
   not support is an error only when it is read. */

#define FLUX__MAX_HEADING 100000000       /* bytes: the limit of Python's library */

FLUX__BEGIN_COLD

typedef struct flux__entry {              /* a tensor in the file */
    const char *name, *dtype;
    const flux__element *type;            /* NULL: a dtype that we do not support */
    int ndim;                             /* may be more than FLUX_MAX_DIMS */
    int64_t dim[FLUX_MAX_DIMS];           /* the first ones, in the file's (row-major) order */
    uint64_t begin, end;                  /* byte offsets from the start of the data */
    bool used;                            /* set while loading: a tensor here takes its value */
} flux__entry;

/* A pair of the metadata. used: flux__find has looked for the name that it ties. */
typedef struct flux__remark { const char *key, *value; bool used; } flux__remark;

typedef struct flux__archive {            /* a safetensors file, its heading read and checked */
    flux__source source;
    char *heading;                        /* its text, which all names point into */
    uint64_t data;                        /* position in the file at which the data begin */
    flux__entry *entry;                   /* sorted by name */
    flux__remark *pair;                   /* sorted by key */
    int entries, entry_room, pairs, pair_room;
} flux__archive;

/* Whether the bytes are UTF-8: no overlong form, no half of a surrogate pair, nothing past
   U+10FFFF. */
static FLUX__O1 bool flux__utf8(const char *text, size_t n) {
    const unsigned char *p = (const unsigned char *)text, *end = p + n;
    while (p < end) {
        unsigned c = *p++, low = 0x80, high = 0xBF;
        int more = c < 0x80 ? 0 : c < 0xC2 ? -1 : c < 0xE0 ? 1 : c < 0xF0 ? 2 : c < 0xF5 ? 3 : -1;
        if (more < 0 || end - p < more) return false;
        if (c == 0xE0) low = 0xA0;
        if (c == 0xED) high = 0x9F;
        if (c == 0xF0) low = 0x90;
        if (c == 0xF4) high = 0x8F;
        for (; more > 0; more--, low = 0x80, high = 0xBF)
            if (*p < low || *p++ > high) return false;
    }
    return true;
}

/* The number that four hexadecimal digits say; -1: they are not. */
static int flux__hex4(const char *p) {
    int v = 0;
    for (int i = 0; i < 4; i++) {
        int c = p[i] | 32, d = -1;
        if (flux__is_digit(p[i])) d = p[i] - '0';
        if (c >= 'a' && c <= 'f') d = c - 'a' + 10;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

/* Parses an escape, whose backslash has been read, and writes its character to *out as UTF-8.
   *out is in the same text: the character is never longer than its escape, so it overwrites only
   what has been read. */
static bool flux__json_escape(flux__cursor *c, char **out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *known = c->at < c->end && *c->at ? strchr(from, *c->at) : NULL;
    char *o = *out;
    if (known) {
        *o = to[known - from];
        *out = o + 1;
        c->at++;
        return true;
    }
    long v = c->end - c->at >= 5 && *c->at == 'u' ? flux__hex4(c->at + 1) : -1;
    if (v <= 0 || (v >= 0xDC00 && v < 0xE000))
        return flux__cursor_bad(c, "that escape is not one that JSON has, or U+0000");
    c->at += 5;
    if (v >= 0xD800 && v < 0xDC00) {
        long low = c->end - c->at >= 6 && c->at[0] == '\\' && c->at[1] == 'u'
                       ? flux__hex4(c->at + 2)
                       : -1;
        if (low < 0xDC00 || low > 0xDFFF)
            return flux__cursor_bad(c, "half a character is escaped there");
        v = 0x10000 + (v - 0xD800) * 0x400 + (low - 0xDC00);
        c->at += 6;
    }
    if (v < 0x80) *o++ = (char)v;
    else {
        int more = v < 0x800 ? 1 : v < 0x10000 ? 2 : 3;
        *o++ = (char)((0xF80 >> more & 0xF0) | v >> 6 * more);
        while (more-- > 0) *o++ = (char)(0x80 | (v >> 6 * more & 0x3F));
    }
    *out = o;
    return true;
}

/* Parses a JSON string. It is returned within the text, where it is unescaped and NUL-terminated
   in place. */
static FLUX__O1 char *flux__json_string(flux__cursor *c) {
    if (!flux__expect(c, '"')) return NULL;
    char *start = c->at, *o = start;
    while (c->at < c->end && *c->at != '"' && (unsigned char)*c->at >= 32) {
        if (*c->at != '\\') {
            *o++ = *c->at++;
            continue;
        }
        c->at++;
        if (!flux__json_escape(c, &o)) return NULL;
    }
    if (c->at >= c->end || *c->at != '"')
        flux__cursor_bad(c, "a string does not end, or holds a control character");
    else if (!flux__utf8(start, (size_t)(o - start)))
        flux__cursor_bad(c, "that string is not UTF-8");
    else {
        c->at++;
        *o = 0;
        return start;
    }
    return NULL;
}

/* Goes to the next member of an object or array that ends with `close`. 1: there is one, 0: the
   object or array has ended, -1: an error. */
static int flux__json_next(flux__cursor *c, bool first, char close) {
    if (flux__next_is(c, close)) return 0;
    if (!first && !flux__expect(c, ',')) return -1;
    return 1;
}

/* Parses an array of whole numbers and returns how many there are, or -1. The first `most` are
   stored in out; the others are only checked and counted. */
static int flux__json_numbers(flux__cursor *c, int64_t *out, int most) {
    int n = 0, more;
    int64_t v;
    if (!flux__expect(c, '[')) return -1;
    for (; (more = flux__json_next(c, n == 0, ']')) > 0; n++) {
        if (!flux__whole(c, &v)) return -1;
        if (n < most) out[n] = v;
    }
    return more < 0 ? -1 : n;
}

/* Parses the object that describes one tensor: dtype, shape and data_offsets, each once. */
static bool flux__json_entry(flux__cursor *c, flux__entry *e) {
    static const char *const keys[] = { "dtype", "shape", "data_offsets" };
    int64_t at[2] = { 0, 0 };
    int more, seen = 0, n = 0;
    if (!flux__expect(c, '{')) return false;
    while ((more = flux__json_next(c, seen == 0, '}')) > 0) {
        const char *key = flux__json_string(c);
        int k = 0;
        if (!key || !flux__expect(c, ':')) return false;
        while (k < 3 && strcmp(key, keys[k]) != 0) k++;
        if (k == 3) return flux__cursor_bad(c, "a tensor has no such key");
        if (seen & 1 << k) return flux__cursor_bad(c, "that key stands there twice");
        seen |= 1 << k;
        if (k == 0 && !(e->dtype = flux__json_string(c))) return false;
        if (k == 1 && (e->ndim = flux__json_numbers(c, e->dim, FLUX_MAX_DIMS)) < 0) return false;
        if (k == 2 && (n = flux__json_numbers(c, at, 2)) < 0) return false;
    }
    if (more < 0) return false;
    if (seen != 7) return flux__cursor_bad(c, "dtype, shape or data_offsets is missing");
    if (n != 2 || at[0] > at[1])
        return flux__cursor_bad(c, "data_offsets are not a beginning and an end");
    e->begin = (uint64_t)at[0];
    e->end = (uint64_t)at[1];
    for (int i = 0; i < FLUX__NUM_ELEMENTS; i++)
        if (strcmp(flux__elements[i].name, e->dtype) == 0) e->type = &flux__elements[i];
    return true;
}

/* Parses the object of __metadata__: strings only. */
static bool flux__json_metadata(flux__cursor *c, flux__archive *z) {
    int more;
    if (!flux__expect(c, '{')) return false;
    for (bool first = true; (more = flux__json_next(c, first, '}')) > 0; first = false) {
        flux__remark *p = (flux__remark *)flux__one_more(&z->pair, &z->pair_room, z->pairs,
                                                         sizeof *p);
        if (!p) return false;
        p->used = false;
        if (!(p->key = flux__json_string(c)) || !flux__expect(c, ':') ||
            !(p->value = flux__json_string(c)))
            return false;
        z->pairs++;
    }
    return more == 0;
}

/* Parses the whole heading: an object with one member for each tensor, and __metadata__. */
static bool flux__json_archive(flux__cursor *c, flux__archive *z) {
    int more;
    bool metadata = false;
    if (c->at == c->end || *c->at++ != '{') return flux__cursor_bad(c, "it does not begin with {");
    for (bool first = true; (more = flux__json_next(c, first, '}')) > 0; first = false) {
        const char *name = flux__json_string(c);
        if (!name || !flux__expect(c, ':')) return false;
        if (strcmp(name, "__metadata__") == 0) {
            if (metadata) return flux__cursor_bad(c, "__metadata__ stands there twice");
            metadata = true;
            if (!flux__json_metadata(c, z)) return false;
            continue;
        }
        flux__entry *e = (flux__entry *)flux__one_more(&z->entry, &z->entry_room, z->entries,
                                                       sizeof *e);
        if (!e) return false;
        memset(e, 0, sizeof *e);
        e->name = name;
        if (!flux__json_entry(c, e)) return false;
        z->entries++;
    }
    if (more < 0) return false;
    flux__blanks(c);
    return c->at == c->end || flux__cursor_bad(c, "something follows the last }");
}

static int flux__by_place(const void *a, const void *b) {
    const flux__entry *x = (const flux__entry *)a, *y = (const flux__entry *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}
static int flux__by_name(const void *a, const void *b) {
    return strcmp(((const flux__entry *)a)->name, ((const flux__entry *)b)->name);
}
static int flux__by_key(const void *a, const void *b) {
    return strcmp(((const flux__remark *)a)->key, ((const flux__remark *)b)->key);
}

/* Whether a tensor's shape and dtype take as many bytes as its data_offsets say. An entry of a
   dtype or number of dims that we do not support has only its offsets checked, by the caller. */
static bool flux__check_entry(const flux__source *s, const flux__entry *e) {
    uint64_t bytes;
    flux_shape shape = flux__shape(e->dim, e->ndim < FLUX_MAX_DIMS ? e->ndim : FLUX_MAX_DIMS);
    if (!e->type || e->ndim > FLUX_MAX_DIMS) return true;
    if (!flux__file_bytes(s, e->type, &shape, &bytes)) return false;
    if (bytes != e->end - e->begin)
        flux__bad(s, "%.80s, %s of %s, takes %llu bytes, not the %llu that its data_offsets give",
                  e->name, flux__shape_text(&shape).s, e->dtype, (unsigned long long)bytes,
                  (unsigned long long)(e->end - e->begin));
    return bytes == e->end - e->begin;
}

/* Checks that the tensors' data follow each other to the file's end without a hole or overlap, and
   that no name or key is there twice. Sorts entries and pairs. */
static bool flux__check_archive(flux__archive *z) {
    flux__source *s = &z->source;
    uint64_t at = 0;
    if (z->entries) qsort(z->entry, (size_t)z->entries, sizeof *z->entry, flux__by_place);
    for (int i = 0; i < z->entries; at = z->entry[i++].end) {
        const flux__entry *e = &z->entry[i];
        if (!flux__check_entry(s, e)) return false;
        if (e->begin == at) continue;
        flux__bad(s, "its data have %s before %.80s: at byte %llu, not %llu",
                  e->begin > at ? "a hole" : "an overlap", e->name, (unsigned long long)e->begin,
                  (unsigned long long)at);
        return false;
    }
    if (!flux__exactly(s, z->data + at, "its heading")) return false;
    if (z->entries) qsort(z->entry, (size_t)z->entries, sizeof *z->entry, flux__by_name);
    if (z->pairs) qsort(z->pair, (size_t)z->pairs, sizeof *z->pair, flux__by_key);
    const char *twice = NULL;
    for (int i = 1; i < z->entries; i++)
        if (strcmp(z->entry[i - 1].name, z->entry[i].name) == 0) twice = z->entry[i].name;
    for (int i = 1; i < z->pairs; i++)
        if (strcmp(z->pair[i - 1].key, z->pair[i].key) == 0) twice = z->pair[i].key;
    if (twice) flux__bad(s, "the name %.100s stands there twice", twice);
    return !twice;
}

/* Reads the heading's length and text, parses it and checks it. False: an error. */
static bool flux__read_heading(flux__archive *z) {
    flux__source *s = &z->source;
    unsigned char head[8];
    uint64_t n = 0;
    if (flux__foreign(s)) return false;
    bool good = flux__peek(s, 0, head, 8);
    for (int i = 7; good && i >= 0; i--) n = n << 8 | head[i];
    if (!good) flux__bad(s, "it is too short for a safetensors file");
    else if (n > FLUX__MAX_HEADING)
        flux__bad(s, "it is no safetensors file: a heading of %llu bytes is too long",
                  (unsigned long long)n);
    else if (!flux__reaches(s, 8 + n))
        flux__bad(s, "it ends within its heading of %llu bytes", (unsigned long long)n);
    else if ((z->heading = (char *)flux__malloc((size_t)n + 1)) != NULL) {
        flux__cursor c = { s, z->heading, z->heading, z->heading + n, 8 };
        z->data = 8 + n;
        if (flux__peek(s, 8, z->heading, (size_t)n))
            return flux__json_archive(&c, z) && flux__check_archive(z);
        flux__bad(s, "cannot read its heading");
    }
    return false;
}

/* Closes an archive and frees its heading; tensors that were read from it stay. */
static void flux__archive_close(flux__archive *z) {
    flux__source_close(&z->source);
    flux__free(z->heading);
    flux__free(z->entry);
    flux__free(z->pair);
}

/* Opens the file at `path`, or if `memory` is given that source instead. False: an error, and
   nothing to close. */
static bool flux__archive_open(flux__archive *z, const char *call, const char *path,
                               const flux__source *memory) {
    memset(z, 0, sizeof *z);
    if (memory) z->source = *memory;
    else if (!flux__source_open(&z->source, call, path)) return false;
    if (flux__read_heading(z)) return true;
    flux__archive_close(z);
    return false;
}

/* An entry's shape as ours: its dims in reverse order. */
static flux_shape flux__entry_shape(const flux__entry *e) {
    flux_shape s = flux__shape(NULL, 0);
    s.ndim = e->ndim < FLUX_MAX_DIMS ? e->ndim : FLUX_MAX_DIMS;
    for (int i = 0; i < s.ndim; i++) s.dim[i] = e->dim[s.ndim - 1 - i];
    return s;
}

/* Reads the tensor of an entry into host memory. */
static flux_tensor *flux__entry_read(flux__archive *z, const flux__entry *e) {
    if (!e->type)
        return flux__refuse(&z->source, "%.100s has dtype %.20s, which flux does not have", e->name,
                            e->dtype);
    if (e->ndim > FLUX_MAX_DIMS)
        return flux__refuse(&z->source, "%.100s has %d dimensions, but a tensor has at most %d",
                            e->name, e->ndim, FLUX_MAX_DIMS);
    return flux__read_tensor(&z->source, z->data + e->begin, e->type, flux__entry_shape(e), false);
}

/* The pair whose key is `kind`, the n bytes of `name` and `path` together, with a dot between the
   last two if neither is empty ("rules:opt.layers.0"); NULL: there is none. Pairs are sorted by
   key, so this is a binary search that compares the key part by part and need not build it. */
static flux__remark *flux__archive_pair(const flux__archive *z, const char *kind, const char *name,
                                        size_t n, const char *path) {
    size_t before = strlen(kind), dot = n && *path;
    int lo = 0, hi = z->pairs;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        const char *key = z->pair[mid].key;
        int order = strncmp(key, kind, before);
        if (order == 0) order = strncmp(key += before, name, n);
        if (order == 0) order = strncmp(key += n, ".", dot);
        if (order == 0) order = strcmp(key + dot, path);
        if (order == 0) return &z->pair[mid];
        if (order < 0) lo = mid + 1;
        else hi = mid;
    }
    return NULL;
}

/* The entry of exactly this name, by binary search; NULL: none. */
static flux__entry *flux__archive_entry(const flux__archive *z, const char *name) {
    flux__entry key;
    key.name = name;
    return z->entries ? (flux__entry *)bsearch(&key, z->entry, (size_t)z->entries, sizeof key,
                                               flux__by_name)
                      : NULL;
}

/* The entry for a name of ours: the one of that name, or else the one that the name is tied to.
   The pair that ties it has the key "tie:name" in our files, and plain "name" in those of PyTorch's
   save_model; its value is the other name. NULL: none. Only this function resolves ties. */
static flux__entry *flux__find(const flux__archive *z, const char *name) {
    flux__entry *e = flux__archive_entry(z, name);
    flux__remark *p = flux__archive_pair(z, "tie:", name, strlen(name), "");
    if (p) p->used = true;
    if (!p) p = flux__archive_pair(z, "", name, strlen(name), "");
    return e || !p ? e : flux__archive_entry(z, p->value);
}

FLUX__END_COLD

#endif /* FLUX__FILES_SAFETENSORS_H */
