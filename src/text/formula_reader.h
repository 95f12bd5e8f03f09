#ifndef FLUX__TEXT_FORMULA_READER_H
#define FLUX__TEXT_FORMULA_READER_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/text.h"
#include "../base/dtypes.h"
#include "../base/scopes.h"
#include "../graph/table.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/leaves.h"
#include "../graph/views.h"
#include "../graph/reductions.h" /* FLUX__REDUCE_OVER */
#include "../graph/picking.h"
#include "../graph/draws.h"
#include "../graph/sorting.h"
#include "../graph/products.h"
#include "../graph/einsum.h"
#include "../schedule/looking.h"
#include "../data/orders.h"
#include "../nn/functions.h"
#include "../nn/activations.h"
#include "formulas.h"

/* ---------------------------------------------------------------------- text/formula_reader.h
   The functions that formulas can call, in one table (flux__expr_fns), and the
   parser: a recursive descent by binding strength (flux__expr_parse), which
   calls each operation as soon as its operands are parsed. flux_expr_with is
   the entry.

   Invariant: nesting is limited to FLUX__NESTING, since each level takes stack.
   The kind of a function says how many operands it takes, whether it needs a
   dot for arrays, and whether it takes dims; any other call is an error
   (flux__expr_check_call). A function whose operands are all plain numbers
   gives a plain number, computed at once in double. Both sides of c ? a : b are
   recorded; where c is a plain number, the expression is one of them and no
   choice is recorded. Literals do not depend on the locale's decimal point. */

FLUX__BEGIN_COLD

static flux_tensor *flux__expr_clamp(flux_tensor *x, flux_tensor *lo, flux_tensor *hi) {
    return (flux_min2)((flux_max2)(x, lo), hi);
}
static flux_tensor *flux__expr_glu(int n, flux_reduce_opts o) {
    return flux_glu(o.x, n ? o.d0 : 0);
}
/* sort and argsort along one of dims=, or dim 0. */
static flux_tensor *flux__expr_sort(int n, flux_reduce_opts o) {
    return flux_sort(o.x, n ? o.d0 : 0);
}
static flux_tensor *flux__expr_argsort(int n, flux_reduce_opts o) {
    return flux_argsort(o.x, n ? o.d0 : 0);
}
static flux_tensor *flux__expr_hcat(flux_tensor *a, flux_tensor *b) {
    flux_tensor *both[2] = { a, b };
    return flux__cat("hcat", 1, 2, both);
}
static flux_tensor *flux__expr_masked_fill(flux_tensor *x, flux_tensor *mask, flux_tensor *value) {
    return (flux_where)(mask, value, x);
}
static flux_tensor *flux__expr_categorical(flux_tensor *x) { return flux_categorical(x); }

/* Functions of nt tensors t and whole numbers n, of which those at the end may be a shape s, and of
   a text; as flux__expr_mixes has them. */
typedef struct flux__mixed {
    const char *text;
    flux_tensor *t[FLUX__ARGUMENTS];
    int64_t n[FLUX__ARGUMENTS];
    int nt;
    flux_shape s;
} flux__mixed;
#define FLUX__MIXED(name, call) \
    static flux_tensor *flux__mixed_##name(const flux__mixed *m) { return call; }
#define FLUX__MIX_T(i) m->t[i]
#define FLUX__MIX_N(i) (int)m->n[i]
FLUX__MIXED(tril_k, flux_tril(FLUX__MIX_T(0), FLUX__MIX_N(0)))
FLUX__MIXED(triu_k, flux_triu(FLUX__MIX_T(0), FLUX__MIX_N(0)))
FLUX__MIXED(diag_k, flux_diag(FLUX__MIX_T(0), FLUX__MIX_N(0)))
FLUX__MIXED(gather, flux_gather(FLUX__MIX_T(0), FLUX__MIX_N(0), FLUX__MIX_T(1)))
FLUX__MIXED(scatter_add, flux_scatter_add(FLUX__MIX_T(0), FLUX__MIX_N(0), FLUX__MIX_T(1),
                                          FLUX__MIX_T(2)))
