#ifndef FLUX__NN_FUNCTIONS_H
#define FLUX__NN_FUNCTIONS_H
#include "../base/platform.h"
#include "../base/threads.h"
#include "../base/errors.h"
#include "../base/text.h"
#include "../graph/table.h"
#include "../graph/views.h"
#include "../graph/products.h"
#include "fields.h"

/* ---------------------------------------------------------------------- nn/functions.h
   Functions as parts of models. Activations and connections are C functions.
   Their names for printing come from a table of the library's functions, from
   flux_name_function, or from the source text of the call, which the macro of a
   container passes on (flux__label). A function becomes a layer of type
   Function, of one operand or of two.

   Invariant: a name is looked up in this order: the layer's own label, names
   given by the user, the tables. User names are guarded by flux__lock, and there
   can be FLUX__USER_NAMES of them. A function of two operands reduces the
   tensors of a tuple from the left, f(f(x0, x1), x2). A function layer has no
   fields: a clone copies no tensors. */

/* Activations that are no row of the table of operations: each takes one operand and works on each
   element. */
#define FLUX__ACTIVATIONS(X)                                                                  \
    X(identity) X(hardsigmoid) X(logsigmoid) X(hardtanh) X(relu6) X(selu) X(gelu_tanh)        \
    X(gelu_sigmoid) X(gelu_erf) X(swish) X(hardswish) X(lisht) X(mish) X(softsign)            \
    X(leakyrelu) X(rrelu) X(elu) X(celu) X(softshrink) X(trelu)
#define FLUX__OTHER_UNARY(X)                                                                  \
    X(softmax) X(logsoftmax) X(flatten) X(detach) X(copy) X(transpose) X(squeeze) X(sum)      \
    X(mean) X(var) X(std) X(prod) X(max) X(min) X(any) X(all) X(norm) X(logsumexp)            \
    X(argmax) X(argmin) X(onecold) X(tril) X(triu) X(diag) X(trace) X(isnan) X(isfinite)      \
    X(cumsum) X(cumprod)                                                                      \
    X(gpu) X(cpu) X(cu) X(roc)

FLUX__BEGIN_COLD

typedef struct flux__named_fn { flux_fn f; const char *name; } flux__named_fn;
typedef struct flux__named_fn2 { flux_fn2 f; const char *name; } flux__named_fn2;

