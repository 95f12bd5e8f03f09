#ifndef FLUX__GRAPH_CUSTOM_H
#define FLUX__GRAPH_CUSTOM_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/scopes.h"
#include "nodes.h"
#include "elementwise.h"
#include "views.h"

/* ---------------------------------------------------------------------- graph/custom.h
   flux_custom: a function of tensors whose gradient the program states. The
   function's result is shown through a FLUX__CUSTOM node, whose operands are the
   result and the function's operands; the gradient goes by the latter.

   Invariant: a FLUX__CUSTOM node's operands are the result, the n operands of
   the function, and what the function kept for the gradient, in this order;
   arg.i holds the addresses of backward and of the context, and n. forward
   records under FLUX_NOGRAD, so no gradient passes through the result.

   Rejected: a node that calls forward when it is computed. A function that
   records operations would not be fused with what is beside it, and one that
   looks at its operands can do so at once. */

FLUX__BEGIN_COLD

enum { FLUX__CUSTOM_OPERANDS = 64 };

/* Whether forward's result y can be used: one tensor, or a tuple whose first is one and which has
   few enough others; else an error. `failures`: the number of errors before forward was called. */
static bool flux__check_custom(const flux_tensor *y, int64_t failures) {
    if (!y)
        return flux__failed_since(failures) ? false
                                            : FLUX__REFUSE("custom: forward returned NULL");
    if (FLUX__GONE("custom", y)) return false;
    if (y->op == FLUX__TUPLE && (y->in[0]->op == FLUX__TUPLE || y->nin > 128))
        return FLUX__REFUSE("custom: forward returned a tuple that %s",
                            y->nin > 128 ? "has more than 128 tensors" : "begins with a tuple");
    return true;
}

/* The node that shows `value`, forward's result, with the gradient of the program. */
static flux_tensor *flux__custom_node(flux_tensor *value, flux_backward backward, void *context,
                                      int n, flux_tensor *const *xs, int nkept,
                                      flux_tensor *const *kept) {
    int64_t offset, stride[FLUX_MAX_DIMS];
    flux_shape s = flux__dims(value);
    flux_tensor *base = flux__layout(value, &offset, stride),
        *y = flux__node_raw(FLUX__CUSTOM, (flux_dtype)value->dtype, &s, value->device,
                            1 + n + nkept);
    if (!y) return NULL;
    flux__edge(&y->in[0], value);
    for (int i = 0; i < n; i++) flux__edge(&y->in[1 + i], xs[i]);
    for (int i = 0; i < nkept; i++) flux__edge(&y->in[1 + n + i], kept[i]);
    flux__edge(&y->base, base);
    y->offset = offset;
    for (int i = 0; i < s.ndim; i++) y->stride[i] = stride[i];
    y->arg.i[0] = (int64_t)(intptr_t)backward;
    y->arg.i[1] = (int64_t)(intptr_t)context;
    y->arg.i[2] = n;
    return flux__done(y);
}

FLUX_DEF flux_tensor *flux_custom_with(flux_forward forward, flux_backward backward, void *context,
                                       int n, flux_tensor *const *operands) {
    const flux__thread *self = flux__self();
    int64_t failures = flux__failures();
    if (n < 1 || n > FLUX__CUSTOM_OPERANDS)
        return (flux_tensor *)flux__fail("custom: %d operands; 1 to %d are possible", n,
                                         FLUX__CUSTOM_OPERANDS);
    if (!operands) return (flux_tensor *)flux__null("custom", "operands", operands);
    if (!self || !flux__check_operands("custom", n, operands)) return NULL;
    if (!forward) return (flux_tensor *)flux__null("custom", "forward", NULL);
    const int depth = self->nscopes;
    flux_scope_open();
    const int graph = flux__nograd_enter();
    flux_tensor *y = forward(n, operands, context);
    flux__nograd_leave(graph);
    if (!flux__check_custom(y, failures)) y = NULL;
    if (y) {
        const bool tuple = y->op == FLUX__TUPLE;
        flux_tensor *value = tuple ? y->in[0] : y;
        y = !backward || self->nograd ? flux_detach(value)
                         : flux__custom_node(value, backward, context, n, operands,
                                             tuple ? y->nin - 1 : 0, tuple ? y->in + 1 : NULL);
    }
    return flux__reveal(depth, y);
}

/* dx, what backward wrote as the gradient by operand x, in x's dtype and on its device; NULL, with
   an error, if it is no tensor of x's shape. */
static flux_tensor *flux__custom_part(flux_tensor *dx, const flux_tensor *x, int i) {
    if (FLUX__GONE("custom", dx)) return NULL;
    if (dx->op == FLUX__TUPLE || !flux__same_dims(dx, x)) {
        flux__text is = flux__describe(dx), want = flux__describe(x);
        return (flux_tensor *)flux__fail(
            "custom: backward wrote %s as the gradient by operand %d, which is %s",
            dx->op == FLUX__TUPLE ? "a tuple" : is.s, i, want.s);
    }
    return flux__taken(dx, x->device, (flux_dtype)x->dtype);
}

/* The gradients of a FLUX__CUSTOM node y by the function's operands, out[1] and so on. */
static void flux__custom_gradient(flux_tensor *y, flux_tensor *g, const bool *need,
                                  flux_tensor **out) {
    flux_backward backward = (flux_backward)(intptr_t)y->arg.i[0];
    const int n = (int)y->arg.i[2], nkept = y->nin - 1 - n;
    flux_tensor *dx[FLUX__CUSTOM_OPERANDS] = { NULL }, *all[129] = { y };
    for (int i = 0; i < nkept; i++) all[1 + i] = y->in[1 + n + i];
    flux_tensor *made = nkept ? flux_tuple_with(1 + nkept, all) : y;
    if (!made) return;
    backward(n, y->in + 1, made, g, dx, (void *)(intptr_t)y->arg.i[1]);
    for (int i = 0; i < n; i++)
        if (need[1 + i] && dx[i]) out[1 + i] = flux__custom_part(dx[i], y->in[1 + i], i);
}

FLUX__END_COLD

#endif /* FLUX__GRAPH_CUSTOM_H */
