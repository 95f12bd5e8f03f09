#ifndef FLUX__CPU_POOLING_H
#define FLUX__CPU_POOLING_H
#include "../base/platform.h"
#include "../base/dtypes.h"
#include "../base/workers.h"
#include "../graph/nodes.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "../schedule/dispatch.h"
#include "loops.h"
#include "vectors.h"
#include "casts.h"
#include "gemm_pack.h"
#include "backend.h"
#include "whole.h"
#include "windows.h"

/* ---------------------------------------------------------------------- cpu/pooling.h
   Pooling whose windows overlap, image by image: a maximum or mean runs at once with the kernel
   that pads its image; the gradient of a maximum with the kernel that adds its windows up; the
   gradient of a mean is that kernel alone.

   Windows start `across` columns and `down` rows apart. An image's rows are copied, a strip of
   windows' rows at a time, to across x down phases: element (row, column) is in phase (row % down,
   column % across), at (row / down, column / across). There windows that are neighbours have
   neighbours for elements, and the rows of a phase lie one behind the other: a strip is one run of
   vectors (flux__pooled), of which the windows between two rows are computed for nothing. The image
   of a gradient is added up in such phases, too, and a row that no later window reaches leaves
   them. So strips stay in the first-level cache, and memory is read and written once. A volume is
   an image whose slabs lie one below the other; its windows' rows have gaps from slab to slab.

   Half formats are widened as rows come to the phases, and narrowed as they leave them.

   Invariant: results are those of the kernels one by one: windows that overlap are added in their
   order. Rows of an image are written when all that is read of them has been, so that a gradient
   may lie where its x was.

   Rejected: padding a whole image before its windows are taken, which reads and writes the
   second-level cache twice more; reading windows two apart from where they lie, which takes two
   loads and a shuffle for each vector of elements. */

FLUX__BEGIN_LEAN

/* windows' distance, at most, and the floats of a strip of one phase, about */
#define FLUX__POOL_APART 8
#define FLUX__POOL_STRIP 768
/* floats of all phases, at most */
#define FLUX__POOL_FLOATS (1 << 17)
/* windows of an image of a half format that is taken alone, without a kernel before or behind it */
#define FLUX__POOL_LARGE 8192
/* floats behind each line that a vector may read or write */
#define FLUX__POOL_MARGIN 64

typedef struct flux__pooling_job {
    flux__pooled pooled;                  /* what all strips have in common */
    /* An image: rows of `width` elements, those of a slab, and those up to where the next one
       begins, a multiple of `down`; all rows of all slabs. Windows in a row, and how far apart
       both are; their rows in a slab, those to where the next slab's begin, and all. How far, from
       the first window on, elements lie. */
    int64_t width, slab, slab_to, height, columns, across, down, rows, period, all_rows,
            reach_rows, reach_columns;
    /* a phase: floats from row to row and from phase to phase; rows of windows in a strip; how far
       an element reaches back */
    int64_t pitch, plane, strip, back;
    bool direct;                          /* x is read where it lies */
    const flux__section *section, *mover;    /* for strips; for rows */
    /* What is read: slabs of `high` rows of `wide` elements, and steps between them, that are at
       (front, top, left) in an image which has `fill` everywhere else; g and y: steps from column
       to column, row to row and slab to slab of windows. All are of one type, an element has `size`
       bytes. */
    const char *x, *g;
    char *y;
    float fill;
    int type;
    int64_t size;
    int64_t front, top, left, slabs, high, wide, row_step, slab_step, g_step[3], y_step[3];
    /* images, and the dims along which those of x are counted, and those of g and y; steps of x, g
       and y, which may be images, too */
    int64_t images, dim[2][FLUX_MAX_DIMS], step[3][FLUX_MAX_DIMS];
    int64_t from[FLUX__WINDOW];           /* places of a window's elements in x or its phases */
    /* where columns from 0 on, and from `left` on, begin in a row's phases */
    int64_t begin_at[FLUX__POOL_APART], left_at[FLUX__POOL_APART];
    int64_t each, memory;                 /* images in a task; floats of memory it has */
    float *scratch;
} flux__pooling_job;

/* Where phase (row, column) of the place (row, column) of an image begins, and that place in it. */
static int64_t flux__phase_of(const flux__pooling_job *j, int64_t row, int64_t column) {
    return (row % j->down * j->across + column % j->across) * j->plane;
}
static int64_t flux__place_in_phase(const flux__pooling_job *j, int64_t row, int64_t column) {
    return row / j->down * j->pitch + column / j->across;
}

