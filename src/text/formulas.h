#ifndef FLUX__TEXT_FORMULAS_H
#define FLUX__TEXT_FORMULAS_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/text.h"
#include "../base/dtypes.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/views.h"
#include "../graph/products.h"
#include "../files/safetensors.h"

/* ---------------------------------------------------------------------- text/formulas.h
   Formulas: the terms, errors, characters and operators of flux_expr; functions
   and the parser are in text/formula_reader.h. A formula is written as in Julia,
   and its operations are recorded while it is parsed: there is no syntax tree.
   Precedence and strictness are Julia's: * between arrays is the matrix
   product, + and - need equal shapes, a function of one number is applied to an
   array only with a dot, exp.(x), and -x^2 is -(x^2). Two things differ from
   Julia: dims count from 0, sum(x, dims=0), and functions have this library's
   names and meaning (var divides by n), with Julia's names beside them where
   these differ: abs2, maximum, σ.

   Invariant: what Julia would refuse is an error, whose message says what to
   write instead. Only the first error is reported, and an operation's own error
   message begins with the column of its call. Numbers stay plain doubles until
   they meet a tensor, whose dtype they take. The transpose of a vector is
   marked as a row, so that x'*y is a number and y*x' an outer product. */

FLUX__BEGIN_COLD

enum { FLUX__NESTING = 200, FLUX__ARGUMENTS = 12 };

typedef struct flux__term {               /* the value of an expression */
    flux_tensor *t;                       /* NULL: it is a plain number, num */
    double num;
    bool row;                             /* t is a transposed vector, of shape 1 x n */
} flux__term;

typedef struct flux__expr {               /* one call of flux_expr */
    const char *text, *at;                /* the formula, and the next character to be read */
    const char *names;                    /* the bound variables: "W, x" */
    flux_tensor *const *values;           /* n tensors, one for each name */
    int n, depth;                         /* depth: of nesting, at `at` */
    bool failed;                          /* an error has been raised; later ones are ignored */
    const char *called;                   /* where in the text the operation that runs is called */
    const char *name;                     /* what errors begin with: "expr", or FLUX_OP's name */
    int dtype;                            /* in FLUX_OP: of c ? 1 : 2, where both are numbers */
} flux__expr;

/* ---- errors */

/* The column of a place in the formula, counted in characters from 1. */
static int flux__column(const flux__expr *p, const char *at) {
    int column = 1;
    for (const char *s = p->text; s < at; s++)
        if (((unsigned char)*s & 0xC0) != 0x80) column++;
    return column;
}

/* Raises an error at a place in the formula, unless the formula has failed already. */
static void flux__expr_fail(flux__expr *p, const char *at, const char *format, ...)
    FLUX__PRINTF(3, 4);
static void flux__expr_fail(flux__expr *p, const char *at, const char *format, ...) {
    char text[400];
    va_list args;
    if (p->failed) return;
    p->failed = true;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    flux__fail("%s: column %d: %s", p->name, flux__column(p, at), text);
}

/* Writes the words that an operation's own error messages begin with: the column of its call. */
static int flux__expr_where(const void *place, char *out, size_t n) {
    const flux__expr *p = (const flux__expr *)place;
    return snprintf(out, n, "%s: column %d: ", p->name, flux__column(p, p->called));
}

/* Announces an operation, whose errors will name the column of `at`. */
static void flux__expr_enter(flux__expr *p, const char *at) {
    flux__thread *self = flux__self();
    p->called = at;
    if (self) self->where = flux__expr_where, self->place = p;
}

/* Ends an announced operation and gives its result t as a term; NULL: the operation failed. */
static flux__term flux__expr_leave(flux__expr *p, flux_tensor *t) {
    flux__term v = { t, 0, false };
    flux__thread *self = flux__self();
    if (self) self->where = NULL;
    if (!t) p->failed = true;
    return v;
}
/* The result of an operation whose place in the formula is `at`. */
#define FLUX__EXPR_AT(p, at, call) (flux__expr_enter(p, at), flux__expr_leave(p, call))

static flux__term flux__expr_number(double num) {
    flux__term v = { NULL, num, false };
    return v;
}

/* ---- characters */

/* The length in bytes of the UTF-8 character at s; 0 at the text's end, or if it is not UTF-8. */
static int flux__char_size(const char *s) {
    unsigned char c = (unsigned char)*s;
    int n = c == 0 ? 0 : c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    for (int i = 1; i < n; i++)
        if (((unsigned char)s[i] & 0xC0) != 0x80) return 0;
    return n && flux__utf8(s, (size_t)n) ? n : 0;
}

static bool flux__starts(const char *s, const char *sign) {
    while (*sign && *s == *sign) s++, sign++;
    return !*sign;
}

