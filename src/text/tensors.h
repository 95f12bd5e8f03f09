#ifndef FLUX__TEXT_TENSORS_H
#define FLUX__TEXT_TENSORS_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_load32, flux__atomic_store32 */
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../base/text.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/views.h"
#include "../schedule/looking.h"
#include "../device/registry.h"

/* ---------------------------------------------------------------------- text/tensors.h
   Tensors as text. flux_print and flux_tensor_text run the same code over a
   flux__sink (base/text.h). Tensors look as in Julia: a header with shape,
   device and dtype, then one line for each row, with columns aligned on the
   decimal point; rows and columns that do not fit are left out. A number in a
   vector has the fewest digits that read back as the same number, one in a
   matrix at most six.

   Invariant: a large tensor is sliced on its own device before its elements are
   fetched, so that printing costs the same for any size on any device, and
   changes nothing about the tensor or the device. Digits come from printf's %e,
   of which only digits and exponent are used, so the locale's decimal point
   does not show.

   Rejected: %g (it pads, and cannot say which digits matter), and an algorithm
   of our own for shortest digits (a page of tables for text that a person
   reads). */

FLUX__BEGIN_COLD

/* ---- settings */

static int flux__print_rows, flux__print_columns;    /* 0: the defaults */

FLUX_DEF void flux_print_limits(int rows, int columns) {
    flux__atomic_store32(&flux__print_rows, rows > 0 ? rows : 0);
    flux__atomic_store32(&flux__print_columns, columns > 0 ? columns : 0);
}

/* ---- numbers */

/* Writes a number of bytes with the unit that suits it: "512 bytes", "3.004 KiB". Three decimals
   are written, rounded; the digits of the fraction come from 1000 + thousandths, whose first
   digit is overwritten by the point. */
FLUX_DEF size_t flux_format_bytes(int64_t bytes, char *out, size_t n) {
    static const char *const units[] = { " KiB", " MiB", " GiB", " TiB", " PiB", " EiB" };
    flux__sink s = flux__sink_to(out, n);
    if (bytes < 1024) {
        flux__put_integer(&s, bytes, false);
        flux__put(&s, bytes == 1 ? " byte" : " bytes");
        return flux__sink_end(&s);
    }
    int u = 0;
    int64_t unit = 1024, part;
    char text[32];
    while (u < 5 && bytes / unit >= 1024) unit *= 1024, u++;
    /* what rounds to 1024.000 is 1.000 of the next unit */
    if (u < 5 && (double)bytes / (double)unit >= 1023.9995) unit *= 1024, u++;
    part = (int64_t)((double)(bytes % unit) * 1000.0 / (double)unit + 0.5);   /* thousandths */
    flux__put_integer(&s, bytes / unit + part / 1000, false);
    flux__integer_text(1000 + part % 1000, false, text);
    text[0] = '.';
    flux__put(&s, text);
    flux__put(&s, units[u]);
    return flux__sink_end(&s);
}

/* Whether r, rounded to dtype t, is v: r is nearer to v than to any other number of that dtype.
   Neither is negative. */
static bool flux__reads_back(double r, double v, flux_dtype t) {
    /* bits of the mantissa, and exponent of the smallest subnormal, of f32, f64, f16, bf16 */
    static const int bits[] = { 24, 53, 11, 8 };
    static const int lowest[] = { -149, -1074, -24, -133 };
    int e;
    double m = frexp(v, &e), gap = ldexp(1.0, e - bits[t] > lowest[t] ? e - bits[t] : lowest[t]);
    /* just below a power of two, numbers are half as far apart as above it */
    bool narrow = m == 0.5 && r < v && e - bits[t] > lowest[t];
    return r == v || fabs(r - v) < (narrow ? gap / 4 : gap / 2);
}

/* Writes the decimal digits of |v| and returns their count: v is d[0].d[1]d[2]... times ten to the
   *power. They are as few as read back as v, at most `most`. *exact says whether they are v itself
   and not a rounding of it. */
