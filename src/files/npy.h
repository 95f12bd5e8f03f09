#ifndef FLUX__FILES_NPY_H
#define FLUX__FILES_NPY_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/text.h"
#include "../base/backend.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/sinks.h"
#include "../base/scopes.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/views.h"
#include "../schedule/looking.h"
#include "sources.h"
#include "idx.h"

/* ---------------------------------------------------------------------- files/npy.h
   NumPy's .npy: "\x93NUMPY", version, length, a Python dictionary as text,
   elements. The cursor that parses the textual headings of .npy and of
   safetensors is here, and so are the functions with which all writers fetch a
   tensor's elements (flux__host_data).

   Invariant: a heading has exactly the keys descr, fortran_order and shape,
   each once. Data in C order are those of the tensor of reversed dims: this
   tensor is read, and its transpose, a view, is returned. The writer sets
   fortran_order, since memory is column-major, and the data begin at a multiple
   of 64 bytes. The cursor changes its text in place: it ends each string with a
   NUL over the closing quote. */

FLUX__BEGIN_COLD

typedef struct flux__cursor {
    const flux__source *source;           /* for messages */
    char *start, *at, *end;               /* the heading in memory; at: the next character */
    uint64_t offset;                      /* of start in the file */
} flux__cursor;

/* Raises the error that the heading is broken at the cursor, and returns false. */
static bool flux__cursor_bad(const flux__cursor *c, const char *what) {
    flux__bad(c->source, "its heading is broken at byte %llu: %s",
              (unsigned long long)(c->at - c->start) + c->offset, what);
    return false;
}

static void flux__blanks(flux__cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r'))
        c->at++;
}

/* Skips blanks, and then the character `want` if it comes next; whether it did. */
static bool flux__next_is(flux__cursor *c, char want) {
    flux__blanks(c);
    if (c->at >= c->end || *c->at != want) return false;
    c->at++;
    return true;
}

/* The same, but with an error if another character comes next. */
static bool flux__expect(flux__cursor *c, char want) {
    char what[32];
    if (flux__next_is(c, want)) return true;
    snprintf(what, sizeof what, "'%c' should stand there", want);
    return flux__cursor_bad(c, what);
}

/* Parses a whole number from 0 to 2^63-1, without sign or leading zeros. */
static bool flux__whole(flux__cursor *c, int64_t *out) {
    flux__blanks(c);
    char *start = c->at;
    int64_t v = 0;
    for (; c->at < c->end && flux__is_digit(*c->at); c->at++) {
        int digit = *c->at - '0';
        if (v > (INT64_MAX - digit) / 10) return flux__cursor_bad(c, "that number is too large");
        v = v * 10 + digit;
    }
    if (c->at == start)
        return flux__cursor_bad(c, "a whole number that is not negative should stand there");
    if (*start == '0' && c->at > start + 1) return flux__cursor_bad(c, "a number begins with 0");
    *out = v;
    return true;
}

/* ---------------- .npy: "\x93NUMPY", version, length, a Python dictionary as text, elements */

typedef struct flux__npy {                /* what a heading says */
    const flux__element *type;
    bool big, fortran;                    /* big-endian elements; column-major order */
    flux_shape shape;                     /* dims in NumPy's order */
    int seen;                             /* bits of the keys read: descr, fortran_order, shape */
} flux__npy;

/* Parses a Python string without escapes. It is returned within the text, where the closing quote
   becomes its NUL. */
static char *flux__npy_string(flux__cursor *c) {
    flux__blanks(c);
    char quote = c->at < c->end ? *c->at : 0, *start = c->at + 1;
    if (quote != '\'' && quote != '"') {
        flux__cursor_bad(c, "a string should stand there");
        return NULL;
    }
    for (c->at = start; c->at < c->end && *c->at != quote; c->at++)
        if ((unsigned char)*c->at < 32 || *c->at == '\\') break;
    if (c->at >= c->end || *c->at != quote) {
        flux__cursor_bad(c, "a string does not end");
        return NULL;
    }
    *c->at++ = 0;
    return start;
}

/* Parses NumPy's name of a dtype, "<f4": byte order, letter and bytes of an element. */
static bool flux__npy_dtype(flux__cursor *c, flux__npy *npy) {
    flux__blanks(c);
    if (c->at < c->end && *c->at == '[') {
        flux__bad(c->source, "its dtype is a record of several fields; save each field on its own");
        return false;
    }
    const char *name = flux__npy_string(c), *p = name;
    if (!name) return false;
    char order = *p && strchr("<>=|", *p) ? *p++ : '=', letter = *p ? *p++ : '0';
    int size = 0;
    for (; flux__is_digit(*p) && size < 1000; p++) size = size * 10 + (*p - '0');
    for (int i = 0; i < FLUX__NUM_ELEMENTS && *p == 0; i++)
        if (flux__elements[i].letter == letter && flux__elements[i].size == size)
            npy->type = &flux__elements[i];
    if (!npy->type || (order == '|' && size > 1)) {
        flux__bad(c->source,
                  "its dtype is '%.40s'; f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 b1 can be read: use astype",
                  name);
        return false;
    }
    npy->big = order == '>' || (order != '<' && flux__big_endian());
    return true;
}

