#ifndef FLUX__GRAPH_EINSUM_H
#define FLUX__GRAPH_EINSUM_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/scopes.h"
#include "nodes.h"
#include "elementwise.h"
#include "views.h"
#include "reductions.h"
#include "products.h"

/* ---------------------------------------------------------------------- graph/einsum.h
   Einstein's sums, flux_einsum("bik,bkj->bij", a, b): each dim of an operand has
   a letter, and what is equal is multiplied; letters that the result lacks are
   summed. Operands are taken from left to right: of each a letter that stands
   twice is made a diagonal, one that nobody needs is summed, and two operands
   become one by a batched matmul. The dims of "..." have the letters '0' to '7'; one of them that
   is 1 where another operand's is not is dropped, which is all that broadcasting takes.

   Invariant: a term's letters are its tensor's dims, each once. Letters of two
   terms are of four kinds: only in a (I), only in b (J), in both and needed
   later (B), in both and not (K); the product is I x K x B by K x J x B. Without
   K, or without I and J, it is elementwise, as flux_mul is faster there. */

FLUX__BEGIN_COLD

typedef struct flux__einsum_term {
    flux_tensor *x;
    char letter[FLUX_MAX_DIMS + 1];       /* a string: the letter of each dim */
} flux__einsum_term;

/* Writes the letter of one dim of *t; more than 8 letters are an error. */
static bool flux__einsum_put(flux__einsum_term *t, int dim, char letter, const char *formula) {
    if (dim >= FLUX_MAX_DIMS)
        return FLUX__REFUSE("einsum: \"%.200s\" has more than %d letters in one place", formula,
                            (int)FLUX_MAX_DIMS);
    t->letter[dim] = letter;
    t->letter[dim + 1] = 0;
    return true;
}

/* How many dims of x the letters up to a comma, the arrow or the end leave. */
static int flux__einsum_rest(const char *at, const flux_tensor *x) {
    int rest = x->ndim;
    for (; *at && *at != ',' && *at != '-'; at++) rest -= isalpha((unsigned char)*at) != 0;
    return rest > 0 ? rest : 0;
}

/* Reads letters up to a comma, the arrow or the end into *t and moves *at there; "..." stands for
   `rest` dims. */
static bool flux__einsum_letters(const char **at, flux__einsum_term *t, int rest,
                                 const char *formula) {
    int n = 0;
    t->letter[0] = 0;
    for (; **at && **at != ',' && **at != '-'; ++*at) {
        if (**at == ' ') continue;
        if (strncmp(*at, "...", 3) == 0 && !strpbrk(t->letter, "01234567")) {
            for (int d = 0; d < rest; d++)
                if (!flux__einsum_put(t, n++, (char)('0' + d), formula)) return false;
            *at += 2;
            continue;
        }
        if (!isalpha((unsigned char)**at))
            return FLUX__REFUSE("einsum: '%c' in \"%.200s\" is no letter", **at, formula);
        if (!flux__einsum_put(t, n++, **at, formula)) return false;
    }
    return true;
}

/* x with dims p < q, which are equal, as one dim p: the diagonal. */
static flux_tensor *flux__einsum_diagonal(flux_tensor *x, int p, int q) {
    flux_shape order = flux__shape(NULL, x->ndim), s = order, back = order;
    int64_t n = x->dim[p];
    order.dim[0] = p, order.dim[1] = q;
    for (int d = 0, k = 2; d < x->ndim; d++)
        if (d != p && d != q) order.dim[k++] = d;
    x = flux_permute_with(x, order);
    s.ndim = order.ndim - 1, back.ndim = s.ndim;
    s.dim[0] = flux__times(n, n);
    for (int d = 1; d < s.ndim; d++) s.dim[d] = x ? x->dim[d + 1] : 0;
    x = x ? flux_reshape_with(x, s) : NULL;
    x = x ? flux_slice_step(x, 0, 0, n * n, n + 1) : NULL;
    for (int d = 0, k = 1; d < s.ndim; d++) back.dim[d] = d == p ? 0 : k++;
    return x ? flux_permute_with(x, back) : NULL;
}

