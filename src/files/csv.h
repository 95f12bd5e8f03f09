#ifndef FLUX__FILES_CSV_H
#define FLUX__FILES_CSV_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/text.h"
#include "../base/dtypes.h"
#include "../base/sinks.h"
#include "../base/scopes.h"
#include "../graph/leaves.h"
#include "gzip.h"
#include "sources.h"

/* ---------------------------------------------------------------------- files/csv.h
   CSV: lines of numbers are read as a float32 tensor of columns x lines. The
   separator is found in the first line of numbers: a semicolon, a comma, a tab,
   a bar, or any run of blanks. A heading line is skipped, # begins a comment, and
   empty lines do not count. Tables of names, numbers and texts are read by
   files/table.h, which uses this room's numbers.

   Invariant: the whole text is one buffer. A first pass counts columns and
   lines, a second one reads the numbers into the tensor and checks that all
   lines have as many as the first. If columns x lines is more than a text of
   this size can hold, the second pass runs once without a tensor, to report the
   line that differs before memory is allocated. A number is rounded to
   float32 once: from a double where that is safe, by strtof where the double is
   near the middle between two float32. The locale's decimal point does not
   matter, since strtof gets digits and an exponent without a point. Errors name
   line and column.

   Nearly all lines are plain: digits, a point, an exponent, one separator, and
   the line's end. flux__csv_plain reads such a line in one go, with the line's
   end as what stops every loop, and leaves any other to the careful functions,
   which agree with it on what is plain. */

FLUX__BEGIN_LEAN

/* Whether the text is `word`, which is in lower case, with letters of either case. */
static bool flux__word(const char *p, const char *end, const char *word) {
    for (; p < end && *word && (*p | 32) == *word; p++) word++;
    return p == end && *word == 0;
}

/* The n digits of a number without its point, and the power of ten they are multiplied by: "12.50"
   is 1250 and -2. Leading zeros are left out. `value` is the first 19 digits as an integer. Of the
   digits past the 780th it matters only whether one is not 0: then the last digit kept is made
   odd, so that the number does not round as if they were 0. */
typedef struct flux__digits { char text[800]; int n; int64_t power; uint64_t value; } flux__digits;

/* Splits an unsigned number, "12.5e3", into digits and power; false: the text is not one. */
static bool flux__take_digits(const char *p, const char *end, flux__digits *d) {
    bool point = false, any = false, minus;
    d->n = 0, d->power = 0, d->value = 0;
    for (; p < end && (flux__is_digit(*p) || (*p == '.' && !point)); p++) {
        if (*p == '.') {
            point = true;
            continue;
        }
        any = true;
        if (d->n == 0 && *p == '0') d->power -= point;     /* a leading zero is not kept */
        else if (d->n < 780) {
            d->text[d->n++] = *p;
            if (d->n < 20) d->value = d->value * 10 + (uint64_t)(*p - '0');
            d->power -= point;
        } else {
            if (*p != '0') d->text[d->n - 1] = (char)(d->text[d->n - 1] | 1);
            d->power += !point;
        }
    }
    if (!any || p == end) return any;
    if ((*p++ | 32) != 'e') return false;
    minus = p < end && *p == '-';
    if (p < end && (*p == '-' || *p == '+')) p++;
    int64_t e = 0;
    const char *start = p;
    for (; p < end && flux__is_digit(*p); p++) e = e < 1000000 ? e * 10 + (*p - '0') : e;
    d->power += minus ? -e : e;
    return p == end && p > start;
}

/* Writes the float32 that is nearest to value times 10^power, value below 10^19, to *out. The
   double that is computed for a power of at most 22 may have its last bit or two wrong. If it is
   not near the middle between two float32, it lies on the right side of it, and rounding it gives
   the right float32; else the answer is false. */
static FLUX__INLINE bool flux__round_quickly(uint64_t value, int64_t power, float *out) {
    static const double ten[] = { 1e-22, 1e-21, 1e-20, 1e-19, 1e-18, 1e-17, 1e-16, 1e-15, 1e-14,
                                  1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4,
                                  1e-3, 1e-2, 1e-1, 1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8,
                                  1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19,
                                  1e20, 1e21, 1e22 };
    if (power < -22 || power > 22) return false;
    double v = (double)value * ten[power + 22];   /* three roundings, of half a bit each */
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    *out = (float)v;
    bits = (bits & 0x1FFFFFFF) - 0x10000000 + 8;   /* the 29 bits that rounding drops; 0 to 16 says
                                                      that they are near the middle */
    return bits > 16 && v < 3e38;
}

