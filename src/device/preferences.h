#ifndef FLUX__DEVICE_PREFERENCES_H
#define FLUX__DEVICE_PREFERENCES_H
#include "../base/platform.h"
#include "../base/threads.h"
#include "../base/system.h"
#include "../base/text.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/sinks.h"
#include "registry.h"

/* ---------------------------------------------------------------------- device/preferences.h
   The preferences file, LocalPreferences.toml: finding it, reading one key of
   it (gpu_backend in table Flux or MLDataDevices), and changing that key. The
   file is the one that FLUX_PREFERENCES names, else the nearest in the working
   directory or above, no further than a folder that has .git. The TOML reader
   goes through the whole text, which must be TOML, and remembers places in it,
   wherever TOML lets the key stand: under [Flux], as Flux.gpu_backend, or
   within Flux = { ... }.

   Invariant: in the file only one value is ever touched, as a range of bytes:
   everything else, comments and line ends included, is somebody else's. A file
   that is not TOML, or has the table in a form that leaves no room, is left as
   it is. Every index stays within the text, nesting is bounded by
   FLUX__TOML_DEPTH and the length by FLUX__TOML_MAX. The file is read once, and
   again after a change of ours.

   Rejected: reading the file into tables and printing them again, which loses
   comments and layout. */

#define FLUX__TOML_DEPTH 32
#define FLUX__TOML_MAX (1 << 20)          /* bytes: a longer file is no preferences file */

FLUX__BEGIN_COLD

/* Where a dotted key or [table] is, seen from the key that is looked for: at the root, in its
   table, at the key itself, somewhere else in that table, or outside of it. */
typedef enum flux__toml_where {
    FLUX__TOML_ROOT, FLUX__TOML_TABLE, FLUX__TOML_KEY, FLUX__TOML_INSIDE, FLUX__TOML_OUTSIDE
} flux__toml_where;

typedef struct flux__toml {
    const char *s;
    size_t n, at;
    const char *table, *key;              /* the table and the key that are looked for */
    const char *wrong;                    /* why the text is not TOML at .at, or NULL */
    size_t start;                         /* where the statement being read begins */
    size_t value, value_end;              /* the bytes of the key's value; value_end is 0 if the
                                             key is not there */
    size_t line, line_end;                /* the bytes of the lines of its statement */
    size_t header_end, dotted_end, whole; /* after the line [table]; after the last `table.x =
                                             y`; where the value of `table = ...` or the line
                                             [[table]] begins */
    bool header, dotted, fixed;           /* there is a line [table]; there is `table.x = y`; the
                                             table is inline, or a list of tables */
    bool in_braces, is_string;            /* in_braces: the value is inside { }; is_string: it is
                                             a string, whose text is in .text */
    char text[64];
} flux__toml;

/* Notes why the text is not TOML and where, unless something was wrong before. Always false. */
static bool flux__toml_wrong(flux__toml *t, size_t at, const char *what) {
    if (!t->wrong) {
        t->wrong = what;
        t->at = at;
    }
    return false;
}

/* The number of the line, counted from 1, that has byte `at`. */
static int flux__toml_line(const flux__toml *t, size_t at) {
    int line = 1;
    for (size_t i = 0; i < at && i < t->n; i++) line += t->s[i] == '\n';
    return line;
}

static char flux__toml_peek(const flux__toml *t, size_t ahead) {
    return t->at + ahead < t->n ? t->s[t->at + ahead] : '\0';
}
/* Whether the next character is one of these. */
static bool flux__toml_any(const flux__toml *t, const char *these) {
    return flux__toml_peek(t, 0) && strchr(these, flux__toml_peek(t, 0));
}
/* Takes this text if it stands next. */
static bool flux__toml_take(flux__toml *t, const char *what) {
    size_t n = strlen(what);
    bool there = t->n - t->at >= n && memcmp(t->s + t->at, what, n) == 0;
    if (there) t->at += n;
    return there;
}
static void flux__toml_space(flux__toml *t) {
    while (flux__toml_any(t, " \t")) t->at++;
}
/* Skips blanks, a comment and the end of the line; anything else there is an error. */
static bool flux__toml_end_of_line(flux__toml *t) {
    flux__toml_space(t);
    if (flux__toml_any(t, "#"))
        while (t->at < t->n && !flux__toml_any(t, "\n")) t->at++;
    return t->at == t->n || flux__toml_take(t, "\n") || flux__toml_take(t, "\r\n") ||
           flux__toml_wrong(t, t->at, "more text where the line should end");
}
/* Skips blanks and, if `lines`, comments and ends of lines, up to the next token. */
static void flux__toml_blank(flux__toml *t, bool lines) {
    flux__toml_space(t);
    while (lines && flux__toml_any(t, "#\r\n") && flux__toml_end_of_line(t)) flux__toml_space(t);
}

