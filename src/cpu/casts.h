#ifndef FLUX__CPU_CASTS_H
#define FLUX__CPU_CASTS_H
#include "../base/platform.h"
#include "../base/system.h"
#include "../base/dtypes.h"
#include "../graph/nodes.h"
#include "loops.h"
#include "vectors.h" /* flux__bf16_load_x8, flux__bf16_store_pairs, flux__bf16_store_x8 */

/* ---------------------------------------------------------------------- cpu/casts.h
   Conversion between a tensor's elements, of any dtype and stride, and a tile
   of one compute type: flux__load, flux__store, and flux__convert between
   compute types. f16 and bf16 are converted here in plain C, where the
   processor has nothing better.

   Invariant: each dtype has its own compute type, in which it is read and
   written; others are reached through that. A float becomes an integer towards
   zero, the nearest one if out of range, 0 for NaN; half formats round to
   nearest even. flux__wrap brings a tile to what its dtype can hold, so that a
   value that stays in a kernel is the value that memory would hold. A number in
   a node holds what its dtype would store (flux__as_stored), whether it ever
   gets a buffer or not. */

FLUX__BEGIN_NUMBERS

/* The compute type of each dtype, and the bytes of a compute type's element. */
static const uint8_t flux__loop_class[FLUX_NUM_DTYPES] = {
    FLUX__F32C, FLUX__F64C, FLUX__F32C, FLUX__F32C, FLUX__I32C, FLUX__I64C, FLUX__I32C,
        FLUX__I32C };
static const uint8_t flux__class_size[FLUX__CLASSES] = { 4, 8, 4, 8 };

/* A function that converts n contiguous elements of type X to type Y; `value` is an expression
   in v. */
#define FLUX__CASTING(name, Y, X, value)                                                             \
static void name(int64_t n, void *out, const void *in) {                                             \
    const X *x = (const X *)in;                                                                      \
    Y *y = (Y *)out;                                                                                 \
    for (int64_t i = 0; i < n; i++) {                                                                \
        const X v = x[i];                                                                            \
        y[i] = value;                                                                                \
    }                                                                                                \
}
#define FLUX__2_31 2147483648.0f
#define FLUX__2_63 9223372036854775808.0f
FLUX__FAST FLUX__CASTING(flux__f32_f64, double, float, (double)v)
FLUX__FAST FLUX__CASTING(flux__f64_f32, float, double, (float)v)
FLUX__FAST FLUX__CASTING(flux__i32_f32, float, int32_t, (float)v)
FLUX__FAST FLUX__CASTING(flux__u8_i32, int32_t, uint8_t, v)
FLUX__FAST FLUX__CASTING(flux__bool_i32, int32_t, uint8_t, v != 0)
FLUX__CASTING(flux__i32_f64, double, int32_t, (double)v)
FLUX__FAST FLUX__CASTING(flux__i32_i64, int64_t, int32_t, (int64_t)v)
FLUX__CASTING(flux__i64_f32, float, int64_t, (float)v)
FLUX__CASTING(flux__i64_f64, double, int64_t, (double)v)
FLUX__CASTING(flux__i64_i32, int32_t, int64_t, (int32_t)v)
FLUX__FAST FLUX__CASTING(flux__f32_i32, int32_t, float,
                         FLUX__WHOLE(int32_t, v, -FLUX__2_31, FLUX__2_31, INT32_MAX))
FLUX__CASTING(flux__f64_i32, int32_t, double,
              FLUX__WHOLE(int32_t, v, -2147483648.0, 2147483647.0, INT32_MAX))
FLUX__CASTING(flux__f32_i64, int64_t, float,
              FLUX__WHOLE(int64_t, v, -FLUX__2_63, FLUX__2_63, INT64_MAX))
FLUX__CASTING(flux__f64_i64, int64_t, double,
              FLUX__WHOLE(int64_t, v, -(double)FLUX__2_63, (double)FLUX__2_63, INT64_MAX))