/* The float32 that is nearest to digits and power: 1250 and -2 give 12.5. Where the quick way does
   not do, strtof reads the text "1250e-2", in which the locale has no part. */
static float flux__round_digits(flux__digits *d) {
    float out;
    if (d->n == 0) return 0;
    if (d->n < 20 && flux__round_quickly(d->value, d->power, &out)) return out;
    snprintf(d->text + d->n, sizeof d->text - (size_t)d->n, "e%lld", (long long)d->power);
    return strtof(d->text, NULL);
}

/* Appends the decimal digits at p to *value, and returns where they end. Eight characters are taken
   at once where that is known to work, so seven more must be there behind the last digit. */
static FLUX__INLINE const char *flux__csv_digits(const char *p, uint64_t *value) {
#if defined(__GNUC__) && defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    static const uint64_t ten[] = { 1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000 };
    for (int n = 8; n == 8; p += n) {
        uint64_t w, other;
        memcpy(&w, p, 8);
        w ^= UINT64_C(0x3030303030303030);             /* a digit's byte is its value now */
        other = (w | (w + UINT64_C(0x0606060606060606))) & UINT64_C(0xF0F0F0F0F0F0F0F0);
        n = other ? __builtin_ctzll(other) >> 3 : 8;   /* digits before the first other one */
        if (n == 0) break;
        w <<= 64 - 8 * n;                              /* as if zeros stood before them */
        w = (w * 10 + (w >> 8)) & UINT64_C(0x00FF00FF00FF00FF);
        w = (w * 100 + (w >> 16)) & UINT64_C(0x0000FFFF0000FFFF);
        w = (w * 10000 + (w >> 32)) & UINT64_C(0x00000000FFFFFFFF);
        *value = *value * ten[n] + w;
    }
#else
    for (unsigned digit; (digit = (unsigned)(*p - '0')) < 10; p++) *value = *value * 10 + digit;
#endif
    return p;
}

/* Reads a plain number, "-12.5e3", of at most 19 digits, and returns where it ends; NULL: the text
   is something else, or must be rounded with care. Behind the text there must be a character that
   no number has, and seven more. */
static FLUX__INLINE const char *flux__csv_number(const char *p, float *out) {
    const bool minus = *p == '-';
    uint64_t value = 0, e = 0;
    int64_t power = 0;
    const char *start = p += minus, *point;
    p = flux__csv_digits(p, &value);
    int64_t digits = p - start;
    if (*p == '.') {
        point = ++p;
        p = flux__csv_digits(p, &value);
        power = point - p;
        digits -= power;
    }
    if (digits == 0 || digits > 19) return NULL;
    if ((*p | 32) == 'e') {
        const bool below = *++p == '-';
        if (*p == '-' || *p == '+') p++;
        start = p;
        p = flux__csv_digits(p, &e);
        if (p == start || p - start > 4) return NULL;
        power += below ? -(int64_t)e : (int64_t)e;
    }
    float v = 0;
    if (value && !flux__round_quickly(value, power, &v)) return NULL;
    *out = minus ? -v : v;
    return p;
}

/* Reads a plain decimal of at most 19 characters, "12.5", as most numbers are, without keeping its
   digits; false: the text is something else, or must be rounded with care. */
static bool flux__plain_number(const char *p, const char *end, float *out) {
    const char *point = NULL;
    uint64_t value = 0;
    if (end - p > 19) return false;
    for (const char *q = p; q < end; q++) {
        if (flux__is_digit(*q)) value = value * 10 + (uint64_t)(*q - '0');
        else if (*q == '.' && !point) point = q;
        else return false;
    }
    return value > 0 && flux__round_quickly(value, point ? point + 1 - end : 0, out);
}

/* Parses a text as a whole and writes its value to *out. Returns 1 for a decimal number, 2 for inf
   or nan, and 0 if it is none of them. */
static int flux__number_of(const char *p, const char *end, float *out) {
    flux__digits d;
    int kind = 2;
    bool minus = p < end && *p == '-';
    if (p < end && (*p == '-' || *p == '+')) p++;
    if (flux__plain_number(p, end, out)) kind = 1;
    else if (flux__word(p, end, "inf") || flux__word(p, end, "infinity")) *out = HUGE_VALF;
    else if (flux__word(p, end, "nan")) *out = NAN;
    else if (flux__take_digits(p, end, &d)) *out = flux__round_digits(&d), kind = 1;
    else return 0;
    if (minus) *out = -*out;
    return kind;
}