/* Takes the letter of dim d away. */
static void flux__einsum_drop(flux__einsum_term *t, int d) {
    memmove(t->letter + d, t->letter + d + 1, strlen(t->letter + d));
}

/* Makes diagonals of t's letters that stand twice, and sums those that are not in `needed`. */
static void flux__einsum_single(flux__einsum_term *t, const char *needed) {
    for (int d = 0; t->x && t->letter[d]; d++) {
        const char *again = strchr(t->letter + d + 1, t->letter[d]);
        if (!again) continue;
        t->x = flux__einsum_diagonal(t->x, d, (int)(again - t->letter));
        flux__einsum_drop(t, (int)(again - t->letter));
        d--;
    }
    for (int d = 0; t->x && t->letter[d]; d++) {
        if (strchr(needed, t->letter[d])) continue;
        flux_shape s = flux__dims(t->x);
        for (int i = d; i + 1 < s.ndim; i++) s.dim[i] = s.dim[i + 1];
        s.ndim--;
        t->x = flux__reduce_node(t->x, FLUX__RED_SUM, 1u << d, t->x->ndim);
        t->x = t->x ? flux_reshape_with(t->x, s) : NULL;
        flux__einsum_drop(t, d--);
    }
}

/* t's tensor with a dim for each of `letters`, in that order; of size 1 where t has none. */
static flux_tensor *flux__einsum_as(const flux__einsum_term *t, const char *letters) {
    flux_shape order = flux__shape(NULL, 0), s = order;
    for (int i = 0; letters[i]; i++) {
        const char *at = strchr(t->letter, letters[i]);
        if (at) order.dim[order.ndim++] = at - t->letter;
        s.dim[s.ndim++] = at ? t->x->dim[at - t->letter] : 1;
    }
    flux_tensor *x = flux_permute_with(t->x, order);
    return x ? flux_reshape_with(x, s) : NULL;
}

/* The letters of a that are not in b or, if in_b, that are in b and are needed or not. Returns the
   product of their sizes. */
static int64_t flux__einsum_kind(const flux__einsum_term *a, const flux__einsum_term *b, bool in_b,
                                 const char *needed, bool need, char *out) {
    int64_t size = 1;
    int n = 0;
    for (int d = 0; a->letter[d]; d++) {
        if ((strchr(b->letter, a->letter[d]) != NULL) != in_b) continue;
        if (in_b && (strchr(needed, a->letter[d]) != NULL) != need) continue;
        out[n++] = a->letter[d];
        size *= a->x->dim[d];
    }
    out[n] = 0;
    return size;
}

/* The elementwise product of two terms over `letters`, summed over the last of them. */
static flux_tensor *flux__einsum_times(const flux__einsum_term *a, const flux__einsum_term *b,
                                       const char *letters, int summed) {
    flux_tensor *x = flux__einsum_as(a, letters), *y = flux__einsum_as(b, letters);
    int n = (int)strlen(letters);
    x = x && y ? flux_mul(flux__widened(x), flux__widened(y)) : NULL;
    if (!x || !summed) return x;
    unsigned mask = ((1u << n) - 1) & ~((1u << (n - summed)) - 1);
    flux_shape s = flux__shape(x->dim, n - summed);
    x = flux__reduce_node(x, FLUX__RED_SUM, mask, n);
    return x ? flux_reshape_with(x, s) : NULL;
}

