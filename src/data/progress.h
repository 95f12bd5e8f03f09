#ifndef FLUX__DATA_PROGRESS_H
#define FLUX__DATA_PROGRESS_H
#include "../base/platform.h"
#include "../base/system.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../base/text.h"
#include "../graph/views.h" /* flux_len */
#include "../schedule/looking.h"

/* ---------------------------------------------------------------------- data/progress.h
   The progress bar of flux_each, and the values shown beside it
   (flux_progress).

   Invariant: the bar looks at its values only when it is drawn, ten times a
   second at most, so a loss that nobody else looks at is not computed at every
   step; a value that was drawn is let go, and its graph with it. On a terminal
   one line is drawn over and over; elsewhere (a file, a log) an epoch leaves
   one line at its end. Bars nest: the innermost one of the thread takes the
   values, and has room for six. */

FLUX__BEGIN_COLD

typedef struct flux__progress {
    struct flux__progress *outer;
    char label[256];                      /* at most 60 characters */
    int64_t done, total, samples;
    double start, drawn;
    bool terminal;
    int values, width;                    /* values: how many of value[]; width: columns of the
                                             line that is drawn now */
    struct { char label[64]; flux_tensor *x; double number; } value[6];
} flux__progress;

/* Writes the first characters of a label, at most `most`, to out; gives their number. */
static int64_t flux__label_cut(char *out, size_t n, const char *label, int64_t most) {
    flux__sink s = flux__sink_to(out, n);
    int64_t chars = flux__characters(label);
    flux__put_cut(&s, label, chars < most ? chars : most);
    flux__sink_end(&s);
    return (int64_t)s.chars;
}

/* Makes a bar for a number of batches, and makes it the innermost one of this thread. */
static flux__progress *flux__bar_new(const char *label, int64_t batches) {
    flux__progress *bar = (flux__progress *)flux__zalloc(sizeof *bar);
    flux__thread *t = flux__self();
    if (!bar || !t) return bar;
    flux__label_cut(bar->label, sizeof bar->label, label, 60);
    bar->total = batches;
    bar->terminal = flux__is_terminal(stderr);
    bar->start = bar->drawn = flux__now();
    bar->outer = t->bar;
    t->bar = bar;
    return bar;
}

/* Takes a bar out of this thread's bars and frees it with its values. */
static void flux__bar_free(flux__progress *bar) {
    flux__thread *t = flux__self();
    if (!bar) return;
    flux__progress **link = t ? &t->bar : NULL;
    while (link && *link && *link != bar) link = &(*link)->outer;
    if (link && *link) *link = bar->outer;
    for (int i = 0; i < bar->values; i++) flux_release(bar->value[i].x);
    flux__free(bar);
}

/* Writes a rate in three or so digits: "950", "12.3k", "4.5M". */
static size_t flux__rate_text(double rate, char *out, size_t n) {
    if (rate >= 1e6) return (size_t)snprintf(out, n, "%.1fM", rate / 1e6);
    if (rate >= 1e4) return (size_t)snprintf(out, n, "%.1fk", rate / 1e3);
    return (size_t)snprintf(out, n, "%.0f", rate);
}

/* Writes seconds as "1:05" or "2:03:04"; 0 if there is no sensible number. */
static void flux__time_text(double seconds, char *out, size_t n) {
    int64_t s = seconds < 0 || !(seconds < 1e8) ? 0 : (int64_t)(seconds + 0.5);
    if (s < 3600) snprintf(out, n, "%d:%02d", (int)(s / 60), (int)(s % 60));
    else snprintf(out, n, "%d:%02d:%02d", (int)(s / 3600), (int)(s / 60 % 60), (int)(s % 60));
}

/* Writes the values as they are now, each with its label, as in "loss 0.3456", after the gap. */
static void flux__bar_values(flux__progress *bar, const char *gap, char *out, size_t n) {
    flux__sink s = flux__sink_to(out, n);
    for (int i = 0; i < bar->values; i++) {
        if (bar->value[i].x) bar->value[i].number = flux_item(bar->value[i].x);
        /* its number is known: its graph need not be kept */
        flux_assign(&bar->value[i].x, NULL);
        flux__putf(&s, "%s%s %.4g", gap, bar->value[i].label, bar->value[i].number);
    }
    flux__sink_end(&s);
}

/* Writes what stands behind the bar and gives its width in characters. If it is wider than `space`,
   rate and time are left out, and the values stay, as what people look for. */
static int64_t flux__bar_tail(flux__progress *bar, bool last, int64_t space, char *out, size_t n) {
    char values[600], rate[32], time[32];
    double spent = flux__now() - bar->start, done = (double)bar->done;
    double left = bar->done > 0 ? spent / done * ((double)bar->total - done) : 0;
    flux__bar_values(bar, "  ", values, sizeof values);
    flux__rate_text(spent > 0 ? (double)bar->samples / spent : 0, rate, sizeof rate);
    flux__time_text(last ? spent : left, time, sizeof time);
    snprintf(out, n, " %lld/%lld  %s samples/s  %s %s%s", (long long)bar->done,
             (long long)bar->total, rate, last ? "time" : "eta", time, values);
    if (flux__characters(out) > space)
        snprintf(out, n, " %lld/%lld%s", (long long)bar->done, (long long)bar->total, values);
    return flux__characters(out);
}

