#ifndef FLUX__TEXT_OWN_OPERATIONS_H
#define FLUX__TEXT_OWN_OPERATIONS_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/text.h"
#include "../base/dtypes.h"
#include "../base/scopes.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/views.h"
#include "../graph/custom.h"
#include "../graph/gradients.h"
#include "formulas.h"
#include "formula_reader.h"

/* ---------------------------------------------------------------------- text/own_operations.h
   FLUX_OP: elementwise operations of the program's own, whose formulas are
   written in C. The formula is parsed at each call (a recursive descent by
   binding strength) and its operations are recorded on the way, so it is fused
   and vectorised as any others are, on every back end. The C compiler has
   checked the formula's syntax, in the function of plain numbers that FLUX_OP
   writes beside it; what is checked here is that the library can compute it.

   Invariant: within a formula operands of half formats are float32, and numbers
   stay doubles until they meet an operand. Where a tensor stands for a
   condition it is bool. A part in which no operand stands is computed at once.

   Rejected: the compiler's own loop over the formula, with pointers to the
   functions of libm: the GPU could not run it, and exp, tanh and pow of libm
   take 5 to 20 times as long for an element as the library's vectors do. */

FLUX__BEGIN_LEAN

enum { FLUX__OPERATION_OPERANDS = 8 };

/* ---------------- functions of <math.h> */

static flux_tensor *flux__c_exp2(flux_tensor *x) { return flux_pow(2.0, x); }
static flux_tensor *flux__c_log2(flux_tensor *x) {
    return flux_mul(flux_log(x), 1.4426950408889634);
}
static flux_tensor *flux__c_log10(flux_tensor *x) {
    return flux_mul(flux_log(x), 0.4342944819032518);
}
static flux_tensor *flux__c_cbrt(flux_tensor *x) {
    return flux_mul(flux_sign(x), flux_pow(flux_abs(x), 1 / 3.0));
}
static flux_tensor *flux__c_trunc(flux_tensor *x) {
    return flux_mul(flux_sign(x), flux_floor(flux_abs(x)));
}

typedef struct flux__c_function {         /* of one operand, or of two */
    const char *name;
    flux_fn one;
    double (*number)(double);             /* what it gives for a plain number */
    flux_fn2 two;
    double (*numbers)(double, double);
} flux__c_function;

static const flux__c_function flux__c_functions[] = {
    { "exp", flux_exp, exp, NULL, NULL }, { "exp2", flux__c_exp2, exp2, NULL, NULL },
    { "expm1", flux_expm1, expm1, NULL, NULL }, { "log", flux_log, log, NULL, NULL },
    { "log2", flux__c_log2, log2, NULL, NULL }, { "log10", flux__c_log10, log10, NULL, NULL },
    { "log1p", flux_log1p, log1p, NULL, NULL }, { "sqrt", flux_sqrt, sqrt, NULL, NULL },
    { "cbrt", flux__c_cbrt, cbrt, NULL, NULL }, { "sin", flux_sin, sin, NULL, NULL },
    { "cos", flux_cos, cos, NULL, NULL }, { "tan", flux_tan, tan, NULL, NULL },
    { "asin", flux_asin, asin, NULL, NULL }, { "acos", flux_acos, acos, NULL, NULL },
    { "atan", flux_atan, atan, NULL, NULL }, { "sinh", flux_sinh, sinh, NULL, NULL },
    { "cosh", flux_cosh, cosh, NULL, NULL }, { "tanh", flux_tanh, tanh, NULL, NULL },
    { "erf", flux_erf, erf, NULL, NULL }, { "fabs", flux_abs, fabs, NULL, NULL },
    { "floor", flux_floor, floor, NULL, NULL }, { "ceil", flux_ceil, ceil, NULL, NULL },
    { "trunc", flux__c_trunc, trunc, NULL, NULL }, { "rint", flux_round, rint, NULL, NULL },
    { "pow", NULL, NULL, flux_pow, pow }, { "atan2", NULL, NULL, flux_atan2, atan2 },
    { "fmax", NULL, NULL, flux_max2, fmax }, { "fmin", NULL, NULL, flux_min2, fmin }
};

