#ifndef FLUX__FILES_TENSORS_H
#define FLUX__FILES_TENSORS_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/sinks.h"
#include "../base/scopes.h"
#include "../base/text.h"
#include "../graph/elementwise.h"
#include "../schedule/looking.h"
#include "../device/registry.h"
#include "../data/orders.h" /* flux_loader */
#include "../nn/walk.h"
#include "../nn/variables.h"
#include "../nn/state.h"
#include "../nn/adjust.h"
#include "sources.h"
#include "npy.h"
#include "safetensors.h"

/* ---------------------------------------------------------------------- files/tensors.h
   Saving and loading tensors, models and optimiser states as safetensors. A
   save or load call is given things: tensors, layers, states or loaders. A
   flux__list names the tensors that these things hold, in the order in which
   they are visited. Where a call is given several things, the name of each
   thing is the prefix of its tensors' names.

   Invariant: saving computes all tensors before the first byte is written.
   Loading is all or nothing: names, shapes and dtypes are compared, then every
   tensor is read and moved to the device of the tensor that it replaces, and
   only then the first field changes. Where several fields hold the same tensor,
   the file stores it once, under the name of the first field; the other names
   are "tie:" pairs in the metadata. On loading into such fields, the file's
   data for all of them must be equal. Data begin at a multiple of 64 bytes;
   tensors of wide elements come first, so that each tensor lies at a multiple
   of its element size. */

FLUX__BEGIN_COLD

/* One tensor to be saved or loaded. */
typedef struct flux__stored {
    char *name;                           /* owned by the list */
    flux_tensor **field, *x;              /* the field that holds it, or NULL; the tensor */
    const flux_layer *owner;              /* whose field it is; NULL: no layer's */
    int number, first;                    /* this item's number; that of the first with this x */
    bool ties;                            /* sharing x has a meaning: not in optimiser states */
    const flux_state *of;                 /* x is a share of what the file has for this leaf; or */
    int leaf;                             /* NULL */
    uint64_t begin;                       /* byte offset from the start of the file's data */
    flux_tensor *loaded;                  /* the tensor that will replace x, of first items only */
} flux__stored;

/* A tensor, layer, state or loader that a call is given. The name has `length` bytes and no NUL. */
typedef struct flux__thing { const char *name; int length; const void *object; } flux__thing;

typedef struct flux__list {
    const char *call;                     /* name of the public call, for messages */
    const flux__thing *thing;
    int things;
    flux__stored *item;
    int items, capacity;
    const char *prefix;                   /* name of the thing that is visited now; "": none */
    int prefix_length;
    bool ties, failed;                    /* ties: for the items of that thing */
    const flux_state *state;              /* that thing, if it is a state */
} flux__list;

/* Joins a prefix and a path by a dot: "opt" and "layers.0.weight.m" make "opt.layers.0.weight.m".
   Either may be empty. The caller frees the name. */
static char *flux__full_name(const char *prefix, int length, const char *path) {
    size_t n = strlen(path), before = (size_t)length, dot = before && n;
    char *name = (char *)flux__malloc(before + dot + n + 1);
    if (!name) return NULL;
    if (before) memcpy(name, prefix, before);
    if (dot) name[before] = '.';
    memcpy(name + before + dot, path, n + 1);
    return name;
}

/* Appends a tensor to the list; x may be NULL, as of an absent bias, and is not appended then. */
static void flux__list_add(flux__list *l, const char *path, flux_tensor **field,
                           const flux_layer *owner, flux_tensor *x) {
    if (l->failed || !x) return;
    flux__stored *it = (flux__stored *)flux__one_more(&l->item, &l->capacity, l->items, sizeof *it);
    char *name = it ? flux__full_name(l->prefix, l->prefix_length, path) : NULL;
    l->failed = !name;
    if (!name) return;
    memset(it, 0, sizeof *it);
    it->name = name;
    it->field = field;
    it->owner = owner;
    it->x = x;
    it->ties = l->ties;
    if (l->state) it->leaf = flux__shared_leaf(l->state, field);
    if (it->leaf >= 0) it->of = l->state;
    it->number = it->first = l->items++;
}

static void flux__list_free(flux__list *l) {
    for (int i = 0; i < l->items; i++) flux__free(l->item[i].name);
    flux__free(l->item);
}

