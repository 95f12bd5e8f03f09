#ifndef FLUX__FILES_IMAGES_H
#define FLUX__FILES_IMAGES_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/text.h"
#include "../base/options.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/sinks.h"
#include "../base/scopes.h"
#include "../graph/elementwise.h"
#include "../graph/leaves.h"
#include "../graph/views.h" /* flux_len */
#include "gzip.h"
#include "sources.h"
#include "npy.h" /* flux__host_data, flux__plain */
#include "csv.h" /* flux__word */

/* ---------------------------------------------------------------------- files/images.h
   Images: a picture is a tensor of width x height x channels, float32 from 0 to 1,
   its first row on top. PGM and PPM (P5, P6) are read and written here; other
   formats by stb_image.h and stb_image_write.h, if the program has included them
   before this file's implementation. Pictures of another size are resized, and
   a batch is written as one sheet.

   Invariant: pixels are bytes in rows from the top, channels together, as all
   formats have them (flux__pixels); only two functions turn them into a tensor
   and back. A size that a heading announces is compared with the file before
   memory is asked for. Resizing weighs with a triangle as wide as the step
   between the new pixels, as Pillow's and torchvision's bilinear filters with
   antialiasing do, first along the rows.

   Rejected: decoders of our own for PNG and JPEG (stb's are what users of a
   header have), and reading the brightest value as 1 whatever it is. */

FLUX__BEGIN_COLD

typedef struct flux__pixels {
    int64_t width, height;
    int channels;
    unsigned char *at;                    /* width x height x channels bytes, channels together */
    bool theirs;                          /* stb allocated them */
} flux__pixels;

static void flux__pixels_free(flux__pixels *p) {
#if defined(STBI_INCLUDE_STB_IMAGE_H)
    if (p->theirs) stbi_image_free(p->at);
    else
#endif
        flux__free(p->at);
}

/* ---------------- reading */

/* Reads a number of a PNM heading, behind blanks and comments; -1: there is none. */
static int64_t flux__pnm_number(const unsigned char **at, const unsigned char *end) {
    const unsigned char *p = *at;
    while (p < end && (*p == '#' || *p <= ' '))
        if (*p++ == '#')
            while (p < end && *p != '\n') p++;
    int64_t v = p < end && flux__is_digit((char)*p) ? 0 : -1;
    for (; p < end && flux__is_digit((char)*p); p++) v = v < 1 << 24 ? v * 10 + (*p - '0') : v;
    *at = p;
    return v;
}

/* Reads a PGM or PPM in memory, of 8 or 16 bits. False: an error. */
static FLUX__O1 bool flux__parse_pnm(const flux__source *s, flux__pixels *out) {
    const unsigned char *p = s->bytes + 2, *end = s->bytes + s->size;
    const int64_t w = flux__pnm_number(&p, end), h = flux__pnm_number(&p, end),
                  most = flux__pnm_number(&p, end);
    const int channels = s->bytes[1] == '6' ? 3 : 1;
    if (w < 1 || h < 1 || most < 1 || most > 65535 || p == end)
        return flux__bad(s, "its heading is broken: a width, a height and a largest value up to "
                         "65535 should stand there"), false;
    p++;                                  /* one blank ends the heading */
    const uint64_t left = (uint64_t)(end - p) / (most > 255 ? 2 : 1),
                   row = (uint64_t)(w * channels);
    if ((uint64_t)h > left / row)
        return flux__bad(s, "it ends before its pixels do: %lld x %lld of %d bytes", (long long)w,
                         (long long)h, channels * (most > 255 ? 2 : 1)), false;
    const size_t n = (size_t)(row * (uint64_t)h);
    out->at = (unsigned char *)flux__malloc(n);
    if (!out->at) return false;
    out->width = w, out->height = h, out->channels = channels, out->theirs = false;
    for (size_t i = 0; i < n; i++) {
        const int64_t v = most > 255 ? p[2 * i] << 8 | p[2 * i + 1] : p[i];
        out->at[i] = (unsigned char)(v >= most ? 255 : (v * 255 + most / 2) / most);
    }
    return true;
}