/* Reads one character of a string in double quotes, which may be an escape. False: the escape is
   unknown. */
static bool flux__toml_char(flux__toml *t, char *c) {
    static const char from[] = "btnfre\"\\", to[] = "\b\t\n\f\r\033\"\\";
    *c = t->s[t->at++];
    if (*c != '\\') return true;
    char e = flux__toml_peek(t, 0), hex[9] = "";
    const char *known = e ? strchr(from, e) : NULL;
    int digits = e == 'u' ? 4 : e == 'U' ? 8 : 0;
    if (!known && !digits) return false;
    t->at++;
    if (known) *c = to[known - from];
    for (int i = 0; i < digits; i++, t->at++)
        if (!flux__toml_any(t, "0123456789abcdefABCDEF")) return false;
        else hex[i] = t->s[t->at];
    /* our names are ASCII, so any other character becomes one that is in none of them */
    unsigned long code = strtoul(hex, NULL, 16);
    if (digits) *c = code < 128 ? (char)code : '?';
    return true;
}

/* Reads a string of any of TOML's four kinds; its text, cut to n - 1 bytes, goes to out. */
static bool flux__toml_string(flux__toml *t, char *out, size_t n) {
    size_t start = t->at, used = 0;
    char quote = t->s[start], three[4] = { quote, quote, quote, 0 }, c;
    bool many = flux__toml_take(t, three);
    if (!many) t->at++;
    else if (!flux__toml_take(t, "\n")) flux__toml_take(t, "\r\n");
    while (t->at < t->n && (many || !flux__toml_any(t, "\n"))) {
        /* three quotes end a string of several lines, and of four or more it is the last three */
        bool last = !many || flux__toml_peek(t, 3) != quote;
        if (last && flux__toml_take(t, many ? three : three + 2)) {
            out[used] = '\0';
            return true;
        }
        if (many && quote == '"' && flux__toml_peek(t, 0) == '\\' && flux__toml_peek(t, 1) &&
            strchr(" \t\r\n", flux__toml_peek(t, 1))) {
            /* a backslash at the end of a line: the string goes on at the next character that is
               not white */
            for (t->at++; flux__toml_any(t, " \t\r\n");) t->at++;
            continue;
        }
        if (quote == '\'') c = t->s[t->at++];
        else if (!flux__toml_char(t, &c))
            return flux__toml_wrong(t, t->at, "an unknown escape in a string");
        if (used + 1 < n) out[used++] = c;
    }
    return flux__toml_wrong(t, start, "a string without its closing quote");
}

static bool flux__toml_bare(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || flux__is_digit(c) || c == '_' ||
           c == '-';
}

/* Reads a key, dotted or not; *where, the place of its table, becomes its own. The number of its
   parts, 0 on error. */
static int flux__toml_key(flux__toml *t, flux__toml_where *where) {
    for (int parts = 1;; parts++) {
        char part[80];
        size_t used = 0;
        flux__toml_space(t);
        if (flux__toml_any(t, "\"'")) {
            if (!flux__toml_string(t, part, sizeof part)) return 0;
        } else {
            if (!flux__toml_bare(flux__toml_peek(t, 0)))
                return flux__toml_wrong(t, t->at, "a key or [table] should stand there");
            for (; flux__toml_bare(flux__toml_peek(t, 0)); t->at++)
                if (used + 1 < sizeof part) part[used++] = t->s[t->at];
            part[used] = '\0';
        }
        if (*where == FLUX__TOML_ROOT)
            *where = strcmp(part, t->table) == 0 ? FLUX__TOML_TABLE : FLUX__TOML_OUTSIDE;
        else if (*where != FLUX__TOML_OUTSIDE)
            *where = *where == FLUX__TOML_TABLE && strcmp(part, t->key) == 0 ? FLUX__TOML_KEY
                                                                             : FLUX__TOML_INSIDE;
        flux__toml_space(t);
        if (!flux__toml_take(t, ".")) return parts;
    }
}