/* The function of this name, or of this name without an f at its end (expf); NULL: none. */
static const flux__c_function *flux__c_find(const char *name, int size) {
    for (int drop = 0; drop < 2 && size > drop; drop++) {
        if (drop && name[size - 1] != 'f') break;
        for (size_t i = 0; i < sizeof flux__c_functions / sizeof *flux__c_functions; i++)
            if (flux__is_name(flux__c_functions[i].name, name, size - drop))
                return &flux__c_functions[i];
    }
    return NULL;
}

/* ---------------- the parser */

static flux__term flux__c_parse(flux__expr *p, int bind);

/* A tensor as a condition: a bool, true where it is not 0. */
static flux__term flux__c_condition(flux__expr *p, const char *at, flux__term v) {
    if (!v.t || v.t->dtype == FLUX_BOOL || p->failed) return v;
    return FLUX__EXPR_AT(p, at, flux_ne(v.t, 0.0));
}

/* Parses a number such as 2, 2., .5, 1e-3 or 0.5f; hexadecimal and octal ones are errors. */
static flux__term flux__c_number(flux__expr *p) {
    const char *start = p->at;
    flux__term v = flux__expr_number(flux__expr_literal(p));
    const bool point = memchr(start, '.', (size_t)(p->at - start)) != NULL;
    if (*p->at == '.' && !point) p->at++;              /* the 2. of 2.*x */
    const bool whole = !memchr(start, '.', (size_t)(p->at - start));
    if (*start == '0' && (*p->at == 'x' || *p->at == 'X' || (whole && flux__is_digit(start[1]))))
        flux__expr_fail(p, start, "numbers are decimal, without a 0 before them");
    while (*p->at && strchr("fFlLuU", *p->at)) p->at++;
    return v;
}

/* Parses what begins with a name: an operand, or the call of a function. */
static flux__term flux__c_name(flux__expr *p) {
    const char *at = p->at;
    const int size = flux__name_size(at), bound = flux__expr_bound(p, at, size);
    flux__term a = flux__expr_number(0), b = a;
    p->at += size;
    if (bound >= 0) a.t = p->values[bound];
    if (bound >= 0) return a;
    const flux__c_function *f = flux__c_find(at, size);
    if (!f || !flux__expr_take(p, "(")) {
        flux__expr_fail(p, at, "unknown name %.*s (operands: %s); FLUX_OP lists the functions",
                        size < 40 ? size : 40, at, p->names);
        return a;
    }
    a = flux__c_parse(p, FLUX__BIND_CHOICE);
    if (f->two && !p->failed && !flux__expr_take(p, ",")) flux__expr_expected(p, ",");
    if (f->two && !p->failed) b = flux__c_parse(p, FLUX__BIND_CHOICE);
    if (!p->failed && !flux__expr_take(p, ")")) flux__expr_expected(p, ")");
    if (p->failed) return a;
    if (!a.t && !b.t)
        return flux__expr_number(f->one ? f->number(a.num) : f->numbers(a.num, b.num));
    return FLUX__EXPR_AT(p, at, f->one ? f->one(a.t)
                                       : f->two(flux__as_tensor(&a), flux__as_tensor(&b)));
}

/* Parses an operand with the signs before it. */
static flux__term flux__c_operand(flux__expr *p) {
    flux__expr_space(p);
    const char *at = p->at;
    flux__term v = flux__expr_number(0);
    if (*at == '-' || *at == '+' || *at == '!') {
        p->at++;
        v = flux__c_parse(p, FLUX__BIND_UNARY);
        if (p->failed || *at == '+') return v;
        if (*at == '-')
            return v.t ? FLUX__EXPR_AT(p, at, flux_neg(v.t)) : flux__expr_number(-v.num);
        v = flux__c_condition(p, at, v);
        return v.t ? FLUX__EXPR_AT(p, at, flux_not(v.t)) : flux__expr_number(v.num == 0);
    }
    if (*at == '(') {
        p->at++;
        v = flux__c_parse(p, FLUX__BIND_CHOICE);
        if (!p->failed && !flux__expr_take(p, ")")) flux__expr_expected(p, ")");
    } else if (flux__is_digit(*at) || (*at == '.' && flux__is_digit(at[1]))) v = flux__c_number(p);
    else if (flux__name_size(at)) v = flux__c_name(p);
    else flux__expr_expected(p, "a number, a name or (");
    return v;
}