/* The place of element `at` of x, of g or of y. */
static char *flux__pooling_at(const flux__pooling_job *j, const char *x, int64_t at) {
    return (char *)(uintptr_t)x + at * j->size;
}

/* Copies n elements of a row that begin at the places at[...] of its phases out of x, or with
   `back` to x. */
static void flux__copy_phases(const flux__pooling_job *j, float *phases, const int64_t *at,
                              float *x, int64_t n, bool back) {
    const int64_t across = j->across;
    if (across == 2) {
        float *a = phases + at[0], *b = phases + at[1];
        if (back) j->mover->weave(x, a, b, n / 2);
        else j->mover->unweave(a, b, x, n / 2);
        if (n % 2 && back) x[n - 1] = a[n / 2];
        else if (n % 2) a[n / 2] = x[n - 1];
        return;
    }
    for (int64_t c = 0; c < across && c < n; c++) {
        const int64_t m = (n - c + across - 1) / across;
        if (back) flux__copy_words(x + c, across, phases + at[c], 1, m);
        else flux__copy_words(phases + at[c], 1, x + c, across, m);
    }
}

/* Where the phases of the row behind one that is at `row` are, the number *down of which is
   counted. */
static FLUX__INLINE float *flux__next_phases(const flux__pooling_job *j, float *row,
                                             int64_t *down) {
    const int64_t all = j->across * j->plane;
    if (++*down < j->down) return row + all;
    *down = 0;
    return row + j->pitch - (j->down - 1) * all;
}

/* Brings n rows of the image from row `first` on, a multiple of j->down, to the phases, in which
   there is j->fill beside them. wide: memory for a row that is widened. */
static FLUX__O2 void flux__load_phases(const flux__pooling_job *j, float *phases, const char *x,
                                       int64_t first, int64_t n, float *wide) {
    int64_t slab = first / j->slab_to - j->front, row = first % j->slab_to - j->top, down = 0;
    for (; n > 0; n--, phases = flux__next_phases(j, phases, &down)) {
        if (slab >= 0 && slab < j->slabs && row >= 0 && row < j->high) {
            char *from = flux__pooling_at(j, x, slab * j->slab_step + row * j->row_step);
            for (int64_t i = 0; i < j->wide * j->size; i += 64)
                FLUX__PREFETCH_LATER(from + 8 * j->row_step * j->size + i)
            if (j->type != FLUX_F32) flux__load(FLUX__F32C, wide, j->type, from, 1, j->wide);
            flux__copy_phases(j, phases, j->left_at,
                              j->type != FLUX_F32 ? wide : (float *)(void *)from, j->wide, false);
        } else {
            for (int64_t c = 0; c < j->across; c++)
                for (int64_t i = 0; i < j->pitch; i++) phases[c * j->plane + i] = j->fill;
        }
        if (++row == j->slab_to - j->top) row = -j->top, slab++;
    }
}

/* Writes the rows of the image from `first` to `end` out of the phases in which it is added up, and
   moves what is in later rows to where the next strip, m rows of windows later, has it. wide:
   memory for a row that is narrowed. */
static FLUX__O2 void flux__store_phases(const flux__pooling_job *j, char *image, float *phases,
                                        int64_t first, int64_t end, int64_t m, float *wide) {
    const int64_t kept = end == j->height ? 0 : j->plane - m * j->pitch,    /* 0: no later strip */
                  slab = first / j->slab_to;
    const bool half = j->type != FLUX_F32;
    float *at = phases;
    char *to = flux__pooling_at(j, image, (slab * j->slab + first % j->slab_to) * j->width);
    int64_t down = 0, row = first % j->slab_to;
    for (int64_t r = first; r < end; r++, at = flux__next_phases(j, at, &down)) {
        if (row >= j->slab) {}                         /* a row between two slabs */
        else if (r < j->reach_rows) {
            flux__copy_phases(j, at, j->begin_at, half ? wide : (float *)(void *)to, j->width,
                              true);
            if (half) flux__store(j->type, to, 1, FLUX__F32C, wide, j->width);
        } else memset(to, 0, (size_t)(j->width * j->size));
        if (row < j->slab) to += j->width * j->size;
        if (++row == j->slab_to) row = 0;
    }
    if (!kept) memset(phases, 0, (size_t)(j->across * j->down * j->plane) * sizeof *phases);
    for (int64_t l = 0; l < j->across * j->down && kept; l++, phases += j->plane) {
        memmove(phases, phases + m * j->pitch, (size_t)kept * sizeof *phases);
        memset(phases + kept, 0, (size_t)(m * j->pitch) * sizeof *phases);
    }
}