static int flux__decimal(double v, flux_dtype t, int most, char *d, int *power, bool *exact) {
    char text[40];
    double r = 0;
    for (int p = 1; p <= most; p++) {
        snprintf(text, sizeof text, "%.*e", p - 1, fabs(v));
        r = strtod(text, NULL);
        if (flux__reads_back(r, fabs(v), t)) break;
    }
    int n = 0;
    const char *at = text;
    for (; *at && *at != 'e'; at++)
        if (flux__is_digit(*at)) d[n++] = *at;
    *power = *at ? atoi(at + 1) : 0;
    *exact = r == fabs(v);
    while (n > 1 && d[n - 1] == '0') n--;
    return n;
}

/* A floating number as Julia shows it: 0.5, 100.0, 1.0e6, 1.5e-5, NaN, -Inf. out has 40 bytes. */
static void flux__real_text(double v, flux_dtype t, int most, char *out) {
    char d[24], *at = out;
    int power, n;
    bool exact;
    if (v != v || v - v != 0) {
        strcpy(out, v != v ? "NaN" : v > 0 ? "Inf" : "-Inf");
        return;
    }
    /* no signbit: where it is a macro over three types, compilers warn of a conversion */
    if (copysign(1, v) < 0) *at++ = '-';
    if (v == 0) {
        strcpy(at, "0.0");
        return;
    }
    n = flux__decimal(v, t, most, d, &power, &exact);
    int point = power + 1;                /* number of digits before the point */
    if (point <= -4 || point > 6 || (point >= n && !exact)) {
        *at++ = d[0];
        *at++ = '.';
        for (int i = 1; i < n; i++) *at++ = d[i];
        if (n == 1) *at++ = '0';
        *at++ = 'e';
        flux__integer_text(power, false, at);
        return;
    }
    int last = point + 1 > n ? point + 1 : n;      /* at least one digit after the point */
    for (int i = point < 1 ? point - 1 : 0; i < last; i++) {
        if (i == point) *at++ = '.';
        *at++ = i >= 0 && i < n ? d[i] : '0';
    }
    *at = 0;
}

/* ---- tensors */

/* An element as text. left: the number of characters before the point; right: of the rest. Of a
   column's widths only left and right are used. */
typedef struct flux__cell { char text[40]; int left, right; } flux__cell;

/* Which of n rows, columns or pages are shown: the first `head` and the last `tail`. `have` is how
   many were fetched: n, or only those shown. head + tail == n if all are shown. */
typedef struct flux__ends { int64_t n, head, tail, have; } flux__ends;

static flux__ends flux__ends_of(int64_t n, int64_t most, int64_t head, int64_t tail) {
    flux__ends e = { n, n, 0, n };
    if (n > most) e.head = head, e.tail = tail;
    return e;
}

static int64_t flux__shown(const flux__ends *e) { return e->head + e->tail; }
/* The index, among those fetched, of the i-th that is shown. */
static int64_t flux__end_at(const flux__ends *e, int64_t i) {
    return i < e->head ? i : e->have - flux__shown(e) + i;
}

/* The part of x (rows x columns x pages) that is shown: for dims 0 to `dim` the first and the last
   elements are sliced and concatenated. All dims are sliced before any concatenation, so that no
   more than what is shown is ever copied. */
static flux_tensor *flux__cut_dims(flux_tensor *x, int dim, flux__ends *const *ends) {
    if (!x || dim < 0) return x;
    flux__ends *e = ends[dim];
    if (flux__shown(e) == e->n) return flux__cut_dims(x, dim - 1, ends);
    e->have = flux__shown(e);
    flux_tensor *parts[2] = { flux__cut_dims(flux_slice(x, dim, 0, e->head), dim - 1, ends), NULL };
    if (!e->tail) return parts[0];
    parts[1] = flux__cut_dims(flux_slice(x, dim, e->n - e->tail, e->n), dim - 1, ends);
    return parts[0] && parts[1] ? flux_cat_with(dim, 2, parts) : NULL;
}