/* Parses the rest of c ? a : b, from the ? on. Numbers take the dtype of the operands. */
static flux__term flux__c_choice(flux__expr *p, flux__term c) {
    const char *at = p->at++;
    flux__term side[2];
    for (int i = 0; i < 2; i++) {
        side[i] = flux__c_parse(p, FLUX__BIND_CHOICE);
        if (i == 0 && !p->failed && !flux__expr_take(p, ":")) flux__expr_expected(p, ":");
        if (p->failed) return side[i];
    }
    if (!c.t) return side[c.num == 0];
    c = flux__c_condition(p, at, c);
    for (int i = 0; i < 2 && !side[0].t && !side[1].t; i++)
        side[i].t = flux_full_with(flux__shape(NULL, 0), side[i].num, (flux_dtype)p->dtype);
    if (p->failed) return c;
    return FLUX__EXPR_AT(p, at, flux_where(c.t, flux__as_tensor(&side[0]),
                                           flux__as_tensor(&side[1])));
}

/* Parses an expression, as far as its operators bind at least as tightly as `bind`. */
static flux__term flux__c_parse(flux__expr *p, int bind) {
    flux__term v = flux__expr_number(0);
    bool dot = false, compared = false;
    int size = 0;
    if (++p->depth > FLUX__NESTING)
        flux__expr_fail(p, p->at, "nested more than %d deep", FLUX__NESTING);
    if (!p->failed) v = flux__c_operand(p);
    while (!p->failed) {
        const flux__infix *op = flux__expr_next(p, &dot, &size);
        const char *at = p->at;
        if (!op || op->bind < bind) break;
        if (dot || op->op == FLUX__OP_POW || flux__is_dot(op))
            flux__expr_expected(p, "an operator of C");
        const bool compares = op->bind == FLUX__BIND_COMPARE;
        if (compares && compared) flux__expr_fail(p, at, "comparisons do not chain here");
        compared = compares;
        p->at += size;
        flux__term b = flux__c_parse(p, op->bind + 1);
        if (op->bind == FLUX__BIND_AND || op->bind == FLUX__BIND_OR) {
            v = flux__c_condition(p, at, v);
            b = flux__c_condition(p, at, b);
        }
        if (!p->failed) v = flux__expr_each(p, at, op, v, b);
    }
    if (!p->failed && bind <= FLUX__BIND_CHOICE && *p->at == '?') v = flux__c_choice(p, v);
    p->depth--;
    return v;
}

/* ---------------- the operation */

/* The operands of one evaluation: n tensors, those of half formats widened; the dtype at which the
   operands meet, and the shape to which they broadcast. */
typedef struct flux__own_operands {
    int n, dtype;
    flux_tensor *wide[FLUX__OPERATION_OPERANDS];
    flux_shape shape;
} flux__own_operands;

static bool flux__own_operands_of(const flux_operation *op, int n, flux_tensor *const *xs,
                                  flux__own_operands *o) {
    o->n = n;
    o->dtype = flux__meet(op->name, n, xs);
    for (int i = 0; i < n && o->dtype >= 0; i++)
        if (!(o->wide[i] = flux__is_half(xs[i]->dtype) ? flux__widened(xs[i]) : xs[i]))
            return false;
    return o->dtype >= 0 && flux__broadcast(op->name, n, xs, &o->shape);
}

/* Formula number `which` over these operands: a tensor, or a plain number. False: an error was
   told. */