/* The memory of a task: phases of x; a line of results, or of the maxima's places; a line of g;
   phases of the image; and a row in f32, of half formats. Before both lines are zeros, for elements
   that reach back. */
typedef struct flux__pooling_memory { float *x, *out, *g, *image, *wide; } flux__pooling_memory;

/* Runs the m rows of windows from row a on of an image: x, g and y (or the image) as in *j. */
static FLUX__O2 void flux__pool_strip(const flux__pooling_job *j, flux__pooled *p,
                                      const flux__pooling_memory *memory, const char *x,
                                      const char *g, char *y, int64_t a, int64_t m) {
    const int64_t all = (m - 1) * j->pitch + j->columns, slab = a / j->period, row = a % j->period;
    const bool half = j->type != FLUX_F32,
               by_rows = !g && !half && j->columns >= 32; /* results go where they belong */
    char *to = flux__pooling_at(j, y, row * j->y_step[1] + slab * j->y_step[2]);
    const float *in = j->direct ? (const float *)(const void *)x + a * j->width : memory->x;
    for (int w = 0; w < p->n && x; w++) p->x[w] = in + j->from[w];
    if (x && !j->direct)
        flux__load_phases(j, memory->x, x, a * j->down, (m - 1) * j->down + j->reach_rows -
                          (j->all_rows - 1) * j->down, memory->wide);
    p->windows = by_rows ? j->columns : all < 16 ? 16 : all;
    p->rows = by_rows ? m : x != NULL, p->next[0] = j->pitch, p->next[2] = j->y_step[1];
    p->y = by_rows ? (float *)(void *)to : x ? memory->out : NULL;
    if (g) g = flux__pooling_at(j, g, row * j->g_step[1] + slab * j->g_step[2]);
    for (int64_t r = 0; r < m && g; r++, g += j->g_step[1] * j->size)
        if (half) flux__load(FLUX__F32C, memory->g + r * j->pitch, j->type, g, j->g_step[0],
                             j->columns);
        else flux__copy_words(memory->g + r * j->pitch, 1, (const float *)(const void *)g,
                              j->g_step[0], j->columns);
    if (g && m < j->strip)                             /* a longer strip was there before */
        memset(memory->g + all, 0, (size_t)(j->strip * j->pitch - all) * sizeof *memory->g);
    for (int l = 0; l < p->lines; l++) p->length[l] = all + p->at[p->which[p->first[l]]];
    j->section->pool(p);
    for (int64_t r = 0; r < m && !g && !by_rows; r++, to += j->y_step[1] * j->size)
        if (half) flux__store(j->type, to, 1, FLUX__F32C, memory->out + r * j->pitch, j->columns);
        else flux__copy_words((float *)(void *)to, 1, memory->out + r * j->pitch, 1, j->columns);
}

/* Runs an image, strip by strip; there are strips without windows between two slabs. */
static void flux__pool_image(const flux__pooling_job *j, flux__pooled *p,
                             const flux__pooling_memory *memory, const char *x, const char *g,
                             char *y) {
    for (int64_t a = 0, m; a < j->all_rows; a += m) {
        const int64_t row = a % j->period;
        m = flux__gemm_min(j->strip, (row < j->rows ? j->rows : j->period) - row);
        if (row < j->rows) flux__pool_strip(j, p, memory, x, g, y, a, m);
        if (g) flux__store_phases(j, y, memory->image, a * j->down,
                                  a + m == j->all_rows ? j->height : (a + m) * j->down, m,
                                  memory->wide);
    }
}

/* Where image u of x (which: 0), g (1) or y (2) begins. */
static int64_t flux__image_at(const flux__pooling_job *j, int64_t u, int which) {
    const int64_t *dim = j->dim[which > 0];
    int64_t at = 0;
    for (int d = 0; d < FLUX_MAX_DIMS; d++)
        if (dim[d] > 1) at += u % dim[d] * j->step[which][d], u /= dim[d];
    return at;
}