typedef struct flux__grid {               /* what is shown of a tensor: rows x columns x pages */
    flux__ends rows, columns, pages;
    const void *data;                     /* column-major: rows.have x columns.have x pages.have */
    flux_dtype dtype, stored;             /* x's; that of data: half formats are fetched as f32 */
    int most;                             /* digits of a number, at most */
    bool dots;                            /* zeros are dots: a one-hot matrix is easier to see */
    int limit;                            /* characters of a line, at most */
} flux__grid;

/* Decides which rows, columns and pages of x are shown, and fetches their elements. Up to 4096
   elements are fetched whole, a larger tensor is sliced first. False: an error. */
static bool flux__grid_of(flux__grid *g, flux_tensor *x) {
    int rows = flux__atomic_load32(&flux__print_rows);
    g->limit = flux__atomic_load32(&flux__print_columns);
    if (!rows) rows = 20;
    if (!g->limit) g->limit = 80;
    int64_t d0 = x->ndim ? x->dim[0] : 1, d1 = x->ndim > 1 ? x->dim[1] : 1, fit = g->limit / 3 + 1;
    g->rows = flux__ends_of(d0, rows, rows > 1 ? rows / 2 : 1, (rows - 1) / 2);
    g->columns = flux__ends_of(d1, 2 * fit, fit, fit);
    g->pages = flux__ends_of(d0 && d1 ? flux__size(x) / d0 / d1 : 0, 10, 3, 3);
    g->dtype = (flux_dtype)x->dtype;
    g->dots = g->dtype == FLUX_BOOL && x->ndim > 1;
    g->most = d1 > 1 ? 6 : 17;
    if (!flux__size(x)) return true;
    if (!(x = flux_eval(x))) return false;
    if (flux__size(x) > 4096) {
        int64_t dims[3] = { d0, d1, g->pages.n };
        flux__ends *const ends[3] = { &g->rows, &g->columns, &g->pages };
        x = flux__cut_dims(flux_reshape_with(x, flux__shape(dims, 3)), 2, ends);
    }
    if (x && flux__is_half((int)g->dtype)) x = flux_to_dtype(x, FLUX_F32);
    g->stored = x ? (flux_dtype)x->dtype : FLUX_F32;
    return x && (g->data = flux_data(x)) != NULL;
}

/* Element i of an array of integers or bools. */
static int64_t flux__whole_at(const void *data, flux_dtype t, int64_t i) {
    const uint8_t *bytes = (const uint8_t *)data;
    if (t == FLUX_I32) return ((const int32_t *)data)[i];
    if (t == FLUX_I64) return ((const int64_t *)data)[i];
    return t == FLUX_BOOL ? bytes[i] != 0 : bytes[i];
}

/* Writes the element in row i, column j of page k, counted among those shown, as text. */
static void flux__grid_cell(const flux__grid *g, flux__cell *c, int64_t i, int64_t j, int64_t k) {
    int64_t at = flux__end_at(&g->pages, k);
    at = flux__end_at(&g->columns, j) + g->columns.have * at;
    at = flux__end_at(&g->rows, i) + g->rows.have * at;
    c->right = 0;
    if (flux__dtypes[g->dtype].real) {
        double v = g->stored == FLUX_F64 ? ((const double *)g->data)[at]
                                         : (double)((const float *)g->data)[at];
        flux__real_text(v, g->dtype, g->most, c->text);
        const char *point = strchr(c->text, '.');
        c->right = point ? (int)strlen(point) : 0;
    } else flux__integer_text(flux__whole_at(g->data, g->dtype, at), false, c->text);
    c->left = (int)strlen(c->text) - c->right;
    if (g->dots && c->text[0] == '0') strcpy(c->text, flux__glyph(FLUX__DOT));
}

/* Finds the widths of the columns on page k. If not all columns fit into a line, keeps as many as
   do, alternately from the left and the right; widths then has the head's and the tail's. */
