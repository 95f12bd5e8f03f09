#ifndef FLUX__GRAPH_INTERPOLATION_H
#define FLUX__GRAPH_INTERPOLATION_H
#include "../base/platform.h"
#include "../base/dtypes.h"
#include "nodes.h"

/* ---------------------------------------------------------------------- graph/interpolation.h
   Linear interpolation along any dims at once is a node (FLUX__INTERPOLATE) with
   a kernel of its own: cpu/interpolation.h, and in gpu/whole.h. Its reverse, which
   sums what was made of each element, is the same node read backwards: each is the
   other's gradient.

   Invariant: of n samples that become m, number k lies at k (n-1) / (m-1), so that
   the first and the last stay. Places and weights are fractions of whole numbers,
   so no weight is near 0 by rounding, and what has none is not read: an infinite
   neighbour changes nothing at a sample's own place. The operand is f32 or f64.

   Rejected: a gather of each neighbour and a sum, by dim, whose gradients add
   elements one by one: 10 times the time and 5 times the memory. */

FLUX__BEGIN_LEAN

/* One dim of an interpolation: n samples become m at k num / den. back: the operand has m. */
typedef struct flux__lerps { int64_t n, m, num, den; bool back; } flux__lerps;

static flux__lerps flux__lerps_of(const flux_tensor *t, int d) {
    const bool back = t->arg.i[0] != 0;
    const int64_t n = back ? t->dim[d] : t->in[0]->dim[d], m = back ? t->in[0]->dim[d] : t->dim[d];
    const flux__lerps b = { n, m, n - 1, m > 1 ? m - 1 : 1, back };
    return b;
}

/* The elements of the operand that element number k is made of: *first to *last, perhaps none. */
static void flux__lerps_reads(const flux__lerps *b, int64_t k, int64_t *first, int64_t *last) {
    if (!b->back) *first = k * b->num / b->den, *last = (k * b->num + b->den - 1) / b->den;
    else if (!b->num) *first = 0, *last = b->m - 1;
    else {
        *first = k ? (k - 1) * b->den / b->num + 1 : 0, *last = ((k + 1) * b->den - 1) / b->num;
        if (*last > b->m - 1) *last = b->m - 1;
    }
}

/* The weight of the operand's element i for element k. */
static double flux__lerps_weight(const flux__lerps *b, int64_t k, int64_t i) {
    const int64_t apart = b->back ? i * b->num - k * b->den : k * b->num - i * b->den;
    return (double)(b->den - (apart < 0 ? -apart : apart)) / (double)b->den;
}

/* The same in C, which is also CUDA and HIP: opens a loop over the elements i<d> that element d<d>
   along dim d is made of, and declares the weight w<d>, of the type `real`. */
static void flux__lerps_text(char *out, size_t size, const flux_tensor *t, int d,
                             const char *real) {
    const flux__lerps b = flux__lerps_of(t, d);
    const char *whole = flux__times(b.n + 1, b.m + 1) < INT32_MAX ? "int" : "long long";
    const long long num = (long long)b.num, den = (long long)b.den, step = b.back ? num : den,
                    other = b.back ? den : num;
    char first[96] = "0", apart[96];
    if (!b.back) snprintf(first, sizeof first, "(%s)d%d * %lld / %lld", whole, d, num, den);
    else if (num)
        snprintf(first, sizeof first, "d%d ? ((%s)d%d - 1) * %lld / %lld + 1 : 0", d, whole, d, den,
                 num);
    snprintf(apart, sizeof apart, "i%d * %lld - (%s)d%d * %lld", d, step, whole, d, other);
    snprintf(out, size, "for (%s i%d = %s; i%d < %lld && %s < %lld; i%d++) {\n"
             "const %s q%d = %s;\n"
             "const %s w%d = (%s)(%lld - (q%d < 0 ? -q%d : q%d)) / (%s)%lld;\n",
             whole, d, first, d, (long long)t->in[0]->dim[d], apart, den, d, whole, d, apart, real,
             d, real, den, d, d, d, real, den);
}

/* x with the shape s, interpolated, or summed backwards, along each dim whose size differs. Sizes
   times each other must be within int64. */
static flux_tensor *flux__interpolated(flux_tensor *x, flux_shape s, bool back) {
    bool same = x != NULL;
    for (int d = 0; d < s.ndim && x; d++) same = same && s.dim[d] == x->dim[d];
    flux_tensor *y = x && !same ? flux__node(FLUX__INTERPOLATE, (flux_dtype)x->dtype, &s, x, NULL,
                                             NULL) : NULL;
    if (!y) return x && same ? x : NULL;
    y->arg.i[0] = back;
    return flux__done(y);
}

FLUX__END_LEAN

#endif /* FLUX__GRAPH_INTERPOLATION_H */