/* Runs one task: some images. */
static FLUX__O2 void flux__pooling_task(void *ctx, int64_t task) {
    const flux__pooling_job *j = (const flux__pooling_job *)ctx;
    flux__pooled p = j->pooled;
    float *at = j->scratch + task * j->memory;
    const int64_t phases = j->x && !j->direct ? j->across * j->down * j->plane : 0;
    flux__pooling_memory memory;
    memory.x = at, memory.out = at + phases + j->back,
        memory.g = memory.out + j->plane + j->back, memory.image = memory.g + j->plane,
        memory.wide = at + j->memory - j->width;
    memset(at + phases, 0, (size_t)(j->memory - phases) * sizeof *at);
    for (int64_t i = 0; i < phases; i++) memory.x[i] = j->fill;
    p.g = j->g ? memory.g : NULL;
    for (int l = 0; l < p.lines; l++) {
        const int w = p.which[p.first[l]];
        p.d[l] = memory.image + j->from[w] - p.at[w];
    }
    for (int64_t u = task * j->each; u < j->images && u < (task + 1) * j->each; u++) {
        const char *x = j->x ? flux__pooling_at(j, j->x, flux__image_at(j, u, 0)) : NULL,
                   *g = j->g ? flux__pooling_at(j, j->g, flux__image_at(j, u, 1)) : NULL;
        flux__pool_image(j, &p, &memory, x, g, flux__pooling_at(j, j->y, flux__image_at(j, u, 2)));
    }
}

/* The dims of an image's windows: those of elements in a window and of windows in an image, along
   columns, rows and slabs; numbers and steps in the image, and which of the kernel's dims the
   windows' are, or -1. */
typedef struct flux__pooling_dims {
    int64_t inside[3], inside_step[3], windows[3], windows_step[3];
    int which[3];
} flux__pooling_dims;

/* Finds them among the first so many dims, of which `kernel` are a window's. width: of the image's
   rows, or 0 if that is not known. False: there are more than three of each. */
static bool flux__find_pooling_dims(flux__pooling_dims *o, const int64_t *dim, const int64_t *step,
                                    unsigned kernel, int dims, int64_t width) {
    const flux__pooling_dims none =
        { { 1, 1, 1 }, { 0 }, { 1, 1, 1 }, { 1, 0, 0 }, { -1, -1, -1 } };
    int inside = 0, windows = 0;
    *o = none;
    for (int d = 0; d < dims; d++) {
        const bool in = kernel >> d & 1;
        if (dim[d] == 1) continue;
        if (step[d] < 1 || (in ? inside : windows) == 3) return false;
        if (!in && width && !windows && step[d] >= width) windows = 1;    /* only one column */
        if (in) o->inside[inside] = dim[d], o->inside_step[inside++] = step[d];
        else o->windows[windows] = dim[d], o->windows_step[windows] = step[d],
            o->which[windows++] = d;
    }
    return windows > 0;
}

static int64_t flux__gcd(int64_t a, int64_t b) {
    for (int64_t rest; b; a = b, b = rest) rest = a % b;
    return a;
}

/* The elements of a row (level 1) or a slab (level 2) of an image, if they are not known: the
   greatest number that divides how far apart windows are, and elements of a window that are further
   apart than windows of the level below reach. */
static int64_t flux__pooling_size(const flux__pooling_dims *o, int level) {
    const int64_t below = (o->windows[level - 1] - 1) * o->windows_step[level - 1];
    int64_t size = o->windows_step[level];
    for (int i = 0; i < 3; i++)
        if (o->inside_step[i] > below) size = flux__gcd(size, o->inside_step[i]);
    return size;
}

/* Sets the image and phases of a job whose windows have these dims, the first of them at `rel` in
   an image of so many elements. width and slab: elements of its rows and slabs; 0: that is not
   known. False: windows lie otherwise, or are too far apart. */
