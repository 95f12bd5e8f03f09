#ifndef FLUX__FILES_TABLE_H
#define FLUX__FILES_TABLE_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/text.h"
#include "../base/options.h"
#include "../base/memory.h"
#include "../base/sinks.h"
#include "../base/listing.h"
#include "../base/scopes.h"
#include "../graph/leaves.h"
#include "gzip.h"
#include "sources.h"
#include "csv.h"

/* ---------------------------------------------------------------------- files/table.h
   Tables: CSV whose columns have names, and hold numbers or texts, with fields
   that are missing. A table is a handle, flux_table; flux_columns makes tensors
   of some of its columns.

   Invariant: a column is one of numbers until a field is neither a number nor
   missing; then all its fields are texts. A first pass over the lines reads
   numbers and finds the columns of texts, and only if there are any does a
   second one code them. The codes of a column follow the order of its texts by
   their bytes, so that two files with the same texts have the same codes. The
   file's text is kept during the call only: names and labels are copies. Fields
   may be quoted, and then hold separators, line ends and "" for a quote. A # in
   first place begins a comment; within a line it is text.

   Rejected: dates and times (they are texts), guessing that a column of few
   different numbers means classes. */

FLUX__BEGIN_COLD

typedef struct flux__series {             /* a column */
    char *name, *text;                    /* text: all labels, each with its 0 */
    size_t used, room;                    /* bytes of text */
    size_t *place;                        /* of each label in text, in the order of coming */
    const char **label;                   /* sorted; made at the end */
    int32_t *slot;                        /* hash table: number of a label + 1, or 0 */
    int labels, label_room, slots;        /* slots: a power of two */
    bool texts;                           /* it holds texts */
    int64_t missing;
} flux__series;

struct flux_table {
    flux__box box;
    flux__series *column;
    int columns, capacity;
    int64_t rows;
    flux_tensor *values;                  /* columns x rows */
};

typedef struct flux__reading {            /* a table that is being read */
    flux__csv c;
    flux_table *t;
    float missing;                        /* the value of a missing field */
    float *out;                           /* columns x rows */
} flux__reading;

/* A field: its text, and if it was quoted without the outer quotes; `last` of its line. */
typedef struct flux__field { const char *a, *b; bool quoted, last; } flux__field;

static void flux__series_free(flux__series *k) {
    flux__free(k->name);
    flux__free(k->text);
    flux__free(k->place);
    flux__free((const void *)k->label);
    flux__free(k->slot);
}

static void flux__table_free(flux__box *box) {
    flux_table *t = (flux_table *)(void *)box;
    for (int i = 0; i < t->columns; i++) flux__series_free(&t->column[i]);
    flux__free(t->column);
    flux_release(t->values);
    flux__quarantine(t);
}

/* Goes past the separator or the end of a line at p. */
static FLUX__INLINE void flux__csv_pass(flux__csv *c, const char *p) {
    if (p + 1 < c->end && *p == '\r' && p[1] == '\n') p++;
    c->at = p < c->end ? p + 1 : p;
}

/* Goes past empty lines and comments to the next line; false: there is none. */
static FLUX__O1 bool flux__table_line(flux__csv *c) {
    while (c->at < c->end) {
        const char *p = c->at;
        while (p < c->end && flux__is_blank(*p) && *p != c->separator) p++;
        const bool empty = p == c->end || *p == '\n' || *p == '\r';
        c->line++;
        if (!empty && *p != '#') return true;
        while (p < c->end && *p != '\n' && *p != '\r') p++;
        flux__csv_pass(c, p);
    }
    return false;
}

/* Ends a field at p, where a separator or the end of the line should be; false: an error. */
static FLUX__O1 bool flux__field_end(flux__csv *c, const char *p, flux__field *f) {
    while (f->quoted && p < c->end && flux__is_blank(*p) && *p != c->separator) p++;
    f->last = p == c->end || *p == '\n' || *p == '\r';
    if (!f->last && *p != c->separator)
        return flux__bad(c->source, "line %lld: something follows a quoted field",
                         (long long)c->line), false;
    flux__csv_pass(c, p);
    if (!f->quoted) flux__trim(&f->a, &f->b);
    return true;
}

