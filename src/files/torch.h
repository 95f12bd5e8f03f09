#ifndef FLUX__FILES_TORCH_H
#define FLUX__FILES_TORCH_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../base/text.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/views.h"
#include "../graph/windows.h"
#include "../schedule/looking.h"
#include "../nn/fields.h"
#include "../nn/walk.h"
#include "../nn/layers.h"
#include "../nn/recurrent.h"
#include "../nn/attention.h"
#include "../nn/conv.h"
#include "../nn/norms.h"
#include "sources.h"
#include "csv.h"
#include "safetensors.h"
#include "tensors.h"

/* ---------------------------------------------------------------------- files/torch.h
   A PyTorch model's safetensors: loaded into a model of ours (flux_load_torch)
   and written from one (flux_save_torch). PyTorch's row-major memory is ours
   with dims in reverse, and dims are read and written in reverse. Three
   differences are left: our matrices are the transposes of PyTorch's, the
   kernels of Conv are flipped, and names differ. One table, flux__torch_rows,
   says for each layer's field what PyTorch calls it and how its tensor is laid
   out; it is read in both directions. The calls that save and load several
   things in one file, and the one that loads a single tensor, are at the end.

   Invariant: the model does not change before every field has found its tensor,
   of equal shape, and every tensor of the file has been used, except for
   num_batches_tracked and for names that the map leaves out. A field that has
   no row in the table has the same name and layout in PyTorch. The map, "ours =
   theirs, ...", replaces the longest prefix of a path that it names. Loading
   chooses among the rows that suit a field by the names in the file; saving has
   no file to ask, so it follows PyTorch's classes: a row with `within` is for a
   child of our own attention and recurrent layers only. What was saved is loaded
   as the same bits, but for a bias of -0, which becomes 0. */

FLUX__BEGIN_COLD

/* Layout of PyTorch's tensor, once its dims are reversed: TRANSPOSED is the transpose of ours,
   FLIPPED is a convolution kernel that is reversed along its window dims. */
enum { FLUX__TORCH_TRANSPOSED = 1, FLUX__TORCH_FLIPPED = 2 };

/* What PyTorch calls one field of a layer and how it stores it. */
typedef struct flux__torch_row {
    flux_tensor *(*call)(flux_layer *, flux_tensor *);   /* the layer's call, which is its type */
    const char *within,                   /* the row holds only where the layer has this name in
                                             its parent; PyTorch's path lacks the name; or NULL */
        *ours, *theirs;                   /* the field's name here and in PyTorch */
    int layout, part, parts;              /* parts > 0: PyTorch's tensor is `parts` tensors of our
                                             shape joined along dim 0, and ours is number `part` */
    const char *added;                    /* PyTorch's second bias; ours is the sum of both */
} flux__torch_row;
static const flux__torch_row flux__torch_rows[] = {
#define FLUX__TORCH_HEADS(name, part)                                                                 \
    { flux__dense_call, name, "weight", "in_proj_weight", FLUX__TORCH_TRANSPOSED, part, 3, NULL },        \
    { flux__dense_call, name, "weight", name "_weight", FLUX__TORCH_TRANSPOSED, 0, 0, NULL },             \
    { flux__dense_call, name, "bias", "in_proj_bias", 0, part, 3, NULL }
#define FLUX__TORCH_CELL(within)                                                                      \
    { flux__cell_call, within, "Wi", "weight_ih", FLUX__TORCH_TRANSPOSED, 0, 0, NULL },               \
    { flux__cell_call, within, "Wh", "weight_hh", FLUX__TORCH_TRANSPOSED, 0, 0, NULL },               \
    { flux__cell_call, within, "bias", "bias_ih", 0, 0, 0, "bias_hh" },                               \
    { flux__cell_call, within, "bias_h", "bias_hh", 0, 2, 3, NULL }
    FLUX__TORCH_HEADS("q_proj", 0), FLUX__TORCH_HEADS("k_proj", 1), FLUX__TORCH_HEADS("v_proj", 2),
    FLUX__TORCH_CELL("cell"), FLUX__TORCH_CELL(NULL),
    { flux__dense_call, NULL, "weight", "weight", FLUX__TORCH_TRANSPOSED, 0, 0, NULL },
    { flux__bilinear_call, NULL, "weight", "weight", FLUX__TORCH_TRANSPOSED, 0, 0, NULL },
    { flux__conv_call, NULL, "weight", "weight", FLUX__TORCH_FLIPPED, 0, 0, NULL },
    { flux__convtranspose_call, NULL, "weight", "weight", FLUX__TORCH_FLIPPED, 0, 0, NULL },
    { flux__scale_call, NULL, "scale", "weight", 0, 0, 0, NULL },
    { flux__norm_call, NULL, "gamma", "weight", 0, 0, 0, NULL },
    { flux__norm_call, NULL, "beta", "bias", 0, 0, 0, NULL },
    { flux__norm_call, NULL, "mean", "running_mean", 0, 0, 0, NULL },
    { flux__norm_call, NULL, "var", "running_var", 0, 0, 0, NULL }
};