static bool flux__set_image(flux__pooling_job *j, const flux__pooling_dims *o, int64_t rel,
                            int64_t elements, int64_t width, int64_t slab) {
    int64_t row[FLUX__WINDOW], column[FLUX__WINDOW], far[2] = { 0, 0 }, n = 1;
    flux__pooled *p = &j->pooled;
    if (!slab) slab = o->which[2] < 0 ? elements : flux__pooling_size(o, 2);
    if (!width) width = o->which[1] < 0 ? slab : flux__pooling_size(o, 1);
    for (int i = 0; i < 3; i++) n *= o->inside[i];
    if (width < 1 || rel < 0 || n > FLUX__WINDOW || slab % width || (slab && elements % slab) ||
        o->windows_step[1] % width || (slab && o->windows_step[2] % slab)) return false;
    j->width = width, j->columns = o->windows[0], j->across = o->windows_step[0];
    j->rows = o->windows[1], j->down = o->which[1] < 0 ? 1 : o->windows_step[1] / width;
    if (j->down < 1 || j->across > FLUX__POOL_APART || j->down > FLUX__POOL_APART) return false;
    j->slab = slab / width, j->slab_to = (j->slab + j->down - 1) / j->down * j->down;
    j->period = o->which[2] < 0 ? j->rows : o->windows_step[2] / slab * (j->slab_to / j->down);
    j->all_rows = (o->windows[2] - 1) * j->period + j->rows;
    p->n = (int)n, p->step = 1, p->add = true;
    for (int w = 0; w < p->n; w++) {
        int64_t place = rel, rest = w;
        for (int i = 0; i < 3; rest /= o->inside[i++])
            place += rest % o->inside[i] * o->inside_step[i];
        row[w] = place / width, column[w] = place % width;
        if (slab) row[w] = place / slab * j->slab_to + row[w] % j->slab;
        if (row[w] > far[0]) far[0] = row[w];
        if (column[w] > far[1]) far[1] = column[w];
    }
    j->reach_rows = (j->all_rows - 1) * j->down + far[0] + 1;
    j->reach_columns = (j->columns - 1) * j->across + far[1] + 1;
    j->height = elements ? elements / slab * j->slab_to : j->reach_rows;
    if (!slab) j->slab = j->slab_to = j->height;
    j->pitch = (width + j->across - 1) / j->across;
    j->strip = flux__gemm_min(FLUX__POOL_STRIP / j->pitch + 1, j->rows);
    j->plane = (j->strip + far[0] / j->down + 1) * j->pitch + FLUX__POOL_MARGIN;
    j->back = far[0] / j->down * j->pitch + far[1] / j->across + 16;
    for (int w = 0; w < p->n; w++) {
        p->at[w] = flux__place_in_phase(j, row[w], column[w]);
        j->from[w] = flux__phase_of(j, row[w], column[w]) + p->at[w];
    }
    return j->reach_columns <= width && j->reach_rows <= j->height && j->rows <= j->period &&
           j->plane * j->across * j->down <= FLUX__POOL_FLOATS;
}

/* Sets the lines of the image to which windows are added: a phase each, its elements from the last
   to the first, so that windows that overlap are added in their order. */
static void flux__set_phase_lines(flux__pooling_job *j) {
    flux__pooled *p = &j->pooled;
    int i = 0, from, k;
    for (int64_t phase = 0; phase < j->across * j->down; phase++) {
        from = i;
        for (int w = 0; w < p->n; w++) {
            if (j->from[w] - p->at[w] != phase * j->plane) continue;
            for (k = i++; k > from && p->at[p->which[k - 1]] < p->at[w]; k--)
                p->which[k] = p->which[k - 1];
            p->which[k] = w;
        }
        if (i > from) p->first[p->lines++] = from;
    }
    p->first[p->lines] = i;
}

/* Counts images along the dims from `first` on of a shape of so many dims: those of x (which: 0),
   or of g or y (1, 2). */
static void flux__count_images(flux__pooling_job *j, int which, const int64_t *dim,
                               const int64_t *step, int first, int dims) {
    for (int d = 0; d < FLUX_MAX_DIMS; d++) {
        const bool counts = d >= first && d < dims;
        j->dim[which > 0][d] = counts ? dim[d] : 1, j->step[which][d] = counts ? step[d] : 0;
    }
}

/* Sets the steps of g (which: 1), a tensor of such dims, and the lines to which it is added; or
   the steps of y (which: 2). */
static void flux__set_steps(flux__pooling_job *j, const flux__pooling_dims *at, int which,
                            const int64_t *dim, const int64_t *step, int first, int dims) {
    for (int i = 0; i < 3; i++)
        (which == 1 ? j->g_step : j->y_step)[i] = at->which[i] < 0 ? 0 : step[at->which[i]];
    flux__count_images(j, which, dim, step, first, dims);
    if (which == 1) flux__set_phase_lines(j);
}