static const flux__named_fn flux__fn_names[] = {
#define FLUX__FN_OP(NAME, name, n, dt, call, shown, ...) \
    FLUX__PUBLIC_OF_1(n, call, { flux_##name, shown },)
#define FLUX__FN_ROW(name) { flux_##name, #name },
    FLUX__ELEMENTWISE(FLUX__FN_OP)
    FLUX__ACTIVATIONS(FLUX__FN_ROW)
    FLUX__OTHER_UNARY(FLUX__FN_ROW)
};
static const flux__named_fn2 flux__fn2_names[] = {
#define FLUX__FN2_OP(NAME, name, n, dt, call, shown, ...) \
    FLUX__PUBLIC_OF_2(n, call, { flux_##name, shown },)
    FLUX__ELEMENTWISE(FLUX__FN2_OP)
    { flux_matmul, "matmul" }, { flux_vcat, "vcat" }, { flux_dot, "dot" }, { flux_outer, "outer" }
};

#define FLUX__USER_NAMES 200
/* The names given by flux_name_function, guarded by flux__lock. */
static struct { flux_fn f; char name[64]; } flux__user_names[FLUX__USER_NAMES];
static int flux__user_named;

/* Gives f a name for printing, or a new one; the name is cut off after 63 bytes. */
FLUX_DEF void flux_name_function(flux_fn f, const char *name) {
    if (!f || !name) {
        flux__null("name_function", f ? "name" : "f", NULL);
        return;
    }
    flux__mutex_lock(&flux__lock);
    int i = 0;
    while (i < flux__user_named && flux__user_names[i].f != f) i++;
    if (i < FLUX__USER_NAMES) {
        flux__user_names[i].f = f;
        snprintf(flux__user_names[i].name, sizeof flux__user_names[i].name, "%s", name);
        if (i == flux__user_named) flux__user_named++;
    }
    flux__mutex_unlock(&flux__lock);
    if (i == FLUX__USER_NAMES)
        flux__fail("name_function: %d functions have names already, no room for \"%.60s\"", i,
                   name);
}

/* The name of a function of one operand; NULL if it has none. */
static const char *flux__known_name(flux_fn f) {
    const char *name = NULL;
    flux__mutex_lock(&flux__lock);
    for (int i = 0; i < flux__user_named && !name; i++)
        if (flux__user_names[i].f == f) name = flux__user_names[i].name;
    flux__mutex_unlock(&flux__lock);
    if (!name && f == flux_sigmoid) name = flux__ascii() ? "sigmoid" : "\xcf\x83";
    for (size_t i = 0; i < sizeof flux__fn_names / sizeof *flux__fn_names && !name; i++)
        if (flux__fn_names[i].f == f) name = flux__fn_names[i].name;
    return name;
}

static const char *flux__fn_name(flux_fn f) {
    const char *name = flux__known_name(f);
    return name ? name : "function";
}

static const char *flux__fn2_name(flux_fn2 f) {
    for (size_t i = 0; i < sizeof flux__fn2_names / sizeof *flux__fn2_names; i++)
        if (flux__fn2_names[i].f == f) return flux__fn2_names[i].name;
    return NULL;
}

/* ---------------- functions as layers */

typedef struct flux__function {
    flux_layer base;
    flux_fn f;                            /* one of f and f2 is NULL */
    flux_fn2 f2;
    char label[64];                       /* name for printing; "": look it up above */
} flux__function;

/* Reduces n tensors from the left by a function of two: f(f(x0, x1), x2) ... */
static flux_tensor *flux__fold(flux_fn2 f, int n, flux_tensor *const *xs) {
    flux_tensor *y = xs[0];
    for (int i = 1; i < n && y; i++) y = f(y, xs[i]);
    return y;
}

/* The tensors of a tuple, or x itself, into out[0 ... 254]. */
static bool flux__untuple(flux_tensor *x, flux_tensor **out) {
    int n = flux_num_items(x);
    for (int i = 0; i < n; i++)
        if (!(out[i] = flux_nth(x, i))) return false;
    return true;
}

static flux_tensor *flux__function_call(flux_layer *self, flux_tensor *x) {
    flux__function *m = (flux__function *)self;
    flux_tensor *xs[255];
    if (m->f) return m->f(x);
    if (flux_num_items(x) >= 2)
        return flux__untuple(x, xs) ? flux__fold(m->f2, flux_num_items(x), xs) : NULL;
    return (flux_tensor *)flux__fail("%s takes two inputs, got one", flux__line_of(self).s);
}

static size_t flux__function_text(flux_layer *self, char *out, size_t n) {
    const flux__function *m = (const flux__function *)self;
    flux__sink s = flux__sink_to(out, n);
    const char *name = m->label[0] ? m->label
                       : m->f      ? flux__known_name(m->f)
                                   : flux__fn2_name(m->f2);
    flux__putf(&s, "%s", name ? name : "function");
    return flux__sink_end(&s);
}
FLUX_LAYER_TEXT(flux__function, "Function", flux__function_call, flux__function_text)

static flux_layer *flux__function_new(flux_fn f, flux_fn2 f2, const char *name) {
    FLUX__ZEROED(flux__function, m);
    if (!f && !f2) return (flux_layer *)flux__null("function", "f", NULL);
    m.f = f;
    m.f2 = f2;
    if (name) snprintf(m.label, sizeof m.label, "%s", name);
    return flux__layer_new(flux__function_type(), &m);
}

FLUX_DEF flux_layer *flux_function(flux_fn f, const char *name) {
    return flux__function_new(f, NULL, name);
}
FLUX_DEF flux_layer *flux_function2(flux_fn2 f, const char *name) {
    return flux__function_new(NULL, f, name);
}
FLUX_DEF flux_layer *flux__layer_of_fn(flux_fn f) { return flux__function_new(f, NULL, NULL); }
FLUX_DEF flux_layer *flux__layer_of_fn2(flux_fn2 f) { return flux__function_new(NULL, f, NULL); }
FLUX_DEF flux_layer *flux__layer_of_layer(flux_layer *l) { return l; }

/* Labels a function layer that has no name yet with argument number i of the call's source text, if
   that is an identifier. */
static void flux__label(flux_layer *l, const char *names, int i) {
    flux__function *m = (flux__function *)l;
    const char *part = NULL;
    int n = 0;
    if (!l || l->type != flux__function_type() || !names || m->label[0]) return;
    if (m->f ? flux__known_name(m->f) != NULL : flux__fn2_name(m->f2) != NULL) return;
    for (; names && i >= 0; i--) part = flux__next_argument(&names, &n);
    if (i >= 0) return;
    if (n && *part == '&') part++, n--;
    if (n == 0) return;
    for (int k = 0; k < n; k++)
        if (!isalnum((unsigned char)part[k]) && part[k] != '_') return;
    if (n > 5 && strncmp(part, "flux_", 5) == 0) part += 5, n -= 5;
    snprintf(m->label, sizeof m->label, "%.*s", n, part);
}

FLUX_DEF flux_tensor *flux_vcat(flux_tensor *a, flux_tensor *b) {
    flux_tensor *both[2];
    both[0] = a;
    both[1] = b;
    return flux__cat("vcat", 0, 2, both);
}

FLUX__END_COLD

#endif /* FLUX__NN_FUNCTIONS_H */