typedef struct flux__torch_item { char *path; flux_tensor *value; } flux__torch_item;
/* The caller's map, NULL if there is none, and the call that it was given to. */
typedef struct flux__torch_map { const char *call, *text; } flux__torch_map;
typedef struct flux__torch {              /* one call of flux_load_torch */
    flux__torch_map map;
    flux__archive z;
    flux__torch_item *item;               /* tensors read so far, each with its path in our model */
    int items, capacity;
    bool failed;                          /* an error has been raised; the walk does nothing more */
} flux__torch;

/* One pair of the map, "ours = theirs": two texts without blanks around them, and their lengths. */
typedef struct flux__torch_pair { const char *ours, *theirs; int nours, ntheirs; } flux__torch_pair;

/* Reads the next pair of a map and moves map->text past it; false at its end, or with an error. */
static bool flux__torch_next(flux__torch_map *map, flux__torch_pair *pair) {
    const char *p = map->text ? map->text : "", *end = strchr(p, ','), *equals = strchr(p, '=');
    const char *stop;
    if (!*p) return false;
    if (!end) end = p + strlen(p);
    if (!equals || equals > end)
        return FLUX__REFUSE("%s: \"%.60s\" in the map is not of the form ours = theirs", map->call,
                            p);
    map->text = *end ? end + 1 : end;
    stop = equals++;
    flux__trim(&p, &stop);
    flux__trim(&equals, &end);
    pair->ours = p, pair->nours = (int)(stop - p);
    pair->theirs = equals, pair->ntheirs = (int)(end - equals);
    return true;
}

/* Whether the whole map can be read; an error if not. */
static bool flux__torch_map_good(flux__torch_map map) {
    flux__torch_pair pair;
    int64_t failures = flux__failures();
    while (flux__torch_next(&map, &pair))
        continue;
    return !flux__failed_since(failures);
}

/* Whether a path is the prefix of n characters or lies below it. */
static bool flux__torch_within(const char *name, const char *prefix, int n) {
    return strncmp(name, prefix, (size_t)n) == 0 && (name[n] == '.' || name[n] == 0);
}

/* Writes PyTorch's name of the tensor at our path. The longest prefix that the map names is
   replaced by the map's text. Of the rest, the field names of containers ("layers", "diag") and
   the name that the row says (within) are dropped, and the last part becomes `theirs`, if there is
   a row (NULL: none). If the map's text has a *, that rest replaces the * instead of following the
   text: "lstm.*_l1" gives "lstm.weight_ih_l1". Without a *, a cell within a recurrent layer gets
   PyTorch's suffix of its first layer, "_l0". False: the map leaves this tensor out. */