/* Whether x, which nothing pads, is read where it lies: windows are neighbours there, and a strip
   has a whole vector of them. */
static bool flux__reads_directly(const flux__pooling_job *j) {
    const int64_t last = j->rows % j->strip ? j->rows % j->strip : j->strip;
    return j->across == 1 && j->down == 1 && (last - 1) * j->pitch + j->columns >= 16;
}

/* Runs a job, all of which is set but for its tasks, of so many numbers. False: there is no
   memory. A task has memory of its own, so that many tasks would not leave it in a cache. */
static bool flux__run_pooling(flux__pooling_job *j, int64_t numbers) {
    const int64_t phases = j->across * j->down * j->plane;
    for (int64_t c = 0; c < j->across; c++) {
        j->begin_at[c] = c * j->plane;
        j->left_at[c] = flux__phase_of(j, 0, j->left + c) + flux__place_in_phase(j, 0, j->left + c);
    }
    j->section = flux__section_now(), j->mover = flux__section_for(j->width / 2);
    j->memory = (j->x && !j->direct ? phases : 0) + j->back + j->plane +
                (j->g ? j->back + j->plane + phases : 0) + (j->type != FLUX_F32 ? j->width : 0);
    j->images = 1;
    for (int d = 0; d < FLUX_MAX_DIMS; d++) j->images *= j->dim[1][d];
    const int64_t many = numbers < 32768 ? 1 : j->memory < (1 << 12) ? 64 : 16;
    j->each = (j->images + many - 1) / many;
    const int64_t tasks = (j->images + j->each - 1) / j->each;
    j->scratch = (float *)flux__scratch((size_t)(tasks * j->memory) * sizeof *j->scratch);
    if (!j->scratch) return false;
    flux__parallel(tasks, flux__pooling_task, j);
    flux__scratch_done(j->scratch);
    return true;
}

/* ---------------- kernels */

/* Whether kernel k is a pooling of windows. */
static bool flux__pools(const flux__kernel *k) {
    const flux__cpu *c = (const flux__cpu *)k->ready;
    return k->kind == FLUX__K_FUSED && c->whole && c->whole->run_all == flux__run_windows;
}

/* Whether kernel k only pads what the windows of the next one alone are read from. */
static bool flux__pads_windows(const flux__run *run, const flux__kernel *k) {
    if (!flux__pads_next(run, k) || !flux__pools(k + 1)) return false;
    const flux__pooling *w = &((const flux__cpu *)k[1].ready)->pooling;
    const int slot = run->plan->nleaf + k->node;
    return k[1].operand[k[1].value[w->x].operand].src == slot &&
           (w->g < 0 || k[1].operand[k[1].value[w->g].operand].src != slot);
}

/* Whether kernel k is the gradient of a maximum, and the spread that comes next alone reads it and
   adds its windows up where x has them. */
static bool flux__adds_next(const flux__run *run, const flux__kernel *k) {
    const flux__kernel *into = k + 1;
    const flux__cpu *c = (const flux__cpu *)k->ready;
    int64_t step[FLUX_MAX_DIMS];
    if (into->kind != FLUX__K_STRIDED_SCATTER || !flux__pools(k) || c->pooling.g < 0) return false;
    const flux__operand *o = &into->operand[0],
                        *x = &k->operand[k->value[c->pooling.x].operand],
                        *g = &k->operand[k->value[c->pooling.g].operand];
    const int slot = k->value[c->pooling.top].out, nleaf = run->plan->nleaf;
    const flux__slot_info *own = &run->plan->slot[slot - nleaf];
    const flux_tensor *t = run->g->node[into->node];
    if (o->src != slot || o->offset || own->keep || &run->plan->kernel[own->last_kernel] != into ||
        !t->arg.i[1] || run->ptr[nleaf + into->node] == run->ptr[g->src] || x->offset != t->rel)
        return false;
    flux__contiguous_strides(&o->shape, step);
    for (int d = 0; d < FLUX_MAX_DIMS; d++) {
        const int64_t n = d < o->shape.ndim ? o->shape.dim[d] : 1;
        if (k->full[d] != n || (n > 1 && (o->stride[d] != step[d] || x->stride[d] != t->stride[d])))
            return false;
    }
    return true;
}

/* Whether the windows of kernel k are read from slices of what *pad makes; if so, *dims is the
   first dim that counts slices. */