/* Skips a value that is no string, list or table: true, false, a number or a date. A text of such
   characters passes if, after its sign, it is one of the words or begins with a digit. */
static bool flux__toml_plain(flux__toml *t) {
    static const char *const words[] = { "true", "false", "inf", "nan" };
    size_t start = t->at, n;
    while (flux__toml_bare(flux__toml_peek(t, 0)) || flux__toml_any(t, "+.:") ||
           (t->at > start && flux__toml_any(t, " ") && flux__is_digit(flux__toml_peek(t, 1))))
        t->at++;                          /* a blank stands between a date and a time */
    const char *s = t->s + start, *end = t->s + t->at;
    if (s < end && (*s == '+' || *s == '-')) s++;
    n = (size_t)(end - s);
    if (n && flux__is_digit(*s)) return true;
    for (int i = 0; i < 4; i++)
        if (n == strlen(words[i]) && memcmp(s, words[i], n) == 0) return true;
    return flux__toml_wrong(
        t, start, n ? "a value that is a word should stand in quotes" : "a value is missing");
}

static bool flux__toml_assign(flux__toml *t, flux__toml_where where, int depth);

/* Reads a value of any kind; the text of a string goes to `text`. A list, [ value, ... ], may be of
   several lines, and a table in it is never the one looked for; a table in braces,
   { key = value, ... }, is of one line. */
static bool flux__toml_value(flux__toml *t, flux__toml_where where, int depth, char *text,
                             size_t n) {
    bool list = flux__toml_any(t, "[");
    if (depth > FLUX__TOML_DEPTH) return flux__toml_wrong(t, t->at, "nested too deep");
    if (flux__toml_any(t, "\"'")) return flux__toml_string(t, text, n);
    if (!flux__toml_any(t, "[{")) return flux__toml_plain(t);
    for (t->at++;;) {
        flux__toml_blank(t, list);
        if (flux__toml_take(t, list ? "]" : "}")) return true;
        if (!(list ? flux__toml_value(t, FLUX__TOML_OUTSIDE, depth + 1, text, n)
                   : flux__toml_assign(t, where, depth + 1)))
            return false;
        flux__toml_blank(t, list);
        if (!flux__toml_take(t, ",") && !flux__toml_any(t, list ? "]" : "}"))
            return flux__toml_wrong(t, t->at,
                                    list ? "a list should go on with , or end with ]"
                                         : "a table in braces should go on with , or end with }");
    }
}

/* Reads `key = value`, as a statement or within braces (depth > 0), and remembers its place if it
   is the key looked for. */
static bool flux__toml_assign(flux__toml *t, flux__toml_where where, int depth) {
    bool root = where == FLUX__TOML_ROOT;
    int parts = flux__toml_key(t, &where);
    if (!parts) return false;
    if (!flux__toml_take(t, "=")) return flux__toml_wrong(t, t->at, "= is missing after a key");
    flux__toml_space(t);
    size_t value = t->at;
    char text[64] = "";
    bool is_string = flux__toml_any(t, "\"'");
    if (!flux__toml_value(t, where, depth, text, sizeof text)) return false;
    if (where == FLUX__TOML_TABLE) {      /* table = { ... } */
        t->fixed = true;
        t->whole = value;
    }
    if (root && parts > 1 && where != FLUX__TOML_OUTSIDE) t->dotted = true, t->dotted_end = t->at;
    if (where != FLUX__TOML_KEY) return true;
    if (t->value_end) return flux__toml_wrong(t, value, "the same key for the second time");
    t->value = value;
    t->value_end = t->at;
    t->line = t->start;
    t->in_braces = depth > 0;
    t->is_string = is_string;
    memcpy(t->text, text, sizeof text);
    return true;
}

/* Reads the line [table] or [[table]]; *where becomes that table, to which the keys that follow
   belong. */