static bool flux__torch_name(flux__torch_map map, const char *path, const flux__torch_row *row,
                             const char *theirs, flux__words *out) {
    const char *rest = path, *dot, *star = NULL;
    flux__torch_pair pair, best = { NULL, NULL, -1, 0 };
    while (flux__torch_next(&map, &pair))
        if (pair.nours > best.nours && pair.nours > 0 &&
            flux__torch_within(path, pair.ours, pair.nours))
            best = pair;
    flux__sink name = flux__sink_to(out->s, sizeof out->s);
    if (best.ours) {
        if (!best.ntheirs) return false;
        star = (const char *)memchr(best.theirs, '*', (size_t)best.ntheirs);
        int n = star ? (int)(star - best.theirs) : best.ntheirs;
        flux__putf(&name, "%.*s", n - (star && n && star[-1] == '.'), best.theirs);
        rest += best.nours;
        if (*rest) rest++;
    }
    for (; (dot = strchr(rest, '.')) != NULL; rest = dot + 1) {
        int n = (int)(dot - rest);
        if (flux__torch_within(rest, "layers", 6) || flux__torch_within(rest, "diag", 4)) continue;
        if (!row || !row->within || strchr(dot + 1, '.'))
            flux__putf(&name, "%s%.*s", name.len ? "." : "", n, rest);
    }
    if (*rest) flux__putf(&name, "%s%s", name.len ? "." : "", row ? theirs : rest);
    if (star) flux__putf(&name, "%.*s", (int)(best.theirs + best.ntheirs - star) - 1, star + 1);
    else if (*rest && row && row->within && row->call == flux__cell_call) flux__put(&name, "_l0");
    flux__sink_end(&name);
    return true;
}

/* Whether a row describes the field at this path of a layer: the layer's type, the field's name
   and, if the row says it, the layer's name in its parent. */
static bool flux__torch_suits(const flux__torch_row *row, const char *path,
                              const flux_layer *owner) {
    size_t n = strlen(path), last = strlen(row->ours),
           within = row->within ? strlen(row->within) : 0;
    if (row->call != owner->type->call || n < last || strcmp(path + n - last, row->ours) != 0)
        return false;
    if (n > last && path[n - last - 1] != '.') return false;
    if (!row->within) return true;
    const char *at = path + n - last - 1 - within;
    return n > last + within && strncmp(at, row->within, within) == 0 &&
           (at == path || at[-1] == '.');
}

/* PyTorch's layout of our tensor x, and ours of PyTorch's: each is its own inverse. */
static flux_tensor *flux__torch_layout(const flux__torch_row *row, flux_tensor *x) {
    flux_shape order = flux__shape(NULL, x->ndim);
    for (int i = 0; i < order.ndim; i++) order.dim[i] = order.ndim - 1 - i;
    if (row && row->layout == FLUX__TORCH_TRANSPOSED) return flux_permute_with(x, order);
    bool flipped = row && row->layout == FLUX__TORCH_FLIPPED && x->ndim > 2;
    return flipped ? flux__flip_kernel(x, x->ndim - 2) : x;
}

static int flux__torch_kind(const flux_layer *owner) {   /* of a recurrent cell; -1: it is none */
    return owner->type->call == flux__cell_call ? ((const flux__rnn_cell *)owner)->kind : -1;
}

/* The part of a GRU's bias_hh (b, 3 out numbers) that can be added to bias_ih: its last third
   belongs to the candidate, where the reset gate multiplies it, so it is set to 0 here. Our cell
   keeps that third as bias_h if it was made with .hidden_bias = true; if not, numbers other than
   0 there are an error. */
static flux_tensor *flux__torch_gru_bias(flux__torch *t, const flux__entry *e, flux_tensor *b,
                                         const flux__rnn_cell *m) {
    int64_t out = m->Wh->dim[1];
    if (b->ndim != 1 || b->dim[0] != 3 * out) return b;
    flux_tensor *n = flux_slice(b, 0, 2 * out, 3 * out);
    if (!m->bias_h && flux_item(flux_sum(flux_abs(n))) != 0)
        return flux__refuse(&t->z.source,
                            "%.100s adds to the candidate before the reset gate: "
                            "gru needs .hidden_bias = true for that",
                            e->name);
    return flux_cat(0, flux_slice(b, 0, 0, 2 * out), flux_mul(n, 0.0));
}

