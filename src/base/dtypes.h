#ifndef FLUX__BASE_DTYPES_H
#define FLUX__BASE_DTYPES_H
#include "platform.h"
#include "errors.h"

/* ---------------------------------------------------------------------- base/dtypes.h
   Dtypes and shapes: the table of dtypes (name, size, promotion rank, epsilon),
   the promotion rule (flux__promote), element counts, the check of a shape, and
   shapes as text for error messages ("64x128 f32").

   Invariant: the rows of flux__dtypes stand in the order of enum flux_dtype.
   Two dtypes promote to the one of higher rank; f16 and bf16, of equal rank,
   promote to f32. Every node's shape has passed flux__check_shape, which allows
   at most FLUX__MOST_ELEMENTS elements, where an empty dim counts as 1: so
   element counts, strides and offsets of tensors are multiplied and added
   without a check. Sizes that a user gave are not bounded yet and go through
   flux__times and flux__plus, which saturate at INT64_MAX.

   Rejected: the compilers' built-in overflow checks, which not every compiler
   has; flux__times decides by a product in double, which is exact enough to
   tell overflow. */

FLUX__BEGIN_HOT

typedef struct flux__dtype_row {          /* size in bytes; rank: see flux__promote */
    const char *name; uint8_t size; bool real; int rank; double epsilon;
} flux__dtype_row;
static const flux__dtype_row flux__dtypes[FLUX_NUM_DTYPES] = {
    { "f32", 4, true, 7, 1.1920928955078125e-7 }, { "f64", 8, true, 8, 2.220446049250313e-16 },
    { "f16", 2, true, 5, 9.765625e-4 }, { "bf16", 2, true, 5, 7.8125e-3 },
    { "i32", 4, false, 3, 0 }, { "i64", 8, false, 4, 0 },
    { "u8", 1, false, 2, 0 }, { "bool", 1, false, 1, 0 }
};

/* A float as an integer: rounded towards zero; the nearest integer if out of range; 0 for NaN.
   most: the type's largest value; beyond: the float from which on it is given. */
#define FLUX__WHOLE(T, v, least, beyond, most) \
    ((v) >= (beyond) ? (most) : (v) > (least) ? (T)(v) : (v) <= (least) ? (T)(least) : (T)0)

FLUX_DEF const char *flux_dtype_name(flux_dtype t) {
    return (unsigned)t < FLUX_NUM_DTYPES ? flux__dtypes[t].name : "?";
}
FLUX_DEF size_t flux_dtype_size(flux_dtype t) {
    return (unsigned)t < FLUX_NUM_DTYPES ? flux__dtypes[t].size : 0;
}
static bool flux__is_half(int dtype) { return dtype == FLUX_F16 || dtype == FLUX_BF16; }

/* The dtype to which two promote: the one of higher rank; of the two half formats, f32. */
static flux_dtype flux__promote(flux_dtype a, flux_dtype b) {
    if (a == b) return a;
    if (flux__dtypes[a].rank == flux__dtypes[b].rank) return FLUX_F32;
    return flux__dtypes[a].rank > flux__dtypes[b].rank ? a : b;
}

FLUX_DEF flux_shape flux__shape(const int64_t *dims, int n) {
    FLUX__ZEROED(flux_shape, s);
    s.ndim = n;
    for (int i = 0; dims && i < n && i < FLUX_MAX_DIMS; i++) s.dim[i] = dims[i];
    return s;
}

static FLUX__INLINE flux_shape flux__dims(const flux_tensor *t) {
    flux_shape s;
    memcpy(s.dim, t->dim, sizeof s.dim);
    s.ndim = t->ndim;
    return s;
}

/* Saturating arithmetic on sizes, which a user may have given: where int64 overflows, the result
   is INT64_MAX or its negative, which no shape allows. (Overflow is found by a product in double,
   since not every compiler has a built-in check: double is exact enough for that, 9.2e18 being
   less than 2^63.) */
static FLUX__INLINE int64_t flux__times(int64_t a, int64_t b) {
    const double p = (double)a * (double)b;
    return p > 9.2e18 ? INT64_MAX : p < -9.2e18 ? -INT64_MAX : a * b;
}
static FLUX__INLINE int64_t flux__plus(int64_t a, int64_t b) {
    if (a > 0 && b > INT64_MAX - a) return INT64_MAX;
    return a < 0 && b < -INT64_MAX - a ? -INT64_MAX : a + b;
}

/* The number of elements of a shape. */
static int64_t flux__count(const flux_shape *s) {
    int64_t n = 1;
    for (int i = 0; i < s->ndim; i++) n *= s->dim[i];
    return n;
}

/* The number of elements of a tensor. */
static int64_t flux__size(const flux_tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= t->dim[i];
    return n;
}

/* Where element number `flat` of n dims is along each of them; dim 0 varies fastest. */
static FLUX__INLINE void flux__place_at(const int64_t *dim, int n, int64_t flat, int64_t *place) {
    for (int d = 0; d < n; flat /= dim[d++]) place[d] = flat % dim[d];
}

static bool flux__same_dims(const flux_tensor *a, const flux_tensor *b) {
    if (a->ndim != b->ndim) return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->dim[i] != b->dim[i]) return false;
    return true;
}

/* Whether a shape may be a tensor's; false is an error, named after `call`. The product of its
   dims, in bytes of the widest dtype, must fit int64; an empty dim counts as 1 in it, since
   strides are such products too. flux__node_raw checks every node's shape, so that element
   counts, strides and offsets can be multiplied and added without a check. */
#define FLUX__MOST_ELEMENTS 8.75e12
static bool flux__check_shape(const char *call, const flux_shape *s) {
    double n = 1;
    if (s->ndim < 0 || s->ndim > FLUX_MAX_DIMS)
        return FLUX__REFUSE("%s: %d dimensions, but a tensor has at most %d", call, s->ndim,
                            FLUX_MAX_DIMS);
    for (int i = 0; i < s->ndim; i++) {
        if (s->dim[i] < 0)
            return FLUX__REFUSE("%s: dimension %d is %lld", call, i, (long long)s->dim[i]);
        n *= s->dim[i] > 0 ? (double)s->dim[i] : 1.0;
    }
    return n <= FLUX__MOST_ELEMENTS ||
           FLUX__REFUSE("%s: a tensor of %.3g elements is too large", call, n);
}

typedef struct flux__text { char s[112]; } flux__text;    /* "64x128 f32", for messages */

/* A shape as messages show it: "scalar", "5-element" or "64x128". */
static flux__text flux__shape_text(const flux_shape *s) {
    flux__text t;
    int at = 0;
    t.s[0] = 0;
    if (s->ndim == 0) snprintf(t.s, sizeof t.s, "scalar");
    if (s->ndim == 1) snprintf(t.s, sizeof t.s, "%lld-element", (long long)s->dim[0]);
    for (int i = 0; s->ndim > 1 && i < s->ndim && at < 90; i++)
        at += snprintf(t.s + at, sizeof t.s - (size_t)at, i ? "x%lld" : "%lld",
                       (long long)s->dim[i]);
    return t;
}

/* A tensor as messages show it: "64x128 f32". */
static flux__text flux__describe(const flux_tensor *x) {
    flux_shape s = flux__dims(x);
    flux__text t = flux__shape_text(&s);
    size_t n = strlen(t.s);
    snprintf(t.s + n, sizeof t.s - n, " %s", flux__dtypes[x->dtype].name);
    return t;
}

FLUX__END_HOT

#endif /* FLUX__BASE_DTYPES_H */