/* Takes the next field of a line, and goes past it. A separator ' ' is any run of blanks. False: an
   error. */
static FLUX__O1 bool flux__table_field(flux__csv *c, flux__field *f) {
    const char *p = c->at, *end = c->end, separator = c->separator;
    while (p < end && flux__is_blank(*p) && (*p != separator || separator == ' ')) p++;
    f->quoted = p < end && *p == '"';
    f->a = p;
    if (!f->quoted) {
        while (p < end && *p != separator && *p != '\n' && *p != '\r') p++;
        f->b = p;
        const char *q = p;                /* blanks at a line's end begin no field */
        while (separator == ' ' && q < end && flux__is_blank(*q)) q++;
        if (separator == ' ' && (q == end || *q == '\n' || *q == '\r')) p = q;
        return flux__field_end(c, p, f);
    }
    const int64_t line = c->line;
    f->a = ++p;
    for (; p < end && (*p != '"' || (p + 1 < end && p[1] == '"')); p++) {
        if (*p == '"') p++;
        if (*p == '\n' || (*p == '\r' && (p + 1 == end || p[1] != '\n'))) c->line++;
    }
    f->b = p;
    if (p == end)
        return flux__bad(c->source, "line %lld: a quoted field does not end", (long long)line),
               false;
    return flux__field_end(c, p + 1, f);
}

/* Whether a field says that its value is missing: nothing, or what NumPy, R, SQL and Python write.
   In quotes only nothing does. */
static bool flux__is_missing(const flux__field *f) {
    static const char *const words[] = { "na", "n/a", "nan", "null", "none", "#n/a", "?" };
    if (f->a == f->b) return true;
    if (f->quoted || f->b - f->a > 4) return false;
    for (int i = 0; i < 7; i++)
        if (flux__word(f->a, f->b, words[i])) return true;
    return false;
}

/* ---------------- texts and their codes */

/* Copies a field behind the column's labels, without quotes; *n is its length with the 0. */
static FLUX__O1 char *flux__label_copy(flux__series *k, const flux__field *f, size_t *n) {
    const size_t most = (size_t)(f->b - f->a) + 1;
    if (most > k->room - k->used) {
        const size_t room = k->room * 2 > k->used + most ? k->room * 2 : k->used + most + 256;
        char *more = (char *)FLUX_REALLOC(k->text, room);
        if (!more) return (char *)flux__fail("out of memory: %zu bytes", room);
        k->text = more;
        k->room = room;
    }
    char *to = k->text + k->used, *o = to;
    for (const char *p = f->a; p < f->b; p++) {
        *o++ = *p ? *p : ' ';
        if (f->quoted && *p == '"') p++;
    }
    *o++ = 0;
    *n = (size_t)(o - to);
    return to;
}

static FLUX__O1 uint32_t flux__text_hash(const char *p) {
    uint32_t h = 2166136261u;             /* FNV-1a */
    for (; *p; p++) h = (h ^ (unsigned char)*p) * 16777619u;
    return h ^ h >> 15;
}

/* Makes the hash table twice as large. */
static bool flux__label_slots(flux__series *k) {
    const int n = k->slots ? k->slots * 2 : 16;
    int32_t *slot = (int32_t *)flux__zalloc((size_t)n * sizeof *slot);
    if (!slot) return false;
    for (int i = 0; i < k->labels; i++) {
        uint32_t h = flux__text_hash(k->text + k->place[i]);
        while (slot[h & (uint32_t)(n - 1)]) h++;
        slot[h & (uint32_t)(n - 1)] = i + 1;
    }
    flux__free(k->slot);
    k->slot = slot;
    k->slots = n;
    return true;
}