/* Whether an operator outside ASCII is at s, which no name can contain: ≤ ≥ ≠ ⋅ √ × */
static bool flux__is_sign(const char *s) {
    static const char *const signs[] = { "\xE2\x89\xA4", "\xE2\x89\xA5", "\xE2\x89\xA0",
                                         "\xE2\x8B\x85", "\xE2\x88\x9A", "\xC3\x97" };
    for (int i = 0; i < 6; i++)
        if (flux__starts(s, signs[i])) return true;
    return false;
}

/* The length in bytes of the name at s; 0 if there is none. */
static int flux__name_size(const char *s) {
    int n = 0;
    while (s[n]) {
        char c = s[n];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        int size = (unsigned char)c >= 0x80 && !flux__is_sign(s + n) ? flux__char_size(s + n) : 0;
        if (!letter && !size && !(n && flux__is_digit(c))) break;
        n += size ? size : 1;
    }
    return n;
}

/* Whether the name of this size is `word`. */
static bool flux__is_name(const char *word, const char *name, int size) {
    return *word == *name && strncmp(word, name, (size_t)size) == 0 && !word[size];
}

static void flux__expr_space(flux__expr *p) {
    while (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r') p->at++;
}

/* Skips blanks, and then `sign` if it comes next; whether it did. */
static bool flux__expr_take(flux__expr *p, const char *sign) {
    flux__expr_space(p);
    if (!flux__starts(p->at, sign)) return false;
    p->at += strlen(sign);
    return true;
}

/* Describes what is at s, for a message: 'name', "the end" or "byte 0x80". */
static const char *flux__expr_found(const char *s, char *out, size_t n) {
    int name = flux__name_size(s), size = name ? name : flux__char_size(s);
    if (name > 40) {                      /* a long name is cut between two characters */
        name = size = 40;
        while (((unsigned char)s[size] & 0xC0) == 0x80) size--;
    }
    if (!*s) snprintf(out, n, "the end");
    else if (!size || (unsigned char)*s < 0x20 || *s == 0x7F)
        snprintf(out, n, "byte 0x%02X", (unsigned)(unsigned char)*s);
    else snprintf(out, n, "'%.*s'", size, s);
    return out;
}

/* Raises the error that `what` is expected, and says what comes next instead. */
static void flux__expr_expected(flux__expr *p, const char *what) {
    char found[64];
    flux__expr_space(p);
    flux__expr_fail(p, p->at, "expected %s, found %s", what,
                    flux__expr_found(p->at, found, sizeof found));
}

/* ---- operators */

/* Binding strengths, the loosest first. */
enum { FLUX__BIND_CHOICE = 1, FLUX__BIND_OR, FLUX__BIND_AND, FLUX__BIND_COMPARE, FLUX__BIND_SUM,
       FLUX__BIND_PRODUCT, FLUX__BIND_UNARY, FLUX__BIND_JUXTAPOSED, FLUX__BIND_POWER };

/* An operator between two operands: its sign, its binding strength, the operation on each element,
   and its row of graph/table.h, which computes it for two plain numbers. A sign stands before any
   other sign that is its beginning: "<=" before "<". */
typedef struct flux__infix { const char *sign; int bind; flux_fn2 each; int op; } flux__infix;
static const flux__infix flux__infixes[] = {
    { "||", FLUX__BIND_OR, flux_or, FLUX__OP_OR },
    { "&&", FLUX__BIND_AND, flux_and, FLUX__OP_AND },
    { "==", FLUX__BIND_COMPARE, flux_eq, FLUX__OP_EQ },
    { "!=", FLUX__BIND_COMPARE, flux_ne, FLUX__OP_NE },
    { "<=", FLUX__BIND_COMPARE, flux_le, FLUX__OP_LE },
    { ">=", FLUX__BIND_COMPARE, flux_ge, FLUX__OP_GE },
    { "<", FLUX__BIND_COMPARE, flux_lt, FLUX__OP_LT },
    { ">", FLUX__BIND_COMPARE, flux_gt, FLUX__OP_GT },
    { "\xE2\x89\xA4", FLUX__BIND_COMPARE, flux_le, FLUX__OP_LE },
    { "\xE2\x89\xA5", FLUX__BIND_COMPARE, flux_ge, FLUX__OP_GE },
    { "\xE2\x89\xA0", FLUX__BIND_COMPARE, flux_ne, FLUX__OP_NE },
    { "|", FLUX__BIND_SUM, flux_or, FLUX__OP_OR },
    { "&", FLUX__BIND_PRODUCT, flux_and, FLUX__OP_AND },
    { "+", FLUX__BIND_SUM, flux_add, FLUX__OP_ADD },
    { "-", FLUX__BIND_SUM, flux_sub, FLUX__OP_SUB },
    { "*", FLUX__BIND_PRODUCT, flux_mul, FLUX__OP_MUL },
    { "/", FLUX__BIND_PRODUCT, flux_div, FLUX__OP_DIV },
    { "\xE2\x8B\x85", FLUX__BIND_PRODUCT, flux_dot, FLUX__OP_MUL },
    { "^", FLUX__BIND_POWER, flux_pow, FLUX__OP_POW }
};

/* The dot product, which has the row of * in the table. */
static bool flux__is_dot(const flux__infix *op) {
    const flux_fn2 dot = flux_dot;        /* of the overloads of C++ the one that is meant */
    return op->each == dot;
}
static bool flux__is_logic(const flux__infix *op) {
    return op->op == FLUX__OP_AND || op->op == FLUX__OP_OR;
}

/* The result of an operator for two plain numbers; comparisons and logic give 0 or 1. */
static double flux__expr_fold(const flux__infix *op, double a, double b) {
    const bool logic = flux__is_logic(op);
    const double v[3] = { logic ? a != 0 : a, logic ? b != 0 : b, 0 };
    return flux__formula_value(op->op, v);
}

static bool flux__is_scalar(const flux__term *v) { return !v->t || v->t->ndim == 0; }
static flux_tensor *flux__as_tensor(const flux__term *v) {
    return v->t ? v->t : flux__number(v->num);
}

/* Describes a term for a message: "a 2x5 f32 matrix", "a number". */
static flux__text flux__expr_kind(const flux__term *v) {
    static const char *const names[] = { "number", "vector", "matrix" };
    flux__text t, about;
    if (flux__is_scalar(v)) {
        snprintf(t.s, sizeof t.s, "a number");
        return t;
    }
    about = flux__describe(v->t);
    snprintf(t.s, sizeof t.s, "a %.90s %s", about.s, v->t->ndim < 3 ? names[v->t->ndim] : "array");
    return t;
}

/* Whether an elementwise operation on these n terms gives a row: at least one is a row, and the
   others are rows or numbers. */
static bool flux__are_row(const flux__term *a, int n) {
    bool row = false;
    for (int i = 0; i < n; i++) {
        if (!a[i].row && !flux__is_scalar(&a[i])) return false;
        row = row || a[i].row;
    }
    return row;
}

/* Raises the error that an operator does not take these operands, with advice on what to write. */
static void flux__expr_refuse(flux__expr *p, const char *at, const char *sign, const flux__term *a,
                              const flux__term *b, const char *advice) {
    flux__text ta = flux__expr_kind(a), tb = flux__expr_kind(b);
    flux__expr_fail(p, at, "%s of %s and %s: %s", sign, ta.s, tb.s, advice);
}

/* A plain number as a bool on x's device, for an operand of && or ||: true unless it is 0. */
static flux_tensor *flux__expr_truth(double num, const flux_tensor *x) {
    return flux__move(flux_full_with(flux__shape(NULL, 0), num != 0, FLUX_BOOL), x->device);
}

/* a op b for each element, or at once for two plain numbers. x^2 is recorded as a square. */
static flux__term flux__expr_each(flux__expr *p, const char *at, const flux__infix *op,
                                  flux__term a, flux__term b) {
    if (!a.t && !b.t) return flux__expr_number(flux__expr_fold(op, a.num, b.num));
    if (flux__is_logic(op)) {
        if (!a.t) a.t = flux__expr_truth(a.num, b.t);
        if (!b.t) b.t = flux__expr_truth(b.num, a.t);
    }
    const flux__term both[2] = { a, b };
    bool square = op->op == FLUX__OP_POW && !b.t && b.num == 2;
    flux__expr_enter(p, at);
    flux_tensor *y = square ? flux_square(a.t) : op->each(flux__as_tensor(&a), flux__as_tensor(&b));
    flux__term v = flux__expr_leave(p, y);
    v.row = y && flux__are_row(both, 2);
    return v;
}

/* A term as a tensor; a row becomes the vector whose transpose it is. */
static flux_tensor *flux__unrow(const flux__term *v) {
    return v->row ? flux_reshape(v->t, -1) : flux__as_tensor(v);
}

/* v': the transpose of a vector is a row, that of a row a vector; a number stays as it is. */
static flux__term flux__expr_transpose(flux__expr *p, const char *at, flux__term v) {
    if (flux__is_scalar(&v)) return v;
    if (v.t->ndim > 2) {
        flux__text t = flux__expr_kind(&v);
        flux__expr_fail(p, at, "' of %s: it takes a vector or a matrix; see flux_permute", t.s);
        return v;
    }
    bool row = v.t->ndim == 1;
    v = FLUX__EXPR_AT(p, at, v.row ? flux__unrow(&v) : flux_transpose(v.t));
    v.row = row;
    return v;
}

/* a * b: scaling if one of them is a scalar; a row times a vector is their dot product, a vector
   times a matrix of one row (1 x n) their outer product, and all else the matrix product. */
static flux__term flux__expr_times(flux__expr *p, const char *at, flux__term a, flux__term b) {
    flux__term v;
    if (flux__is_scalar(&a) || flux__is_scalar(&b)) {
        v = FLUX__EXPR_AT(p, at, flux_mul(flux__as_tensor(&a), flux__as_tensor(&b)));
        v.row = a.row || b.row;           /* a scaled row is a row; the number is none */
        return v;
    }
    if (a.row && b.t->ndim == 1) return FLUX__EXPR_AT(p, at, flux_dot(flux__unrow(&a), b.t));
    if (a.t->ndim == 1 && b.t->ndim == 2 && b.t->dim[0] == 1)
        return FLUX__EXPR_AT(p, at, flux_outer(a.t, flux_reshape(b.t, -1)));
    v = FLUX__EXPR_AT(p, at, flux_matmul(a.t, b.t));
    v.row = a.row && b.t->ndim == 2 && !p->failed;
    return v;
}

/* a^b for a square matrix a and a whole number b from 1 on, by repeated squaring. */
static flux__term flux__expr_matrix_power(flux__expr *p, const char *at, flux__term a,
                                          flux__term b) {
    bool square = a.t->ndim == 2 && a.t->dim[0] == a.t->dim[1];
    bool whole = !b.t && b.num >= 1 && b.num <= 1e9 && b.num == floor(b.num);
    if (!square || !whole) {
        flux__expr_refuse(p, at, "^", &a, &b,
                          "only a square matrix has powers, whole ones; for each element write .^");
        return a;
    }
    flux_tensor *y = NULL, *x = a.t;
    flux__expr_enter(p, at);
    for (int n = (int)b.num; n && x; n /= 2) {
        if (n % 2) y = y ? flux_matmul(y, x) : x;
        if (n > 1) x = flux_matmul(x, x);
    }
    return flux__expr_leave(p, x ? y : NULL);
}

/* Records a op b, or a .op b if `dot` says so. Without a dot, *, the dot product and ^ are those
   of matrices; + and - take equal shapes, and / takes an array and a scalar; other operators take
   scalars only. All else is an error that advises the operator with a dot. */
static flux__term flux__expr_infix(flux__expr *p, const char *at, const flux__infix *op, bool dot,
                                   flux__term a, flux__term b) {
    bool left = flux__is_scalar(&a), right = flux__is_scalar(&b);
    char advice[96];
    if (p->failed || dot || (!a.t && !b.t)) return p->failed ? a : flux__expr_each(p, at, op, a, b);
    const bool dots = flux__is_dot(op);
    if (op->op == FLUX__OP_MUL && !dots) return flux__expr_times(p, at, a, b);
    if (dots && !left && !right)
        return FLUX__EXPR_AT(p, at, flux_dot(flux__unrow(&a), flux__unrow(&b)));
    if (op->op == FLUX__OP_POW && !left) return flux__expr_matrix_power(p, at, a, b);
    bool sum = op->op == FLUX__OP_ADD || op->op == FLUX__OP_SUB;
    bool same = !left && !right && flux__same_dims(a.t, b.t);
    if ((left && right) || (op->op == FLUX__OP_DIV && right) || (sum && same))
        return flux__expr_each(p, at, op, a, b);
    snprintf(advice, sizeof advice, "%swrite .%s for each element",
             sum && !left && !right ? "the shapes differ; " : "", op->sign);
    flux__expr_refuse(p, at, op->sign, &a, &b, advice);
    return a;
}

/* The operator that comes next; NULL if there is none. *dot says whether a dot is before it, and
   *size is the length of both. Nothing but blanks is consumed. */
static const flux__infix *flux__expr_next(flux__expr *p, bool *dot, int *size) {
    flux__expr_space(p);
    const char *s = p->at;
    *dot = *s == '.';
    if (*dot) s++;
    for (size_t i = 0; i < sizeof flux__infixes / sizeof *flux__infixes; i++)
        if (flux__starts(s, flux__infixes[i].sign)) {
            *size = (int)(s - p->at) + (int)strlen(flux__infixes[i].sign);
            return &flux__infixes[i];
        }
    return NULL;
}

FLUX__END_COLD

#endif /* FLUX__TEXT_FORMULAS_H */