static bool flux__pads_slices(const flux__strided_scatter_job *pad, const flux__kernel *k,
                              const flux__operand *x, int *dims) {
    int64_t next = pad->slice;
    int d = 0;
    while (d < FLUX_MAX_DIMS && (k->full[d] == 1 || x->stride[d] != pad->slice)) d++;
    for (*dims = d; d < FLUX_MAX_DIMS; next *= k->full[d++])
        if (k->full[d] > 1 && (x->stride[d] != next || k->reduced >> d & 1)) return false;
    return !x->offset && next == pad->slice * pad->units;
}

/* Sets what is read, to be padded by *pad. False: that puts it elsewhere than in an image's
   rows. */
static bool flux__set_padding(flux__pooling_job *j, const flux__strided_scatter_job *pad) {
    const int64_t *step = pad->t->stride, rel = pad->t->rel;
    const int dims = pad->part.ndim;
    const int64_t row = rel / j->width;
    j->front = row / j->slab, j->top = row % j->slab, j->left = rel % j->width;
    j->x = pad->src;
    flux__load(FLUX__F32C, &j->fill, j->type, pad->one, 0, 1);
    j->high = dims > 1 ? pad->part.dim[1] : 1, j->row_step = dims > 1 ? pad->o.stride[1] : 0;
    j->slabs = dims > 2 ? pad->part.dim[2] : 1, j->slab_step = dims > 2 ? pad->o.stride[2] : 0;
    j->wide = flux__gemm_min(pad->part.dim[0], j->reach_columns - j->left);
    if (j->wide < 0) j->wide = 0;
    flux__count_images(j, 0, pad->o.shape.dim, pad->o.stride, dims, pad->o.shape.ndim);
    return dims <= 3 && step[0] == 1 && pad->o.stride[0] == 1 && rel >= 0 &&
           (j->high == 1 || step[1] == j->width) && j->left + pad->part.dim[0] <= j->width &&
           (j->slabs == 1 || step[2] == j->width * j->slab) && j->top + j->high <= j->slab;
}

/* How many dims of a kernel are those of an image that is pooled: up to its second of windows. */
static int flux__pooled_dims(const flux__kernel *k) {
    int d = 0;
    for (int windows = 0; d < FLUX_MAX_DIMS && windows < 2; d++)
        windows += k->full[d] > 1 && !(k->reduced >> d & 1);
    return d;
}

/* Runs the pooling k, or a maximum's gradient, with the kernel `pad` before it, which pads its
   images, and the kernel `into` behind it, which adds windows up; NULL: there is none. False, and
   nothing is done: windows lie otherwise, or the gradient has other numbers than each element's
   place in its window, or than 0, or there is neither kernel and an f32 x can't be read where it
   lies, or images of a half format are small, which are faster some at a time. */