/* Compares items so that those which share a tensor follow each other, the first one first. */
static int flux__by_tensor(const void *a, const void *b) {
    const flux__stored *x = (const flux__stored *)a, *y = (const flux__stored *)b;
    if (x->ties != y->ties) return x->ties - y->ties;
    if (x->x != y->x) return (uintptr_t)x->x < (uintptr_t)y->x ? -1 : 1;
    return x->number - y->number;
}
static int flux__by_number(const void *a, const void *b) {
    return ((const flux__stored *)a)->number - ((const flux__stored *)b)->number;
}
static int flux__by_item_name(const void *a, const void *b) {
    return strcmp(((const flux__stored *)a)->name, ((const flux__stored *)b)->name);
}

/* Whether two states, or two loaders, have the same name: their pairs in the metadata would have
   the same key. That is an error. */
static bool flux__same_names(const flux__list *l) {
    for (int i = 0; i < l->things; i++)
        for (int k = 0; k < i; k++) {
            const flux__thing *a = &l->thing[i], *b = &l->thing[k];
            int kind = ((const flux__head *)a->object)->kind;
            if (kind != ((const flux__head *)b->object)->kind ||
                (kind != FLUX__STATE && kind != FLUX__LOADER))
                continue;
            if (a->length == b->length && memcmp(a->name, b->name, (size_t)a->length) == 0)
                return flux__fail("%s: two things have the name %.*s", l->call, a->length, a->name),
                       true;
        }
    return false;
}

/* Sets `first` of all items that share a tensor, and checks that no two items have the same name.
   The list is in the order of visits again when this returns true. */
static bool flux__list_finish(flux__list *l) {
    if (l->failed || flux__same_names(l)) return false;
    if (!l->items) return true;
    qsort(l->item, (size_t)l->items, sizeof *l->item, flux__by_tensor);
    for (int i = 1; i < l->items; i++)
        if (l->item[i].ties && l->item[i].x == l->item[i - 1].x)
            l->item[i].first = l->item[i - 1].first;
    qsort(l->item, (size_t)l->items, sizeof *l->item, flux__by_item_name);
    for (int i = 1; i < l->items; i++)
        if (strcmp(l->item[i].name, l->item[i - 1].name) == 0)
            return FLUX__REFUSE("%s: two tensors have the name %.200s", l->call, l->item[i].name);
    qsort(l->item, (size_t)l->items, sizeof *l->item, flux__by_number);
    return true;
}

/* ---------------- safetensors: writing */

/* Puts a JSON string: `before` as it is, then `text` with what JSON forbids escaped. */
static void flux__put_quoted(flux__sink *j, const char *before, const char *text) {
    flux__put(j, "\"");
    flux__put(j, before);
    for (; *text; text++)
        if ((unsigned char)*text >= 32 && *text != '"' && *text != '\\')
            flux__put_bytes(j, text, 1);
        else flux__putf(j, "\\u%04x", (unsigned)(unsigned char)*text);
    flux__put(j, "\"");
}

/* Puts `before`, which ends with "[", the n numbers in reverse, separated by commas, and "]". */
static void flux__put_reversed(flux__sink *j, const char *before, const int64_t *v, int n) {
    flux__put(j, before);
    for (int i = n - 1; i >= 0; i--) flux__putf(j, i ? "%lld," : "%lld", (long long)v[i]);
    flux__put(j, "]");
}

/* Puts a pair into the metadata, which holds numbers that are no tensors; other readers ignore
   them. For a state, "rules:opt" is the text of its rules as flux_print shows them, and
   "rules:opt.layers.0.weight" that of a parameter whose numbers flux_adjust has set apart. For a
   loader, "epoch:loader" is how many epochs it has begun. */
static void flux__put_pair(flux__sink *j, const char *kind, const flux__thing *t, const char *path,
                            const char *value) {
    char *name = flux__full_name(t->name, t->length, path);
    j->failed |= !name;
    if (!name) return;
    flux__put(j, ",");
    flux__put_quoted(j, kind, name);
    flux__put(j, ":");
    flux__put_quoted(j, "", value);
    flux__free(name);
}