/* Decodes a picture in memory. False: an error. */
static bool flux__decode_image(const flux__source *s, flux__pixels *out) {
    if (s->size >= 2 && s->bytes[0] == 'P' && (s->bytes[1] == '5' || s->bytes[1] == '6'))
        return flux__parse_pnm(s, out);
#if defined(STBI_INCLUDE_STB_IMAGE_H)
    int w = 0, h = 0, channels = 0;
    if (s->size > INT_MAX) return flux__bad(s, "it is too large for stb_image.h"), false;
    out->at = stbi_load_from_memory(s->bytes, (int)s->size, &w, &h, &channels, 0);
    if (!out->at) {
        const char *why = stbi_failure_reason();
        return flux__bad(s, "it can't be decoded: %s", why ? why : "stb_image.h says no more"),
               false;
    }
    out->width = w, out->height = h, out->channels = channels, out->theirs = true;
    return true;
#else
    return flux__bad(s, "it is no PGM or PPM (P5, P6); for others include stb_image.h before "
                     "flux.h, in the file that defines FLUX_IMPLEMENTATION"), false;
#endif
}

/* The weights of old pixels for new pixel i, of `size` that become `wanted`: those from *from on;
   returns how many, at most 2 (size / wanted + 1) + 2. */
static int64_t flux__resize_weights(int64_t i, int64_t size, int64_t wanted, int64_t *from,
                                    double *weight) {
    const double step = (double)size / (double)wanted, reach = step > 1 ? step : 1,
                 centre = ((double)i + 0.5) * step;
    double low = floor(centre - reach + 0.5), high = floor(centre + reach + 0.5), sum = 0;
    if (low < 0) low = 0;
    if (high > (double)size) high = (double)size;
    *from = (int64_t)low;
    int64_t n = (int64_t)high - *from;
    for (int64_t k = 0; k < n; k++) {
        const double far = fabs(((double)(*from + k) + 0.5 - centre) / reach);
        weight[k] = far < 1 ? 1 - far : 0;
        sum += weight[k];
    }
    for (int64_t k = 0; k < n; k++) weight[k] /= sum;
    return n;
}

/* Resizes one dimension of size x rest (along > 1: of along x size x rest) to `wanted`. */
static FLUX__O1 bool flux__resize_dim(const float *from, float *to, int64_t along, int64_t size,
                             int64_t wanted, int64_t rest) {
    double *weight = (double *)flux__malloc((2 * (size_t)(size / wanted + 1) + 3) * sizeof *weight);
    if (!weight) return false;
    for (int64_t i = 0; i < wanted; i++) {
        int64_t first, n = flux__resize_weights(i, size, wanted, &first, weight);
        for (int64_t r = 0; r < rest; r++)
            for (int64_t a = 0; a < along; a++) {
                const float *p = from + (r * size + first) * along + a;
                double sum = 0;
                for (int64_t k = 0; k < n; k++) sum += weight[k] * (double)p[k * along];
                to[(r * wanted + i) * along + a] = (float)sum;
            }
    }
    flux__free(weight);
    return true;
}

/* Writes pixels as width x height x `channels` numbers from 0 to 1. Of grey, all colours are made;
   of colours, their luminance (Rec. 601); an alpha that the file lacks is 1. */
static FLUX__O1 void flux__pixels_numbers(const flux__pixels *p, float *out, int channels) {
    const int64_t area = p->width * p->height;
    const bool grey = p->channels < 3, alpha = p->channels == 2 || p->channels == 4;
    const unsigned char *q = p->at;
    for (int64_t i = 0; i < area; i++, q += p->channels) {
        const float opaque = alpha ? (float)q[p->channels - 1] / 255.0f : 1.0f;
        for (int c = 0; c < channels; c++) {
            float v = (float)q[grey || c > 2 ? 0 : c] / 255.0f;
            if (!grey && channels < 3)
                v = (0.299f * (float)q[0] + 0.587f * (float)q[1] + 0.114f * (float)q[2]) / 255.0f;
            if ((channels == 2 || channels == 4) && c == channels - 1) v = opaque;
            out[c * area + i] = v;
        }
    }
}

/* The sizes that the options ask for, 0 where they are the file's; false: an error. */
static bool flux__image_sizes(const char *call, const flux_image_opts *o, int *width, int *height,
                              int *channels) {
    static const char *const names[] = { "width", "height", "channels" };
    const int64_t given[3] = { o->width, o->height, o->channels };
    int *const out[3] = { width, height, channels };
    for (int i = 0; i < 3; i++) {
        const int most = i < 2 ? 1 << 16 : 4;
        const int64_t v = flux__given_int(given[i], o->marked, 0);
        if (flux__is_given_int(given[i], o->marked) && (v < 1 || v > most))
            return FLUX__REFUSE("%s: .%s is %lld; 1 to %d are possible", call, names[i],
                                (long long)v, most);
        *out[i] = (int)v;
    }
    return true;
}