/* Reads an entry as the tensor that replaces `old`: transposed, flipped, sliced or with a second
   bias added, as the row says (NULL: none of these), and converted to old's dtype. NULL: an error,
   as where its shape is not that of `old`. */
static flux_tensor *flux__torch_read(flux__torch *t, flux__entry *e, flux__entry *added,
                                     const flux__torch_row *row, const flux_layer *owner,
                                     const flux_tensor *old, const char *path) {
    flux_tensor *x = flux__entry_read(&t->z, e), *y = x ? flux__torch_layout(row, x) : NULL,
                *b = x && added ? flux__entry_read(&t->z, added) : NULL;
    if (y && row && row->parts && y->ndim && y->dim[0] == row->parts * old->dim[0])
        y = flux_slice(y, 0, row->part * old->dim[0], (row->part + 1) * old->dim[0]);
    if (b && flux__torch_kind(owner) == FLUX__GRU)
        b = flux__torch_gru_bias(t, added, b, (const flux__rnn_cell *)owner);
    if (added) y = y && b ? flux_add(y, b) : NULL;
    if (y && !flux__same_dims(y, old))
        return flux__refuse(&t->z.source, "%.100s is %s there, in our order, but %.100s is %s here",
                            e->name, flux__describe(y).s, path, flux__describe(old).s);
    y = y ? flux_to_dtype(y, (flux_dtype)old->dtype) : NULL;
    return y ? flux_eval(flux_copy(y)) : NULL;
}

/* Finds the file's entry for our path, and the entry of its second bias: those of the first row
   that suits and whose names the file has. The name is the path's own (*row is NULL) if no row
   suits, or only rows for children of PyTorch's attention and recurrent layers. False: the file has
   no such entry, which is an error, or the map says that this tensor is not loaded. */
static bool flux__torch_find(flux__torch *t, const char *path, const flux_layer *owner,
                             const flux__torch_row **row, flux__entry **e, flux__entry **added) {
    int n = (int)(sizeof flux__torch_rows / sizeof *flux__torch_rows), tried = 0;
    bool suited = false;
    flux__words first, name;
    *e = *added = NULL;
    for (int i = 0; i <= n && !*e; i++) {
        *row = i < n ? &flux__torch_rows[i] : NULL;
        if (i < n ? !flux__torch_suits(*row, path, owner) : suited) continue;
        suited = suited || (*row && !(*row)->within);
        const char *theirs = *row ? (*row)->theirs : NULL;
        if (!flux__torch_name(t->map, path, *row, theirs, &name)) return false;
        if (!tried++) first = name;
        *e = flux__find(&t->z, name.s);
        if (*e && *row && (*row)->added &&
            flux__torch_name(t->map, path, *row, (*row)->added, &name) &&
            !(*added = flux__find(&t->z, name.s)))
            *e = NULL, first = name;
    }
    bool v3 = flux__torch_kind(owner) == FLUX__GRUV3;
    if (v3) flux__bad(&t->z.source, "PyTorch has no GRUv3, which %.120s is of", path);
    else if (!*e)
        flux__bad(&t->z.source, "it has no \"%.120s\", which would be %.120s here", first.s, path);
    t->failed = v3 || !*e;
    return !t->failed;
}

/* Called for each tensor of our model: reads its new value and keeps it, with the path, in t. */
static void flux__torch_field(flux_tensor **slot, const char *path, bool trained,
                              const flux_layer *owner, void *user) {
    flux__torch *t = (flux__torch *)user;
    const flux__torch_row *row = NULL;
    flux__entry *e, *added;
    (void)trained;
    if (t->failed || !flux__torch_find(t, path, owner, &row, &e, &added)) return;
    flux__torch_item *it = (flux__torch_item *)flux__one_more(&t->item, &t->capacity, t->items,
                                                              sizeof *it);
    flux_tensor *value = it ? flux__torch_read(t, e, added, row, owner, *slot, path) : NULL;
    char *copy = value ? flux__copy_text(path) : NULL;
    t->failed = !copy;
    if (!copy) return;
    e->used = true;
    if (added) added->used = true;
    it->path = copy, it->value = value, t->items++;
}