/* The number of a field's text among those of its column; -1: an error. */
static FLUX__O1 int flux__label_number(flux__reading *r, flux__series *k, const flux__field *f) {
    size_t n;
    if (k->labels * 2 >= k->slots && !flux__label_slots(k)) return -1;
    const char *text = flux__label_copy(k, f, &n);
    if (!text) return -1;
    uint32_t h = flux__text_hash(text), mask = (uint32_t)(k->slots - 1);
    for (; k->slot[h & mask]; h++)
        if (strcmp(k->text + k->place[k->slot[h & mask] - 1], text) == 0)
            return k->slot[h & mask] - 1;
    if (k->labels >= 1 << 24)             /* codes are float32 */
        return flux__bad(r->c.source, "column %.60s has more than 16777216 different texts",
                         k->name), -1;
    size_t *place = (size_t *)flux__one_more(&k->place, &k->label_room, k->labels, sizeof *place);
    if (!place) return -1;
    *place = k->used;
    k->used += n;
    k->slot[h & mask] = ++k->labels;
    return k->labels - 1;
}

/* Sorts the labels of column i, and its codes with them. */
static bool flux__labels_sort(flux__reading *r, int i) {
    flux__series *k = &r->t->column[i];
    const size_t n = (size_t)k->labels;
    k->label = (const char **)flux__malloc(n * sizeof *k->label);
    float *code = (float *)flux__malloc(n * sizeof *code);
    if (k->label && code) {
        for (size_t j = 0; j < n; j++) k->label[j] = k->text + k->place[j];
        if (n) qsort((void *)k->label, n, sizeof *k->label, flux__by_text);
        for (size_t j = 0; j < n; j++) {  /* the place in text gives the number of coming */
            size_t lo = 0, hi = n, at = (size_t)(k->label[j] - k->text);
            while (hi - lo > 1) {
                const size_t mid = lo + (hi - lo) / 2;
                if (k->place[mid] <= at) lo = mid;
                else hi = mid;
            }
            code[lo] = (float)j;
        }
        float *v = r->out + i;
        for (int64_t j = 0; j < r->t->rows; j++, v += r->t->columns)
            if (*v >= 0 && (size_t)*v < n) *v = code[(size_t)*v];
    }
    flux__free(code);
    return k->label && code;
}

/* ---------------- reading */

/* Reads a field of column i as a number, in the first pass; *v is its value. A column whose field
   is a text becomes one of texts. False: an error. */
static FLUX__O1 bool flux__take_number(flux__reading *r, int i, const flux__field *f, float *v) {
    flux__series *k = &r->t->column[i];
    const int kind = flux__number_of(f->a, f->b, v);
    if (kind == 1 && *v - *v != 0)
        return flux__csv_bad(&r->c, i + 1, f->a, f->b, "is too large for float32"), false;
    if (kind && *v == *v) return true;
    if (flux__is_missing(f)) k->missing++;
    else k->texts = true;
    *v = r->missing;
    return true;
}

/* Codes a field of column i, in the second pass. A missing one is not coded. */
static FLUX__O1 bool flux__take_text(flux__reading *r, int i, const flux__field *f, float *v) {
    flux__series *k = &r->t->column[i];
    const bool missing = flux__is_missing(f);
    const int number = missing ? -1 : flux__label_number(r, k, f);
    k->missing += missing;
    *v = missing ? NAN : (float)number;   /* NaN until the codes are sorted */
    return missing || number >= 0;
}