/* *a becomes the product of a and b, with their letters that are needed. */
static bool flux__einsum_pair(flux__einsum_term *a, const flux__einsum_term *b, const char *needed,
                              const char *formula) {
    char only_a[20], only_b[20], both[20], gone[20], all[80], left[80], right[80];
    int64_t i = flux__einsum_kind(a, b, false, needed, true, only_a);
    int64_t j = flux__einsum_kind(b, a, false, needed, true, only_b);
    int64_t k = flux__einsum_kind(a, b, true, needed, false, gone);
    int64_t shared = flux__einsum_kind(a, b, true, needed, true, both);
    snprintf(all, sizeof all, "%s%s%s%s", only_a, only_b, both, gone);
    if (strlen(all) > FLUX_MAX_DIMS)
        return FLUX__REFUSE("einsum: a product in \"%.200s\" has more than %d letters", formula,
                            (int)FLUX_MAX_DIMS);
    bool each = !*gone || (!*only_a && !*only_b);
    flux_tensor *y = NULL;
    if (each) y = flux__einsum_times(a, b, all, (int)strlen(gone));
    all[strlen(all) - strlen(gone)] = 0;
    if (!each) {
        snprintf(left, sizeof left, "%s%s%s", only_a, gone, both);
        snprintf(right, sizeof right, "%s%s%s", gone, only_b, both);
        flux_tensor *x = flux__einsum_as(a, left), *z = flux__einsum_as(b, right);
        flux_shape s = flux__shape(NULL, (int)strlen(all));
        for (int d = 0; all[d]; d++) {
            const flux__einsum_term *from = strchr(a->letter, all[d]) ? a : b;
            s.dim[d] = from->x->dim[strchr(from->letter, all[d]) - from->letter];
        }
        x = x ? flux_reshape(x, i, k, shared) : NULL;
        z = z ? flux_reshape(z, k, j, shared) : NULL;
        y = x && z ? flux_matmul(x, z) : NULL;
        y = y ? flux_reshape_with(y, s) : NULL;
    }
    a->x = y;
    snprintf(a->letter, sizeof a->letter, "%.8s", all);
    return y != NULL;
}

/* Takes dim d, of size 1, away. t->x is NULL on an error. */
static void flux__einsum_squeeze(flux__einsum_term *t, int d) {
    flux_shape s = flux_shape_of(t->x);
    s.ndim--;
    for (int k = d; k < s.ndim; k++) s.dim[k] = s.dim[k + 1];
    t->x = flux_reshape_with(t->x, s);
    flux__einsum_drop(t, d);
}

/* The size of each letter must be the same wherever it stands; of "..." it may be 1, too, and is
   dropped. False: an error was told. */
static bool flux__einsum_sizes(flux__einsum_term *t, int n, const char *formula) {
    int64_t size[128];
    for (int c = 0; c < 128; c++) size[c] = -1;
    for (int i = 0; i < n; i++) {
        if ((int)strlen(t[i].letter) != t[i].x->ndim)
            return FLUX__REFUSE("einsum: \"%s\" of \"%.200s\" names %d dims, operand %d is %s",
                                t[i].letter, formula, (int)strlen(t[i].letter), i + 1,
                                flux__describe(t[i].x).s);
        for (int d = 0; t[i].letter[d]; d++) {
            int64_t *have = &size[(unsigned char)t[i].letter[d] & 127];
            bool rest = isdigit((unsigned char)t[i].letter[d]) != 0;
            if (rest && (*have == 1 || (*have >= 0 && t[i].x->dim[d] == 1))) {
                if (*have == 1) *have = t[i].x->dim[d];
                continue;
            }
            if (*have >= 0 && *have != t[i].x->dim[d])
                return FLUX__REFUSE("einsum: %.*s of \"%.200s\" is %lld, and in operand %d it is "
                                    "%lld",
                                    rest ? 3 : 1, rest ? "..." : &t[i].letter[d], formula,
                                    (long long)*have, i + 1, (long long)t[i].x->dim[d]);
            *have = t[i].x->dim[d];
        }
    }
    for (int i = 0; i < n; i++)
        for (int d = 0; t[i].x && t[i].letter[d]; d++)
            if (isdigit((unsigned char)t[i].letter[d]) && t[i].x->dim[d] == 1 &&
                size[(unsigned char)t[i].letter[d]] != 1)
                flux__einsum_squeeze(&t[i], d--);
    return true;
}

/* Without an arrow the result has the letters that stand once, in the alphabet's order, capitals
   first, and then the `rest` dims of "...". */
static bool flux__einsum_implied(const flux__einsum_term *t, int n, flux__einsum_term *out,
                                 int rest, const char *formula) {
    int k = 0;
    for (int c = 'A'; c <= 'z'; c++) {
        int times = 0;
        for (int i = 0; i < n; i++)
            for (const char *p = t[i].letter; *p; p++) times += *p == c;
        if (times == 1 && !flux__einsum_put(out, k++, (char)c, formula)) return false;
    }
    for (int d = 0; d < rest; d++)
        if (!flux__einsum_put(out, k++, (char)('0' + d), formula)) return false;
    return true;
}