/* A tensor of pixels, resized where a size is not 0. */
static flux_tensor *flux__image_tensor(const flux__pixels *p, int width, int height, int channels) {
    flux_device cpu = { 0, 0 };
    int64_t size[3] = { width ? width : p->width, height ? height : p->height,
                        channels ? channels : p->channels };
    flux_tensor *t = flux__leaf(flux__shape(size, 3), FLUX_F32, cpu);
    float *out = t ? (float *)t->buf->ptr : NULL;
    if (!t) return NULL;
    if (size[0] == p->width && size[1] == p->height)
        return flux__pixels_numbers(p, out, (int)size[2]), t;
    const size_t whole = (size_t)(p->width * p->height * size[2]),
                 rows = (size_t)(size[0] * p->height * size[2]);
    float *from = (float *)flux__malloc((whole + rows) * sizeof *from);
    if (from) flux__pixels_numbers(p, from, (int)size[2]);
    const bool good =
        from && flux__resize_dim(from, from + whole, 1, p->width, size[0], p->height * size[2]) &&
        flux__resize_dim(from + whole, out, size[0], p->height, size[1], size[2]);
    flux__free(from);
    return good ? t : NULL;
}

/* A picture of a source in memory as a tensor. */
static flux_tensor *flux__image_of(const flux__source *s, int width, int height, int channels) {
    flux__pixels p;
    if (!flux__decode_image(s, &p)) return NULL;
    flux_tensor *t = flux__image_tensor(&p, width, height, channels);
    flux__pixels_free(&p);
    return t;
}

/* Reads the file at `path`; sizes are 0 where the file's are taken. */
static flux_tensor *flux__image_read(const char *call, const char *path, int width, int height,
                                     int channels) {
    size_t n;
    void *data = flux__gunzip(flux__read_file(path, &n, call), &n, call, path);
    if (!data) return NULL;
    flux__source s = { call, path, NULL, (const unsigned char *)data, n, NULL };
    int h = flux__hide();
    flux_tensor *t = flux__image_of(&s, width, height, channels);
    flux__free(data);
    return flux__reveal(h, t);
}

FLUX_DEF flux_tensor *flux_load_image_with(flux_image_opts o) {
    if (!o.path) return (flux_tensor *)flux__null("load_image", "path", o.path);
    int width, height, channels;
    if (!flux__image_sizes("load_image", &o, &width, &height, &channels)) return NULL;
    return flux__image_read("load_image", o.path, width, height, channels);
}

/* ---------------- writing */

/* A number from 0 to 1 as a byte; NaN is 0. */
static unsigned char flux__as_byte(float v) {
    return (unsigned char)(v >= 1 ? 255 : v > 0 ? v * 255.0f + 0.5f : 0.0f);
}

#if defined(INCLUDE_STB_IMAGE_WRITE_H)
static void flux__stb_put(void *out, void *data, int n) {
    flux__out_write((flux__out *)out, data, (size_t)n);
}
#endif

/* Whether path ends with .kind, in letters of either case. */
static bool flux__ends_with(const char *path, const char *kind) {
    const size_t n = strlen(path), k = strlen(kind);
    return n > k && path[n - k - 1] == '.' && flux__word(path + n - k, path + n, kind);
}

/* Writes pixels in the format that the path's end says. 1: done, 0: stb refused, -1: there is no
   such format here. */
static int flux__encode_image(flux__out *o, const char *path, const flux__pixels *p) {
    char head[80];
    const bool pnm = flux__ends_with(path, "pgm") || flux__ends_with(path, "ppm") ||
                     flux__ends_with(path, "pnm");
    if (pnm && (p->channels == 1 || p->channels == 3)) {
        const int n = snprintf(head, sizeof head, "P%d\n%lld %lld\n255\n", p->channels == 1 ? 5 : 6,
                               (long long)p->width, (long long)p->height);
        flux__out_write(o, head, (size_t)n);
        flux__out_write(o, p->at, (size_t)(p->width * p->height * p->channels));
        return 1;
    }
#if defined(INCLUDE_STB_IMAGE_WRITE_H)
    const int w = (int)p->width, h = (int)p->height, c = p->channels;
    if (flux__ends_with(path, "png"))
        return stbi_write_png_to_func(flux__stb_put, o, w, h, c, p->at, w * c) != 0;
    if (flux__ends_with(path, "jpg") || flux__ends_with(path, "jpeg"))
        return stbi_write_jpg_to_func(flux__stb_put, o, w, h, c, p->at, 92) != 0;
    if (flux__ends_with(path, "bmp"))
        return stbi_write_bmp_to_func(flux__stb_put, o, w, h, c, p->at) != 0;
    if (flux__ends_with(path, "tga"))
        return stbi_write_tga_to_func(flux__stb_put, o, w, h, c, p->at) != 0;
    return -1;
#else
    return -1;
#endif
}

