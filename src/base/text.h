#ifndef FLUX__BASE_TEXT_H
#define FLUX__BASE_TEXT_H
#include "platform.h"
#include "threads.h" /* flux__atomic_load32, flux__atomic_store32 */
#include "system.h"

/* ---------------------------------------------------------------------- base/text.h
   Text output: a flux__sink works as snprintf does (it writes what fits and
   counts everything), or writes to a file, in colour on a terminal, or into
   memory that grows. Every text that is put together from parts is written to
   one. The glyphs, in Unicode or ASCII, digits
   and integers as text are here as well.

   Invariant: a sink without memory only counts, so the same code gives a text
   and its length. len counts bytes and chars counts characters of UTF-8;
   columns are aligned by chars, and colour codes are not counted in it.
   flux__sink_end terminates the text within n bytes and returns the length of
   the whole text. Colour is used only where standard output is a terminal and
   NO_COLOR is not set. */

FLUX__BEGIN_COLD

static FLUX__INLINE bool flux__is_digit(char c) { return c >= '0' && c <= '9'; }

typedef struct flux__sink {
    char *out;                            /* at most n bytes are written here, the last is a 0 */
    size_t n, len, chars;                 /* bytes and characters of the whole text so far */
    FILE *file;                           /* where the text is written in place of out, or NULL */
    bool colour;
    bool grows, failed;                   /* grows: out is memory of the sink's own, to be freed
                                             with flux__free; failed: it could not grow */
} flux__sink;

/* A sink that writes to n bytes at out; out may be NULL: it only counts. */
static flux__sink flux__sink_to(char *out, size_t n) {
    flux__sink s = { out, out ? n : 0, 0, 0, NULL, false, false, false };
    return s;
}

/* A sink whose memory grows with the text. */
static flux__sink flux__sink_growing(void) {
    flux__sink s = { NULL, 0, 0, 0, NULL, false, true, false };
    return s;
}

/* Makes room for n more bytes and a 0; false, and nothing is written any more, if memory is out. */
static bool flux__sink_grow(flux__sink *s, size_t n) {
    size_t capacity = s->n < 512 ? 1024 : 2 * s->n;
    if (s->failed || s->len + n < s->n) return !s->failed;
    if (capacity <= s->len + n) capacity = s->len + n + 1;
    char *more = (char *)FLUX_REALLOC(s->out, capacity);
    s->failed = !more;
    if (more) s->out = more, s->n = capacity;
    return !s->failed;
}

/* A sink that writes to standard output, in colour if that is a terminal which shows it and
   NO_COLOR is not set (https://no-color.org). */
static flux__sink flux__sink_stdout(void) {
    flux__sink s = { NULL, 0, 0, 0, stdout, false, false, false };
    const char *term = flux__env("TERM");
    s.colour = flux__is_terminal(stdout) && !flux__env("NO_COLOR") &&
               (term ? strcmp(term, "dumb") != 0 : flux__env("WT_SESSION") != NULL);
    return s;
}

static void flux__put_bytes(flux__sink *s, const char *text, size_t n) {
    if (s->grows && !flux__sink_grow(s, n)) return;
    if (s->file) fwrite(text, 1, n, s->file);
    else if (s->len + 1 < s->n)
        memcpy(s->out + s->len, text, n < s->n - 1 - s->len ? n : s->n - 1 - s->len);
    s->len += n;
    for (size_t i = 0; i < n; i++)        /* UTF-8: 10xxxxxx continues a character */
        if (((unsigned char)text[i] & 0xC0) != 0x80) s->chars++;
}

static void flux__put(flux__sink *s, const char *text) { flux__put_bytes(s, text, strlen(text)); }

/* Puts what printf would print, cut after 511 bytes. */
static void flux__putf(flux__sink *s, const char *format, ...) FLUX__PRINTF(2, 3);
static void flux__putf(flux__sink *s, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    flux__put(s, text);
}

/* Puts "64, 128". */
static void flux__put_dims(flux__sink *s, const int64_t *dim, int n) {
    for (int i = 0; i < n; i++) flux__putf(s, i ? ", %lld" : "%lld", (long long)dim[i]);
}

static void flux__put_pad(flux__sink *s, int64_t n) {
    for (; n > 0; n -= 16) flux__put_bytes(s, "                ", n < 16 ? (size_t)n : 16);
}

/* Sets the terminal's colour from here on ("90" grey, "31" red, "36" cyan, "0" the default);
   counts no characters. */
