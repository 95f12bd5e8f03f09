#ifndef FLUX__FILES_IDX_H
#define FLUX__FILES_IDX_H
#include "../base/platform.h"
#include "../base/dtypes.h"
#include "../base/scopes.h"
#include "sources.h"

/* ---------------------------------------------------------------------- files/idx.h
   IDX, MNIST's format: two zero bytes, the element type, the number of dims,
   the sizes as 32-bit numbers, the elements, all big-endian. flux__load_with
   runs the parser of any format that holds one tensor over a file.

   Invariant: the file has exactly the bytes that its heading promises, and this
   is checked before a tensor is allocated. The file is row-major, so its sizes
   are read in reverse order and its data as they are. Every temporary belongs
   to a scope of the call (flux__hide): a call returns one tensor in host
   memory, or NULL with an error. */

FLUX__BEGIN_COLD

/* Checks the heading of an IDX file and reads its tensor. */
static flux_tensor *flux__parse_idx(flux__source *s) {
    unsigned char head[4 + 4 * FLUX_MAX_DIMS];
    const flux__element *e = NULL;
    uint64_t bytes;
    if (flux__foreign(s)) return NULL;
    if (!flux__peek(s, 0, head, 4)) return flux__refuse(s, "it is too short for an IDX file");
    if (head[0] || head[1])
        return flux__refuse(s, "it is no IDX file: it begins with bytes %d %d, not 0 0", head[0],
                            head[1]);
    for (int i = 0; i < FLUX__NUM_ELEMENTS; i++)
        if (head[2] && flux__elements[i].idx == head[2]) e = &flux__elements[i];
    if (!e)
        return flux__refuse(s, "element type 0x%02x is not one that IDX has (8, 9, B, C, D, E)",
                            head[2]);
    if (head[3] > FLUX_MAX_DIMS)
        return flux__refuse(s, "it has %d dimensions, but a tensor has at most %d", head[3],
                            FLUX_MAX_DIMS);
    size_t n = head[3], start = 4 + 4 * n;
    if (!flux__peek(s, 0, head, start))
        return flux__refuse(s, "it ends within its %d sizes", (int)n);
    flux_shape shape = flux__shape(NULL, 0);
    shape.ndim = (int)n;
    for (size_t i = 0; i < n; i++) {
        const unsigned char *p = head + 4 + 4 * i;
        shape.dim[n - 1 - i] = (int64_t)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3];
    }
    if (!flux__file_bytes(s, e, &shape, &bytes)) return NULL;
    if (!flux__exactly(s, start + bytes, flux__shape_text(&shape).s)) return NULL;
    return flux__read_tensor(s, start, e, shape, true);
}

/* Opens a file and runs a parser over it; the parser's temporaries end with this call, which is
   named `call` in messages. */
static flux_tensor *flux__load_with(flux_tensor *(*parse)(flux__source *), const char *call,
                                    const char *path) {
    flux__source s;
    if (!flux__source_open(&s, call, path)) return NULL;
    int h = flux__hide();
    flux_tensor *t = parse(&s);
    flux__source_close(&s);
    return flux__reveal(h, t);
}

FLUX_DEF flux_tensor *flux_load_idx(const char *path) {
    return flux__load_with(flux__parse_idx, "load_idx", path);
}

FLUX__END_COLD

#endif /* FLUX__FILES_IDX_H */