/* Draws the bar's line: label, percent, the bar itself, and what stands behind it. The bar is at
   most 30 columns wide and gives way first, then the label, so that the line fits the terminal. */
static void flux__bar_draw(flux__progress *bar, bool last) {
    char tail[800], label[256], shown[900], line[32];
    int columns = flux__terminal_width(stderr) - 1, percent = 100, full, old = bar->width;
    int64_t most = flux__characters(bar->label), least = most < 12 ? most : 12;
    int64_t len = flux__bar_tail(bar, last, columns - 7 - least, tail, sizeof tail);
    if (most > columns - 7 - len) most = columns - 7 - len;     /* a long label is cut */
    int head = (int)flux__label_cut(label, sizeof label, bar->label, most > 3 ? most : 0) + 7,
        space = columns - head - (int)len;
    space = space < 0 ? 0 : space > 30 ? 30 : space;
    full = bar->total > 0 ? (int)(space * bar->done / bar->total) : space;
    if (bar->total > 0) percent = (int)(100 * bar->done / bar->total);
    for (int i = 0; i < space; i++) line[i] = i < full ? '#' : '.';
    line[space] = 0;
    len = flux__label_cut(shown, sizeof shown, tail, columns > head ? columns - head : 0);
    bar->width = head + space + (int)len;
    bar->drawn = flux__now();
    fprintf(stderr, "\r%s %3d%% %s%s%*s", label, percent, line, shown,
            old > bar->width ? old - bar->width : 0, "");
    fflush(stderr);
}

/* Notes that `done` batches are over, the last of them with `size` observations. */
static void flux__bar_step(flux__progress *bar, int64_t done, int64_t size) {
    if (done <= bar->done) return;
    bar->done = done;
    bar->samples += size;
    if (bar->terminal && flux__now() - bar->drawn >= 0.1) flux__bar_draw(bar, false);
}

/* Ends a bar: on a terminal it is drawn once more, and an inner one erased; elsewhere one line is
   written. */
static void flux__bar_end(flux__progress *bar) {
    char values[600], rate[32], of[32];
    double spent = flux__now() - bar->start;
    if (bar->terminal) {
        flux__bar_draw(bar, true);
        if (!bar->outer) fputc('\n', stderr);
        /* the bar outside it is drawn in the same line again */
        else fprintf(stderr, "\r%*s\r", bar->width, "");
        fflush(stderr);
        return;
    }
    flux__bar_values(bar, ", ", values, sizeof values);
    flux__rate_text(spent > 0 ? (double)bar->samples / spent : 0, rate, sizeof rate);
    snprintf(of, sizeof of, " of %lld", (long long)bar->total);
    fprintf(stderr, "%s: %lld%s batches, %lld samples in %.2f s, %s samples/s%s\n", bar->label,
            (long long)bar->done, bar->done < bar->total ? of : "", (long long)bar->samples, spent,
            rate, values);
}

/* The place of a label on the innermost bar (*out); the value that it held is released. -1: there
   is no bar or label, or all six places are taken. */
static int flux__bar_place(const char *label, flux__progress **out) {
    flux__thread *t = flux__self();
    flux__progress *bar = t ? t->bar : NULL;
    int i = 0;
    char known[sizeof bar->value[0].label];
    *out = bar;
    if (!bar || !label) return -1;
    flux__label_cut(known, sizeof known, label, 60);
    while (i < bar->values && strcmp(bar->value[i].label, known) != 0) i++;
    if (i >= 6) return -1;
    if (i == bar->values) {
        flux__label_cut(bar->value[i].label, sizeof bar->value[i].label, label, 60);
        bar->values++;
    }
    flux_assign(&bar->value[i].x, NULL);
    return i;
}

FLUX_DEF void flux_progress(const char *label, flux_tensor *value) {
    flux__progress *bar;
    if (!value) flux__null("progress", "value", value);
    if (!value) return;
    if (flux_len(value) != 1) {
        flux__fail("progress: %s has %lld elements, not one", label ? label : "the value",
                   (long long)flux_len(value));
        return;
    }
    int i = flux__bar_place(label, &bar);
    if (i >= 0) bar->value[i].x = (flux_tensor *)flux_retain(value);
}

FLUX_DEF void flux_progress_number(const char *label, double value) {
    flux__progress *bar;
    int i = flux__bar_place(label, &bar);
    if (i >= 0) bar->value[i].number = value;
}

FLUX__END_COLD

#endif /* FLUX__DATA_PROGRESS_H */