/* Whether each entry of the file was used by the model, is a num_batches_tracked, or is left out
   by the map ("= theirs"). If not, the error names the first one. */
static bool flux__torch_all_used(const flux__torch *t) {
    static const char counts[] = "num_batches_tracked";
    for (int i = 0; i < t->z.entries; i++) {
        const char *name = t->z.entry[i].name, *last = strrchr(name, '.');
        flux__torch_map map = t->map;
        flux__torch_pair pair;
        bool used = t->z.entry[i].used || strcmp(last ? last + 1 : name, counts) == 0;
        while (!used && flux__torch_next(&map, &pair))
            used = !pair.nours && flux__torch_within(name, pair.theirs, pair.ntheirs);
        if (used) continue;
        flux__bad(&t->z.source,
                  "it has \"%.120s\", which nothing here takes; \"= %.120s\" in the map would "
                  "leave it out",
                  name, name);
        return false;
    }
    return true;
}

/* Checks the map, reads a value for each tensor of the model, checks that the whole file was used,
   and only then sets the model's fields. 0: done; -1: an error, and the model is unchanged. */
FLUX_DEF int flux_load_torch(flux_layer *m, const char *path, const char *map) {
    FLUX__ZEROED(flux__torch, t);
    t.map.call = "load_torch";
    t.map.text = map;
    if (!m || !path) return flux__null(t.map.call, m ? "path" : "m", NULL), -1;
    if (!flux__torch_map_good(t.map) || !flux__archive_open(&t.z, t.map.call, path, NULL))
        return -1;
    int h = flux__hide();
    const int b = flux__nograd_enter();
    bool good =
        flux__walk_all(m, flux__torch_field, NULL, &t) && !t.failed && flux__torch_all_used(&t);
    flux__nograd_leave(b);
    for (int i = 0; good && i < t.items; i++)
        good = flux_set_param(m, t.item[i].path, t.item[i].value) == 0;
    flux__reveal(h, NULL);
    for (int i = 0; i < t.items; i++) flux__free(t.item[i].path);
    flux__free(t.item);
    flux__archive_close(&t.z);
    return good ? 0 : -1;
}

/* ---------------- saving */

typedef struct flux__torch_whole {        /* a tensor of the file, which may be made of our parts */
    char *name;
    const flux__torch_row *row;           /* of its layout; NULL: ours */
    flux_tensor *part[3];                 /* joined along dim 0 */
    int parts;
} flux__torch_whole;
typedef struct flux__torch_saving {       /* one call of flux_save_torch */
    flux__torch_map map;
    const flux_layer *outer;              /* the attention or recurrent layer entered last */
    flux__torch_whole *whole;
    int wholes, capacity;
    bool failed;
} flux__torch_saving;

/* Sets part number `part` of `parts` of the file's tensor of this name. */
static void flux__torch_put(flux__torch_saving *s, const char *name, const flux__torch_row *row,
                            int part, int parts, flux_tensor *x) {
    int i = 0;
    if (s->failed || !x) {
        s->failed = true;
        return;
    }
    while (parts > 1 && i < s->wholes && strcmp(s->whole[i].name, name) != 0) i++;
    if (parts <= 1 || i == s->wholes) {
        flux__torch_whole *w = (flux__torch_whole *)flux__one_more(&s->whole, &s->capacity,
                                                                   s->wholes, sizeof *w);
        char *copy = w ? flux__copy_text(name) : NULL;
        s->failed = !copy;
        if (!copy) return;
        memset(w, 0, sizeof *w);
        w->name = copy;
        w->row = row;
        w->parts = parts > 1 ? parts : 1;
        i = s->wholes++;
    }
    s->whole[i].part[parts > 1 ? part : 0] = x;
}