/* Puts the pairs of one thing, if it is a loader or a state. */
static void flux__put_beside(flux__sink *j, const flux__thing *t) {
    const flux__head *head = (const flux__head *)t->object;
    char text[6000];                      /* enough for the longest chain of rules */
    if (head->kind == FLUX__LOADER) {
        snprintf(text, sizeof text, "%lld", (long long)((const flux_loader *)t->object)->epoch);
        flux__put_pair(j, "epoch:", t, "", text);
    }
    if (head->kind != FLUX__STATE) return;
    const flux_state *s = (const flux_state *)t->object;
    flux__rules_text(s, NULL, text, sizeof text);
    flux__put_pair(j, "rules:", t, "", text);
    for (int i = 0; i < s->nleaves && !j->failed; i++) {
        if (!flux__leaf_differs(s, i)) continue;
        flux__rules_text(s, &s->o[i * s->nrules], text, sizeof text);
        flux__put_pair(j, "rules:", t, flux__leaf_path(s, i), text);
    }
}

/* Compares items by the place of their data in the file: wide elements before narrow ones, so
   that each tensor lies at a multiple of its element size; then by name. Ties come last, since
   they have no data of their own. */
static int flux__by_layout(const void *a, const void *b) {
    const flux__stored *x = (const flux__stored *)a, *y = (const flux__stored *)b;
    int tied = (x->first != x->number) - (y->first != y->number);
    int size = flux__dtypes[y->x->dtype].size - flux__dtypes[x->x->dtype].size;
    return tied ? tied : size ? size : strcmp(x->name, y->name);
}

/* Writes the heading, padded with blanks so that the data begin at a multiple of 64 bytes. The
   items are in the order of their data; names[i] is the name of the item whose number is i, which
   a tie refers to. Sets `begin` of each item that has data. */
static void flux__put_heading(flux__sink *j, flux__list *l, const char *const *names) {
    uint64_t at = 0;
    flux__put(j, "{\"__metadata__\":{\"flux.h\":\"1\"");
    for (int i = 0; i < l->things; i++) flux__put_beside(j, &l->thing[i]);
    for (int i = 0; i < l->items; i++) {
        if (l->item[i].first == l->item[i].number) continue;
        flux__put(j, ",");
        flux__put_quoted(j, "tie:", l->item[i].name);
        flux__put(j, ":");
        flux__put_quoted(j, "", names[l->item[i].first]);
    }
    flux__put(j, "}");
    for (int i = 0; i < l->items && l->item[i].first == l->item[i].number; i++) {
        flux__stored *it = &l->item[i];
        uint64_t bytes = (uint64_t)flux__size(it->x) * flux__dtypes[it->x->dtype].size;
        int64_t place[2] = { (int64_t)(at + bytes), (int64_t)at };
        it->begin = at;
        at += bytes;
        flux__put(j, ",");
        flux__put_quoted(j, "", it->name);
        flux__put(j, ":{\"dtype\":\"");
        flux__put(j, flux__elements[it->x->dtype].name);
        flux__put_reversed(j, "\",\"shape\":[", it->x->dim, it->x->ndim);
        flux__put_reversed(j, ",\"data_offsets\":[", place, 2);
        flux__put(j, "}");
    }
    flux__put(j, "}");
    flux__put_pad(j, (int64_t)((120 - j->len % 64) % 64));
}

/* Whether a safetensors file can hold all tensors and names of the list; an error if not. */
static bool flux__save_check(const flux__list *l) {
    for (int i = 0; i < l->items; i++) {
        const flux__stored *it = &l->item[i];
        if (!flux__plain(l->call, it->name, it->x)) return false;
        if (flux__utf8(it->name, strlen(it->name)) && strcmp(it->name, "__metadata__") != 0)
            continue;
        return FLUX__REFUSE("%s: a tensor can't have the name %.200s in a safetensors file",
                            l->call, it->name);
    }
    for (int i = 0; i < l->things; i++)
        if (!flux__utf8(l->thing[i].name, (size_t)l->thing[i].length))
            return FLUX__REFUSE("%s: nothing can have the name %.*s in a safetensors file", l->call,
                                l->thing[i].length, l->thing[i].name);
    return true;
}

/* Evaluates all tensors at once, before the file is opened, so that nothing has been written if
   that fails. */
static bool flux__save_compute(const flux__list *l) {
    flux_tensor **xs = (flux_tensor **)flux__malloc((size_t)l->items * sizeof *xs);
    for (int i = 0; xs && i < l->items; i++) xs[i] = l->item[i].x;
    bool good = xs && flux_eval_all(l->items, xs) == 0;
    flux__free(xs);
    return good;
}

