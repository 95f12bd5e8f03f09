#ifndef FLUX__GRAPH_PRODUCTS_H
#define FLUX__GRAPH_PRODUCTS_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/dtypes.h"
#include "../base/scopes.h"
#include "nodes.h"
#include "elementwise.h"
#include "views.h"

/* ---------------------------------------------------------------------- graph/products.h
   Matrix products: flux_matmul, with batch dims that broadcast, flux_outer and
   flux_dot. FLUX__MATMUL is the one node; arg.i holds m, n and k, and of a
   convolution's windows what flux__mark_windows says.

   Invariant: a is m x k, b is k x n, both column-major, dims from 2 on are
   batch dims; a vector is a column, on the left a row, and the dim that it
   lacks is dropped from the result. Operands have one floating dtype and one
   device (integers become f32). Each product adds its multiply-adds to the
   thread's count, which flux_summary shows. flux_dot of half formats multiplies
   and sums in float32 and rounds once. */

FLUX__BEGIN_HOT

/* Tells why a and b have no product; returns false. */
static bool flux__no_product(const char *why, const flux_tensor *a, const flux_tensor *b) {
    flux__text ta = flux__describe(a), tb = flux__describe(b);
    return flux__fail("matmul: %s: a is %s, b is %s", why, ta.s, tb.s) != NULL;
}

/* The sizes mnk[] = { m, n, k } of the product m x k times k x n, and the result's shape *s. A
   vector is a column, on the left a row. False: an error was told. */
static bool flux__product_shape(const flux_tensor *a, const flux_tensor *b, int64_t *mnk,
                                flux_shape *s) {
    mnk[0] = a->ndim > 1 ? a->dim[0] : 1;
    mnk[1] = b->ndim > 1 ? b->dim[1] : 1;
    mnk[2] = a->dim[a->ndim > 1 ? 1 : 0];
    if (mnk[2] != b->dim[0]) return flux__no_product("inner sizes differ", a, b);
    *s = flux__shape(NULL, 0);
    if (a->ndim > 1) s->dim[s->ndim++] = mnk[0];
    if (b->ndim > 1) s->dim[s->ndim++] = mnk[1];
    int nd = a->ndim > b->ndim ? a->ndim : b->ndim;
    if (nd > 2 && s->ndim < 2)
        return flux__no_product("batches of products need matrices on both sides", a, b);
    for (int d = 2; d < nd; d++) {
        int64_t x = d < a->ndim ? a->dim[d] : 1, y = d < b->ndim ? b->dim[d] : 1;
        if (x != y && x != 1 && y != 1) return flux__no_product("batch dims differ", a, b);
        s->dim[s->ndim++] = x == 1 ? y : x;
    }
    return flux__check_shape("matmul", s);
}

/* Adds n multiply-adds to the thread's count, which flux_summary shows. */
static void flux__multiply_adds(int64_t n) {
    flux__thread *t = flux__self();
    if (t) t->products = flux__plus(t->products, n);
}

/* The product of a (m x k x batch...) and b (k x n x batch...), or of vectors. wide: the product
   of half formats stays in float32, in which it is summed anyway, for sums of products that are
   rounded once. */
static flux_tensor *flux__matmul(flux_tensor *a, flux_tensor *b, bool wide) {
    flux_tensor *xs[2] = { a, b };
    int64_t mnk[3];
    flux_shape s;
    if (!flux__check_operands("matmul", 2, xs)) return NULL;
    if (a->ndim == 0 || b->ndim == 0)
        return (flux_tensor *)flux__fail("matmul: an operand is a scalar; flux_mul scales");
    int t = flux__meet("matmul", 2, xs);
    if (t < 0 || !flux__product_shape(a, b, mnk, &s)) return NULL;
    if (!flux__dtypes[t].real) t = FLUX_F32;
    bool ready = a->dtype == t && b->dtype == t && flux__same_device(a->device, b->device);
    int h = ready ? 0 : flux__hide();     /* only conversions would be temporaries to hide */
    flux_device place = flux__place(2, xs);
    a = flux__taken(a, place, (flux_dtype)t);
    b = flux__taken(b, place, (flux_dtype)t);
    flux_dtype result = wide && flux__is_half(t) ? FLUX_F32 : (flux_dtype)t;
    flux_tensor *y = a && b ? flux__node(FLUX__MATMUL, result, &s, a, b, NULL) : NULL;
    if (y) {
        flux__multiply_adds(flux__times(flux__size(y), mnk[2]));
        for (int i = 0; i < 3; i++) y->arg.i[i] = mnk[i];
        y = flux__done(y);
    }
    return ready ? y : flux__reveal(h, y);
}

FLUX_DEF flux_tensor *flux_matmul(flux_tensor *a, flux_tensor *b) {
    return flux__matmul(a, b, false);
}

/* Checks that a and b are vectors. False: an error was told, or one is NULL. */
static bool flux__check_vectors(const char *call, flux_tensor *a, flux_tensor *b) {
    flux_tensor *xs[2] = { a, b };
    if (!flux__check_operands(call, 2, xs)) return false;
    if (a->ndim == 1 && b->ndim == 1) return true;
    flux__text ta = flux__describe(a), tb = flux__describe(b);
    flux__fail("%s: takes two vectors, not %s and %s", call, ta.s, tb.s);
    return false;
}

/* The outer product of two vectors: a column times a row, elementwise by broadcasting. */
FLUX_DEF flux_tensor *flux_outer(flux_tensor *a, flux_tensor *b) {
    if (!flux__check_vectors("outer", a, b)) return NULL;
    int h = flux__hide();
    return flux__reveal(h, flux_mul(flux_reshape(a, -1, 1), flux_transpose(b)));
}

/* The sum of a b over two vectors, in the dtype at which they meet. */
static flux_tensor *flux__dot(flux_tensor *a, flux_tensor *b) {
    flux_tensor *xs[2] = { a, b };
    int t = flux__meet("dot", 2, xs);
    if (t < 0 || !flux__is_half(t)) return t < 0 ? NULL : flux_sum(flux_mul(a, b));
    return flux__narrow(flux_sum(flux_mul(flux__widened(a), flux__widened(b))), t);
}

FLUX_DEF flux_tensor *flux_dot(flux_tensor *a, flux_tensor *b) {
    if (!flux__check_vectors("dot", a, b)) return NULL;
    if (a->dim[0] != b->dim[0]) {
        flux__text ta = flux__describe(a), tb = flux__describe(b);
        return (flux_tensor *)flux__fail("dot: lengths differ: a is %s, b is %s", ta.s, tb.s);
    }
    int h = flux__hide();
    return flux__reveal(h, flux__dot(a, b));
}

FLUX__END_HOT

#endif /* FLUX__GRAPH_PRODUCTS_H */