FLUX__CASTING(flux__f32_u8, uint8_t, float, FLUX__WHOLE(uint8_t, v, 0, 255, 255))
FLUX__CASTING(flux__f64_u8, uint8_t, double, FLUX__WHOLE(uint8_t, v, 0, 255, 255))
FLUX__CASTING(flux__i32_u8, uint8_t, int32_t, (uint8_t)v)
FLUX__FAST FLUX__CASTING(flux__f32_bool, uint8_t, float, v != 0)
FLUX__CASTING(flux__f64_bool, uint8_t, double, v != 0)
FLUX__FAST FLUX__CASTING(flux__i32_bool, uint8_t, int32_t, v != 0)
FLUX__CASTING(flux__i64_bool, uint8_t, int64_t, v != 0)

static FLUX__INLINE float flux__from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}
static FLUX__INLINE uint32_t flux__to_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
/* Rounds to the nearest bf16, ties to even; NaN becomes 0x7fc0. */
static FLUX__INLINE uint16_t flux__bf16_of(float x) {
    uint32_t u = flux__to_bits(x);
    return (uint16_t)(x != x ? 0x7fc0 : (u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
/* The value of an f16. A multiplication moves the exponent by 112. A denormal is computed from
   0.5 plus its bits, whatever the processor does with denormals of f32. */
static FLUX__INLINE float flux__half_value(uint16_t h) {
    float tiny = flux__from_bits(0x3f000000u + (h & 0x3ff)) - 0.5f;
    float x = h & 0x7c00 ? flux__from_bits((uint32_t)(h & 0x7fff) << 13) * 5.192296858534828e33f :
        tiny;
    uint32_t u = flux__to_bits(x) | (x >= 65536 ? 0x7f800000u : 0);
    if ((h & 0x7c00) == 0x7c00 && (h & 0x3ff)) u |= 0x400000;
    return flux__from_bits(u | (uint32_t)(h & 0x8000) << 16);
}
/* Rounds to the nearest f16, as the processor's own instruction does: a NaN stays one, with as
   many of its bits as fit; adding 0.5 rounds a denormal. */
static FLUX__INLINE uint16_t flux__half_of(float x) {
    uint32_t u = flux__to_bits(x) & 0x7fffffff, sign = (flux__to_bits(x) >> 16) & 0x8000, h;
    if (u > 0x7f800000) h = 0x7e00 | ((u >> 13) & 0x3ff);
    else if (u < 0x38800000) h = flux__to_bits(flux__from_bits(u) + 0.5f) - 0x3f000000;
    else h = (u - 0x38000000 + 0xfff + ((u >> 13) & 1)) >> 13;
    return (uint16_t)((u <= 0x7f800000 && h > 0x7c00 ? 0x7c00 : h) | sign);
}
FLUX__FAST FLUX__CASTING(flux__bf16_f32, float, uint16_t, flux__from_bits((uint32_t)v << 16))
FLUX__FAST FLUX__CASTING(flux__f32_bf16, uint16_t, float, flux__bf16_of(v))
#if !FLUX__VECTORS || !FLUX__NEON         /* with NEON, cpu/vectors.h has them */
FLUX__CASTING(flux__f16_f32, float, uint16_t, flux__half_value(v))
FLUX__CASTING(flux__f32_f16, uint16_t, float, flux__half_of(v))
#endif

/* A function that copies n elements of `size` bytes, `from` elements apart, to places `to`
   elements apart. */
#define FLUX__COPIES(name, size)                                                                     \
static void name(int64_t n, void *dst, int64_t to, const void *src, int64_t from) {                  \
    char *y = (char *)dst;                                                                           \
    const char *x = (const char *)src;                                                               \
    for (int64_t i = 0; i < n; i++) memcpy(y + i * to * size, x + i * from * size, size);            \
}
FLUX__COPIES(flux__copies1, 1)
FLUX__COPIES(flux__copies2, 2)
FLUX__COPIES(flux__copies4, 4)
FLUX__COPIES(flux__copies8, 8)
#if FLUX__VECTORS
typedef uint16_t flux__eight __attribute__((vector_size(16)));
/* Copies every second of 2 n - 1 words. */
static FLUX__O2 void flux__copy_twos(int64_t n, float *y, const float *x) {
    flux__quad v, head, tail;
    for (; n >= 4; n -= 4, x += 8, y += 4) {
        memcpy(&head, x, sizeof head), memcpy(&tail, x + 3, sizeof tail);
        FLUX__SHUFFLE(v, head, tail, flux__quad_bits, 0, 2, 5, 7)
        memcpy(y, &v, sizeof v);
    }
    for (; n > 0; n--, x += 2) memcpy(y++, x, sizeof *y);
}
/* Copies every second of 2 n - 1 halves. */
static FLUX__O2 void flux__copy_half_twos(int64_t n, uint16_t *y, const uint16_t *x) {
    flux__eight v, head, tail;
    for (; n >= 8; n -= 8, x += 16, y += 8) {
        memcpy(&head, x, sizeof head), memcpy(&tail, x + 7, sizeof tail);
        FLUX__SHUFFLE(v, head, tail, flux__eight, 0, 2, 4, 6, 9, 11, 13, 15)
        memcpy(y, &v, sizeof v);
    }
    for (; n > 0; n--, x += 2) *y++ = *x;
}
#endif
/* Repeats each of n words as many times as said. */
static FLUX__O2 void flux__repeat_words(float *y, const float *x, int64_t times, int64_t n) {
#if FLUX__VECTORS
    for (flux__quad v, w; times == 2 && n >= 4; n -= 4, y += 8, x += 4) {
        memcpy(&v, x, sizeof v);
        FLUX__SHUFFLE(w, v, v, flux__quad_bits, 2, 2, 3, 3)
        FLUX__SHUFFLE(v, v, v, flux__quad_bits, 0, 0, 1, 1)
        memcpy(y, &v, sizeof v), memcpy(y + 4, &w, sizeof w);
    }
#endif
    for (; n > 0; n--, x++)
        for (int64_t i = 0; i < times; i++) memcpy(y++, x, 4);
}
#if FLUX__VECTORS
/* Writes each of n halves twice. */
static FLUX__O2 void flux__double_halves(uint16_t *y, const uint16_t *x, int64_t n) {
    for (flux__eight v, w; n >= 8; n -= 8, y += 16, x += 8) {
        memcpy(&v, x, sizeof v);
        FLUX__SHUFFLE(w, v, v, flux__eight, 4, 4, 5, 5, 6, 6, 7, 7)
        FLUX__SHUFFLE(v, v, v, flux__eight, 0, 0, 1, 1, 2, 2, 3, 3)
        memcpy(y, &v, sizeof v), memcpy(y + 8, &w, sizeof w);
    }
    for (; n > 0; n--, x++, y += 2) y[0] = y[1] = *x;
}
#endif
/* Repeats each of n elements of `size` bytes as many times as said. */
static void flux__repeat(size_t size, char *y, const char *x, int64_t times, int64_t n) {
    if (size == 4) flux__repeat_words((float *)(void *)y, (const float *)(const void *)x, times, n);
#if FLUX__VECTORS
    else if (size == 2 && times == 2)
        flux__double_halves((uint16_t *)(void *)y, (const uint16_t *)(const void *)x, n);
#endif
    else
        for (int64_t i = 0; i < n; i++)
            flux__fill(y + (size_t)(i * times) * size, x + (size_t)i * size, size, (size_t)times);
}
/* Copies n elements of `size` bytes, `from` elements apart (0: one element, repeated), to
   places `to` elements apart. */
static void flux__copies(size_t size, int64_t n, void *dst, int64_t to, const void *src,
                         int64_t from) {
    if (n <= 0) return;
    if (to == 1 && from == 1) memcpy(dst, src, size * (size_t)n);
    else if (to == 1 && from == 0) flux__fill(dst, src, size, (size_t)n);
    else if (size == 1) flux__copies1(n, dst, to, src, from);
#if FLUX__VECTORS
    else if (size == 2 && to == 1 && from == 2)
        flux__copy_half_twos(n, (uint16_t *)dst, (const uint16_t *)src);
    else if (size == 4 && to == 1 && from == 2)
        flux__copy_twos(n, (float *)dst, (const float *)src);
#endif
    else if (size == 2) flux__copies2(n, dst, to, src, from);
    else if (size == 4) flux__copies4(n, dst, to, src, from);
    else flux__copies8(n, dst, to, src, from);
}

/* Converts n contiguous elements between compute types. */
static void flux__convert(int to_type, void *dst, int from_type, const void *src, int64_t n) {
    static const flux__cast_fn table[FLUX__CLASSES][FLUX__CLASSES] = {    /* [from][to] */
        { NULL, flux__f32_f64, flux__f32_i32, flux__f32_i64 },
        { flux__f64_f32, NULL, flux__f64_i32, flux__f64_i64 },
        { flux__i32_f32, flux__i32_f64, NULL, flux__i32_i64 },
        { flux__i64_f32, flux__i64_f64, flux__i64_i32, NULL } };
    if (to_type == from_type) memcpy(dst, src, flux__class_size[to_type] * (size_t)n);
    else table[from_type][to_type](n, dst, src);
}

/* The function that converts a dtype's elements to its compute type. NULL: they have it
   already. */
static flux__cast_fn flux__reader(int dtype) {
#if FLUX__VECTORS && FLUX__X86
    if (dtype == FLUX_F16 && flux__simd() > 0) return flux__half_load_x8;
    if (dtype == FLUX_BF16 && flux__simd() > 0)
        return flux__simd() > 1 ? flux__bf16_load_x16 : flux__bf16_load_x8;
#endif
    switch (dtype) {
    case FLUX_F16: return flux__f16_f32;
    case FLUX_BF16: return flux__bf16_f32;
    case FLUX_U8: return flux__u8_i32;
    case FLUX_BOOL: return flux__bool_i32;
    default: return NULL;
    }
}
/* The function that converts elements to a dtype: from *ctype where that matters (bool, the range
   of u8), else from the dtype's own compute type, which *ctype becomes. NULL: they need no
   conversion. */
static flux__cast_fn flux__writer(int dtype, int *ctype) {
    static const flux__cast_fn truth[] = {
        flux__f32_bool, flux__f64_bool, flux__i32_bool, flux__i64_bool };
    if (dtype == FLUX_BOOL) return truth[*ctype];
    if (dtype == FLUX_U8 && *ctype == FLUX__F32C) return flux__f32_u8;
    if (dtype == FLUX_U8 && *ctype == FLUX__F64C) return flux__f64_u8;
    *ctype = flux__loop_class[dtype];
#if FLUX__VECTORS && FLUX__X86
    if (dtype == FLUX_F16 && flux__simd() > 0) return flux__half_store_x8;
    if (dtype == FLUX_BF16 && flux__simd() > 0)
        return flux__simd() > 2 ? flux__bf16_store_pairs :
               flux__simd() > 1 ? flux__bf16_store_x16 : flux__bf16_store_x8;
#endif
    switch (dtype) {
    case FLUX_F16: return flux__f32_f16;
    case FLUX_BF16: return flux__f32_bf16;
    case FLUX_U8: return flux__i32_u8;
    default: return NULL;
    }
}

#define FLUX__CAST_TILE 256  /* elements converted at a time, where there are several steps */

/* Loads n elements of dtype `dtype`, `stride` elements apart (0, 1, any), as contiguous
   elements of the compute type ctype. */
static void flux__load(int ctype, void *dst, int dtype, const void *src, int64_t stride,
                       int64_t n) {
    const flux__cast_fn read = flux__reader(dtype);
    const int own = flux__loop_class[dtype];
    const int64_t size = (int64_t)flux_dtype_size((flux_dtype)dtype);
    const int64_t width = flux__class_size[ctype];
    double a[FLUX__CAST_TILE], b[FLUX__CAST_TILE];
    if (!read && own == ctype) {
        flux__copies((size_t)size, n, dst, 1, src, stride);
        return;
    }
    for (int64_t i = 0; i < n; i += FLUX__CAST_TILE) {
        const int64_t m = n - i < FLUX__CAST_TILE ? n - i : FLUX__CAST_TILE;
        const void *x = (const char *)src + i * stride * size;
        void *y = (char *)dst + i * width;
        if (stride != 1) flux__copies((size_t)size, m, a, 1, x, stride), x = a;
        if (read) read(m, own == ctype ? y : b, x), x = b;
        if (own != ctype) flux__convert(ctype, y, own, x, m);
    }
}

/* Stores n contiguous elements of the compute type ctype as elements of dtype `dtype`, `stride`
   elements apart. */
static void flux__store(int dtype, void *dst, int64_t stride, int ctype, const void *src,
                        int64_t n) {
    int needs = ctype;
    const flux__cast_fn write = flux__writer(dtype, &needs);
    const int64_t size = (int64_t)flux_dtype_size((flux_dtype)dtype),
        width = flux__class_size[ctype];
    double a[FLUX__CAST_TILE], b[FLUX__CAST_TILE];
    if (!write && needs == ctype) {
        flux__copies((size_t)size, n, dst, stride, src, 1);
        return;
    }
    if (write && needs == ctype && stride == 1) {
        write(n, dst, src);
        return;
    }
    for (int64_t i = 0; i < n; i += FLUX__CAST_TILE) {
        const int64_t m = n - i < FLUX__CAST_TILE ? n - i : FLUX__CAST_TILE;
        const void *x = (const char *)src + i * width;
        void *y = (char *)dst + i * stride * size;
        if (needs != ctype) flux__convert(needs, !write && stride == 1 ? y : a, ctype, x, m), x = a;
        if (write) write(m, stride == 1 ? y : b, x), x = b;
        if (stride != 1) flux__copies((size_t)size, m, y, stride, x, 1);
    }
}

/* Rounds or wraps n elements of a tile to what the dtype can hold. */
static void flux__wrap(int dtype, int ctype, void *x, int64_t n) {
    double tile[FLUX__CAST_TILE];
    if (dtype <= FLUX_F64 || (dtype == FLUX_I32 && ctype == FLUX__I32C) ||
        (dtype == FLUX_I64 && ctype == FLUX__I64C))
        return;
    for (int64_t i = 0; i < n; i += FLUX__CAST_TILE) {
        const int64_t m = n - i < FLUX__CAST_TILE ? n - i : FLUX__CAST_TILE;
        void *part = (char *)x + i * flux__class_size[ctype];
        flux__store(dtype, tile, 1, ctype, part, m);
        flux__load(ctype, part, dtype, tile, 1, m);
    }
}
/* The number x as a tensor of this dtype holds it: a number in a node is this, whether it ever
   gets a buffer or not. */
static double flux__as_stored(flux_dtype t, double x) {
    double stored[1];
    flux__store((int)t, stored, 1, FLUX__F64C, &x, 1);
    flux__load(FLUX__F64C, &x, (int)t, stored, 1, 1);
    return x;
}
/* Rounds n floats to a half format. */
FLUX__UNUSED static void flux__round_half(int dtype, float *x, int64_t n) {
    flux__wrap(dtype, FLUX__F32C, x, n);
}

FLUX__END_NUMBERS

#endif /* FLUX__CPU_CASTS_H */