static void flux__grid_fit(flux__grid *g, flux__cell *widths, int64_t k) {
    int64_t total = flux__shown(&g->columns), head = 0, tail = 0, used = 1, all = 1;
    flux__cell c;
    for (int64_t j = 0; j < total; j++) {
        widths[j].left = widths[j].right = 0;
        for (int64_t i = 0; i < flux__shown(&g->rows); i++) {
            flux__grid_cell(g, &c, i, j, k);
            if (c.left > widths[j].left) widths[j].left = c.left;
            if (c.right > widths[j].right) widths[j].right = c.right;
        }
        all += widths[j].left + widths[j].right + (j ? 2 : 0);
    }
    if (all <= g->limit && total == g->columns.n) return;
    for (;;) {                            /* takes one more column, from the left or the right */
        bool right = tail < head;
        if (head + tail == total) break;
        const flux__cell *w = &widths[right ? total - 1 - tail : head];
        used += w->left + w->right + 2;
        if (head && used + (flux__ascii() ? 3 : 1) > g->limit) break;
        if (right) tail++;
        else head++;
    }
    memmove(widths + head, widths + total - tail, (size_t)tail * sizeof *widths);
    g->columns.head = head;
    g->columns.tail = tail;
}

/* Writes row i of page k. Where columns are left out, there is a gap between head and tail, with a
   sign of dots in it in every fifth row; without a tail the sign stands at the line's end. */
static void flux__put_row(flux__sink *s, const flux__grid *g, const flux__cell *widths, int64_t i,
                          int64_t k) {
    int64_t shown = flux__shown(&g->columns);
    flux__cell c;
    for (int64_t j = 0; j < shown; j++) {
        bool gap = j == g->columns.head && shown < g->columns.n;
        if (gap) flux__put(s, i % 5 == 0 ? "  " : "   ");
        if (gap && i % 5 == 0) flux__put(s, flux__glyph(FLUX__COLUMNS_LEFT_OUT));
        else if (gap && flux__ascii()) flux__put(s, "  ");
        flux__put(s, j ? "  " : " ");
        flux__grid_cell(g, &c, i, j, k);
        flux__put_pad(s, widths[j].left - c.left);
        flux__put(s, c.text);
        if (j + 1 < shown) flux__put_pad(s, widths[j].right - c.right);
    }
    if (g->columns.tail == 0 && shown < g->columns.n && i % 5 == 0) {
        flux__put_pad(s, widths[shown - 1].right - c.right + 2);
        flux__put(s, flux__glyph(FLUX__COLUMNS_LEFT_OUT));
    }
}

/* Writes the line that stands for rows left out: vertical dots, below the units of the first
   column. */
static void flux__put_rows_left_out(flux__sink *s, const flux__cell *widths) {
    flux__put_pad(s, widths[0].left);
    flux__put(s, flux__glyph(FLUX__ROWS_LEFT_OUT));
}

/* Writes page k: a line for each row that is shown. `widths` has room for all columns shown. */
static void flux__put_page(flux__sink *s, const flux__grid *whole, flux__cell *widths, int64_t k) {
    flux__grid g = *whole;
    flux__grid_fit(&g, widths, k);
    for (int64_t i = 0; i < flux__shown(&g.rows); i++) {
        if (i == g.rows.head) {
            flux__put(s, "\n");
            flux__put_rows_left_out(s, widths);
        }
        flux__put(s, "\n");
        flux__put_row(s, &g, widths, i, k);
    }
    if (g.rows.tail == 0 && flux__shown(&g.rows) < g.rows.n) {
        flux__put(s, "\n");
        flux__put_rows_left_out(s, widths);
    }
}

/* Writes "[:, :, 0, 2] =", the line above page number `at` of a tensor of more than two dims. */
static void flux__put_page_name(flux__sink *s, const flux_tensor *x, int64_t at) {
    int64_t place[FLUX_MAX_DIMS];
    flux__place_at(x->dim + 2, x->ndim - 2, at, place);
    flux__put(s, "\n[:, :, ");
    flux__put_dims(s, place, x->ndim - 2);
    flux__put(s, "] =");
}

