#ifndef FLUX__TEXT_SUMMARY_H
#define FLUX__TEXT_SUMMARY_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../base/text.h"
#include "../data/loader_text.h" /* flux_loader_text */
#include "../nn/fields.h"
#include "../nn/walk.h"
#include "../nn/model.h"
#include "../nn/grads.h" /* flux_grads_text */
#include "../nn/adjust.h" /* flux_state_text */
#include "tensors.h"
#include "models.h"

/* ---------------------------------------------------------------------- text/summary.h
   The summary of a model (flux_summary): a table with one row for each layer,
   which has the shape of the layer's output for an input of a given shape, and
   the costs in parameters, multiply-adds and bytes. The print functions of
   layers, loaders and states are here as well.

   Invariant: a summary is a dry run (flux__dry_run) over a placeholder: shapes
   are checked and nodes are recorded, but nothing is computed. Parameters are
   compared by their memory and counted in the first row that has them, so tied
   ones count once in the total. A container's row counts only parameters that
   belong to none of its children's rows. Where the length of a text is needed
   before the text, the same function runs twice, first without a buffer. */

FLUX__BEGIN_COLD

/* The table is at most 80 characters wide. Each column is as wide as its widest cell. If the sum
   is too wide, names are cut first, to no less than 20 characters, then outputs. Numbers from 10^12
   on are shortened, 1.24e+12, so that 10 characters at least are left to outputs. */
enum { FLUX__TABLE = 80, FLUX__TABLE_NAME = 20 };

typedef struct flux__table {              /* widths of the columns, in characters */
    int64_t name, out, numbers, products, bytes;
    int step;                             /* indent of a name for each level of nesting: 2 or 1 */
} flux__table;

/* Writes a number as a cell shows it: with groups of three digits, or shortened. */
static void flux__cell_number(int64_t v, char *out, size_t n) {
    flux__sink s = flux__sink_to(out, n);
    if (v < INT64_C(1000000000000)) flux__put_integer(&s, v, true);
    flux__sink_end(&s);
    if (v >= INT64_C(1000000000000)) snprintf(out, n, "%.3g", (double)v);
}

static void flux__put_right(flux__sink *s, const char *text, int64_t width) {
    flux__put_pad(s, width - (int64_t)strlen(text));
    flux__put(s, text);
}

/* Writes the cells of a row after its name. `all` is false for a container, whose multiply-adds and
   bytes are its children's, and for the row of layers that were not called: these two cells are
   left out, and so is a count of 0 parameters. A * marks a count with frozen parameters. */
static void flux__put_cells(flux__sink *s, const flux__table *t, const flux__watch_row *row,
                            bool all) {
    char text[48];
    bool numbers = all || row->numbers;
    int64_t used = (int64_t)strlen(row->out);
    flux__put(s, "  ");
    flux__put_cut(s, row->out, numbers || used > t->out ? t->out : used);
    flux__cell_number(row->numbers, text, sizeof text);
    if (numbers) flux__put_right(s, text, t->numbers + 2);
    if (row->frozen) flux__put(s, "*");
    if (!all) {
        flux__put(s, "\n");
        return;
    }
    if (!row->frozen) flux__put(s, " ");
    flux__cell_number(row->products, text, sizeof text);
    flux__put_right(s, text, t->products + 1);
    flux_format_bytes(row->bytes, text, sizeof text);
    flux__put_right(s, text, t->bytes + 2);
    flux__put(s, "\n");
}

/* Writes a row's name, indented by its depth, and returns its length in characters. With a step of
   1, for deep models, the indent grows no further than 10. */
static int64_t flux__name_text(const flux__watch_row *row, int step, char *out, size_t n) {
    flux__sink s = flux__sink_to(out, n);
    flux__put_pad(&s, step == 2 ? 2 * row->depth : row->depth < 10 ? row->depth : 10);
    if (row->layer->name) flux__put(&s, row->layer->name), flux__put(&s, " = ");
    if (flux__one_line(row->layer)) flux__put_line(&s, row->layer);
    else flux__put(&s, row->layer->type->name);
    flux__sink_end(&s);
    return (int64_t)s.chars;
}