/* Whether PyTorch keeps the three matrices of this attention in one, as where they are alike. */
static bool flux__torch_joins(const flux__mha *m) {
    const flux_tensor *q = ((const flux__dense_layer *)m->q_proj)->weight,
                      *k = ((const flux__dense_layer *)m->k_proj)->weight,
                      *v = ((const flux__dense_layer *)m->v_proj)->weight;
    return flux__same_dims(q, k) && flux__same_dims(q, v);
}

/* The row by which PyTorch's class for the layer would store this field; NULL: none. */
static const flux__torch_row *flux__torch_choose(const flux__torch_saving *s, const char *path,
                                                 const flux_layer *owner) {
    const flux_layer *outer = s->outer;
    bool attention = outer && outer->type->call == flux__mha_call, inside = false;
    const flux__mha *m = (const flux__mha *)outer;
    if (attention) inside = owner == m->q_proj || owner == m->k_proj || owner == m->v_proj;
    else if (outer) inside = owner == ((const flux__recurrent *)outer)->cell;
    for (int i = 0; i < (int)(sizeof flux__torch_rows / sizeof *flux__torch_rows); i++) {
        const flux__torch_row *row = &flux__torch_rows[i];
        bool matrix = row->layout == FLUX__TORCH_TRANSPOSED;
        if (!flux__torch_suits(row, path, owner) || (row->within && !inside)) continue;
        if (attention && inside && row->parts && matrix && !flux__torch_joins(m)) continue;
        return row;
    }
    return NULL;
}

static void flux__torch_enter(flux_layer *m, void *user) {
    if (m->type->call == flux__mha_call || m->type->call == flux__recurrent_call)
        ((flux__torch_saving *)user)->outer = m;
}

/* Puts PyTorch's second bias of a recurrent cell, of zeros, as ours is the sum of both. A GRU's has
   three parts, and the last one is our bias_h if there is one. */
static void flux__torch_put_second(flux__torch_saving *s, const char *name,
                                   const flux_layer *owner, const flux_tensor *bias) {
    const flux__rnn_cell *cell = (const flux__rnn_cell *)owner;
    int parts = cell->kind == FLUX__GRU ? 3 : 1;
    int64_t n = bias->dim[0] / parts;
    flux_tensor *none = flux_full_with(flux__shape(&n, 1), 0, (flux_dtype)bias->dtype);
    none = none ? flux__move(none, bias->device) : NULL;
    for (int i = 0; i < parts - (cell->bias_h != NULL); i++)
        flux__torch_put(s, name, NULL, i, parts, none);
}

/* Called for each tensor of our model: puts what PyTorch has in its place. */
static void flux__torch_keep(flux_tensor **slot, const char *path, bool trained,
                             const flux_layer *owner, void *user) {
    flux__torch_saving *s = (flux__torch_saving *)user;
    flux__words name;
    (void)trained;
    if (s->failed) return;
    const flux__torch_row *row = flux__torch_choose(s, path, owner);
    if (!flux__torch_name(s->map, path, row, row ? row->theirs : NULL, &name)) return;
    if (flux__torch_kind(owner) == FLUX__GRUV3) {
        flux__fail("%s: PyTorch has no GRUv3, which %.120s is of", s->map.call, path);
        s->failed = true;
        return;
    }
    flux__torch_put(s, name.s, row, row ? row->part : 0, row ? row->parts : 0, *slot);
    if (row && row->added && flux__torch_name(s->map, path, row, row->added, &name))
        flux__torch_put_second(s, name.s, owner, *slot);
    if (row && strcmp(row->theirs, "running_mean") == 0 &&
        flux__torch_name(s->map, path, row, "num_batches_tracked", &name))
        flux__torch_put(s, name.s, NULL, 0, 0,
                        flux_full_with(flux__shape(NULL, 0), 0, FLUX_I64));
}