FLUX__MIXED(take_along, flux_take_along(FLUX__MIX_T(0), FLUX__MIX_N(0), FLUX__MIX_T(1)))
FLUX__MIXED(topk, flux_topk(FLUX__MIX_T(0), m->n[0], FLUX__MIX_N(1)))
FLUX__MIXED(split, flux_split_with(FLUX__MIX_T(0), FLUX__MIX_N(0), m->s))
FLUX__MIXED(chunk, flux_chunk(FLUX__MIX_T(0), FLUX__MIX_N(0), m->n[1]))
FLUX__MIXED(nth, flux_nth(FLUX__MIX_T(0), FLUX__MIX_N(0)))
FLUX__MIXED(slice, flux_slice(FLUX__MIX_T(0), FLUX__MIX_N(0), m->n[1], m->n[2]))
FLUX__MIXED(select, flux_select(FLUX__MIX_T(0), FLUX__MIX_N(0), m->n[1]))
FLUX__MIXED(take, flux_take(FLUX__MIX_T(0), m->n[0]))
FLUX__MIXED(drop, flux_drop(FLUX__MIX_T(0), m->n[0]))
FLUX__MIXED(unsqueeze, flux_unsqueeze(FLUX__MIX_T(0), FLUX__MIX_N(0)))
FLUX__MIXED(onehot, flux_onehot(FLUX__MIX_T(0), m->n[0]))
FLUX__MIXED(reshape, flux_reshape_with(FLUX__MIX_T(0), m->s))
FLUX__MIXED(permute, flux_permute_with(FLUX__MIX_T(0), m->s))
FLUX__MIXED(broadcast_to, flux_broadcast_to_with(FLUX__MIX_T(0), m->s))
FLUX__MIXED(flip, flux_flip_with(FLUX__MIX_T(0), m->s))
FLUX__MIXED(repeat, flux_repeat_with(FLUX__MIX_T(0), m->s))
FLUX__MIXED(pad, flux_pad_with(FLUX__MIX_T(0), (double)m->n[0], m->s))
FLUX__MIXED(einsum, flux_einsum_with(m->text, m->nt, m->t))
FLUX__MIXED(cat, flux_cat_with(FLUX__MIX_N(0), m->nt, m->t))
FLUX__MIXED(stack, flux_stack_with(FLUX__MIX_N(0), m->nt, m->t))
FLUX__MIXED(zeros, flux_full_with(m->s, 0, FLUX_F32))
FLUX__MIXED(ones, flux_full_with(m->s, 1, FLUX_F32))
FLUX__MIXED(rand, flux_rand_with(m->s, FLUX_F32))
FLUX__MIXED(randn, flux_randn_with(m->s, FLUX_F32))
FLUX__MIXED(eye, flux_eye(m->n[0]))
FLUX__MIXED(linspace, flux_linspace((double)m->n[0], (double)m->n[1], m->n[2]))
FLUX__MIXED(randint, flux_randint_with(m->n[0], m->n[1], m->s))
FLUX__MIXED(randperm, flux_randperm(m->n[0]))

/* Kinds of functions. EACH, PAIR and TRIPLE work on each element of one, two and three operands, so
   that arrays need a dot; REDUCE takes one operand and dims=; WHOLE and BOTH take one and two
   operands as whole arrays; LENGTH (one operand) and SIZE (two) give plain numbers. */
enum { FLUX__FN_EACH, FLUX__FN_PAIR, FLUX__FN_TRIPLE, FLUX__FN_REDUCE, FLUX__FN_WHOLE,
       FLUX__FN_BOTH, FLUX__FN_LENGTH, FLUX__FN_SIZE };
static const int flux__fn_operands[] = { 1, 2, 3, 1, 1, 2, 1, 2 };

typedef struct flux__expr_fn {            /* one of the four pointers is set; LENGTH, SIZE: none */
    const char *name;
    int kind;
    flux_fn one;
    flux_fn2 two;
    flux_tensor *(*three)(flux_tensor *, flux_tensor *, flux_tensor *);
    flux_tensor *(*reduce)(int n, flux_reduce_opts o);
} flux__expr_fn;

/* The functions whose name in formulas is that of the flux_ function behind them. The operations of
   graph/table.h, the activations and the losses have lists of their own. */
#define FLUX__REDUCE_NAMES(X)                                                                    \
    X(sum) X(mean) X(var) X(std) X(prod) X(max) X(min) X(any) X(all) X(norm) X(logsumexp)            \
    X(argmax) X(argmin) X(cumsum) X(cumprod) X(softmax) X(logsoftmax)
#define FLUX__WHOLE_NAMES(X)                                                                 \
    X(transpose) X(flatten) X(squeeze) X(copy) X(detach) X(onecold) X(tril) X(triu) X(diag)      \
    X(trace)
#define FLUX__BOTH_NAMES(X) X(matmul) X(outer) X(dot) X(vcat)