static void flux__put_colour(flux__sink *s, const char *code) {
    size_t chars = s->chars;
    if (!s->colour) return;
    flux__put(s, "\033[");
    flux__put(s, code);
    flux__put(s, "m");
    s->chars = chars;
}

/* Terminates the text with a 0; returns the length of the whole text, without the 0. */
static size_t flux__sink_end(flux__sink *s) {
    if (s->n) s->out[s->len < s->n ? s->len : s->n - 1] = 0;
    return s->len;
}

static int flux__print_plain;                         /* 0: by FLUX_ASCII, 1: ASCII, 2: Unicode */

FLUX_DEF void flux_print_ascii(bool on) { flux__atomic_store32(&flux__print_plain, on ? 1 : 2); }

static bool flux__ascii(void) {
    int plain = flux__atomic_load32(&flux__print_plain);
    const char *wish = plain ? NULL : flux__env("FLUX_ASCII");
    return plain ? plain == 1 : wish && strcmp(wish, "0") != 0;
}

enum { FLUX__TIMES, FLUX__ROWS_LEFT_OUT, FLUX__COLUMNS_LEFT_OUT, FLUX__DOT };
static const char *flux__glyph(int which) {
    static const char *const glyphs[][2] = {
        { "\xC3\x97", "x" }, { "\xE2\x8B\xAE", ":" }, { "\xE2\x80\xA6", "..." },
        { "\xE2\x8B\x85", "." }
    };
    return glyphs[which][flux__ascii()];
}

/* Writes v in decimal to out, which has 32 bytes; `groups`: with _ between groups of three digits.
   Returns the length. */
static int flux__integer_text(int64_t v, bool groups, char *out) {
    char back[32];
    int n = 0, digits = 0;
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    do {
        if (groups && digits && digits % 3 == 0) back[n++] = '_';
        back[n++] = (char)('0' + (int)(u % 10));
        u /= 10;
        digits++;
    } while (u);
    if (v < 0) back[n++] = '-';
    for (int i = 0; i < n; i++) out[i] = back[n - 1 - i];
    out[n] = 0;
    return n;
}

static void flux__put_integer(flux__sink *s, int64_t v, bool groups) {
    char text[32];
    flux__put_bytes(s, text, (size_t)flux__integer_text(v, groups, text));
}

/* The next argument, of *n bytes, in the source text of a call, such as "flux_dense(2, 3), my_act";
   *at moves behind its comma, and becomes NULL after the last. Arguments end at commas outside
   brackets, strings and character constants; blanks around them do not count. */
static const char *flux__next_argument(const char **at, int *n) {
    const char *start = *at;
    while (isspace((unsigned char)*start)) start++;
    const char *p = start;
    char quote = 0;
    for (int depth = 0; *p; p++) {
        if (quote && *p == '\\' && p[1]) p++;
        else if (quote) quote = *p == quote ? 0 : quote;
        else if (*p == '"' || *p == '\'') quote = *p;
        else if (strchr("([{", *p)) depth++;
        else if (strchr(")]}", *p)) depth--;
        else if (*p == ',' && depth <= 0) break;
    }
    *at = *p ? p + 1 : NULL;
    while (p > start && isspace((unsigned char)p[-1])) p--;
    *n = (int)(p - start);
    return start;
}

static int64_t flux__characters(const char *text) {        /* how many UTF-8 has */
    int64_t n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xC0) != 0x80;
    return n;
}

/* Writes a text in exactly `width` characters: a longer one is cut and ends in dots, a shorter
   one is followed by blanks. */
static void flux__put_cut(flux__sink *s, const char *text, int64_t width) {
    int64_t dots = flux__ascii() ? 3 : 1, chars = 0, kept = 0;
    size_t end = 0;
    if (dots > width) dots = width;
    for (size_t i = 0; text[i]; i++) {
        /* within a character of UTF-8 */
        if (((unsigned char)text[i] & 0xC0) == 0x80) continue;
        if (chars++ == width - dots) end = i;
    }
    kept = chars > width ? width - dots : chars;
    flux__put_bytes(s, text, chars > width ? end : strlen(text));
    if (chars > width)
        flux__put(s, flux__ascii() ? &"..."[3 - dots] : dots ? "\xe2\x80\xa6" : ""), kept += dots;
    flux__put_pad(s, width - kept);
}

FLUX__END_COLD

#endif /* FLUX__BASE_TEXT_H */