/* Writes pixels to a file, whole or not at all. */
static bool flux__pixels_write(const flux__pixels *p, const char *path, const char *call) {
    flux__out *o = flux__out_open(path, call);
    const int done = o ? flux__encode_image(o, path, p) : 0;
    if (done == 1) return flux__out_commit(o);
    if (o && done == 0) flux__fail("%s: %s: stb_image_write.h refuses it", call,
                                   flux__short_path(path));
    if (o && done < 0)
        flux__fail("%s: %s: the name should end with .pgm (grey) or .ppm (3 channels), or, where "
                   "stb_image_write.h is included before flux.h's implementation, with .png, .jpg, "
                   ".bmp or .tga", call, flux__short_path(path));
    flux__out_abort(o);
    return false;
}

/* Puts n pictures of width x height x channels side by side, `columns` in a row, with two black
   pixels around each if there are several, and writes them. */
static FLUX__O1 bool flux__sheet_write(flux_tensor *x, int64_t n, int64_t columns, int channels,
                              const char *path, const char *call) {
    const int64_t w = x->dim[0], h = x->dim[1], rows = (n + columns - 1) / columns,
                  gap = n > 1 ? 2 : 0, area = flux__times(w, h);
    flux__pixels p = { flux__plus(flux__times(columns, flux__plus(w, gap)), gap),
                       flux__plus(flux__times(rows, flux__plus(h, gap)), gap), channels, NULL,
                       false };
    const int64_t bytes = flux__times(flux__times(p.width, p.height), channels);
    if (bytes > INT_MAX)
        return FLUX__REFUSE("%s: a picture of %lld x %lld is too large", call, (long long)p.width,
                            (long long)p.height);
    const bool whole = x->dtype == FLUX_U8;
    const void *data = flux__host_data(whole ? x : flux_to_dtype(x, FLUX_F32));
    const unsigned char *byte = (const unsigned char *)data;
    const float *number = (const float *)data;
    p.at = data ? (unsigned char *)flux__zalloc((size_t)bytes) : NULL;
    if (!p.at) return false;
    for (int64_t i = 0; i < n; i++)
        for (int c = 0; c < channels; c++)
            for (int64_t k = 0; k < area; k++) {
                const int64_t from = (i * channels + c) * area + k,
                              px = gap + i % columns * (w + gap) + k % w,
                              py = gap + i / columns * (h + gap) + k / w;
                p.at[(py * p.width + px) * channels + c] =
                    whole ? byte[from] : flux__as_byte(number[from]);
            }
    const bool good = flux__pixels_write(&p, path, call);
    flux__free(p.at);
    return good;
}

FLUX_DEF int flux_save_image(flux_tensor *x, const char *path) {
    if (!flux__plain("save_image", "x", x)) return -1;
    if (!path) return flux__null("save_image", "path", path), -1;
    const int64_t channels = x->ndim == 3 ? x->dim[2] : 1;
    if (x->ndim < 2 || x->ndim > 3 || channels < 1 || channels > 4 || flux_len(x) == 0)
        return flux__fail("save_image: x is %s; a picture is width x height, or width x height x "
                          "1 to 4 channels", flux__describe(x).s), -1;
    int h = flux__hide();
    const bool good = flux__sheet_write(x, 1, 1, (int)channels, path, "save_image");
    flux__reveal(h, NULL);
    return good ? 0 : -1;
}

FLUX_DEF int flux_save_images(flux_tensor *x, const char *path, int columns) {
    if (!flux__plain("save_images", "x", x)) return -1;
    if (!path) return flux__null("save_images", "path", path), -1;
    const int64_t channels = x->ndim == 4 ? x->dim[2] : 1, n = x->ndim ? x->dim[x->ndim - 1] : 0;
    if (x->ndim < 3 || x->ndim > 4 || channels < 1 || channels > 4 || flux_len(x) == 0)
        return flux__fail("save_images: x is %s; pictures are width x height x n, or width x "
                          "height x 1 to 4 channels x n", flux__describe(x).s), -1;
    if (columns < 0) return flux__fail("save_images: %d columns", columns), -1;
    int64_t across = columns ? columns : (int64_t)ceil(sqrt((double)n));
    if (across > n) across = n;
    int h = flux__hide();
    const bool good = flux__sheet_write(x, n, across, (int)channels, path, "save_images");
    flux__reveal(h, NULL);
    return good ? 0 : -1;
}

FLUX__END_COLD

#endif /* FLUX__FILES_IMAGES_H */