/* Goes over all lines: the first time to read numbers, the second time to code texts. */
static FLUX__O1 bool flux__table_pass(flux__reading *r, bool texts) {
    flux_table *t = r->t;
    flux__field f;
    float *out = r->out;
    for (;;) {
        if (!texts && r->c.plain && r->c.separator != ' ')
            out += flux__csv_plain(&r->c, out, t->columns) * t->columns;
        if (!flux__table_line(&r->c)) return true;
        const int64_t line = r->c.line;
        int i = 0;
        do {
            if (!flux__table_field(&r->c, &f)) return false;
            if (i == t->columns) { i++; break; }
            const bool here = texts ? t->column[i].texts : !t->column[i].texts;
            if (here && !(texts ? flux__take_text : flux__take_number)(r, i, &f, &out[i]))
                return false;
            i++;
        } while (!f.last);
        if (i != t->columns)
            return flux__bad(r->c.source, "line %lld has %s fields than the first one, which has "
                             "%d", (long long)line, i < t->columns ? "fewer" : "more", t->columns),
                   false;
        out += t->columns;
    }
}

/* How many lines there are from here on. Only quotes make it more than counting line ends. */
static bool flux__table_count(flux__csv c, int64_t *rows) {
    flux__field f;
    const bool quotes = c.at < c.end && memchr(c.at, '"', (size_t)(c.end - c.at));
    for (*rows = 0; flux__table_line(&c); ++*rows) {
        const char *p = c.at;
        if (quotes) {
            do
                if (!flux__table_field(&c, &f)) return false;
            while (!f.last);
        } else {
            while (p < c.end && *p != '\n' && *p != '\r') p++;
            flux__csv_pass(&c, p);
        }
    }
    return true;
}

/* The separator of a line: of tab, semicolon, comma and bar, outside quotes, the one that is there
   most often; if there is none, runs of blanks. */
static char flux__find_separator(const char *p, const char *end) {
    static const char known[] = ",;\t|";
    int count[4] = { 0, 0, 0, 0 }, best = 0, blanks = 0;
    bool quoted = false;
    for (; p < end && (quoted || (*p != '\n' && *p != '\r')); p++) {
        const char *at = quoted || !*p ? NULL : strchr(known, *p);
        quoted ^= *p == '"';
        if (at) count[at - known]++;
        blanks += !quoted && *p == ' ';
    }
    for (int i = 1; i < 4; i++)
        if (count[i] > count[best]) best = i;
    return count[best] ? known[best] : blanks ? ' ' : ',';
}

/* Makes the columns of the first line, which is a heading or not: it is one if no field of it is a
   number, unless the options say. Columns without a heading are called "0", "1", ... */
static bool flux__table_heading(flux__reading *r, flux_switch heading) {
    flux_table *t = r->t;
    flux__csv before = r->c;
    flux__field f;
    float v;
    bool numbers = false;
    size_t n;
    if (!flux__table_line(&r->c)) return flux__bad(r->c.source, "it has no lines"), false;
    do {
        if (!flux__table_field(&r->c, &f)) return false;
        numbers |= flux__number_of(f.a, f.b, &v) == 1;
        flux__series *k = (flux__series *)flux__one_more(&t->column, &t->capacity, t->columns,
                                                         sizeof *k);
        if (!k) return false;
        t->columns++;
        memset(k, 0, sizeof *k);
        k->name = flux__label_copy(k, &f, &n);
        k->text = NULL;                   /* it is the name's now */
        k->room = 0;
        if (!k->name) return false;
    } while (!f.last);
    if (heading == FLUX_ON || (heading == FLUX_DEFAULT && !numbers)) return true;
    before.separator = r->c.separator;
    r->c = before;
    for (int i = 0; i < t->columns; i++) {
        char *name = (char *)FLUX_REALLOC(t->column[i].name, 12);
        if (!name) return flux__fail("out of memory: 12 bytes"), false;
        t->column[i].name = name;
        snprintf(name, 12, "%d", i);
    }
    return true;
}