static bool flux__pool_images(flux__run *run, const flux__kernel *k, const flux__kernel *into,
                              const flux__kernel *pad) {
    const flux__cpu *c = (const flux__cpu *)k->ready;
    const flux__pooling *w = &c->pooling;
    const flux__operand *ox = &k->operand[k->value[w->x].operand],
                        *og = w->g >= 0 ? &k->operand[k->value[w->g].operand] : NULL;
    const flux_tensor *t = into ? run->g->node[into->node] : NULL;
    int64_t step[FLUX_MAX_DIMS], elements = 0, width = 0, slab = 0;
    int dims = flux__pooled_dims(k), slices;
    flux__pooling_job j;
    flux__pooling_dims at;
    flux__strided_scatter_job padding;
    if (og && (!into || !(flux__number_value(run->g, &k->value[w->zero]) == 0) ||
               !flux__windows_counted(run, k, &k->operand[w->places], c->inner))) return false;
    memset(&j, 0, sizeof j);
    j.type = ox->dtype, j.size = (int64_t)flux__dtypes[j.type].size;
    j.y = (char *)run->ptr[into ? run->plan->nleaf + into->node : k->value[w->top].out];
    j.g = og ? flux__operand_ptr(run, og) : NULL;
    if (into) dims = flux__spread_slices(t, &into->operand[0].shape, &elements);
    if (pad) {
        padding = flux__scatter_job_of(run, pad);
        if (!flux__pads_slices(&padding, k, ox, &slices) || run->ptr[padding.o.src] == j.y ||
            (into && (slices != dims || elements != padding.slice))) return false;
        dims = slices, elements = padding.slice;
        if (padding.part.ndim > 1) width = padding.t->stride[1];
        if (padding.part.ndim > 2) slab = padding.t->stride[2];
    }
    for (int d = dims; d < FLUX_MAX_DIMS; d++)         /* dims that count images are no window's */
        if ((k->reduced >> d & 1) && k->full[d] > 1) return false;
    if (!flux__find_pooling_dims(&at, k->full, ox->stride, k->reduced, dims, width) ||
        !flux__set_image(&j, &at, pad || into ? ox->offset : 0, elements, width, slab))
        return false;
    j.direct = !pad && j.type == FLUX_F32 && flux__reads_directly(&j);
    const bool large = j.type != FLUX_F32 && j.columns * j.rows >= FLUX__POOL_LARGE;
    if (!(pad || into || j.direct || large)) return false;
    j.x = flux__pooling_at(&j, (const char *)run->ptr[ox->src], pad || into ? 0 : ox->offset);
    j.slabs = j.height / j.slab_to, j.high = j.slab, j.wide = j.reach_columns;
    j.row_step = j.width, j.slab_step = j.width * j.slab;
    if (!pad) flux__count_images(&j, 0, k->full, ox->stride, dims, FLUX_MAX_DIMS);
    else if (!flux__set_padding(&j, &padding)) return false;
    j.pooled.slots = w->sum ? flux__windows_slots(k, c) : 0;
    j.pooled.by = w->by < 0 ? 1 : flux__float_of(flux__number_value(run->g, &k->value[w->by]));
    flux__value_strides(k, &k->value[w->top], step);
    if (og) flux__set_steps(&j, &at, 1, k->full, og->stride, dims, FLUX_MAX_DIMS);
    if (into) flux__count_images(&j, 2, k->full, t->stride, dims, FLUX_MAX_DIMS);
    else flux__set_steps(&j, &at, 2, k->full, step, dims, FLUX_MAX_DIMS);
    return flux__run_pooling(&j, c->outer * c->inner);
}

/* Runs a spread that adds the same numbers to all elements of a window, as the gradient of a mean
   does. False: it is none, or windows lie otherwise. */
static bool flux__spread_windows(flux__run *run, const flux__kernel *k) {
    const flux_tensor *t = run->g->node[k->node];
    const flux__operand *o = &k->operand[0];
    flux__pooling_job j;
    flux__pooling_dims at;
    int64_t elements;
    unsigned kernel = 0;
    if ((t->dtype != FLUX_F32 && !flux__is_half(t->dtype)) || !t->arg.i[1]) return false;
    const int dims = flux__spread_slices(t, &o->shape, &elements);
    for (int d = 0; d < dims; d++) kernel |= (unsigned)(o->shape.dim[d] > 1 && !o->stride[d]) << d;
    memset(&j, 0, sizeof j);
    if (!kernel || !flux__find_pooling_dims(&at, o->shape.dim, t->stride, kernel, dims, 0) ||
        !flux__set_image(&j, &at, t->rel, elements, 0, 0)) return false;
    j.type = t->dtype, j.size = (int64_t)flux__dtypes[j.type].size;
    j.g = flux__operand_ptr(run, o), j.y = (char *)run->ptr[run->plan->nleaf + k->node];
    flux__set_steps(&j, &at, 1, o->shape.dim, o->stride, dims, o->shape.ndim);
    flux__count_images(&j, 2, o->shape.dim, t->stride, dims, o->shape.ndim);
    return flux__run_pooling(&j, flux__count(&o->shape));
}

/* Runs a pooling or its gradient at once with the kernel before it, if that pads, and the one
   after, if that adds it up, or the gradient of a mean, which is such a one alone; k: the first of
   n kernels. Returns how many it ran, or 0. */
static int flux__run_pooling_joined(flux__run *run, const flux__kernel *k, int n) {
    if (k->kind == FLUX__K_STRIDED_SCATTER && flux__spread_windows(run, k)) return 1;
    const flux__kernel *pad = n > 1 && flux__pads_windows(run, k) ? k : NULL;
    if (pad) k++, n--;
    const flux__kernel *into = n > 1 && flux__adds_next(run, k) ? k + 1 : NULL;
    if (!flux__pools(k) || !flux__pool_images(run, k, into, pad)) return 0;
    return 1 + (pad != NULL) + (into != NULL);
}

FLUX__END_LEAN

#endif /* FLUX__CPU_POOLING_H */
