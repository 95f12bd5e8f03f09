#ifndef FLUX__DATA_BATCH_H
#define FLUX__DATA_BATCH_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/leaves.h"
#include "../graph/views.h"
#include "../schedule/trace.h"
#include "../schedule/looking.h"
#include "../device/registry.h"
#include "orders.h"
#include "loader.h"

/* ---------------------------------------------------------------------- data/batch.h
   Making one batch: flux__batch_make picks the observations of batch i, joins
   them, and applies the stages. Host arrays are copied row by row; where a move
   to a GPU is the only stage they are picked right into the memory that the
   device copies from; arrays on a device are gathered there.

   Invariant: a batch depends on the loader, the order, the key and its index
   only: the thread's random stream is keyed for the time it is made and
   restored afterwards. A worker makes the stages before the first move, and
   computes what it hands over, since a node that is not computed belongs to its
   thread; the caller makes the rest. On error no item is left; otherwise the
   items are retained and everything else is freed. No graph is kept. All ranks
   have the same number of batches. Where a share is one observation too small
   for the last batch, that batch is the share's last observation, which is
   taken from the batch before; with a batchsize of 1 it comes twice. */

FLUX__BEGIN_LEAN

/* Whether a share fills one batch less than the largest one, which it does if it has one
   observation less and the largest begins its last batch with its last observation. */
static bool flux__share_lacks(const flux_loader *l, int64_t share) {
    return l->partial && l->batches > 1 && (l->batches - 1) * l->batch >= share;
}

/* The number of observations in batch i of a share of this size; *from is its first, counted from
   the start of the share. All ranks have as many batches as the largest share needs. In a share
   that lacks one, the last observation of its last full batch becomes a batch of its own. With a
   batchsize of 1 the last observation comes twice instead. */
static int64_t flux__batch_span(const flux_loader *l, int64_t share, int64_t i, int64_t *from) {
    const bool lacking = flux__share_lacks(l, share);
    int64_t start = i * l->batch, stop = flux__plus(start, l->batch);
    if (lacking && l->batch > 1 && i == l->batches - 2) stop = share - 1;
    if (lacking && i == l->batches - 1) start = share - 1;
    if (stop > share) stop = share;
    *from = start;
    return stop - start;
}

/* How many observations of batch i count: an observation that comes a second time does not. */
static int64_t flux__batch_counts(const flux_loader *l, int64_t share, int64_t i) {
    int64_t from, n = flux__batch_span(l, share, i, &from);
    return l->batch == 1 && i == l->batches - 1 && flux__share_lacks(l, share) ? 0 : n;
}

/* By what the mean over this rank's batch i is multiplied, so that the mean of all ranks' products
   is the mean over their observations: 1 where all ranks have as many. */
static double flux__batch_weight(const flux_loader *l, int64_t i) {
    const int64_t least = l->dealt / l->ranks, over = l->dealt % l->ranks,
                  all = over * flux__batch_counts(l, least + 1, i) +
                        (l->ranks - over) * flux__batch_counts(l, least, i);
    return (double)(flux__batch_counts(l, l->share, i) * l->ranks) / (double)all;
}

/* Copies n observations of `row` bytes each: from[order[0]], from[order[1]], ..., or without an
   order those from `begin` on. */
static void flux__copy_observations(char *to, const char *from, size_t row, const int64_t *order,
                                    int64_t begin, int64_t n) {
    if (!order) memcpy(to, from + (size_t)begin * row, (size_t)n * row);
    else if (row == 1)
        for (int64_t i = 0; i < n; i++) to[i] = from[order[i]];
    else if (row == 4)
        for (int64_t i = 0; i < n; i++) memcpy(to + 4 * i, from + 4 * order[i], 4);
    else if (row == 8)
        for (int64_t i = 0; i < n; i++) memcpy(to + 8 * i, from + 8 * order[i], 8);
    else
        for (int64_t i = 0; i < n; i++)
            memcpy(to + (size_t)i * row, from + (size_t)order[i] * row, row);
}

/* The bytes of one observation of x: of all its dims but the last. */
static size_t flux__row_bytes(const flux_tensor *x) {
    size_t row = flux_dtype_size((flux_dtype)x->dtype);
    for (int i = 0; i < x->ndim - 1; i++) row *= (size_t)x->dim[i];
    return row;
}