/* Codes the columns of texts, whose numbers of missing fields are counted anew. */
static bool flux__table_texts(flux__reading *r) {
    flux_table *t = r->t;
    bool any = false;
    for (int i = 0; i < t->columns; i++)
        if (t->column[i].texts) any = true, t->column[i].missing = 0;
    if (!any) return true;
    if (!flux__table_pass(r, true)) return false;
    for (int i = 0; i < t->columns; i++)
        if (t->column[i].texts && !flux__labels_sort(r, i)) return false;
    for (int i = 0; i < t->columns && r->missing == r->missing; i++)
        for (int64_t j = 0; t->column[i].texts && j < t->rows; j++) {
            float *v = &r->out[j * t->columns + i];
            if (*v != *v) *v = r->missing;
        }
    return true;
}

/* Fills a table from a text in memory. False: an error; what there is goes with the table. */
static bool flux__table_fill(flux_table *t, flux__source *s, const flux_table_opts *o) {
    const char *text = (const char *)s->bytes;
    flux__reading r = { { s, text, text + s->size, 0, o->separator, NULL }, t,
                        (float)flux__given(o->missing, o->marked, (double)NAN), NULL };
    flux_device cpu = { 0, 0 };
    if (flux__foreign(s)) return false;
    if (s->size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) r.c.at += 3; /* byte order mark */
    flux__csv first = r.c;
    if (!r.c.separator && flux__table_line(&first))
        r.c.separator = flux__find_separator(first.at, first.end);
    if (!flux__table_heading(&r, flux__given_switch(o->heading, o->marked))) return false;
    if (!flux__table_count(r.c, &t->rows)) return false;
    /* each field has at least its separator: so many can't be, whatever a short line says */
    if (t->rows && (uint64_t)t->columns > s->size / (uint64_t)t->rows + 1)
        return flux__bad(s, "its lines have fewer fields than the first one, which has %d",
                         t->columns), false;
    flux_tensor *values = flux__leaf(FLUX_SHAPE(t->columns, t->rows), FLUX_F32, cpu);
    t->values = (flux_tensor *)flux_retain(values);
    if (!t->values) return false;
    r.out = (float *)t->values->buf->ptr;
    r.c.plain = flux__csv_last(r.c.at, r.c.end);
    flux__csv begin = r.c;
    if (!flux__table_pass(&r, false)) return false;
    r.c = begin;
    return flux__table_texts(&r);
}

/* A table of the text of a source; NULL: an error. */
static flux_table *flux__parse_table(flux__source *s, const flux_table_opts *o) {
    flux_table *t = (flux_table *)flux__handle_new(sizeof *t, FLUX__BOX);
    if (!t) return NULL;
    t->box.free = flux__table_free;
    int h = flux__hide();
    const bool good = flux__table_fill(t, s, o);
    flux__reveal(h, NULL);
    if (good) return (flux_table *)flux__own(t);
    flux_release(t);
    return NULL;
}

FLUX_DEF flux_table *flux_load_table_with(flux_table_opts o) {
    size_t size;
    if (!o.path) return (flux_table *)flux__null("load_table", "path", o.path);
    void *text = flux__gunzip(flux__read_file(o.path, &size, "load_table"), &size, "load_table",
                              o.path);
    if (!text) return NULL;
    flux__source s = { "load_table", o.path, NULL, (const unsigned char *)text, size, NULL };
    flux_table *t = flux__parse_table(&s, &o);
    flux__free(text);
    return t;
}

/* ---------------- looking at a table */

FLUX_DEF int64_t flux_table_rows(const flux_table *t) {
    if (!t || FLUX__GONE("table_rows", t)) return flux__null("table_rows", "t", t), -1;
    return t->rows;
}
FLUX_DEF int flux_table_columns(const flux_table *t) {
    if (!t || FLUX__GONE("table_columns", t)) return flux__null("table_columns", "t", t), -1;
    return t->columns;
}

FLUX_DEF const char *flux_column_name(const flux_table *t, int i) {
    if (!t || FLUX__GONE("column_name", t))
        return (const char *)flux__null("column_name", "t", t);
    if (i >= 0 && i < t->columns) return t->column[i].name;
    return (const char *)flux__fail("column_name: column %d of a table of %d columns", i,
                                    t->columns);
}