/* Writes the elements of one item, fetched to host memory for that time only. */
static bool flux__save_data(flux__out *o, const flux__stored *it) {
    int h = flux__hide();
    const void *data = flux__host_data(it->x);
    bool good = data && flux__write_elements(o, data, (uint64_t)flux__size(it->x),
                                             flux__dtypes[it->x->dtype].size);
    flux__reveal(h, NULL);
    return good;
}

/* Writes the list to a file: the heading's length in 8 bytes, the heading, the data. On an error
   the file that was at that path before is unchanged. */
static bool flux__save_list(flux__list *l, const char *path) {
    flux__sink j = flux__sink_growing();
    unsigned char length[8];
    const char **names = (const char **)flux__malloc((size_t)l->items * sizeof *names);
    bool good = names && flux__save_check(l) && flux__save_compute(l);
    if (good) {
        for (int i = 0; i < l->items; i++) names[i] = l->item[i].name;
        if (l->items) qsort(l->item, (size_t)l->items, sizeof *l->item, flux__by_layout);
        flux__put_heading(&j, l, names);
        good = !j.failed || FLUX__REFUSE("%s: out of memory for the heading", l->call);
        if (good && j.len > FLUX__MAX_HEADING)
            good = FLUX__REFUSE("save: the names and shapes take more than the %d bytes that "
                                "safetensors allows", FLUX__MAX_HEADING);
    }
    flux__free(names);
    flux__out *o = good ? flux__out_open(path, l->call) : NULL;
    good = o != NULL;
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)((uint64_t)j.len >> (8 * i));
    good = good && flux__out_write(o, length, 8) && flux__out_write(o, j.out, j.len);
    for (int i = 0; good && i < l->items && l->item[i].first == l->item[i].number; i++)
        good = flux__save_data(o, &l->item[i]);
    if (good) good = flux__out_commit(o);
    else flux__out_abort(o);
    flux__free(j.out);
    return good;
}

/* ---------------- safetensors: loading */

/* All differences between a file and the list it is loaded into, so that one message names them:
   tensors of another shape or dtype, tensors that the file lacks, and names that the list lacks. */
typedef struct flux__misfit {
    char first[320];                      /* describes the first tensor that differs */
    int differ, missing, unexpected;
    const char *missing_name, *unexpected_name;
} flux__misfit;

/* Compares one item with the file's entry of its name, marks the entry as used, and counts the
   item in m if the file has no such entry, or one of another shape or dtype. */
static void flux__compare_item(const flux__archive *z, const flux__stored *it, flux__misfit *m) {
    flux__entry *e = flux__find(z, it->name);
    if (!e) {
        if (!m->missing++) m->missing_name = it->name;
        return;
    }
    e->used = true;
    flux_shape here = flux__dims(it->of ? it->of->leaf[it->leaf].p : it->x),
               there = flux__entry_shape(e);
    bool same = e->ndim == here.ndim && e->type == &flux__elements[it->x->dtype];
    for (int i = 0; same && i < here.ndim; i++) same = here.dim[i] == there.dim[i];
    if (same || m->differ++) return;
    snprintf(m->first, sizeof m->first, "%.80s is %.90s %s here and %.90s%s %.16s there", it->name,
             flux__shape_text(&here).s, flux__elements[it->x->dtype].name,
             flux__shape_text(&there).s, e->ndim > FLUX_MAX_DIMS ? "x..." : "", e->dtype);
}

/* Counts a name of the file that no item uses as unexpected, if it belongs to one of the n things
   being loaded: its prefix is the thing's name. With n = 0 every name of the file belongs. */
static void flux__compare_name(const char *name, const flux__thing *things, int n,
                               flux__misfit *m) {
    bool ours = n == 0;
    for (int i = 0; i < n; i++) {
        size_t length = (size_t)things[i].length;
        if (strncmp(name, things[i].name, length) == 0 &&
            (name[length] == '.' || name[length] == 0))
            ours = true;
    }
    if (ours && !m->unexpected++) m->unexpected_name = name;
}

/* Whether the file has all tensors of the list, of equal shape and dtype, and of the n things no
   other ones (n = 0: no others at all). If not, one error names all differences. */