/* Adds a tensor of the file to the list: its parts joined, in PyTorch's layout. */
static bool flux__torch_add(const flux__torch_saving *s, const flux__torch_whole *w,
                            flux__list *l) {
    for (int i = 0; i < w->parts; i++)
        if (!w->part[i] || !flux__same_dims(w->part[i], w->part[0]))
            return FLUX__REFUSE("%s: %.120s has %d equal parts in PyTorch, but not here",
                                s->map.call, w->name, w->parts);
    flux_tensor *x = w->parts > 1 ? flux_cat_with(0, w->parts, w->part) : w->part[0];
    x = x ? flux__torch_layout(w->row, x) : NULL;
    if (x) flux__list_add(l, w->name, NULL, NULL, x);
    return x && !l->failed;
}

/* Collects the file's tensors by a walk over the model and writes them. Tied tensors are written
   once for each name, as PyTorch's load_state_dict looks for each. */
FLUX_DEF int flux_save_torch(flux_layer *m, const char *path, const char *map) {
    FLUX__ZEROED(flux__torch_saving, s);
    flux__list l = { "save_torch", NULL, 0, NULL, 0, 0, "", 0, false, false, NULL };
    s.map.call = l.call;
    s.map.text = map;
    if (!m || !path) return flux__null(l.call, m ? "path" : "m", NULL), -1;
    if (!flux__torch_map_good(s.map)) return -1;
    int h = flux__hide();
    const int b = flux__nograd_enter();
    bool good = flux__walk_all(m, flux__torch_keep, flux__torch_enter, &s) && !s.failed;
    for (int i = 0; good && i < s.wholes; i++) good = flux__torch_add(&s, &s.whole[i], &l);
    flux__nograd_leave(b);
    good = good && flux__list_finish(&l) && flux__save_list(&l, path);
    flux__reveal(h, NULL);
    for (int i = 0; i < s.wholes; i++) flux__free(s.whole[i].name);
    flux__free(s.whole);
    flux__list_free(&l);
    return good ? 0 : -1;
}

/* ---------------- several things, single tensors */

FLUX_DEF int flux_save_all_with(const char *path, int n, const char *names,
                                const void *const *items) {
    return flux__files_all("save_all", path, n, names, items, false);
}
FLUX_DEF int flux_load_all_with(const char *path, int n, const char *names,
                                const void *const *items) {
    return flux__files_all("load_all", path, n, names, items, true);
}

/* The entry of this name, or with NULL the only one of the file; NULL, with an error that lists
   names, if there is no such entry, or several and no name was given. */
static const flux__entry *flux__entry_wanted(const flux__archive *z, const char *name) {
    const flux__entry *e = name ? flux__find(z, name) : z->entries == 1 ? z->entry : NULL;
    char list[200];
    int i;
    if (e) return e;
    flux__sink s = flux__sink_to(list, sizeof list);
    for (i = 0; i < z->entries && s.len < 120; i++)
        flux__putf(&s, "%s%.60s", i ? ", " : "", z->entry[i].name);
    flux__put(&s, i < z->entries ? ", ..." : "");
    flux__sink_end(&s);
    if (z->entries == 0) flux__bad(&z->source, "it holds no tensor");
    else if (name)
        flux__bad(&z->source, "it holds no tensor %.80s; it has %d: %s", name, z->entries, list);
    else flux__bad(&z->source, "it holds %d tensors, so one must be named: %s", z->entries, list);
    return NULL;
}

FLUX_DEF flux_tensor *flux_load_tensor(const char *path, const char *name) {
    flux__archive z;
    if (!flux__archive_open(&z, "load_tensor", path, NULL)) return NULL;
    int h = flux__hide();
    const flux__entry *e = flux__entry_wanted(&z, name);
    flux_tensor *t = e ? flux__entry_read(&z, e) : NULL;
    flux__archive_close(&z);
    return flux__reveal(h, t);
}

FLUX__END_COLD

#endif /* FLUX__FILES_TORCH_H */