/* Where a move to a device is the only stage, observations are copied right into the memory that
   the device copies from. flux__picking is what flux__pick_part, the filler of the back end's fill,
   needs. */
typedef struct flux__picking {
    const char *from;
    size_t row;
    const int64_t *order;
    int64_t begin;
} flux__picking;
/* Writes n bytes of the picked observations, from byte `at` on, to `to`. Both are multiples of a
   row. */
static void flux__pick_part(const void *ctx, char *to, size_t at, size_t n) {
    const flux__picking *p = (const flux__picking *)ctx;
    int64_t first = (int64_t)(at / p->row);
    flux__copy_observations(to, p->from, p->row, p->order ? p->order + first : NULL,
                            p->begin + first, (int64_t)(n / p->row));
}
/* Whether array k can be picked right into the memory that a device copies from: a move is the only
   stage, dtypes agree, and an observation is no larger than a piece of such a copy. When a trace is
   written it is not done. */
static bool flux__picks_away(const flux_loader *l, int k) {
    const flux__stage *s = l->stages == 1 ? &l->stage[0] : NULL;
    const flux_tensor *x = l->array[k];
    if (!s || s->kind != FLUX__STAGE_MOVE || !flux__backend_of(s->device.backend)->fill ||
        (x->dtype == FLUX_F64 && !s->keep_f64))
        return false;
    size_t row = flux__row_bytes(x);
    return flux__in_host_memory(x) && row > 0 && row <= FLUX__PIECE && !flux__tracing();
}
/* n observations of array k as a tensor on the device; NULL and an error if it fails. */
static flux_tensor *flux__pick_away(const flux_loader *l, int k, const int64_t *order,
                                    int64_t begin, int64_t n) {
    flux_shape s = flux_shape_of(l->array[k]);
    flux__picking p = { l->host[k], flux__row_bytes(l->array[k]), order, begin };
    flux_device d = l->stage[0].device;
    s.dim[s.ndim - 1] = n;
    flux_tensor *part = flux__leaf(s, (flux_dtype)l->array[k]->dtype, d);
    bool good = part && flux__backend_of(d.backend)->fill(d.id, part->buf->ptr, (size_t)n * p.row,
                                                          p.row, flux__pick_part, &p) == 0;
    return good ? part : NULL;
}

/* n observations of array k, which is in host memory, as one tensor. n = -1: one observation,
   without the last dimension. */
static flux_tensor *flux__pick_host(const flux_loader *l, int k, const int64_t *order,
                                    int64_t begin, int64_t n) {
    flux_tensor *x = l->array[k];
    /* all observations in their order: no copy is needed */
    if (!order && begin == 0 && n == l->total) return x;
    flux_shape s = flux_shape_of(x);
    size_t row = flux__row_bytes(x);
    if (n < 0) s.ndim--;
    else s.dim[s.ndim - 1] = n;
    flux_tensor *part = flux__leaf(s, (flux_dtype)x->dtype, x->device);
    if (part && row)
        flux__copy_observations((char *)part->buf->ptr, l->host[k], row, order, begin,
                                n < 0 ? 1 : n);
    return part;
}

/* The same for an array on a device: observations are gathered there, and no element comes to the
   host. */
static flux_tensor *flux__pick_device(const flux_loader *l, int k, const int64_t *order,
                                      int64_t begin, int64_t n) {
    flux_tensor *x = l->array[k];
    int last = x->ndim - 1;
    if (n < 0) return flux_select(x, last, order ? order[0] : begin);
    if (!order) return flux_slice(x, last, begin, begin + n);
    return flux_gather(x, last, flux__index_tensor(order, begin, n, x->device));
}

static flux_tensor *flux__pick(const flux_loader *l, int k, const int64_t *order, int64_t begin,
                               int64_t n) {
    if (flux__in_host_memory(l->array[k])) return flux__pick_host(l, k, order, begin, n);
    return flux__pick_device(l, k, order, begin, n);
}

/* n observations of array k as a tuple of n tensors, without the last dimension. */
static flux_tensor *flux__pick_tuple(const flux_loader *l, int k, const int64_t *order,
                                     int64_t begin, int64_t n) {
    flux_tensor **xs = (flux_tensor **)flux__malloc((size_t)n * sizeof *xs);
    bool good = xs != NULL;
    for (int64_t i = 0; good && i < n; i++)
        good = (xs[i] = flux__pick(l, k, order ? order + i : NULL, begin + i, -1)) != NULL;
    flux_tensor *tuple = good ? flux_tuple_with((int)n, xs) : NULL;
    flux__free(xs);
    return tuple;
}