static bool flux__toml_header(flux__toml *t, flux__toml_where *where) {
    bool many = flux__toml_take(t, "[[");
    if (!many) t->at++;
    *where = FLUX__TOML_ROOT;
    if (!flux__toml_key(t, where)) return false;
    if (!flux__toml_take(t, many ? "]]" : "]"))
        return flux__toml_wrong(t, t->at, "] is missing after a table's name");
    if (!flux__toml_end_of_line(t)) return false;
    bool ours = *where == FLUX__TOML_TABLE;
    if (many) *where = FLUX__TOML_OUTSIDE;
    if (!ours) return true;
    if (t->header || t->dotted)
        return flux__toml_wrong(t, t->start, "the same table for the second time");
    if (many) t->fixed = true, t->whole = t->start;
    else t->header = true, t->header_end = t->at;
    return true;
}

/* Reads the whole text and finds one key in it. False: the text is not TOML; .wrong and .at say why
   and where. */
static bool flux__toml_read(flux__toml *t, const char *s, size_t n, const char *table,
                            const char *key) {
    flux__toml_where where = FLUX__TOML_ROOT;
    memset(t, 0, sizeof *t);
    t->s = s, t->n = n, t->table = table, t->key = key;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < ' ' && !strchr("\t\n\r", s[i] ? s[i] : 'x'))
            return flux__toml_wrong(t, i, "a control character");
    flux__toml_take(t, "\xEF\xBB\xBF");   /* a byte order mark */
    for (flux__toml_blank(t, true); t->at < n; flux__toml_blank(t, true)) {
        if (t->wrong) return false;
        t->start = t->at;
        size_t found = t->value_end, dotted = t->dotted_end;
        if (flux__toml_any(t, "[")) {
            if (!flux__toml_header(t, &where)) return false;
            continue;
        }
        if (!flux__toml_assign(t, where, 0) || !flux__toml_end_of_line(t)) return false;
        if (t->value_end != found) t->line_end = t->at;
        if (t->dotted_end != dotted) t->dotted_end = t->at;
    }
    return !t->wrong;
}

/* ---------------- the preferences file: found, used, changed
   FLUX_PREFERENCES names the file; else it is LocalPreferences.toml in the working directory, else
   the nearest one above, no further than a folder that has .git. It is read once, and again after a
   change of ours. */

#define FLUX__PREFS_NAME "LocalPreferences.toml"
#define FLUX__PREFS_UP 40                 /* most folders to look in */

typedef struct flux__prefs {
    bool known, given;                    /* known: the file has been read; given: the path is
                                             that of FLUX_PREFERENCES */
    char path[1024];                      /* the file in use, or the one to be made */
    char value[64];                       /* the value of gpu_backend; "": not set */
} flux__prefs;
static flux__prefs flux__pref;

/* Finds the preferences file: the nearest in the working directory or above, no further than a
   folder that has .git. If there is none, path is the one to be made, in the working directory. */
static void flux__prefs_find(char *path, size_t n) {
    char up[3 * FLUX__PREFS_UP + 1] = "", git[sizeof up + 4];
    for (int i = 0, mode; i < FLUX__PREFS_UP; i++) {
        snprintf(path, n, "%s" FLUX__PREFS_NAME, up);
        FILE *f = flux__fopen(path, "rb");
        if (f) {
            fclose(f);
            return;
        }
        snprintf(git, sizeof git, "%s.git", up);
        if (flux__file_kind(git, &mode) != 0) break;
        strcpy(up + 3 * i, "../");
    }
    snprintf(path, n, FLUX__PREFS_NAME);
}

/* The file's text, to be freed with flux__free. NULL: there is no file, or *why says why it can't
   be read. */
static char *flux__prefs_load(const char *path, size_t *n, const char **why) {
    *n = 0;
    *why = NULL;
    errno = 0;
    FILE *f = flux__fopen(path, "rb");
    if (!f) {
        if (errno != ENOENT && errno != ENOTDIR) *why = strerror(errno);
        return NULL;
    }
    char *text = (char *)FLUX_MALLOC(FLUX__TOML_MAX + 1);
    if (text) *n = fread(text, 1, FLUX__TOML_MAX + 1, f);
    if (!text) *why = "out of memory";
    else if (ferror(f)) *why = strerror(errno);
    else if (*n > FLUX__TOML_MAX) *why = "longer than 1 MiB";
    fclose(f);
    if (!*why) return text;
    flux__free(text);
    return NULL;
}