static bool flux__compare(const flux__archive *z, const flux__list *l, const flux__thing *things,
                          int n) {
    FLUX__ZEROED(flux__misfit, m);
    char text[720];                       /* enough for the longest text of each part */
    flux__sink s = flux__sink_to(text, sizeof text);
    for (int i = 0; i < l->items; i++) flux__compare_item(z, &l->item[i], &m);
    for (int i = 0; i < z->entries; i++)
        if (!z->entry[i].used) flux__compare_name(z->entry[i].name, things, n, &m);
    for (int i = 0; i < z->pairs; i++)
        if (strncmp(z->pair[i].key, "tie:", 4) == 0 && !z->pair[i].used)
            flux__compare_name(z->pair[i].key + 4, things, n, &m);
    if (!m.differ && !m.missing && !m.unexpected) return true;
    if (m.differ) flux__put(&s, m.first);
    if (m.differ > 1) flux__putf(&s, " (and %d more differ)", m.differ - 1);
    if (m.missing)
        flux__putf(&s, "%s%d missing there (%.60s%s)", s.len ? "; " : "", m.missing,
                   m.missing_name, m.missing > 1 ? ", ..." : "");
    if (m.unexpected)
        flux__putf(&s, "%s%d unknown here (%.60s%s)", s.len ? "; " : "", m.unexpected,
                   m.unexpected_name, m.unexpected > 1 ? ", ..." : "");
    flux__sink_end(&s);
    flux__bad(&z->source, "it does not fit: %s", text);
    return false;
}

/* Reads the tensor of an entry and moves it, or this process's share of it, to the device of the
   item's, which it will replace. */
static flux_tensor *flux__load_placed(flux__archive *z, const flux__entry *e,
                                      const flux__stored *it) {
    int h = flux__hide();
    int64_t failures = flux__failures();
    const flux_tensor *old = it->x;
    flux_tensor *read = flux__entry_read(z, e);
    if (read && it->of) read = flux_copy(flux__own_share(it->of, read));
    flux_tensor *t = read ? flux__placed(read, old->device) : NULL;
    t = t ? flux_eval(t) : NULL;
    if (read && !t && !flux__failed_since(failures))
        flux__bad(&z->source, "%.100s could not be moved to %s", e->name,
                  flux_device_name(old->device));
    return flux__reveal(h, t);
}

/* Reads the tensor that will replace it->x. Where an earlier item holds the same tensor, nothing
   is kept: this checks only that the file's data for both names are equal. */
static bool flux__load_item(flux__archive *z, flux__list *l, flux__stored *it) {
    const flux__stored *first = &l->item[it->first];
    const flux__entry *e = flux__find(z, it->name), *before = flux__find(z, first->name);
    if (it == first) return (it->loaded = flux__load_placed(z, e, it)) != NULL;
    if (e == before) return true;
    int h = flux__hide();
    const flux_tensor *a = flux__entry_read(z, before), *b = a ? flux__entry_read(z, e) : NULL;
    bool same = b && memcmp(a->buf->ptr, b->buf->ptr, a->buf->bytes) == 0;
    flux__reveal(h, NULL);
    if (b && !same)
        flux__bad(&z->source, "%.100s and %.100s are one tensor here, but differ there",
                  first->name, it->name);
    return same;
}

/* The value in the metadata whose key is `kind`, the thing's name and path; NULL: none. */
static const char *flux__beside(const flux__archive *z, const char *kind, const flux__thing *t,
                                const char *path) {
    const flux__remark *p = flux__archive_pair(z, kind, t->name, (size_t)t->length, path);
    return p ? p->value : NULL;
}

/* Checks a loader's epoch in the metadata, and with `take` sets it. It must be there. */
static bool flux__load_epoch(const flux__archive *z, const flux__thing *t, bool take) {
    const char *text = flux__beside(z, "epoch:", t, "");
    flux_loader *l = (flux_loader *)(intptr_t)t->object;
    if (!text)
        return flux__bad(&z->source, "it does not fit: it has no epoch of a loader %.*s", t->length,
                         t->name),
               false;
    if (strspn(text, "0123456789") != strlen(text) || !*text || strlen(text) > 18)
        return flux__bad(&z->source, "the epoch of %.*s is \"%.40s\", no count", t->length, t->name,
                         text),
               false;
    if (take) l->epoch = (int64_t)strtoll(text, NULL, 10);
    return true;
}