/* Joins array k of n observations of a data set along a new last dimension: shape s becomes s x n.
   obs has all arrays of the first observation, then those of the second, and so on. An error if
   shapes or dtypes differ. */
static flux_tensor *flux__batch_join(const flux_loader *l, int k, flux_tensor **obs, int64_t n) {
    flux_tensor *a = obs[k], *whole = NULL;
    flux_shape s = flux_shape_of(a);
    int64_t step = l->set.arrays;
    bool host = true;
    if (s.ndim == FLUX_MAX_DIMS)
        return (flux_tensor *)flux__fail(
            "dataloader: array %d of an observation has %d dimensions: no room for the batch's", k,
            s.ndim);
    for (int64_t i = 0; i < n; i++) {
        flux_tensor *b = obs[i * step + k];
        flux_shape t = flux_shape_of(b);
        if (t.ndim != s.ndim || memcmp(t.dim, s.dim, (size_t)s.ndim * sizeof s.dim[0]) != 0 ||
            b->dtype != a->dtype)
            return (flux_tensor *)flux__fail("dataloader: array %d of observation %lld of a batch "
                                             "has another shape or dtype than that of its first",
                                             k, (long long)i);
        if (!flux__in_host_memory(b)) host = false;
    }
    s.dim[s.ndim++] = n;
    if (!host) {
        flux_tensor **xs = (flux_tensor **)flux__malloc((size_t)n * sizeof *xs);
        for (int64_t i = 0; xs && i < n; i++) xs[i] = obs[i * step + k];
        if (xs) whole = flux_stack_with(s.ndim - 1, (int)n, xs);
        flux__free(xs);
        return whole;
    }
    whole = flux__leaf(s, (flux_dtype)a->dtype, a->device);
    size_t row = (size_t)flux_len(a) * flux_dtype_size((flux_dtype)a->dtype);
    for (int64_t i = 0; whole && row && i < n; i++) {
        const void *p = flux_data(obs[i * step + k]);
        if (!p) return NULL;
        memcpy((char *)whole->buf->ptr + (size_t)i * row, p, row);
    }
    return whole;
}

/* Gets observation i of the user's data set; its arrays go to out. */
static bool flux__observation(const flux_loader *l, int64_t i, flux_tensor **out) {
    int width = l->set.arrays;
    for (int k = 0; k < width; k++) out[k] = NULL;
    int64_t failures = flux__failures();
    int code = l->set.get(l->set.user, i, width, out);
    if (flux__failed_since(failures)) return false;
    if (code)
        return FLUX__REFUSE("dataloader: the data set's get gave %d for observation %lld", code,
                            (long long)i);
    for (int k = 0; k < width; k++)
        if (!out[k])
            return FLUX__REFUSE(
                "dataloader: the data set's get left array %d of observation %lld NULL", k,
                (long long)i);
    return true;
}

/* Fills m with n observations of the user's data set: each array as one tensor, as a tuple of n
   tensors where they are not collated, or alone where a batch is a single observation. */
static bool flux__batch_own(const flux_loader *l, const int64_t *order, int64_t begin, int64_t n,
                            flux__made *m) {
    int64_t step = l->set.arrays;
    flux_tensor **obs = (flux_tensor **)flux__malloc(
        (size_t)flux__times(flux__times(n, step), (int64_t)sizeof *obs));
    flux_tensor **one = obs ? (flux_tensor **)flux__malloc((size_t)n * sizeof *one) : NULL;
    bool good = obs && one;
    for (int64_t i = 0; good && i < n; i++)
        good = flux__observation(l, order ? order[i] : begin + i, obs + i * step);
    for (int k = 0; good && k < l->set.arrays; k++) {
        for (int64_t i = 0; i < n; i++) one[i] = obs[i * step + k];
        if (l->single) m->item[k] = one[0];
        else if (l->collate == FLUX_COLLATE_NONE) m->item[k] = flux_tuple_with((int)n, one);
        else m->item[k] = flux__batch_join(l, k, obs, n);
        good = m->item[k] != NULL;
    }
    flux__free(obs);
    flux__free(one);
    return good;
}