/* Reads gpu_backend from the file at p->path; what is wrong with the file goes to warning. */
static void flux__prefs_read(flux__prefs *p, char *warning, size_t n) {
    /* MLDataDevices is the table that newer programs of Flux's family write */
    static const char *const tables[] = { "Flux", "MLDataDevices" };
    const char *why;
    size_t size;
    p->value[0] = '\0';
    if (!p->path[0]) {
        snprintf(warning, n,
                 "FLUX_PREFERENCES is longer than %d bytes: no preference is taken from it",
                 (int)sizeof p->path - 1);
        return;
    }
    char *text = flux__prefs_load(p->path, &size, &why);
    flux__toml t;
    if (why)
        snprintf(warning, n, "%s can't be read (%s): no preference is taken from it", p->path, why);
    for (int i = 0; text && i < 2 && !p->value[0]; i++) {
        if (!flux__toml_read(&t, text, size, tables[i], "gpu_backend")) {
            snprintf(warning, n, "%s, line %d: %s: no preference is taken from it", p->path,
                     flux__toml_line(&t, t.at), t.wrong);
            break;
        }
        if (t.value_end && !t.is_string)
            snprintf(warning, n, "%s, line %d: gpu_backend should be a string, such as \"CUDA\"",
                     p->path, flux__toml_line(&t, t.value));
        else memcpy(p->value, t.text, sizeof p->value);
    }
    flux__free(text);
}

/* Reads the preferences, unless they have been read from the file that FLUX_PREFERENCES (set or
   not) means. The caller holds flux__device_lock. */
static void flux__prefs_update(flux__prefs *p, char *warning, size_t n) {
    const char *given = flux__env("FLUX_PREFERENCES");
    if (p->known && (given ? p->given && strcmp(p->path, given) == 0 : !p->given)) return;
    p->known = true;
    p->given = given != NULL;
    /* "": the name is too long */
    if (given) snprintf(p->path, sizeof p->path, "%s", strlen(given) < sizeof p->path ? given : "");
    else flux__prefs_find(p->path, sizeof p->path);
    flux__prefs_read(p, warning, n);
}

/* The preferred back end's name: from FLUX_GPU_BACKEND, or the file; NULL: none is set. */
static const char *flux__preference(void) {
    const char *name = flux__env("FLUX_GPU_BACKEND");
    if (name) return name;
    char warning[800] = "";
    flux__mutex_lock(&flux__device_lock);
    flux__prefs_update(&flux__pref, warning, sizeof warning);
    name = flux__pref.value[0] ? flux__pref.value : NULL;
    for (int i = 0; name && i < FLUX__BACKENDS; i++)
        /* a constant text, which stays valid */
        if (strcmp(name, flux__backends[i].name) == 0) name = flux__backends[i].name;
    flux__mutex_unlock(&flux__device_lock);
    if (warning[0]) flux__note(FLUX_LOG_WARN, "preferences", true, "%s", warning);
    return name;
}

FLUX_DEF const char *flux_gpu_backend(void) {
    const char *name = flux__preference();
    return name ? name : "CUDA";
}

FLUX_DEF bool flux_gpu_backend_is_set(void) { return flux__preference() != NULL; }

/* One change to a text: the bytes from a to b are replaced by .put. */
typedef struct flux__edit { size_t a, b; char put[96]; } flux__edit;

/* Finds the change that sets the key to name, or removes it (name NULL). False: the table is
   written in a form that has no place for the change. */
static bool flux__prefs_edit(const flux__toml *t, const char *name, flux__edit *e) {
    const char *nl = memchr(t->s, '\n', t->n) ? (const char *)memchr(t->s, '\n', t->n) : t->s;
    /* lines end as the file's first line does */
    const char *eol = nl > t->s && nl[-1] == '\r' ? "\r\n" : "\n";
    e->put[0] = '\0';
    if (t->value_end && !name && t->in_braces) return false;
    if (t->value_end) {
        e->a = name ? t->value : t->line;
        e->b = name ? t->value_end : t->line_end;
        if (name) snprintf(e->put, sizeof e->put, "\"%s\"", name);
        /* the whole line is removed */
        while (!name && e->a > 0 && (t->s[e->a - 1] == ' ' || t->s[e->a - 1] == '\t')) e->a--;
        return true;
    }
    if (t->fixed) return false;
    bool dotted = t->dotted && !t->header, fresh = !t->header && !dotted;
    e->a = e->b = t->header ? t->header_end : dotted ? t->dotted_end : t->n;
    bool open = e->a > 0 && t->s[e->a - 1] != '\n';           /* the last line has no line end */
    snprintf(e->put, sizeof e->put, "%s%s%s%s%s%s = \"%s\"%s", open ? eol : "",
             fresh && t->n ? eol : "", fresh ? "[Flux]" : "", fresh ? eol : "",
             dotted ? "Flux." : "", t->key, name, eol);
    return true;
}