/* Widens a column to `to` characters, if it is narrower. */
static void flux__widen_column(int64_t *width, int64_t to) {
    if (*width < to) *width = to;
}

/* Finds the widths of the columns from all rows and the row of totals; see FLUX__TABLE. */
static flux__table flux__table_of(const flux__watch *w, const flux__watch_row *total) {
    flux__table t = { 12, 6, 10, 8, 5, 2 };                /* widths of the heading's words */
    char text[48];
    for (int i = 0; i < w->n; i++)
        if (w->row[i].depth > 8) t.step = 1;
    for (int i = 0; i <= w->n; i++) {
        const flux__watch_row *row = i < w->n ? &w->row[i] : total;
        if (row->layer) flux__widen_column(&t.name, flux__name_text(row, t.step, NULL, 0));
        flux__widen_column(&t.out, (int64_t)strlen(row->out));
        flux__cell_number(row->numbers, text, sizeof text);
        flux__widen_column(&t.numbers, (int64_t)strlen(text));
        flux__cell_number(row->products, text, sizeof text);
        flux__widen_column(&t.products, (int64_t)strlen(text));
        flux_format_bytes(row->bytes, text, sizeof text);
        flux__widen_column(&t.bytes, (int64_t)strlen(text));
    }
    int64_t space = FLUX__TABLE - (t.numbers + t.products + t.bytes + 8);   /* for name and out */
    const int64_t least = t.name < FLUX__TABLE_NAME ? t.name : (int64_t)FLUX__TABLE_NAME;
    if (t.out > space - least) t.out = space - least;
    if (t.name > space - t.out) t.name = space - t.out;
    return t;
}

/* Sets `numbers` and `frozen` of a row: the parameters that no earlier row has counted. Of a
   container only tensors in its own fields count; the parameters of its children belong to their
   rows, and so do the bytes of its output, which are set to 0. */
static void flux__watch_numbers(flux__shown_model *shown, flux__watch_row *row) {
    flux__summary t = flux__summary_start(shown);
    if (flux__one_line(row->layer)) {
        flux_visit(row->layer, flux__summary_new, &t);
        flux__fields(row->layer, flux__summary_frozen, &t);
    } else {
        FLUX__EACH_MEMBER(at, row->layer) {
            if (at.field->kind != FLUX__PARAM_FIELD) continue;
            flux__summary_new(*at.tensor, "", true, &t);
            t.frozen += row->layer->frozen;
        }
        row->bytes = 0;
    }
    row->numbers = t.numbers;
    row->frozen = t.frozen > 0;
}

/* Counts the parameters of frozen layers, each memory once. */
static void flux__frozen_new(flux_tensor **slot, const char *path, bool trained,
                             const flux_layer *owner, void *user) {
    if (owner->frozen) flux__summary_new(*slot, path, trained, user);
}

/* Writes the lines below the table: how many parameters are frozen, and how many bytes all take. */
static void flux__put_watch_end(flux__sink *s, flux_layer *m) {
    flux__shown_model shown = { s, { NULL, 0, 0 } };
    flux__summary frozen = flux__summary_start(&shown), all = frozen;
    char text[48];
    flux__fields(m, flux__frozen_new, &frozen);
    flux__hashmap_free(&shown.seen);
    all.total = true;
    flux_visit(m, flux__summary_tensor, &all);
    flux__hashmap_free(&shown.seen);
    if (frozen.numbers) {
        flux__put(s, "* frozen: flux_update leaves ");
        flux__put_integer(s, frozen.numbers, true);
        flux__put(s, frozen.numbers == 1 ? " parameter as it is\n" : " parameters as they are\n");
    }
    flux_format_bytes(all.bytes, text, sizeof text);
    flux__put(s, "its parameters take ");
    flux__put(s, text);
    flux__put(s, "\n");
}

/* Writes the table of a dry run: the heading, a row for each layer that was called, a row for
   parameters of layers that were not, the totals, and the lines below. Row 0 is the model. */