/* Fills m with n observations of the loader's arrays, in the same three forms. */
static bool flux__batch_arrays(const flux_loader *l, const int64_t *order, int64_t begin, int64_t n,
                               bool worker, flux__made *m) {
    bool whole = !l->single && l->collate != FLUX_COLLATE_NONE;
    for (int k = 0; k < l->arrays; k++) {
        if (!worker && whole && flux__picks_away(l, k))
            m->item[k] = flux__pick_away(l, k, order, begin, n);
        else if (l->single) m->item[k] = flux__pick(l, k, order, begin, -1);
        else if (l->collate == FLUX_COLLATE_NONE)
            m->item[k] = flux__pick_tuple(l, k, order, begin, n);
        else m->item[k] = flux__pick(l, k, order, begin, n);
        if (!m->item[k]) return false;
    }
    return true;
}

/* A made batch as the user sees it; the items stay with m. */
static flux_batch flux__as_batch(const flux__made *m) {
    flux_batch b;
    b.x = m->count > 0 ? m->item[0] : NULL;
    b.y = m->count > 1 ? m->item[1] : NULL;
    b.item = m->item;
    b.count = m->count;
    b.index = m->index;
    b.size = m->size;
    return b;
}

/* Applies a transform to a batch. The new items are those that it gave, but where it set .x or .y,
   these are items 0 and 1. */
static bool flux__stage_transform(const flux__stage *s, flux__made *m) {
    int64_t failures = flux__failures();
    flux_batch was = flux__as_batch(m), b = s->transform(was, s->user);
    int n = b.count;
    if (flux__failed_since(failures)) return false;
    /* .y was set, which adds a second array, or cleared, which removes it */
    if (n == was.count && n == 1 && b.y) n = 2;
    if (n == was.count && n == 2 && was.y && !b.y) n = 1;
    if (n < 1 || !b.x || !b.item)
        return FLUX__REFUSE("dataloader: the transform gave no array for batch %lld",
                            (long long)m->index);
    flux_tensor **item = (flux_tensor **)flux__malloc((size_t)n * sizeof *item);
    if (!item) return false;
    for (int i = 0; i < n; i++) item[i] = i < b.count ? b.item[i] : NULL;
    if (b.x != was.x || !item[0]) item[0] = b.x;
    if (n > 1 && (b.y != was.y || !item[1])) item[1] = b.y;
    flux_tensor **grown = (flux_tensor **)flux__grow(m->item, &m->capacity, n, sizeof *grown);
    bool good = grown != NULL;
    if (good) m->item = grown;
    for (int i = 0; good && i < n; i++) {
        m->item[i] = item[i];
        if (item[i]) continue;
        good = FLUX__REFUSE("dataloader: the transform left array %d of batch %lld NULL", i,
                            (long long)m->index);
    }
    m->count = good ? n : 0;
    m->size = b.size;
    flux__free(item);
    return good;
}

/* Applies a function or a move to one tensor. A move to a device makes f32 of f64, unless the stage
   keeps f64. */
static flux_tensor *flux__stage_one(const flux__stage *s, flux_tensor *x) {
    if (s->kind == FLUX__STAGE_MAP) return s->map(x);
    if (x->dtype == FLUX_F64 && !s->keep_f64 && s->device.backend != FLUX__CPU_BACKEND)
        x = flux_to_dtype(x, FLUX_F32);
    return flux__same_device(x->device, s->device) ? x : flux__move(x, s->device);
}

/* Applies a function or a move to an item: to a tensor, or to all tensors of a tuple. */
static flux_tensor *flux__stage_each(const flux__stage *s, flux_tensor *x) {
    int n = flux_num_items(x);
    if (x->op != FLUX__TUPLE) return flux__stage_one(s, x);
    flux_tensor **xs = (flux_tensor **)flux__malloc((size_t)n * sizeof *xs);
    if (!xs) return NULL;
    for (int i = 0; i < n; i++) xs[i] = flux__stage_one(s, flux_nth(x, i));
    flux_tensor *tuple = flux_tuple_with(n, xs);
    flux__free(xs);
    return tuple;
}