static bool flux__own_value(const flux_operation *op, int which, const flux__own_operands *o,
                            flux__term *v) {
    flux__expr p = { op->formulas[which], op->formulas[which], op->operands, o->wide, o->n, 0,
                     false, NULL, op->name, flux__is_half(o->dtype) ? FLUX_F32 : o->dtype };
    *v = flux__c_parse(&p, FLUX__BIND_CHOICE);
    if (!p.failed && *p.at) flux__expr_expected(&p, "an operator or the end");
    return !p.failed;
}

/* The result of the operation, of the operands' common shape. It has their common dtype if they
   are of half formats; where none of them is, it has the dtype that the formula gives. */
static flux_tensor *flux__own_result(const flux_operation *op, int n, flux_tensor *const *xs) {
    flux__own_operands o;
    flux__term v;
    if (!flux__own_operands_of(op, n, xs, &o) || !flux__own_value(op, 0, &o, &v)) return NULL;
    if (!v.t)
        return flux__move(flux_full_with(o.shape, v.num, (flux_dtype)o.dtype),
                          flux__place(n, xs));
    flux_tensor *y = flux_broadcast_to_with(v.t, o.shape);
    return y && y->dtype == FLUX_F32 ? flux__narrow(y, o.dtype) : y;
}

/* forward and backward of an operation whose derivatives are stated; the context is it. */
static flux_tensor *flux__own_forward(int n, flux_tensor *const *xs, void *op) {
    return flux__own_result((const flux_operation *)op, n, xs);
}
static void flux__own_backward(int n, flux_tensor *const *xs, flux_tensor *y, flux_tensor *g,
                               flux_tensor **dx, void *context) {
    const flux_operation *op = (const flux_operation *)context;
    flux__own_operands o;
    (void)y;
    if (!flux__own_operands_of(op, n, xs, &o)) return;
    g = flux__is_half(g->dtype) ? flux__widened(g) : g;
    for (int i = 0; i < n && g; i++) {
        flux__term v;
        if (!flux__own_value(op, i + 1, &o, &v)) return;
        if (!v.t && v.num == 0) continue;
        flux_tensor *d = flux_mul(g, flux__as_tensor(&v));
        if (!d || !(d = flux__unbroadcast(d, xs[i]))) return;
        dx[i] = flux_to_dtype(d, (flux_dtype)xs[i]->dtype);
    }
}

/* How many names there are in "x, beta". */
static int flux__count_names(const char *names) {
    int n = 0, size;
    for (const char *next = names; next;) {
        flux__next_argument(&next, &size);
        n++;
    }
    return n;
}

FLUX_DEF flux_tensor *flux_operate(const flux_operation *op, int n, flux_tensor *const *operands) {
    const char *call = op && op->name ? op->name : "operate";
    if (n < 1 || n > FLUX__OPERATION_OPERANDS)
        return (flux_tensor *)flux__fail("%s: %d operands; 1 to %d are possible", call, n,
                                         FLUX__OPERATION_OPERANDS);
    flux_tensor *xs[FLUX__OPERATION_OPERANDS];
    if (!operands) return (flux_tensor *)flux__null(call, "operands", operands);
    for (int i = 0; i < n; i++) xs[i] = operands[i];
    if (!flux__together(call, n, xs)) return NULL;
    if (!op || !op->name || !op->operands || !op->formulas)
        return (flux_tensor *)flux__fail("operate: the operation, or its name, operands or "
                                         "formulas are NULL");
    if (flux__count_names(op->operands) != n || (op->nformulas != 1 && op->nformulas != n + 1))
        return (flux_tensor *)flux__fail(
            "%s: %d operand%s named \"%.99s\" and %d formulas: give a formula, and no derivative "
            "or one for each operand", op->name, n, n > 1 ? "s" : "", op->operands, op->nformulas);
    if (op->nformulas > 1)
        return flux_custom_with(flux__own_forward, flux__own_backward,
                                (void *)(intptr_t)(const void *)op, n, xs);
    int h = flux__hide();
    flux__as_one(1);
    flux_tensor *y = flux__own_result(op, n, xs);
    flux__as_one(-1);
    return flux__if_eager(flux__reveal(h, y));
}

FLUX__END_LEAN

#endif /* FLUX__TEXT_OWN_OPERATIONS_H */