/* Writes all pages that are shown; those of a tensor of more than two dims have a name above. */
static void flux__put_pages(flux__sink *s, const flux_tensor *x, const flux__grid *g,
                            flux__cell *widths) {
    for (int64_t k = 0; k < flux__shown(&g->pages); k++) {
        int64_t at = k < g->pages.head ? k : g->pages.n - flux__shown(&g->pages) + k;
        if (k && x->ndim > 2) flux__put(s, "\n");
        if (k && k == g->pages.head) {
            flux__put(s, "\n");
            flux__put(s, flux__glyph(FLUX__ROWS_LEFT_OUT));
            flux__put(s, "\n");
        }
        if (x->ndim > 2) flux__put_page_name(s, x, at);
        flux__put_page(s, g, widths, k);
    }
}

/* Writes a tensor's shape: "3x2", "5-element" or "scalar". */
static void flux__put_shape(flux__sink *s, const flux_tensor *x) {
    for (int d = 0; d < x->ndim; d++) {
        if (d) flux__put(s, flux__glyph(FLUX__TIMES));
        flux__put_integer(s, x->dim[d], false);
    }
    if (x->ndim == 1) flux__put(s, "-element");
    if (x->ndim == 0) flux__put(s, "scalar");
}

/* Writes the device and dtype: " CPU f32", " CUDA(0) f16". */
static void flux__put_place(flux__sink *s, const flux_tensor *x) {
    flux__put(s, " ");
    flux__put(s, flux_device_backend(x->device));
    if (x->device.backend != FLUX__CPU_BACKEND) {
        flux__put(s, "(");
        flux__put_integer(s, x->device.id, false);
        flux__put(s, ")");
    }
    flux__put(s, " ");
    flux__put(s, flux__dtypes[x->dtype].name);
}

/* Writes a tensor that is no tuple: its header and pages, or for a scalar its number, device and
   dtype on one line. False: an error, as when the tensor cannot be computed. */
static bool flux__put_array(flux__sink *s, flux_tensor *x) {
    FLUX__ZEROED(flux__grid, g);
    flux__cell c, *widths;
    int h = flux__hide();
    widths = flux__grid_of(&g, x)
                 ? (flux__cell *)flux__malloc((size_t)flux__shown(&g.columns) * sizeof *widths)
                 : NULL;
    if (widths && x->ndim == 0) {
        flux__grid_cell(&g, &c, 0, 0, 0);
        flux__put(s, c.text);
        flux__put_place(s, x);
    } else if (widths) {
        flux__put_shape(s, x);
        flux__put_place(s, x);
        if (flux__size(x)) flux__put(s, ":");
        flux__put_pages(s, x, &g, widths);
    }
    flux__free(widths);
    flux__reveal(h, NULL);
    return widths != NULL;
}

/* Writes any tensor; a tuple as the list of its tensors. False: an error. */
static bool flux__put_tensor(flux__sink *s, flux_tensor *x) {
    if (x->op != FLUX__TUPLE) return flux__put_array(s, x);
    flux__put_integer(s, x->nin, false);
    flux__put(s, "-element tuple:");
    for (int i = 0; i < x->nin; i++) {
        flux__put(s, "\n[");
        flux__put_integer(s, i, false);
        flux__put(s, "] ");
        if (!flux__put_tensor(s, x->in[i])) return false;
    }
    return true;
}

FLUX_DEF size_t flux_tensor_text(flux_tensor *x, char *out, size_t n) {
    flux__sink s = flux__sink_to(out, n);
    if (!x || FLUX__GONE("print", x)) flux__null("tensor_text", "x", x);
    else if (!flux__put_tensor(&s, x)) s.len = 0;
    return flux__sink_end(&s);
}

FLUX_DEF void flux_print_tensor(flux_tensor *x) {
    flux__sink s = flux__sink_stdout();
    if (!x) flux__null("print", "x", x);
    else if (flux__put_tensor(&s, x)) flux__put(&s, "\n");
}

FLUX__END_COLD

#endif /* FLUX__TEXT_TENSORS_H */