/* Applies the stages from m->stage on: all of them, or on a worker those before the first move. */
static bool flux__batch_stages(const flux_loader *l, flux__made *m, bool worker) {
    for (; m->stage < l->stages; m->stage++) {
        const flux__stage *s = &l->stage[m->stage];
        if (worker && s->kind == FLUX__STAGE_MOVE) break;
        if (s->kind == FLUX__STAGE_TRANSFORM) {
            if (!flux__stage_transform(s, m)) return false;
            continue;
        }
        for (int k = 0; k < m->count; k++) {
            int64_t failures = flux__failures();
            m->item[k] = flux__stage_each(s, m->item[k]);
            if (!m->item[k] && !flux__failed_since(failures))
                flux__fail("mapobs: the function gave NULL for array %d", k);
            if (!m->item[k]) return false;
        }
    }
    return true;
}

/* Picks the observations of batch `index`, before any stage. */
static bool flux__batch_items(const flux_loader *l, const int64_t *order, int64_t index,
                              bool worker, flux__made *m) {
    int width = l->set.get ? l->set.arrays : l->arrays;
    flux_tensor **item = (flux_tensor **)flux__grow(m->item, &m->capacity, width, sizeof *item);
    if (!item) return false;
    int64_t from, n = flux__batch_span(l, l->share, index, &from);
    const int64_t *own = order ? order + from : NULL;
    m->item = item;
    m->index = index;
    m->size = n;
    m->stage = 0;
    m->count = width;
    return l->set.get ? flux__batch_own(l, own, from, n, m)
                      : flux__batch_arrays(l, own, from, n, worker, m);
}

/* Computes an item, or all tensors of a tuple. What is handed to another thread must be computed,
   since a node that is not belongs to its thread. A move to a device starts now, not when the batch
   is needed. */
static bool flux__batch_computed(flux_tensor *x) {
    bool good = x->op == FLUX__TUPLE || flux_eval(x) != NULL;
    for (int i = 0; good && x->op == FLUX__TUPLE && i < x->nin; i++)
        good = flux_eval(x->in[i]) != NULL;
    return good;
}

/* Makes batch `index` of the epoch that order and key stand for, or, with go_on, applies the
   remaining stages to a batch that a worker began. The items are retained and everything else is
   freed; on error there are no items. No graph is kept. */
static bool flux__batch_make(const flux_loader *l, const int64_t *order, uint64_t key,
                             int64_t index, bool worker, bool go_on, flux__made *m) {
    flux__thread *t = flux__self();
    bool good = true, moves = l->stages && l->stage[l->stages - 1].kind == FLUX__STAGE_MOVE;
    if (!t) return false;
    uint64_t seed = t->seed, draws = t->draws;
    flux__block scope = flux__block_enter(true, true, NULL, 0);
    t->seed = flux__scramble(key + (uint64_t)index);
    /* a part of the batch's own random stream that the worker does not use */
    t->draws = go_on ? (uint64_t)1 << 32 : 0;
    for (int i = 0; go_on && i < m->count; i++)  /* the scope owns the old items from here on */
        if (!flux__own(m->item[i])) good = false;
    good = good && (go_on || flux__batch_items(l, order, index, worker, m)) &&
           flux__batch_stages(l, m, worker);
    for (int i = 0; good && (worker || moves) && i < m->count; i++)
        good = flux__batch_computed(m->item[i]);
    if (!good) m->count = 0;
    for (int i = 0; i < m->count; i++) flux_retain(m->item[i]);
    flux__block_leave(&scope);
    t->seed = seed;
    t->draws = draws;
    return good;
}

FLUX_DEF flux_batch flux_first(flux_loader *l) {
    FLUX__ZEROED(flux__made, m);
    FLUX__ZEROED(flux_batch, none);
    if (!l) return flux__null("first", "l", l), none;
    if (l->batches < 1) return flux__fail("first: the loader has no batches"), none;
    int64_t *order = l->ranks > 1 ? flux__share_order(l, NULL) : NULL;
    const bool made = (order || l->ranks == 1) &&
                      flux__batch_make(l, order, flux__scramble(l->seed), 0, false, false, &m);
    flux__free(order);
    if (made) {
        flux__free(l->first);
        l->first = m.item;
        for (int i = 0; i < m.count; i++) flux__own(m.item[i]);
        return flux__as_batch(&m);
    }
    flux__made_free(&m);
    return none;
}

FLUX__END_LEAN

#endif /* FLUX__DATA_BATCH_H */