/* Reads the formula: the letters of the n terms and of the result. False: an error was told. */
static bool flux__einsum_parse(const char *formula, int n, flux__einsum_term *t,
                               flux__einsum_term *out) {
    const char *at = formula;
    int most = 0;
    out->letter[0] = 0;
    for (int i = 0; i < n; i++) {
        int rest = flux__einsum_rest(at, t[i].x);
        if (!flux__einsum_letters(&at, &t[i], rest, formula)) return false;
        if (rest > most && strpbrk(t[i].letter, "01234567")) most = rest;
        if (i + 1 < n ? *at != ',' : *at == ',')
            return FLUX__REFUSE("einsum: \"%.200s\" is not of %d operands", formula, n);
        if (*at == ',') at++;
    }
    if (!*at) return flux__einsum_implied(t, n, out, most, formula);
    if (at[1] != '>') return FLUX__REFUSE("einsum: \"%.200s\" has a - that is no ->", formula);
    at += 2;
    if (!flux__einsum_letters(&at, out, most, formula)) return false;
    if (*at) return FLUX__REFUSE("einsum: \"%.200s\" has more behind its result", formula);
    for (int d = 0; out->letter[d]; d++) {
        bool found = false;
        for (int i = 0; i < n && !found; i++) found = strchr(t[i].letter, out->letter[d]) != NULL;
        if (!found || strchr(out->letter + d + 1, out->letter[d]))
            return FLUX__REFUSE("einsum: %c stands %s \"%.200s\"", out->letter[d],
                                found ? "twice in the result of" : "in no operand of", formula);
    }
    return true;
}

/* The letters that are needed after operand i: those of later operands and of the result. */
static void flux__einsum_needed(const flux__einsum_term *t, int n, int i, const char *out,
                                char *needed) {
    int k = 0;
    for (int c = '0'; c <= 'z'; c++) {
        bool found = strchr(out, c) != NULL;
        for (int j = i + 1; j < n; j++) found = found || strchr(t[j].letter, c) != NULL;
        if (found) needed[k++] = (char)c;
    }
    needed[k] = 0;
}

FLUX_DEF flux_tensor *flux_einsum_with(const char *formula, int n, flux_tensor *const *xs) {
    flux__einsum_term t[32], out;
    char needed[64];
    if (!formula) return (flux_tensor *)flux__null("einsum", "formula", formula);
    if (n < 1 || n > 32) return (flux_tensor *)flux__fail("einsum: %d operands (1 to 32)", n);
    if (!flux__check_operands("einsum", n, xs)) return NULL;
    for (int i = 0; i < n; i++) t[i].x = xs[i];
    if (!flux__einsum_parse(formula, n, t, &out) || !flux__einsum_sizes(t, n, formula)) return NULL;
    int given = flux__meet("einsum", n, xs), h = flux__hide_in("einsum");
    if (given < 0) return flux__reveal(h, NULL);
    if (!flux__dtypes[given].real) given = FLUX_F32;
    for (int i = 0; i < n; i++) {
        /* a letter that the first operand shares with this one is needed until they are one */
        char own[64 + 2 * FLUX_MAX_DIMS];
        flux__einsum_needed(t, n, i, out.letter, needed);
        snprintf(own, sizeof own, "%s%s", needed, i ? t[0].letter : "");
        t[i].x = flux__cast(t[i].x, (flux_dtype)given);
        if (t[i].x) flux__einsum_single(&t[i], own);
        if (!t[i].x || (i && !flux__einsum_pair(&t[0], &t[i], needed, formula)))
            return flux__reveal(h, NULL);
    }
    flux_tensor *y = flux__einsum_as(&t[0], out.letter);
    return flux__reveal(h, y ? flux__narrow(y, given) : NULL);
}

FLUX__END_COLD

#endif /* FLUX__GRAPH_EINSUM_H */