/* With `take`, sets a state's numbers (learning rates, decays) from the metadata. Files of earlier
   versions have none. Numbers that were saved by another chain of rules do not apply to this one:
   the state keeps its own, and the call without `take` logs a warning. Neither is an error. */
static void flux__load_rules(const flux__archive *z, const flux__thing *t, bool take) {
    flux_state *s = (flux_state *)(intptr_t)t->object;
    const char *text = flux__beside(z, "rules:", t, "");
    flux_rule_opts all[FLUX_MAX_RULES], own[FLUX_MAX_RULES];
    if (!text) return;
    if (!flux__read_rules(text, s, all)) {
        if (!take)
            flux__note(FLUX_LOG_WARN, "load.rules", false,
                       "load: %s: it was saved by %.160s; "
                       "the numbers of this state stay as they are",
                       flux__short_path(z->source.path), text);
        return;
    }
    for (int r = 0; take && r < s->nrules; r++) s->rule[r].o = all[r];
    for (int i = 0; take && i < s->nleaves; i++) {
        text = flux__beside(z, "rules:", t, flux__leaf_path(s, i));
        memcpy((void *)&s->o[i * s->nrules],
               (void *)(text && flux__read_rules(text, s, own) ? own : all),
               (size_t)s->nrules * sizeof *own);
    }
}

/* Loads the numbers of one thing that are no tensors. It is called twice: first with take = false,
   which checks them and changes nothing, then with take = true, which cannot fail any more. */
static bool flux__load_beside(const flux__archive *z, const flux__thing *t, bool take) {
    const flux__head *head = (const flux__head *)t->object;
    if (head->kind == FLUX__LOADER) return flux__load_epoch(z, t, take);
    if (head->kind == FLUX__STATE) flux__load_rules(z, t, take);
    return true;
}

/* Loads the list from an open file, all or nothing: everything is compared, read and moved before
   the first field changes. `things`, n: see flux__compare. */
static bool flux__load_archive(flux__archive *z, flux__list *l, const flux__thing *things, int n) {
    int h = flux__hide();
    bool good = flux__compare(z, l, things, n);
    for (int i = 0; good && i < l->items; i++) good = flux__load_item(z, l, &l->item[i]);
    for (int i = 0; good && i < l->things; i++) good = flux__load_beside(z, &l->thing[i], false);
    for (int i = 0; good && i < l->things; i++) flux__load_beside(z, &l->thing[i], true);
    for (int i = 0; good && i < l->items; i++) {
        flux_assign(l->item[i].field, l->item[l->item[i].first].loaded);
        flux__show_variable(l->item[i].owner);
    }
    flux__reveal(h, NULL);
    return good;
}

static bool flux__load_list(flux__list *l, const char *path, const flux__thing *things, int n) {
    flux__archive z;
    if (!flux__archive_open(&z, l->call, path, NULL)) return false;
    bool good = flux__load_archive(&z, l, things, n);
    flux__archive_close(&z);
    return good;
}

/* ---------------- safetensors: the calls */

static void flux__list_field(flux_tensor **field, const char *path, bool trained,
                             const flux_layer *owner, void *list) {
    (void)trained;
    flux__list_add((flux__list *)list, path, field, owner, *field);
}

/* Adds the tensors that one thing holds to the list. A tensor cannot be loaded into, since it is
   a value that never changes; for that, and for an object of any other kind, there is an error. */
static bool flux__list_visit(flux__list *l, const flux__thing *t, bool load) {
    const flux__head *head = (const flux__head *)t->object;
    void *object = (void *)(intptr_t)t->object;
    int64_t failures = flux__failures();
    l->prefix = t->name;
    l->prefix_length = t->length;
    l->ties = head->kind != FLUX__STATE;
    l->state = l->ties ? NULL : (const flux_state *)object;
    if (l->state && l->state->ranks > 1 && !load)
        return FLUX__REFUSE("%s: %d ranks keep a share of the state each; flux_distributed_save "
                            "saves all of it", l->call, l->state->ranks);
    if (head->kind == FLUX__LAYER)
        l->failed |= !flux__walk_all((flux_layer *)object, flux__list_field, NULL, l);
    else if (head->kind == FLUX__STATE)
        flux__state_fields((flux_state *)object, flux__list_field, l);
    else if (head->kind == FLUX__TENSOR && !load)
        flux__list_add(l, "", NULL, NULL, (flux_tensor *)object);
    else if (head->kind != FLUX__LOADER) {
        l->failed = true;
        if (head->kind != FLUX__TENSOR)
            flux__fail("%s: %.*s is no tensor, layer, loader or optimiser state", l->call,
                       t->length, t->name);
        else
            flux__fail("%s: %.*s is a tensor, which never changes: "
                       "flux_load_tensor(path, \"%.*s\") makes a new one",
                       l->call, t->length, t->name, t->length, t->name);
    }
    return !l->failed && !flux__failed_since(failures);  /* a state's step counts need memory */
}