/* The column of a name of n bytes, or else of a number; NULL is an error that lists names. */
static flux__series *flux__column_of(const flux_table *t, const char *call, const char *name,
                                     int n) {
    char list[200], *end = list;
    for (int i = 0; i < t->columns; i++)
        if (strncmp(t->column[i].name, name, (size_t)n) == 0 && !t->column[i].name[n])
            return &t->column[i];
    snprintf(list, sizeof list, "%.*s", n < 12 ? n : 12, name);
    const long i = strtol(list, &end, 10);
    if (n < 12 && flux__is_digit(*list) && !*end && i < t->columns) return &t->column[i];
    flux__sink s = flux__sink_to(list, sizeof list);
    for (int k = 0; k < t->columns && s.len < 150; k++)
        flux__putf(&s, "%s%.40s", k ? ", " : "", t->column[k].name);
    flux__sink_end(&s);
    return (flux__series *)flux__fail("%s: the table has no column \"%.*s\"; it has %d: %s", call,
                                      n < 80 ? n : 80, name, t->columns, list);
}

/* The same for the calls below, which give nothing if there is no table or no name. */
static flux__series *flux__column_called(const flux_table *t, const char *call, const char *name) {
    if (!t || FLUX__GONE(call, t)) return (flux__series *)flux__null(call, "t", t);
    if (!name) return (flux__series *)flux__null(call, "name", name);
    return flux__column_of(t, call, name, strlen(name) < 10000 ? (int)strlen(name) : 10000);
}

FLUX_DEF int64_t flux_column_missing(const flux_table *t, const char *name) {
    const flux__series *k = flux__column_called(t, "column_missing", name);
    return k ? k->missing : -1;
}
FLUX_DEF int64_t flux_column_labels(const flux_table *t, const char *name) {
    const flux__series *k = flux__column_called(t, "column_labels", name);
    return k ? k->labels : -1;
}
FLUX_DEF const char *flux_column_label(const flux_table *t, const char *name, int64_t code) {
    const flux__series *k = flux__column_called(t, "column_label", name);
    if (!k) return NULL;
    if (code >= 0 && code < k->labels) return k->label[code];
    return (const char *)flux__fail("column_label: %.60s has no label %lld; it has %d", name,
                                    (long long)code, k->labels);
}

/* Finds the columns of a list of names, "age, fare"; returns how many, or -1. The caller frees
   them. */
static int flux__columns_named(const flux_table *t, const char *names, int **out) {
    int n = 0, capacity = 0;
    for (const char *p = names, *end; p; p = *end ? end + 1 : NULL) {
        const char *a = p, *b = end = p + strcspn(p, ",");
        flux__trim(&a, &b);
        flux__series *k = b - a > 10000 ? NULL : flux__column_of(t, "columns", a, (int)(b - a));
        int *one = k ? (int *)flux__one_more(out, &capacity, n, sizeof *one) : NULL;
        if (!one) return -1;
        *one = (int)(k - t->column), n++;
    }
    return n;
}

FLUX_DEF flux_tensor *flux_columns(const flux_table *t, const char *names) {
    int *which = NULL;
    flux_device cpu = { 0, 0 };
    if (!t || FLUX__GONE("columns", t)) return (flux_tensor *)flux__null("columns", "t", t);
    if (!names) return (flux_tensor *)flux__own(flux_retain(t->values));
    const int n = flux__columns_named(t, names, &which);
    flux_tensor *x = n > 0 ? flux__leaf(FLUX_SHAPE(n, t->rows), FLUX_F32, cpu) : NULL;
    const float *from = (const float *)t->values->buf->ptr;
    float *to = x ? (float *)x->buf->ptr : NULL;
    for (int64_t j = 0; to && j < t->rows; j++, from += t->columns)
        for (int i = 0; i < n; i++) *to++ = from[which[i]];
    flux__free(which);
    return x;
}

FLUX__END_COLD

#endif /* FLUX__FILES_TABLE_H */
