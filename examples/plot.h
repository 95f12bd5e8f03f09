/* plot.h - for the examples: lines and dots as an SVG file for a browser, on light or dark paper,
   whichever the reader has. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

typedef enum plot_style { PLOT_LINE, PLOT_FAINT, PLOT_DOTS } plot_style;
typedef struct plot_series {
    const char *name;                     /* NULL: not in the legend */
    plot_style style;
    int colour;                           /* 0 blue, 1 orange, 2 green, 3 grey */
    int n;
    const double *x, *y;
} plot_series;

/* The distance of about this many ticks on an axis of this length: 1, 2 or 5 times a power of ten. */
static double plot_step(double length, double many) {
    double unit = pow(10, floor(log10(length / many))), times = length / many / unit;
    return unit * (times > 5 ? 10 : times > 2 ? 5 : times > 1 ? 2 : 1);
}

/* The mean of each value's neighbourhood, `reach` values to either side; fewer at the ends. */
static inline void plot_smooth(const double *y, double *out, int n, int reach) {
    for (int i = 0; i < n; i++) {
        int from = i < reach ? 0 : i - reach, to = i + (i < reach ? i : reach);
        double sum = 0;
        if (to > n - 1) to = n - 1;
        for (int k = from; k <= to; k++) sum += y[k];
        out[i] = sum / (to - from + 1);
    }
}

/* A text as XML wants it. */
static void plot_text(FILE *f, const char *text) {
    for (; *text; text++)
        switch (*text) {
        case '&': fputs("&amp;", f); break;
        case '<': fputs("&lt;", f); break;
        case '>': fputs("&gt;", f); break;
        default: fputc((unsigned char)*text < ' ' ? ' ' : *text, f);
        }
}

/* Writes the plot. Gives 0, or -1 when the file can't be written. */
static int plot_svg(const char *path, const char *title, const char *across, const char *up,
                    const plot_series *s, int count) {
    static const char *const light[] = { "#2563eb", "#ea580c", "#059669", "#6b7280" };
    static const char *const dark[] = { "#60a5fa", "#fb923c", "#34d399", "#9ca3af" };
    const double left = 70, right = 690, top = 64, bottom = 360;
    double x0 = INFINITY, x1 = -INFINITY, y0 = INFINITY, y1 = -INFINITY, legend = left;
    for (int k = 0; k < count; k++)
        for (int i = 0; i < s[k].n; i++) {
            x0 = fmin(x0, s[k].x[i]), x1 = fmax(x1, s[k].x[i]);
            y0 = fmin(y0, s[k].y[i]), y1 = fmax(y1, s[k].y[i]);
        }
    if (!(x0 < x1) || !isfinite(x1 - x0)) x0 = 0, x1 = 1;
    if (!(y0 < y1) || !isfinite(y1 - y0)) y0 = 0, y1 = 1;
    double dx = plot_step(x1 - x0, 7), dy = plot_step(y1 - y0, 5);
    if (x0 - floor(x0 / dx) * dx < 0.1 * dx) x0 = floor(x0 / dx) * dx;
    y0 = floor(y0 / dy + 1e-9) * dy, y1 = ceil(y1 / dy - 1e-9) * dy;
    double sx = (right - left) / (x1 - x0), sy = (bottom - top) / (y1 - y0);
    FILE *f = fopen(path, "w");
    if (!f) return -1;
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 430\" width=\"720\" "
               "height=\"430\" role=\"img\">\n"
               "<title>");
    plot_text(f, title);
    fprintf(f, "</title>\n<style>\n"
               "text { font: 13px system-ui, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif; "
               "fill: #4b5563 }\n"
               ".title { font-size: 18px; font-weight: 600; fill: #111827 }\n"
               ".paper { fill: #ffffff } .grid { stroke: #e5e7eb } .axis { stroke: #9ca3af }\n"
               ".line { fill: none; stroke-width: 2.5; stroke-linejoin: round; stroke-linecap: round }\n"
               ".faint { fill: none; stroke-width: 1; stroke-opacity: .3; stroke-linejoin: round }\n"
               ".dot { fill-opacity: .45 }\n");
    for (int k = 0; k < 4; k++)
        fprintf(f, ".c%d { stroke: %s } .f%d { fill: %s }\n", k, light[k], k, light[k]);
    fprintf(f, "@media (prefers-color-scheme: dark) {\ntext { fill: #9ca3af } .title { fill: #f3f4f6 }\n"
               ".paper { fill: #111827 } .grid { stroke: #1f2937 } .axis { stroke: #4b5563 }\n");
    for (int k = 0; k < 4; k++)
        fprintf(f, ".c%d { stroke: %s } .f%d { fill: %s }\n", k, dark[k], k, dark[k]);
    fprintf(f, "}\n</style>\n<rect class=\"paper\" width=\"720\" height=\"430\"/>\n"
               "<text class=\"title\" x=\"%g\" y=\"28\">", left);
    plot_text(f, title);
    fprintf(f, "</text>\n");
    for (double y = y0; y <= y1 + dy * 1e-6; y += dy) {
        double at = bottom - (y - y0) * sy, number = fabs(y) < dy * 1e-6 ? 0 : y;
        fprintf(f, "<path class=\"grid\" d=\"M%g %.1fH%g\"/>", left, at, right);
        fprintf(f, "<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", left - 10, at + 4.5, number);
    }
    for (double x = ceil(x0 / dx - 1e-9) * dx; x <= x1 + dx * 1e-6; x += dx) {
        double at = left + (x - x0) * sx, number = fabs(x) < dx * 1e-6 ? 0 : x;
        fprintf(f, "<path class=\"axis\" d=\"M%.1f %gv5\"/>", at, bottom);
        fprintf(f, "<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%g</text>\n", at, bottom + 21, number);
    }
    fprintf(f, "<path class=\"axis\" d=\"M%g %gH%g\"/>\n"
               "<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">",
            left, bottom, right, (left + right) / 2, bottom + 48);
    plot_text(f, across);
    fprintf(f, "</text>\n<text transform=\"translate(22 %g) rotate(-90)\" text-anchor=\"middle\">", (top + bottom) / 2);
    plot_text(f, up);
    fprintf(f, "</text>\n");
    for (int k = 0; k < count; k++) {
        bool dots = s[k].style == PLOT_DOTS, faint = s[k].style == PLOT_FAINT;
        int colour = s[k].colour;
        if (!dots) fprintf(f, "<path class=\"%s c%d\" d=\"", faint ? "faint" : "line", colour);
        for (int i = 0; i < s[k].n; i++) {
            double x = left + (s[k].x[i] - x0) * sx, y = bottom - (s[k].y[i] - y0) * sy;
            if (!dots) fprintf(f, "%s%.1f %.1f", i == 0 ? "M" : i % 10 ? " " : "\n", x, y);
            else fprintf(f, "<circle class=\"dot f%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n", colour, x, y);
        }
        if (!dots) fprintf(f, "\"/>\n");
        if (!s[k].name) continue;
        fprintf(f, "<rect class=\"f%d\" x=\"%g\" y=\"43\" width=\"16\" height=\"4\" rx=\"2\" opacity=\"%g\"/>", colour,
                legend, faint ? 0.4 : 1.0);
        fprintf(f, "<text x=\"%g\" y=\"50\">", legend + 23);
        plot_text(f, s[k].name);
        fprintf(f, "</text>\n");
        legend += 50 + 7.2 * (double)strlen(s[k].name);
    }
    fprintf(f, "</svg>\n");
    return fclose(f) == 0 ? 0 : -1;
}