static bool flux__npy_bool(flux__cursor *c, bool *out) {
    flux__blanks(c);
    size_t left = (size_t)(c->end - c->at);
    *out = left >= 4 && memcmp(c->at, "True", 4) == 0;
    if (!*out && (left < 5 || memcmp(c->at, "False", 5) != 0))
        return flux__cursor_bad(c, "True or False should stand there");
    c->at += *out ? 4 : 5;
    return true;
}

/* Parses a tuple of sizes: "()", "(3,)" or "(3, 4)". */
static bool flux__npy_shape(flux__cursor *c, flux__npy *npy) {
    int n = 0;
    bool comma = true;
    int64_t d;
    if (!flux__expect(c, '(')) return false;
    while (!flux__next_is(c, ')')) {
        if (!comma) return flux__cursor_bad(c, "',' or ')' should stand there");
        if (!flux__whole(c, &d)) return false;
        if (c->at < c->end && *c->at == 'L') c->at++;  /* Python 2's long */
        if (n < FLUX_MAX_DIMS) npy->shape.dim[n] = d;
        n++;
        comma = flux__next_is(c, ',');
    }
    if (n == 1 && !comma) return flux__cursor_bad(c, "a shape of one dimension is written (n,)");
    if (n > FLUX_MAX_DIMS)
        flux__bad(c->source, "it has %d dimensions, but a tensor has at most %d", n, FLUX_MAX_DIMS);
    npy->shape.ndim = n;
    return n <= FLUX_MAX_DIMS;
}

/* Parses the dictionary of a heading: its three keys in any order, each once, and nothing else. */
static bool flux__npy_heading(flux__cursor *c, flux__npy *npy) {
    static const char *const keys[] = { "descr", "fortran_order", "shape" };
    bool comma = true;
    if (!flux__expect(c, '{')) return false;
    while (!flux__next_is(c, '}')) {
        if (!comma) return flux__cursor_bad(c, "',' or '}' should stand there");
        const char *key = flux__npy_string(c);
        if (!key || !flux__expect(c, ':')) return false;
        int k = 0;
        while (k < 3 && strcmp(key, keys[k]) != 0) k++;
        if (k == 3)
            return flux__cursor_bad(c, "that key is not one of descr, fortran_order, shape");
        if (npy->seen & 1 << k) return flux__cursor_bad(c, "that key stands there twice");
        npy->seen |= 1 << k;
        if (k == 0 && !flux__npy_dtype(c, npy)) return false;
        if (k == 1 && !flux__npy_bool(c, &npy->fortran)) return false;
        if (k == 2 && !flux__npy_shape(c, npy)) return false;
        comma = flux__next_is(c, ',');
    }
    flux__blanks(c);
    if (npy->seen != 7) return flux__cursor_bad(c, "descr, fortran_order or shape is missing");
    return c->at == c->end || flux__cursor_bad(c, "something follows the dictionary");
}

/* Reads the tensor whose data begin at `at`. Data in C order are those of the tensor of reversed
   dims, so that tensor is read and its transpose, a view, is returned. With at most one dim that
   is not 1 (`wide` counts these) both orders are the same. */
static flux_tensor *flux__npy_tensor(flux__source *s, uint64_t at, flux__npy *npy) {
    uint64_t bytes;
    flux_shape shape = npy->shape, back = npy->shape, order = npy->shape;
    int n = shape.ndim, wide = 0;
    if (!flux__file_bytes(s, npy->type, &shape, &bytes)) return NULL;
    if (!flux__exactly(s, at + bytes, flux__shape_text(&shape).s)) return NULL;
    for (int i = 0; i < n; i++) {
        order.dim[i] = n - 1 - i;
        back.dim[n - 1 - i] = shape.dim[i];
        wide += shape.dim[i] != 1;
    }
    if (npy->fortran || wide <= 1) return flux__read_tensor(s, at, npy->type, shape, npy->big);
    flux_tensor *t = flux__read_tensor(s, at, npy->type, back, npy->big);
    return t ? flux_permute_with(t, order) : NULL;
}