typedef struct flux__csv {
    flux__source *source;
    const char *at, *end;                 /* what is left of the text */
    int64_t line;                         /* number, from 1, of the line that was read last */
    char separator;                       /* ' ' stands for any run of blanks and tabs */
    const char *plain;                    /* up to here, where a line ends, flux__csv_plain reads */
} flux__csv;

static bool flux__is_blank(char c) { return c == ' ' || c == '\t'; }

/* Moves both ends of a text inwards past blanks. */
static void flux__trim(const char **p, const char **end) {
    while (*p < *end && flux__is_blank(**p)) ++*p;
    while (*p < *end && flux__is_blank((*end)[-1])) --*end;
}

/* Finds the next line that is not empty, without its comment; false at the text's end. */
static FLUX__O1 bool flux__csv_line(flux__csv *c, const char **start, const char **stop) {
    while (c->at < c->end) {
        const char *p = c->at, *q = p, *comment;
        while (q < c->end && *q != '\n' && *q != '\r') q++;
        c->at = q < c->end ? q + 1 : q;
        if (c->at < c->end && *q == '\r' && *c->at == '\n') c->at++;
        c->line++;
        comment = (const char *)memchr(p, '#', (size_t)(q - p));
        if (comment) q = comment;
        *start = p;
        *stop = q;
        flux__trim(&p, &q);
        if (p < q) return true;
    }
    return false;
}

/* Takes the next field, from *a to *b, off a line of which *p to end is left, and advances *p; *p
   becomes NULL after the last field. False: there is no further field. */
static FLUX__O1 bool flux__csv_field(const flux__csv *c, const char **p, const char *end,
                                     const char **a, const char **b) {
    const char *q;
    if (!*p) return false;
    if (c->separator == ' ') flux__trim(p, &end);
    if (c->separator == ' ' && *p == end) return false;
    for (q = *p; q < end && (c->separator == ' ' ? !flux__is_blank(*q) : *q != c->separator);) q++;
    *a = *p;
    *b = q;
    flux__trim(a, b);
    *p = q < end ? q + 1 : NULL;
    return true;
}

/* Raises the error that a field is wrong, and returns -1. The field is shown in at most 24
   characters, control characters as ?. */
static int64_t flux__csv_bad(const flux__csv *c, int64_t column, const char *a, const char *b,
                             const char *why) {
    char shown[28];
    int n = 0;
    for (; n < 24 && a + n < b; n++) shown[n] = (unsigned char)a[n] < 32 ? '?' : a[n];
    snprintf(shown + n, sizeof shown - (size_t)n, "%s", a + n < b ? "..." : "");
    flux__bad(c->source, "line %lld, column %lld: \"%s\" %s", (long long)c->line, (long long)column,
              shown, why);
    return -1;
}

/* Parses the numbers of a line into out, which has room for `most`, and returns how many the line
   has, or -1 with an error. With out NULL the fields are only counted. */
static FLUX__O1 int64_t flux__csv_numbers(const flux__csv *c, const char *p, const char *end,
                                          float *out, int64_t most) {
    const char *a, *b;
    int64_t n = 0;
    float v = 0;
    for (; flux__csv_field(c, &p, end, &a, &b); n++) {
        if (!out) continue;
        int kind = flux__number_of(a, b, &v);
        if (a == b) return flux__csv_bad(c, n + 1, a, b, "should be a number");
        if (!kind && memchr(a, ',', (size_t)(b - a)))
            return flux__csv_bad(c, n + 1, a, b, "is not a number: a point is needed");
        if (!kind) return flux__csv_bad(c, n + 1, a, b, "is not a number");
        if (kind == 1 && v - v != 0)
            return flux__csv_bad(c, n + 1, a, b, "is too large for float32");
        if (n < most) out[n] = v;
    }
    return n;
}

/* The last newline with eight bytes behind it, in a text of which each line ends with one; NULL:
   there is none, or some line ends with a carriage return alone. */
static const char *flux__csv_last(const char *p, const char *end) {
    const char *last = end - p > 8 ? end - 8 : p;
    for (const char *r = p; r < end && (r = (const char *)memchr(r, '\r', (size_t)(end - r)));) {
        if (++r == end || *r != '\n') return NULL;
    }
    while (last > p && last[-1] != '\n') last--;
    return last > p ? last - 1 : NULL;
}

/* How many lines there are from c->at on that count. Plain ones are found by their ends. */
static FLUX__O1 int64_t flux__csv_count(flux__csv *c) {
    const char *a, *b;
    int64_t n = 0;
    while (c->plain && c->at <= c->plain) {
        const char *p = c->at;
        while (flux__is_blank(*p) || *p == '\r') p++;
        n += *p != '\n' && *p != '#';
        c->at = (const char *)memchr(p, '\n', (size_t)(c->plain + 1 - p)) + 1;
    }
    while (flux__csv_line(c, &a, &b)) n++;
    return n;
}