/* Writes the changed text to the file, which is replaced as a whole or not at all. */
static bool flux__prefs_write(const char *path, const char *text, size_t n, const flux__edit *e) {
    flux__out *o = flux__out_open(path, "gpu_backend_set");
    flux__out_write(o, text, e->a);
    flux__out_write(o, e->put, strlen(e->put));
    flux__out_write(o, text + e->b, n - e->b);
    return flux__out_commit(o);
}

/* Says what was done, in an INFO message; same: the key had that value already. */
static void flux__prefs_say(const char *name, const char *path, bool same) {
    const char *env = flux__env("FLUX_GPU_BACKEND");
    const char *over = env && (!name || strcmp(env, name) != 0)
                           ? "; FLUX_GPU_BACKEND in the environment overrides it"
                           : "";
    if (same && name)
        flux__note(FLUX_LOG_INFO, "preference.same", false,
                   "the preferred back end is %s already (%s): nothing to do%s", name, path, over);
    else if (same)
        flux__note(FLUX_LOG_INFO, "preference.same", false,
                   "no preferred back end is set in %s: nothing to do", path);
    else if (name)
        flux__note(FLUX_LOG_INFO, "preference.set", false,
                   "the preferred back end is now %s, at once and for later runs (%s)%s", name,
                   path, over);
    else
        flux__note(FLUX_LOG_INFO, "preference.set", false,
                   "no back end is preferred any more (%s)%s", path, over);
}

/* Sets the key in a file whose text is given, or removes it (name NULL), and says what was done. -1
   and an error if the file is not TOML, has no place for the key or can't be written. */
static int flux__prefs_change(const char *path, const char *text, size_t n, const char *name) {
    flux__toml t;
    flux__edit e;
    if (!flux__toml_read(&t, text, n, "Flux", "gpu_backend"))
        return flux__fail("gpu_backend_set: %s, line %d: %s; the file is left as it is", path,
                          flux__toml_line(&t, t.at), t.wrong), -1;
    bool same = name ? t.value_end && t.is_string && strcmp(t.text, name) == 0 : !t.value_end;
    if (!same && !flux__prefs_edit(&t, name, &e)) {
        flux__fail("gpu_backend_set: %s, line %d: Flux is no plain table [Flux] there; please "
                   "change that line by hand",
                   path, flux__toml_line(&t, t.value_end ? t.value : t.whole));
        return -1;
    }
    if (!same && !flux__prefs_write(path, text, n, &e)) return -1;
    flux__mutex_lock(&flux__device_lock);
    flux__pref.known = false;
    flux__mutex_unlock(&flux__device_lock);
    flux__prefs_say(name, path, same);
    return 0;
}

/* Writes the preferred back end (NULL or "": removes it) into the preferences file. */
FLUX_DEF int flux_gpu_backend_set(const char *backend) {
    const char *why = NULL;
    size_t n = 0;
    int b = -1;
    if (backend && *backend) {
        b = flux__backend_arg("gpu_backend_set", backend);
        if (b < 0) return -1;
    }
    flux__preference();                   /* warns about what is wrong with the file */
    char path[sizeof flux__pref.path], warning[800];
    flux__mutex_lock(&flux__device_lock);
    flux__prefs_update(&flux__pref, warning, sizeof warning);
    memcpy(path, flux__pref.path, sizeof path);
    flux__mutex_unlock(&flux__device_lock);
    if (!path[0])
        return flux__fail("gpu_backend_set: FLUX_PREFERENCES is longer than %d bytes",
                          (int)sizeof path - 1), -1;
    char *text = flux__prefs_load(path, &n, &why);
    if (why) return flux__fail("gpu_backend_set: %s can't be read: %s", path, why), -1;
    int rc = flux__prefs_change(path, text ? text : "", n, b >= 0 ? flux__backends[b].name : NULL);
    flux__free(text);
    return rc;
}

FLUX__END_COLD

#endif /* FLUX__DEVICE_PREFERENCES_H */