#define FLUX__EACH_OP(NAME, name, n, dt, call, ...) \
    FLUX__PUBLIC_OF_1(n, call, { #name, FLUX__FN_EACH, flux_##name, NULL, NULL, NULL },)
#define FLUX__PAIR_OP(NAME, name, n, dt, call, ...) \
    FLUX__PUBLIC_OF_2(n, call, { #name, FLUX__FN_PAIR, NULL, flux_##name, NULL, NULL },)
#define FLUX__EACH_ROW(f) { #f, FLUX__FN_EACH, flux_##f, NULL, NULL, NULL },
#define FLUX__REDUCE_ROW(f) { #f, FLUX__FN_REDUCE, NULL, NULL, NULL, flux_##f##_with },
#define FLUX__WHOLE_ROW(f) { #f, FLUX__FN_WHOLE, flux_##f, NULL, NULL, NULL },
#define FLUX__BOTH_ROW(f) { #f, FLUX__FN_BOTH, NULL, flux_##f, NULL, NULL },
#define FLUX__LOSS_ROW(f, per) FLUX__BOTH_ROW(f)

static const flux__expr_fn flux__expr_fns[] = {
    FLUX__ELEMENTWISE(FLUX__EACH_OP)
    FLUX__ACTIVATIONS(FLUX__EACH_ROW)
    FLUX__EACH_ROW(isnan)
    FLUX__EACH_ROW(isfinite)
    FLUX__ELEMENTWISE(FLUX__PAIR_OP)
    FLUX__REDUCE_NAMES(FLUX__REDUCE_ROW)
    FLUX__WHOLE_NAMES(FLUX__WHOLE_ROW)
    FLUX__BOTH_NAMES(FLUX__BOTH_ROW)
    FLUX__LOSSES(FLUX__LOSS_ROW)
    /* Functions that have another name in formulas, mostly Julia's. */
    { "abs2", FLUX__FN_EACH, flux_square, NULL, NULL, NULL },
    { "\xCF\x83", FLUX__FN_EACH, flux_sigmoid, NULL, NULL, NULL },
    { "hard\xCF\x83", FLUX__FN_EACH, flux_hardsigmoid, NULL, NULL, NULL },
    { "log\xCF\x83", FLUX__FN_EACH, flux_logsigmoid, NULL, NULL, NULL },
    { "max", FLUX__FN_PAIR, NULL, flux_max2, NULL, NULL },
    { "min", FLUX__FN_PAIR, NULL, flux_min2, NULL, NULL },
    { "where", FLUX__FN_TRIPLE, NULL, NULL, flux_where, NULL },
    { "ifelse", FLUX__FN_TRIPLE, NULL, NULL, flux_where, NULL },
    { "masked_fill", FLUX__FN_TRIPLE, NULL, NULL, flux__expr_masked_fill, NULL },
    { "clamp", FLUX__FN_TRIPLE, NULL, NULL, flux__expr_clamp, NULL },
    { "maximum", FLUX__FN_REDUCE, NULL, NULL, NULL, flux_max_with },
    { "minimum", FLUX__FN_REDUCE, NULL, NULL, NULL, flux_min_with },
    { "glu", FLUX__FN_REDUCE, NULL, NULL, NULL, flux__expr_glu },
    { "sort", FLUX__FN_REDUCE, NULL, NULL, NULL, flux__expr_sort },
    { "argsort", FLUX__FN_REDUCE, NULL, NULL, NULL, flux__expr_argsort },
    { "bernoulli", FLUX__FN_WHOLE, flux_bernoulli, NULL, NULL, NULL },
    { "categorical", FLUX__FN_WHOLE, flux__expr_categorical, NULL, NULL, NULL },
    { "adjoint", FLUX__FN_WHOLE, flux_transpose, NULL, NULL, NULL },
    { "tr", FLUX__FN_WHOLE, flux_trace, NULL, NULL, NULL },
    { "hcat", FLUX__FN_BOTH, NULL, flux__expr_hcat, NULL, NULL },
    { "length", FLUX__FN_LENGTH, NULL, NULL, NULL, NULL },
    { "len", FLUX__FN_LENGTH, NULL, NULL, NULL, NULL },
    { "size", FLUX__FN_SIZE, NULL, NULL, NULL, NULL },
    { "dim", FLUX__FN_SIZE, NULL, NULL, NULL, NULL }
};
enum { FLUX__FUNCTIONS = sizeof flux__expr_fns / sizeof *flux__expr_fns };

/* Functions of whole arrays and of plain numbers. A name may be in both tables, as tril(x) and
   tril(x, 1) are. */
typedef struct flux__expr_mix {
    const char *name;
    /* A letter each: t a tensor, n a whole number, q, in the first place, a text in quotes. At the
       end, s is 1 to 8 whole numbers, which make a shape, and + more tensors. */
    const char *operands;
    flux_tensor *(*call)(const flux__mixed *m);
} flux__expr_mix;
#define FLUX__MIX(name, operands) { #name, operands, flux__mixed_##name }
static const flux__expr_mix flux__expr_mixes[] = {
    { "tril", "tn", flux__mixed_tril_k }, { "triu", "tn", flux__mixed_triu_k },
    { "diag", "tn", flux__mixed_diag_k }, FLUX__MIX(gather, "tnt"), FLUX__MIX(scatter_add, "tntt"),
    FLUX__MIX(take_along, "tnt"), FLUX__MIX(topk, "tnn"), FLUX__MIX(split, "tns"),
    FLUX__MIX(chunk, "tnn"), FLUX__MIX(nth, "tn"), FLUX__MIX(slice, "tnnn"),
    FLUX__MIX(select, "tnn"), FLUX__MIX(take, "tn"), FLUX__MIX(drop, "tn"),
    FLUX__MIX(unsqueeze, "tn"), FLUX__MIX(onehot, "tn"), FLUX__MIX(reshape, "ts"),
    FLUX__MIX(permute, "ts"), { "permutedims", "ts", flux__mixed_permute },
    FLUX__MIX(broadcast_to, "ts"), FLUX__MIX(flip, "ts"), FLUX__MIX(repeat, "ts"),
    FLUX__MIX(pad, "tns"), FLUX__MIX(cat, "nt+"), FLUX__MIX(stack, "nt+"), FLUX__MIX(zeros, "s"),
    FLUX__MIX(ones, "s"), FLUX__MIX(rand, "s"), FLUX__MIX(randn, "s"), FLUX__MIX(eye, "n"),
    FLUX__MIX(linspace, "nnn"), FLUX__MIX(randint, "nns"), FLUX__MIX(randperm, "n"),
    FLUX__MIX(einsum, "qt+")
};

/* Whether so many operands fit the letters of a function. */
static bool flux__expr_fits(const char *letters, int operands) {
    int n = (int)strlen(letters);
    char last = letters[n - 1];
    if (last == 's') return operands >= n && operands < n + FLUX_MAX_DIMS;
    return last == '+' ? operands >= n - 1 : operands == n;
}

/* The function of this name in flux__expr_mixes, as flux__expr_find. */
static const flux__expr_mix *flux__expr_find_mix(const char *name, int size, int operands) {
    for (size_t i = 0; i < sizeof flux__expr_mixes / sizeof *flux__expr_mixes; i++) {
        const flux__expr_mix *m = &flux__expr_mixes[i];
        bool fits = operands < 0 || flux__expr_fits(m->operands, operands);
        if (fits && flux__is_name(m->name, name, size)) return m;
    }
    return NULL;
}

/* The function of this name that takes `operands` operands (-1: any number of them); NULL: none. */
static const flux__expr_fn *flux__expr_find(const char *name, int size, int operands) {
    for (int i = 0; i < (int)FLUX__FUNCTIONS; i++) {
        const flux__expr_fn *f = &flux__expr_fns[i];
        if (operands >= 0 && flux__fn_operands[f->kind] != operands) continue;
        if (flux__is_name(f->name, name, size)) return f;
    }
    return NULL;
}

typedef struct flux__call {               /* a call as it is parsed: f.(a, b, dims=0) */
    const char *name;                     /* points into the formula */
    int size;                             /* length of the name */
    bool dot;                             /* f.( and not f( */
    const flux__expr_fn *first;           /* abs2 in sum(abs2, x): applied to x before sum */
    const char *text;                     /* what the quotes of the first operand hold, or NULL */
    int text_size;
    flux__term arg[FLUX__ARGUMENTS];
    int n, dims[FLUX_MAX_DIMS], ndims;    /* n operands; ndims dims, 0: none were given */
} flux__call;

static flux__term flux__expr_parse(flux__expr *p, int bind);

/* Parses a whole number from 0 to 7 and appends it to the call's dims. */
static void flux__expr_dim(flux__expr *p, flux__call *c) {
    flux__expr_space(p);
    bool digit = flux__is_digit(*p->at) && !flux__is_digit(p->at[1]) && p->at[1] != '.';
    if (!digit || *p->at - '0' >= FLUX_MAX_DIMS || c->ndims == FLUX_MAX_DIMS) {
        flux__expr_expected(p, "a dim from 0 to 7");
        return;
    }
    c->dims[c->ndims++] = *p->at++ - '0';
}

/* Parses dims=1 or dims=(0, 1). False: the next argument is not dims, and nothing was consumed. */
static bool flux__expr_dims(flux__expr *p, flux__call *c) {
    const char *start = p->at;
    if (!flux__is_name("dims", p->at, flux__name_size(p->at))) return false;
    p->at += 4;
    flux__expr_space(p);
    if (*p->at != '=' || p->at[1] == '=') {
        p->at = start;
        return false;
    }
    p->at++;
    if (c->ndims) flux__expr_fail(p, start, "dims is given twice");
    bool list = flux__expr_take(p, "(");
    do flux__expr_dim(p, c);
    while (list && !p->failed && flux__expr_take(p, ",") && !flux__starts(p->at, ")"));
    if (list && !p->failed && !flux__expr_take(p, ")")) flux__expr_expected(p, ", or )");
    return true;
}

static int flux__expr_bound(const flux__expr *p, const char *name, int size);

/* Parses the first argument of sum(abs2, x): the name of an elementwise function of one operand,
   and the comma. False, with nothing consumed: something else is next, as a variable of that
   name. */
static bool flux__expr_first(flux__expr *p, flux__call *c) {
    int size = flux__name_size(p->at);
    const char *after = p->at + size;
    const flux__expr_fn *f = size ? flux__expr_find(p->at, size, 1) : NULL;
    while (*after == ' ') after++;
    if (!f || f->kind != FLUX__FN_EACH || *after != ',' || c->n || c->first) return false;
    if (flux__expr_bound(p, p->at, size) >= 0) return false;
    c->first = f;
    p->at = after + 1;
    return true;
}

/* Parses a text in quotes, 'ik,kj->ij', as a call's first operand. False: nothing was consumed. */
static bool flux__expr_quoted(flux__expr *p, flux__call *c) {
    const char quote = *p->at;
    const char *end = quote == '\'' || quote == '"' ? strchr(p->at + 1, quote) : NULL;
    if (!end || c->n || c->first || c->ndims) return false;
    c->text = p->at + 1, c->text_size = (int)(end - c->text);
    c->arg[c->n++] = flux__expr_number(0);
    p->at = end + 1;
    return true;
}

/* Parses the arguments of a call, up to and with its closing bracket. */
static void flux__expr_arguments(flux__expr *p, flux__call *c) {
    if (flux__expr_take(p, ")")) return;
    while (!p->failed) {
        flux__expr_space(p);
        if (!flux__expr_quoted(p, c) && !flux__expr_dims(p, c) && !flux__expr_first(p, c)) {
            if (c->n == FLUX__ARGUMENTS) {
                flux__expr_fail(p, p->at, "%.*s takes no more than %d operands", c->size, c->name,
                                FLUX__ARGUMENTS);
                return;
            }
            c->arg[c->n] = flux__expr_parse(p, FLUX__BIND_CHOICE);
            c->n++;
        } else if (c->first && !c->n) continue;
        if (p->failed || flux__expr_take(p, ")")) return;
        if (!flux__expr_take(p, ",") && !flux__expr_take(p, ";"))
            flux__expr_expected(p, ", or ) or an operator");
    }
}

/* Whether a call suits its function: the number of operands, the dot and the dims; an error if not.
   f is the function of that name and number of operands; NULL: only others have the name. */
static bool flux__expr_check_call(flux__expr *p, const flux__call *c, const flux__expr_fn *f) {
    const flux__expr_fn *any = f ? f : flux__expr_find(c->name, c->size, -1);
    bool each = f && f->kind <= FLUX__FN_TRIPLE;
    if (!any) {
        const flux__expr_mix *m = flux__expr_find_mix(c->name, c->size, -1);
        int takes = (int)strlen(m->operands), more = strchr("s+", m->operands[takes - 1]) != NULL;
        takes -= m->operands[takes - 1] == '+';
        flux__expr_fail(p, c->name, "%s takes %d operand%s%s, not %d", m->name, takes,
                        takes == 1 ? "" : "s", more ? " or more" : "", c->n);
        return false;
    }
    if (c->text) flux__expr_fail(p, c->name, "%s takes no text", any->name);
    else if (any->kind != FLUX__FN_REDUCE && (c->ndims || c->first))
        flux__expr_fail(p, c->name, "%s takes no %s", any->name,
                        c->ndims ? "dims" : "function as an operand");
    else if (!f)
        flux__expr_fail(p, c->name, "%s takes %d operand%s, not %d", any->name,
                        flux__fn_operands[any->kind], flux__fn_operands[any->kind] == 1 ? "" : "s",
                        c->n);
    else if (c->dot && !each)
        flux__expr_fail(p, c->name, "%s.(...) would take single elements: write %s(...)", f->name,
                        f->name);
    for (int i = 0; i < c->n && each && !c->dot && !p->failed; i++)
        if (!flux__is_scalar(&c->arg[i])) {
            flux__text t = flux__expr_kind(&c->arg[i]);
            flux__expr_fail(p, c->name, "%s of %s: write %s.(...) for each element", f->name, t.s,
                            f->name);
        }
    return !p->failed;
}

/* The value of length(x) or size(x, 0), a plain number. */
static flux__term flux__expr_count(flux__expr *p, const flux__call *c, const flux__expr_fn *f) {
    const flux_tensor *x = c->arg[0].t;
    double d = f->kind == FLUX__FN_SIZE ? c->arg[1].num : 0;
    if (f->kind == FLUX__FN_LENGTH) return flux__expr_number(x ? (double)flux__size(x) : 1);
    if (c->arg[1].t || d < 0 || d >= FLUX_MAX_DIMS || d != floor(d))
        flux__expr_fail(p, c->name, "%s takes a tensor and one of its dims, from 0 to 7", f->name);
    return flux__expr_number(x && !p->failed ? (double)flux_dim(x, (int)d) : 1);
}

/* Records a reduction over the dims of a call, after the function in sum(abs2, x), if given. */
static flux_tensor *flux__expr_reduce(const flux__call *c, const flux__expr_fn *f, flux_tensor *x) {
    flux_reduce_opts o;
    o.x = c->first ? c->first->one(x) : x;
    o.d0 = c->dims[0], o.d1 = c->dims[1], o.d2 = c->dims[2], o.d3 = c->dims[3];
    o.d4 = c->dims[4], o.d5 = c->dims[5], o.d6 = c->dims[6], o.d7 = c->dims[7];
    return f->reduce(c->ndims, o);
}

/* Runs a call of a function of flux__expr_mixes. */
static flux__term flux__expr_mix_apply(flux__expr *p, const flux__call *c,
                                       const flux__expr_mix *m) {
    FLUX__ZEROED(flux__mixed, all);
    char text[200];
    int nn = 0;
    all.text = text;
    snprintf(text, sizeof text, "%.*s", c->text_size, c->text ? c->text : "");
    if (c->dot || c->ndims || c->first)
        flux__expr_fail(p, c->name, "%s takes neither a dot nor dims", m->name);
    else if (c->text_size >= (int)sizeof text)
        flux__expr_fail(p, c->name, "%s: a text of %d characters; at most %d", m->name,
                        c->text_size, (int)sizeof text - 1);
    for (int i = 0, k = 0; i < c->n && !p->failed; i++) {
        const flux__term *a = &c->arg[i];
        char what = m->operands[k];
        if (m->operands[k + 1] && what != 's' && what != '+') k++;
        const bool quoted = c->text && i == 0;
        if (quoted != (what == 'q'))
            flux__expr_fail(p, c->name, "operand %d of %s is %s text in quotes", i + 1, m->name,
                            quoted ? "a" : "no");
        else if (what == 't' || what == '+') all.t[all.nt++] = flux__as_tensor(a);
        else if (what == 'q') continue;
        else if (a->t || fabs(a->num) >= 1e15 || a->num != floor(a->num))
            flux__expr_fail(p, c->name, "operand %d of %s is no whole number", i + 1, m->name);
        else if (what == 's') all.s.dim[all.s.ndim++] = (int64_t)a->num;
        else all.n[nn++] = (int64_t)a->num;
    }
    if (p->failed) return flux__expr_number(0);
    return FLUX__EXPR_AT(p, c->name, m->call(&all));
}

/* An operand as a tensor. In a call whose operands are all plain numbers (`plain`) it is a float64
   scalar; for the dot product a row becomes a vector. */
static flux_tensor *flux__expr_operand_of(const flux__term *a, const flux__expr_fn *f, bool plain) {
    if (plain) return flux_full_with(flux__shape(NULL, 0), a->num, FLUX_F64);
    return f->two == flux_dot ? flux__unrow(a) : flux__as_tensor(a);
}

/* Checks and runs a call. If all operands are plain numbers and the result is a scalar, the result
   is computed at once, in double, and is a plain number; else it is a recorded tensor. */
static flux__term flux__expr_apply(flux__expr *p, const flux__call *c) {
    const flux__expr_fn *f = flux__expr_find(c->name, c->size, c->n);
    flux_tensor *t[3] = { NULL, NULL, NULL }, *y;
    const flux__expr_mix *mix = flux__expr_find_mix(c->name, c->size, c->n);
    bool plain = true;
    double num;
    if (mix) return flux__expr_mix_apply(p, c, mix);
    if (!flux__expr_check_call(p, c, f)) return flux__expr_number(0);
    if (f->kind >= FLUX__FN_LENGTH) return flux__expr_count(p, c, f);
    for (int i = 0; i < c->n; i++)
        if (c->arg[i].t) plain = false;
    flux__expr_enter(p, c->name);
    for (int i = 0; i < c->n; i++) t[i] = flux__expr_operand_of(&c->arg[i], f, plain);
    if (f->one) y = f->one(t[0]);
    else if (f->two) y = f->two(t[0], t[1]);
    else y = f->three ? f->three(t[0], t[1], t[2]) : flux__expr_reduce(c, f, t[0]);
    if (!plain || !y || y->ndim) {
        flux__term v = flux__expr_leave(p, y);
        v.row = y && f->kind <= FLUX__FN_TRIPLE && flux__are_row(c->arg, c->n);
        return v;
    }
    bool got = flux_read(flux_to_dtype(y, FLUX_F64), &num, sizeof num) == 0;
    return flux__expr_leave(p, got ? y : NULL).t ? flux__expr_number(num) : flux__expr_number(0);
}

/* ---- parsing */

/* The index of the bound variable of this name; -1 if there is none. */
static int flux__expr_bound(const flux__expr *p, const char *name, int size) {
    const char *next = p->names;
    for (int i = 0, have; i < p->n; i++) {
        const char *s = flux__next_argument(&next, &have);
        if (have == size && memcmp(s, name, (size_t)size) == 0) return i;
    }
    return -1;
}

/* Whether the name is that of a constant, whose value is written to *num. */
static bool flux__expr_constant(const char *name, int size, double *num) {
    static const double pi = 3.14159265358979323846, e = 2.71828182845904523536;
    static const char *const names[] = { "pi", "\xCF\x80", "\xE2\x84\xAF",
                                         "Inf", "NaN", "true", "false" };
    const double values[] = { pi, pi, e, HUGE_VAL, HUGE_VAL - HUGE_VAL, 1, 0 };
    for (int i = 0; i < 7; i++)
        if (flux__is_name(names[i], name, size)) {
            *num = values[i];
            return true;
        }
    return false;
}

/* Whether a dot just before s belongs to the operator or call at s, as in 2.*x and 2.^x, and not to
   the number before the dot. */
static bool flux__dots(const char *s) {
    return (*s && strchr("+-*/^=!<>&|'(", *s)) || flux__is_sign(s);
}

/* Whether double arithmetic rounds to double at once; not where it is unknown. */
#if defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD == 0
#  define FLUX__EXACT_DOUBLE 1
#else
#  define FLUX__EXACT_DOUBLE 0
#endif

/* Parses a number: 1, 2.5, .5, 1e-3, 1_000, or 1f0, which is rounded to float32. strtod gets the
   digits and an exponent, but no point, because strtod expects the locale's decimal sign. */
static double flux__expr_literal(flux__expr *p) {
    char digits[64];
    int n = 0;
    long power = 0, e = 0;
    bool point = false, single = false;
    for (;; p->at++) {
        const char *s = p->at;
        if (flux__is_digit(*s)) {
            if (n == 40) power++;         /* digits past the 40th are dropped */
            else if (n || *s != '0') digits[n++] = *s;
            if (point) power--;
        } else if (*s == '.' && !point && !flux__dots(s + 1)) point = true;
        else if (*s != '_' || !flux__is_digit(s[1]) || !flux__is_digit(s[-1])) break;
    }
    if (*p->at == 'e' || *p->at == 'E' || *p->at == 'f') {
        const char *s = p->at + 1, sign = *s;
        if (sign == '-' || sign == '+') s++;
        single = *p->at == 'f' && flux__is_digit(*s);
        if (flux__is_digit(*s)) p->at = s;
        for (; p->at == s && flux__is_digit(*s); p->at = ++s)
            if (e < 100000) e = 10 * e + (*s - '0');
        power += sign == '-' ? -e : e;
    }
    if (!n) digits[n++] = '0';
    /* up to 2^53 and 10^22 are exact in double, so that their quotient is rounded once; an
       extended double would be rounded twice */
    if (FLUX__EXACT_DOUBLE && n <= 15 && power <= 0 && power >= -22) {
        double whole = 0, unit = 1;
        for (int i = 0; i < n; i++) whole = 10 * whole + (digits[i] - '0');
        for (; power < 0; power++) unit *= 10;
        return single ? (double)(float)(whole / unit) : whole / unit;
    }
    if (power > 9999 || power < -9999) power = power < 0 ? -9999 : 9999;
    snprintf(digits + n, sizeof digits - (size_t)n, "e%ld", power);
    double v = strtod(digits, NULL);
    return single ? (double)(float)v : v;
}

/* Parses what begins with a name: a call, a bound variable or a constant. Without brackets a
   variable comes before a constant of its name; with them only functions are looked up. */
static flux__term flux__expr_name(flux__expr *p) {
    FLUX__ZEROED(flux__call, c);
    c.name = p->at;
    c.size = flux__name_size(p->at);
    p->at += c.size;
    c.dot = p->at[0] == '.' && p->at[1] == '(';
    bool call = c.dot || *p->at == '(';
    int bound = flux__expr_bound(p, c.name, c.size);
    flux__term v = { bound >= 0 ? p->values[bound] : NULL, 0, false };
    if (!call && (v.t || flux__expr_constant(c.name, c.size, &v.num))) return v;
    const flux__expr_fn *f = flux__expr_find(c.name, c.size, -1);
    if (call && (f || flux__expr_find_mix(c.name, c.size, -1))) {
        p->at += c.dot ? 2 : 1;
        flux__expr_arguments(p, &c);
        return p->failed ? v : flux__expr_apply(p, &c);
    }
    char found[64];
    flux__expr_found(c.name, found, sizeof found);
    const char *names = p->n ? p->names : "none";
    if (call && v.t) flux__expr_fail(p, c.name, "%s is a variable, not a function", found);
    else if (call) flux__expr_fail(p, c.name, "unknown function %s", found);
    else if (f) flux__expr_fail(p, c.name, "%s is a function: write %s(...)", found, f->name);
    else flux__expr_fail(p, c.name, "unknown name %s (bound: %.300s)", found, names);
    return v;
}

/* Parses an operand: a number, a name, a call or an expression in brackets, with any ' after it. A
   number just before a name or bracket is multiplied by what follows, as in 2x. */
static flux__term flux__expr_operand(flux__expr *p) {
    flux__term v = flux__expr_number(0);
    const char *start;
    flux__expr_space(p);
    start = p->at;
    if (flux__is_digit(*start) || (*start == '.' && flux__is_digit(start[1]))) {
        v.num = flux__expr_literal(p);
        if (*p->at == '(' || flux__name_size(p->at)) {
            flux__term factor = flux__expr_parse(p, FLUX__BIND_JUXTAPOSED);
            if (p->failed) return v;
            return factor.t ? flux__expr_times(p, start, v, factor)
                            : flux__expr_number(v.num * factor.num);
        }
    } else if (*start == '(') {
        p->at++;
        v = flux__expr_parse(p, FLUX__BIND_CHOICE);
        if (!p->failed && !flux__expr_take(p, ")")) flux__expr_expected(p, ") or an operator");
    } else if (flux__name_size(start)) v = flux__expr_name(p);
    else flux__expr_expected(p, "a number, a name or (");
    for (; !p->failed && *p->at == '\''; p->at++) v = flux__expr_transpose(p, p->at, v);
    return v;
}

/* Parses an operand with a prefix operator before it, if there is one: - + ! or the root sign. */
static flux__term flux__expr_prefix(flux__expr *p) {
    static const char *const signs[] = { "-", "+", "!", "\xE2\x88\x9A" };
    flux__expr_space(p);
    const char *start = p->at, *s = *start == '.' ? start + 1 : start;
    int which = 0;
    while (which < 4 && !flux__starts(s, signs[which])) which++;
    if (which == 4) return flux__expr_operand(p);
    p->at = s + strlen(signs[which]);
    bool call = p->at[0] == '.' && p->at[1] == '(';        /* as in !.(x) */
    bool dot = call || s != start;
    if (call) p->at++;
    flux__term v = call ? flux__expr_operand(p) : flux__expr_parse(p, FLUX__BIND_UNARY);
    if (p->failed || which == 1) return v;
    if (!v.t) return flux__expr_number(which == 0 ? -v.num : which == 2 ? v.num == 0 : sqrt(v.num));
    bool row = v.row;
    if (which > 1 && !dot && !flux__is_scalar(&v)) {
        flux__text t = flux__expr_kind(&v);
        flux__expr_fail(p, start, "%s of %s: write .%s for each element", signs[which], t.s,
                        signs[which]);
        return v;
    }
    flux_fn f = which == 0 ? flux_neg : which == 2 ? flux_not : flux_sqrt;
    v = FLUX__EXPR_AT(p, start, f(v.t));
    v.row = row && !p->failed;
    return v;
}

/* Parses the rest of c ? a : b, from the ? on. Both sides are recorded. If c is a plain number the
   result is one of them; if c is a scalar tensor it is a where over both. */
static flux__term flux__expr_choice(flux__expr *p, flux__term c) {
    const char *at = p->at++;
    flux__term a = flux__expr_parse(p, FLUX__BIND_CHOICE), b;
    if (!p->failed && !flux__expr_take(p, ":")) flux__expr_expected(p, ":");
    if (p->failed) return a;
    b = flux__expr_parse(p, FLUX__BIND_CHOICE);
    if (p->failed) return a;
    if (!flux__is_scalar(&c)) {
        flux__text t = flux__expr_kind(&c);
        flux__expr_fail(p, at, "? after %s: write ifelse.(c, a, b) for each element", t.s);
        return a;
    }
    if (!c.t) return c.num != 0 ? a : b;
    return FLUX__EXPR_AT(p, at, (flux_where)(c.t, flux__as_tensor(&a), flux__as_tensor(&b)));
}

/* Parses an expression, as far as its operators bind at least as tightly as `bind` (all do as
   FLUX__BIND_CHOICE), and returns its value. Operators of equal strength are applied from left to
   right, ^ from right to left. */
static flux__term flux__expr_parse(flux__expr *p, int bind) {
    flux__term v = flux__expr_number(0);
    bool dot, compared = false;
    int size = 0;
    if (++p->depth > FLUX__NESTING)
        flux__expr_fail(p, p->at, "nested more than %d deep", FLUX__NESTING);
    if (!p->failed) v = flux__expr_prefix(p);
    while (!p->failed) {
        const flux__infix *op = flux__expr_next(p, &dot, &size);
        const char *at = p->at;
        if (!op || op->bind < bind) break;
        bool compares = op->bind == FLUX__BIND_COMPARE;
        if (compares && compared) {
            flux__expr_fail(p, at, "comparisons do not chain here: write (a .< b) .&& (b .< c)");
            break;
        }
        compared = compares;
        p->at += size;
        int tighter = op->bind == FLUX__BIND_POWER ? 0 : 1;     /* 2^3^2 is 2^(3^2) */
        v = flux__expr_infix(p, at, op, dot, v, flux__expr_parse(p, op->bind + tighter));
    }
    if (!p->failed && bind <= FLUX__BIND_CHOICE && *p->at == '?') v = flux__expr_choice(p, v);
    p->depth--;
    return v;
}

/* Whether `names` are n plain names, separated by commas, and each has a tensor; else an error. */
static bool flux__expr_check(const flux__expr *p) {
    const char *next = p->names ? p->names : "";
    for (int i = 0, size; i < p->n; i++) {
        const char *s = flux__next_argument(&next, &size);
        if (!size || flux__name_size(s) != size || (next != NULL) != (i + 1 < p->n))
            return FLUX__REFUSE("expr: variable %d of %d in \"%.200s\" is not a plain name", i + 1,
                                p->n, p->names ? p->names : "");
        if (!p->values || !p->values[i]) {
            char name[48];
            snprintf(name, sizeof name, "%.*s", size < 40 ? size : 40, s);
            flux__null("expr", name, NULL);
            return false;
        }
    }
    return true;
}

/* Parses the formula as a whole and returns its value as a tensor. NULL: an error. */
FLUX_DEF flux_tensor *flux_expr_with(const char *formula, int n, const char *names,
                                     flux_tensor *const *values) {
    flux__expr p = { formula, formula, names, values, n, 0, false, NULL, "expr", 0 };
    if (!formula) return (flux_tensor *)flux__null("expr", "formula", formula);
    if (n > 0 && !names) return (flux_tensor *)flux__null("expr", "names", names);
    if (!flux__expr_check(&p)) return NULL;
    int h = flux__hide();
    flux__term v = flux__expr_parse(&p, FLUX__BIND_CHOICE);
    flux__expr_space(&p);
    if (!p.failed && *p.at == '[')
        flux__expr_fail(&p, p.at, "no indexing in formulas: flux_slice and flux_select do that");
    if (!p.failed && *p.at == ')') flux__expr_fail(&p, p.at, ") without a (");
    if (!p.failed && *p.at) flux__expr_expected(&p, "an operator or the end");
    return flux__reveal(h, p.failed ? NULL : v.t ? v.t : flux_scalar(v.num));
}

FLUX__END_COLD

#endif /* FLUX__TEXT_FORMULA_READER_H */