/* Skips the heading, finds the separator, and counts columns and lines. Then c is back before the
   first line of numbers. */
static bool flux__csv_survey(flux__csv *c, int64_t *columns, int64_t *lines) {
    const char *a, *b, *q;
    float v;
    flux__csv before = *c;
    bool have = flux__csv_line(c, &a, &b);
    if (have) {
        while (a < b && flux__is_blank(*a)) a++;
        for (q = a; q < b && !strchr(",;|\t ", *q);) q++;
        if (!flux__number_of(a, q, &v)) {              /* no number: this line is a heading */
            before = *c;
            have = flux__csv_line(c, &a, &b);
        }
    }
    if (!have) return flux__bad(c->source, "it has no line of numbers"), false;
    const char *from = a, *to = b;
    flux__trim(&from, &to);
    size_t n = (size_t)(to - from);
    for (q = ";,\t| "; *q != ' ' && !memchr(from, *q, n);) q++;
    c->separator = *q;
    *columns = flux__csv_numbers(c, a, b, NULL, 0);
    *lines = 1 + flux__csv_count(c);
    before.separator = c->separator;
    *c = before;
    return true;
}

/* Reads plain lines into out (columns x lines) for as long as there are, and returns how many. */
static FLUX__O2 int64_t flux__csv_plain(flux__csv *c, float *out, int64_t columns) {
    const char separator = c->separator, *p = c->at;
    int64_t lines = 0;
    while (p < c->plain) {
        const char *q = p;
        for (int64_t left = columns; left > 0 && (q = flux__csv_number(q, out++)) != NULL; left--)
            if (left > 1 && *q++ != separator) {
                q = NULL;
                break;
            }
        if (!q) break;
        if (*q == '\r') q++;
        if (*q != '\n') break;
        p = q + 1;
        lines++;
        c->at = p;
    }
    c->line += lines;
    return lines;
}

/* Reads all lines into out (columns x lines), or if out is NULL only checks that each line has as
   many numbers as there are columns. */
static bool flux__csv_fill(flux__csv *c, float *out, int64_t columns) {
    const char *a, *b;
    int64_t first = 0;
    for (;;) {
        if (out && c->plain && c->separator != ' ') {
            const int64_t line = c->line, lines = flux__csv_plain(c, out, columns);
            out += lines * columns;
            if (lines && !first) first = line + 1;
        }
        if (!flux__csv_line(c, &a, &b)) break;
        int64_t n = flux__csv_numbers(c, a, b, out, columns);
        if (n < 0) return false;
        if (!first) first = c->line;
        if (n != columns)
            return flux__bad(c->source, "line %lld has %lld numbers, but line %lld has %lld",
                             (long long)c->line, (long long)n, (long long)first,
                             (long long)columns), false;
        if (out) out += columns;
    }
    return true;
}

/* Parses a text in memory: counts columns and lines, then allocates the tensor and fills it. */
static flux_tensor *flux__parse_csv(flux__source *s) {
    int64_t size[2];
    flux_device cpu = { 0, 0 };
    const char *text = (const char *)s->bytes;
    flux__csv c = { s, text, text + s->size, 0, ',', NULL };
    if (flux__foreign(s)) return NULL;
    if (s->size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) c.at += 3; /* byte order mark */
    c.plain = flux__csv_last(c.at, c.end);
    if (!flux__csv_survey(&c, &size[0], &size[1])) return NULL;
    if ((uint64_t)size[1] > (s->size + 1) / (uint64_t)size[0] && !flux__csv_fill(&c, NULL, size[0]))
        return NULL;
    flux_tensor *t = flux__leaf(flux__shape(size, 2), FLUX_F32, cpu);
    return t && flux__csv_fill(&c, (float *)t->buf->ptr, size[0]) ? t : NULL;
}

FLUX_DEF flux_tensor *flux_load_csv(const char *path) {
    size_t size;
    if (!path) return (flux_tensor *)flux__null("load_csv", "path", path);
    void *text = flux__gunzip(flux__read_file(path, &size, "load_csv"), &size, "load_csv", path);
    if (!text) return NULL;
    flux__source s = { "load_csv", path, NULL, (const unsigned char *)text, size, NULL };
    int h = flux__hide();
    flux_tensor *t = flux__parse_csv(&s);
    flux__free(text);
    return flux__reveal(h, t);
}

FLUX__END_LEAN

#endif /* FLUX__FILES_CSV_H */