static void flux__put_watch(flux__sink *s, flux__watch *w) {
    flux__shown_model shown = { s, { NULL, 0, 0 } };
    flux__watch_row total, rest;          /* rest: parameters that no row has */
    char name[600];
    if (!w->n) return;
    memset((void *)&total, 0, sizeof total);
    total.products = w->row[0].products;
    rest = total;
    for (int i = 0; i < w->n; i++) {
        flux__watch_numbers(&shown, &w->row[i]);
        total.numbers += w->row[i].numbers;
        total.bytes += w->row[i].bytes;
    }
    flux__summary left = flux__summary_start(&shown);
    flux_visit(w->row[0].layer, flux__summary_new, &left);
    flux__hashmap_free(&shown.seen);
    rest.numbers = left.numbers;
    total.numbers += rest.numbers;
    flux__table t = flux__table_of(w, &total);
    flux__put_cut(s, "layer", t.name);
    flux__put(s, "  ");
    flux__put_cut(s, "output", t.out);
    flux__put_right(s, "parameters", t.numbers + 2);
    flux__put_right(s, "mul-adds", t.products + 2);
    flux__put_right(s, "bytes", t.bytes + 2);
    flux__put(s, "\n");
    for (int i = 0; i < w->n; i++) {
        const flux__watch_row *row = &w->row[i];
        flux__name_text(row, t.step, name, sizeof name);
        flux__put_cut(s, name, t.name);
        flux__put_cells(s, &t, row, flux__one_line(row->layer));
    }
    if (rest.numbers) flux__put_cut(s, "not called", t.name), flux__put_cells(s, &t, &rest, false);
    flux__put_cut(s, "total", t.name);
    flux__put_cells(s, &t, &total, true);
    flux__put_watch_end(s, w->row[0].layer);
}

/* Writes the summary of m for an input of shape `in`; nothing, with an error, if m refuses it. */
static void flux__summary_put(flux__sink *s, const char *call, flux_layer *m, flux_shape in) {
    FLUX__ZEROED(flux__watch, w);
    int h = flux__hide();
    flux_tensor *y = flux__dry_run(call, m, in, &w);
    if (y) flux__put_watch(s, &w);
    flux__reveal_object(h, NULL);
    flux__free(w.row);
}

FLUX_DEF size_t flux_summary_text(flux_layer *m, flux_shape in, char *out, size_t n) {
    flux__sink s = flux__sink_to(out, n);
    flux__summary_put(&s, "summary", m, in);
    return flux__sink_end(&s);
}

FLUX_DEF void flux_summary_with(flux_layer *m, flux_shape in) {
    flux__sink s = flux__sink_stdout();
    flux__summary_put(&s, "summary", m, in);
}

FLUX_DEF void flux_print_layer(flux_layer *m) {
    flux__sink s = flux__sink_stdout();
    if (!m) {
        flux__null("print", "m", m);
        return;
    }
    flux__put_whole_model(&s, m);
    flux__put(&s, "\n");
}

/* Prints what a text function writes for an object. n is the text's length, which the caller has
   from a first call of the same function without a buffer; 0: it failed, and nothing is printed. */
static void flux__print_text(size_t n, void *object,
                             size_t (*text)(void *object, char *out, size_t n)) {
    char *all = n ? (char *)flux__malloc(n + 1) : NULL;
    if (!all) return;
    text(object, all, n + 1);
    flux__sink s = flux__sink_stdout();
    flux__put(&s, all);
    flux__put(&s, "\n");
    flux__free(all);
}

#define FLUX__PRINTED(name, T)                                                                     \
    static size_t flux__text_of_##name(void *x, char *out, size_t n) {                             \
        return flux_##name##_text((T *)x, out, n);                                                 \
    }                                                                                              \
    FLUX_DEF void flux_print_##name(T *x) {                                                        \
        flux__print_text(flux_##name##_text(x, NULL, 0), x, flux__text_of_##name);                 \
    }
FLUX__PRINTED(grads, flux_grads)
FLUX__PRINTED(loader, flux_loader)
FLUX__PRINTED(state, flux_state)

FLUX__END_COLD

#endif /* FLUX__TEXT_SUMMARY_H */