/* Saves n things to a file, or loads them from it. 0: done; -1: an error. */
static int flux__files_items(const char *call, const char *path, const flux__thing *things, int n,
                             bool load) {
    flux__list l = { call, things, n, NULL, 0, 0, "", 0, true, false, NULL };
    bool good = true;
    if (!path) return flux__null(call, "path", path), -1;
    const int h = flux__hide();           /* each thing may fail by itself: one sentence is said */
    for (int i = 0; good && i < n; i++) good = flux__list_visit(&l, &things[i], load);
    good = good && flux__list_finish(&l);
    if (!things[0].length) n = 0;         /* one thing without a name: all of the file is its own */
    if (good && load) good = flux__load_list(&l, path, things, n);
    else if (good) good = flux__save_list(&l, path);
    flux__list_free(&l);
    flux__reveal(h, NULL);
    return good ? 0 : -1;
}

/* Saves or loads one thing. With the name "" its tensors' names have no prefix. */
static int flux__files_one(const char *call, const char *arg, const char *name, const void *object,
                           const char *path, bool load) {
    flux__thing t = { name, (int)strlen(name), object };
    if (object) return flux__files_items(call, path, &t, 1, load);
    flux__null(call, arg, object);
    return -1;
}

FLUX_DEF int flux_save_tensor(flux_tensor *x, const char *path) {
    return flux__files_one("save", "x", "tensor", x, path, false);
}
FLUX_DEF int flux_save_layer(flux_layer *m, const char *path) {
    return flux__files_one("save", "m", "", m, path, false);
}
FLUX_DEF int flux_save_state(flux_state *s, const char *path) {
    return flux__files_one("save", "s", "", s, path, false);
}
FLUX_DEF int flux_load_layer(flux_layer *m, const char *path) {
    return flux__files_one("load", "m", "", m, path, true);
}
FLUX_DEF int flux_load_state(flux_state *s, const char *path) {
    return flux__files_one("load", "s", "", s, path, true);
}

/* Makes things of n objects and the text of a call's arguments, "model, opt", from which they have
   their names. The caller frees them; the names point into `names`. NULL: an error. */
static flux__thing *flux__things(const char *call, int n, const char *names,
                                 const void *const *objects) {
    const char *next = names;
    char shown[80];
    if (!names || !objects || n < 1) {
        if (n < 1) flux__fail("%s: %d things were given", call, n);
        else flux__null(call, names ? "items" : "names", NULL);
        return NULL;
    }
    flux__thing *t = (flux__thing *)flux__malloc((size_t)n * sizeof *t);
    bool good = t != NULL;
    for (int i = 0; good && i < n; i++) {
        t[i].name = flux__next_argument(&next, &t[i].length);
        t[i].object = objects[i];
        snprintf(shown, sizeof shown, "%.*s", t[i].length, t[i].name);
        good = t[i].length > 0 && (next != NULL) == (i + 1 < n);
        if (!good) flux__fail("%s: \"%.200s\" does not name %d things", call, names, n);
        else if (!objects[i]) flux__null(call, shown, NULL);
        good = good && objects[i];
    }
    if (good) return t;
    flux__free(t);
    return NULL;
}

/* Saves or loads n things, whose names are in the text of the call's arguments. */
static int flux__files_all(const char *call, const char *path, int n, const char *names,
                           const void *const *objects, bool load) {
    flux__thing *things = flux__things(call, n, names, objects);
    if (!things) return -1;
    int result = flux__files_items(call, path, things, n, load);
    flux__free(things);
    return result;
}

FLUX__END_COLD

#endif /* FLUX__FILES_TENSORS_H */