/* Checks the heading of a .npy file, of versions 1 to 3 of the format, and reads its tensor. */
static flux_tensor *flux__parse_npy(flux__source *s) {
    unsigned char head[12];
    FLUX__ZEROED(flux__npy, npy);
    if (flux__foreign(s)) return NULL;
    if (!flux__peek(s, 0, head, 10) || memcmp(head, "\x93NUMPY", 6) != 0)
        return flux__refuse(s, "it is no .npy file: it does not begin with \\x93NUMPY");
    if (head[6] < 1 || head[6] > 3 || head[7] != 0)
        return flux__refuse(s, "it has version %d.%d of the format; 1 to 3 can be read", head[6],
                            head[7]);
    size_t start = head[6] == 1 ? 10 : 12, n = (size_t)head[8] | (size_t)head[9] << 8;
    if (start == 12) {
        if (!flux__peek(s, 0, head, 12)) return flux__refuse(s, "it ends within its heading");
        n |= (size_t)head[10] << 16 | (size_t)head[11] << 24;
    }
    if (n > 1 << 20)
        return flux__refuse(s, "its heading has %llu bytes: too many", (unsigned long long)n);
    if (!flux__reaches(s, start + n))
        return flux__refuse(s, "it ends within its heading of %d bytes", (int)n);
    char *text = (char *)flux__malloc(n + 1);
    if (!text) return NULL;
    flux__cursor c = { s, text, text, text + n, start };
    bool good = flux__peek(s, start, text, n);
    if (!good) flux__bad(s, "cannot read its heading");
    good = good && flux__npy_heading(&c, &npy);
    flux__free(text);
    return good ? flux__npy_tensor(s, start + n, &npy) : NULL;
}

FLUX_DEF flux_tensor *flux_load_npy(const char *path) {
    return flux__load_with(flux__parse_npy, "load_npy", path);
}

/* Writes the heading for a tensor of this element type and shape to out, and returns its length, a
   multiple of 64, so that the data begin at one. */
static size_t flux__npy_head(char *out, size_t capacity, const flux__element *e,
                             const flux_shape *shape) {
    flux__sink s = flux__sink_to(out, capacity);
    flux__put_bytes(&s, "\x93NUMPY\1\0\0\0", 10);
    flux__putf(&s, "{'descr': '%c%c%d', 'fortran_order': %s, 'shape': (", e->size > 1 ? '<' : '|',
               e->letter, e->size, shape->ndim > 1 ? "True" : "False");
    flux__put_dims(&s, shape->dim, shape->ndim);
    flux__put(&s, shape->ndim == 1 ? ",), }" : "), }");
    size_t total = (s.len + 1 + 63) / 64 * 64;
    flux__put_pad(&s, (int64_t)(total - 1 - s.len));
    flux__put(&s, "\n");
    out[8] = (char)((total - 10) & 255);
    out[9] = (char)((total - 10) >> 8);
    return total;
}

/* x on device d, with its dtype unchanged (flux_to converts float64 to float32 on the way to a
   GPU). */
static flux_tensor *flux__placed(flux_tensor *x, flux_device d) {
    return flux__same_device(x->device, d) ? x : flux__move(x, d);
}

/* The elements of x in host memory, evaluated; NULL: an error, or x is NULL. */
static const void *flux__host_data(flux_tensor *x) {
    flux_device cpu = { 0, 0 };
    flux_tensor *y = x ? flux__placed(x, cpu) : NULL;
    return y ? flux_data(y) : NULL;
}

/* Whether x is a tensor that a file can hold; NULL and tuples are errors. */
static bool flux__plain(const char *call, const char *arg, const flux_tensor *x) {
    if (!x) flux__null(call, arg, x);
    else if (x->op == FLUX__TUPLE)
        flux__fail("%s: %s is a tuple of %d tensors; take one with flux_nth", call, arg, x->nin);
    else return true;
    return false;
}

/* Writes x as .npy, with its shape as NumPy will show it. 0: done; -1: an error, and the file that
   was there before is unchanged. */
FLUX_DEF int flux_save_npy(flux_tensor *x, const char *path) {
    char head[512];
    if (!flux__plain("save_npy", "x", x)) return -1;
    const flux__element *e = &flux__elements[x->dtype];
    if (!e->letter)
        return flux__fail("save_npy: NumPy has no %s; convert first: flux_to_dtype(x, FLUX_F32)",
                          flux__dtypes[x->dtype].name), -1;
    if (!path) return flux__null("save_npy", "path", path), -1;
    int h = flux__hide();
    flux_shape shape = flux__dims(x);
    const void *data = flux__host_data(x);
    flux__out *o = data ? flux__out_open(path, "save_npy") : NULL;
    bool good = o != NULL;
    if (good) {
        flux__out_write(o, head, flux__npy_head(head, sizeof head, e, &shape));
        flux__write_elements(o, data, (uint64_t)flux__count(&shape), e->size);
        good = flux__out_commit(o);
    }
    flux__reveal(h, NULL);
    return good ? 0 : -1;
}

FLUX__END_COLD

#endif /* FLUX__FILES_NPY_H */
