#ifndef FLUX__DATA_LOADER_H
#define FLUX__DATA_LOADER_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/dtypes.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../base/options.h"
#include "../base/ranks.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/views.h"
#include "../schedule/looking.h"
#include "../device/registry.h"
#include "../device/choosing.h"
#include "orders.h"

/* ---------------------------------------------------------------------- data/loader.h
   Making a loader: flux_dataloader checks its options, takes the arrays or the
   data set, and cuts the observations into batches and into the shares of
   ranks. Adding a stage (flux_mapobs, a move to a device) makes a new loader of
   the same data, which counts its epochs from the start.

   Invariant: the last dim of every array counts observations, and all arrays
   have the same number. Arrays are computed once, when the loader is made, so a
   batch costs a copy. Shares of ranks differ by one observation at most, and
   every rank has the same number of batches, since collectives wait for each
   other. A move is always a stage of its own, also when it is given to
   flux_mapobs as a function, as only a move can be made ahead; a second move
   right after a move replaces it. */

FLUX__BEGIN_COLD

/* Releases the items of a batch; the array of items stays for the next. */
static void flux__made_empty(flux__made *m) {
    for (int i = 0; i < m->count; i++) flux_release(m->item[i]);
    m->count = 0;
    m->error[0] = 0;
}

static void flux__made_free(flux__made *m) {
    flux__made_empty(m);
    flux__free(m->item);
    m->item = NULL;
    m->capacity = 0;
}

/* hook: flux__epoch_free, data/epoch.h */
static void flux__epoch_free(flux__epoch *r);
static void flux__loader_free(flux_loader *l) {
    if (l->run) flux__epoch_free(l->run);
    for (int i = 0; i < l->arrays; i++) flux_release(l->array[i]);
    flux__free(l->array);
    flux__free(l->host);
    flux__free(l->stage);
    flux__free(l->first);
    flux__free(l->until);
    flux__quarantine(l);
}

/* Retains n arrays and computes them, once and here, so that a batch costs a copy only. False: out
   of memory, or an array has no value. */
static bool flux__loader_hold(flux_loader *l, int n, flux_tensor *const *xs) {
    l->array = (flux_tensor **)flux__zalloc((size_t)n * sizeof *l->array);
    l->host = (const char **)flux__zalloc((size_t)n * sizeof *l->host);
    if (!l->array || !l->host) return false;
    for (int i = 0; i < n; i++) l->array[l->arrays++] = (flux_tensor *)flux_retain(xs[i]);
    for (int i = 0; i < n; i++) {
        if (!flux_eval(xs[i])) return false;
        if (flux__in_host_memory(xs[i])) l->host[i] = (const char *)flux_data(xs[i]);
        if (flux__in_host_memory(xs[i]) && !l->host[i] && flux_len(xs[i]) > 0) return false;
    }
    return true;
}

/* Collects the arrays of the options, with tuples taken apart. NULL after the last array is fine;
   between arrays it is an error. Gives their number, -1 on error. */
static int flux__loader_arrays(const flux_loader_opts *o, flux_tensor ***out) {
    flux_tensor *given[] = { o->x, o->y, o->z, o->x3, o->x4, o->x5, o->x6, o->x7 };
    int n = 0, capacity = 0, last = 7;
    while (last > 0 && !given[last]) last--;
    for (int i = 0; i <= last; i++) {
        if (!given[i] && i && !flux__null_explained())
            flux__fail("dataloader: array %d is NULL", i);
        if (!given[i]) return i ? -1 : (flux__null("dataloader", "x", NULL), -1);
        int parts = flux_num_items(given[i]);
        bool tuple = given[i]->op == FLUX__TUPLE;
        flux_tensor **xs = (flux_tensor **)flux__grow(*out, &capacity, n + parts, sizeof *xs);
        if (!xs) return -1;
        *out = xs;
        for (int k = 0; k < parts; k++) xs[n++] = tuple ? given[i]->in[k] : given[i];
    }
    return n;
}

/* Checks that all arrays have the same number of observations, which their last dimension
   counts. */
static bool flux__arrays_agree(int n, flux_tensor *const *xs) {
    for (int i = 0; i < n; i++) {
        if (!xs[i]) return false;
        if (xs[i]->ndim < 1)
            return FLUX__REFUSE("dataloader: array %d has no dimension of observations", i);
        int64_t have = xs[i]->dim[xs[i]->ndim - 1], want = xs[0]->dim[xs[0]->ndim - 1];
        if (have != want)
            return FLUX__REFUSE("dataloader: array 0 has %lld observations, array %d has %lld (the "
                                "last dimension counts them)",
                                (long long)want, i, (long long)have);
    }
    return true;
}

/* Takes the options' arrays or data set as the loader's source and finds the number of
   observations. */
static bool flux__loader_source(flux_loader *l, const flux_loader_opts *o) {
    if (!o->data) {
        flux_tensor **xs = NULL;
        int n = flux__loader_arrays(o, &xs);
        bool good = n > 0 && flux__arrays_agree(n, xs) && flux__loader_hold(l, n, xs);
        if (good) l->total = xs[0]->dim[xs[0]->ndim - 1];
        flux__free(xs);
        return good;
    }
    if (o->x) return FLUX__REFUSE("dataloader: both arrays and .data are given");
    if (!o->data->get || !o->data->length)
        return FLUX__REFUSE("dataloader: the data set has no %s function",
                            o->data->get ? "length" : "get");
    if (o->data->arrays < 1)
        return FLUX__REFUSE("dataloader: the data set's .arrays is %d", o->data->arrays);
    l->set = *o->data;
    int64_t failures = flux__failures();
    l->total = l->set.length(l->set.user);
    if (flux__failed_since(failures)) return false;
    if (l->total < 0)
        return FLUX__REFUSE("dataloader: the data set's length is %lld", (long long)l->total);
    return true;
}

/* Says how many observations the ranks share: all, or with .even a multiple of the ranks. */
static bool flux__loader_deal(flux_loader *l, flux_even even) {
    const int64_t over = l->total % l->ranks;
    if (l->ranks > 1 && l->total < l->ranks)
        return FLUX__REFUSE("dataloader: %lld observations can't be shared by %d ranks",
                            (long long)l->total, l->ranks);
    l->dealt = l->total;
    if (even == FLUX_EVEN_DEFAULT || over == 0) return true;
    const bool drop = even == FLUX_EVEN_DROP;
    l->dealt = drop ? l->total - over : flux__plus(l->total, l->ranks - over);
    if (l->rank == 0)
        flux__note(FLUX_LOG_WARN, "data.even", true,
                   "dataloader: %d ranks can't share %lld observations evenly: "
                   "%s in each epoch: %lld",
                   l->ranks, (long long)l->total, drop ? "left out" : "taken twice",
                   (long long)(drop ? over : l->ranks - over));
    return true;
}

/* Cuts the observations into shares and this rank's share into batches. Shares differ by one
   observation at most. Since collectives wait for each other, every rank gets the number of batches
   that the largest share needs (without partial batches: that the smallest share fills). */
static bool flux__loader_cut(flux_loader *l, int batchsize) {
    int64_t least = l->dealt / l->ranks, over = l->dealt % l->ranks, most = least + (over > 0);
    l->share = least + (l->rank < over);
    l->single = batchsize < 0;
    l->batch = batchsize < 1 ? 1 : batchsize;
    int64_t limit = l->partial ? most : least;
    if (l->batch > limit && l->total > 0) {
        flux__note(FLUX_LOG_WARN, "data.batchsize", true,
                   "dataloader: there are only %lld observations: batchsize %lld becomes %lld",
                   (long long)limit, (long long)l->batch, (long long)limit);
        l->batch = limit;
    }
    if (l->collate == FLUX_COLLATE_NONE && l->batch > 255)       /* the most that a tuple holds */
        return FLUX__REFUSE(
            "dataloader: a batch that is not collated has 255 observations at most, not %lld",
            (long long)l->batch);
    l->batches = l->partial ? most / l->batch + (most % l->batch != 0) : least / l->batch;
    return true;
}

/* Appends a stage to the loader. */
static bool flux__add_stage(flux_loader *l, flux__stage s) {
    flux__stage *more = (flux__stage *)flux__malloc((size_t)(l->stages + 1) * sizeof *more);
    if (!more) return false;
    if (l->stages) memcpy(more, l->stage, (size_t)l->stages * sizeof *more);
    flux__free(l->stage);
    l->stage = more;
    l->stage[l->stages++] = s;
    return true;
}

/* Takes the weights of weighted sampling: sums of them, by which an observation is found. */
static bool flux__loader_weights(flux_loader *l, flux_tensor *w) {
    if (w->op == FLUX__TUPLE || w->ndim != 1 || w->dim[0] != l->total)
        return FLUX__REFUSE("dataloader: .weights is %s, not a vector of one number for each of "
                            "the %lld observations",
                            w->op == FLUX__TUPLE ? "a tuple" : flux__describe(w).s,
                            (long long)l->total);
    const size_t bytes = (size_t)l->total * sizeof *l->until;
    double sum = 0;
    if (!(l->until = (double *)flux__malloc(bytes))) return false;
    int h = flux__hide();
    const bool read = flux_read(flux_to_dtype(flux_detach(w), FLUX_F64), l->until, bytes) == 0;
    flux__reveal_object(h, NULL);
    for (int64_t i = 0; read && i < l->total; i++) {
        if (!(l->until[i] >= 0) || !(l->until[i] < (double)HUGE_VAL))
            return FLUX__REFUSE("dataloader: the weight of observation %lld is %g", (long long)i,
                                l->until[i]);
        l->until[i] = sum += l->until[i];
    }
    if (read && l->total > 0 && !(sum > 0 && sum < (double)HUGE_VAL))
        return FLUX__REFUSE("dataloader: the sum of .weights is %g", sum);
    l->shuffle = true;
    return read;
}

/* Checks the options of flux_dataloader and fills the loader from them. False and an error if they
   are wrong. */
static bool flux__loader_fill(flux_loader *l, const flux_loader_opts *o) {
    int ranks = o->comm ? flux__ranks->size(o->comm) : (int)flux__given_int(o->ranks, o->marked, 1),
        rank = o->comm ? flux__ranks->rank(o->comm) : o->rank,
        batchsize = (int)flux__given_int(o->batchsize, o->marked, 1);
    if (o->comm && (o->rank || flux__is_given_int(o->ranks, o->marked)))
        return FLUX__REFUSE("dataloader: .comm says which rank this is: .rank and .ranks can't");
    if (ranks < 1 || rank < 0 || rank >= ranks)
        return FLUX__REFUSE("dataloader: rank %d of %d does not exist", rank, ranks);
    if (batchsize == 0) return FLUX__REFUSE("dataloader: .batchsize is 0");
    if ((unsigned)o->even > (unsigned)FLUX_EVEN_REPEAT)
        return FLUX__REFUSE("dataloader: .even is %d, which is no FLUX_EVEN_...", (int)o->even);
    if (o->workers < 0 || o->workers > 256)
        return FLUX__REFUSE("dataloader: %d workers; 0 to 256 are possible", o->workers);
    l->ranks = ranks;
    l->comm = o->comm;
    l->rank = rank;
    l->shuffle = o->shuffle;
    l->partial = flux__given_switch(o->partial, o->marked) != FLUX_OFF;
    l->collate = o->collate;
    l->workers = o->workers;
    l->seeded = o->seed != FLUX__NO_SEED && (o->marked || o->seed != 0);
    l->seed = l->seeded ? (uint64_t)o->seed : 0;
    if (o->comm && ranks > 1 &&
        !flux__ranks->seed(o->comm, l->seeded ? l->seed : flux__draw_key(), &l->seed)) return false;
    l->seeded = l->seeded || (o->comm && ranks > 1);
    if (!flux__loader_source(l, o) || !flux__loader_deal(l, o->even) ||
        !flux__loader_cut(l, batchsize) || (o->weights && !flux__loader_weights(l, o->weights)))
        return false;
    FLUX__ZEROED(flux__stage, s);
    s.kind = FLUX__STAGE_TRANSFORM;
    s.transform = o->transform;
    s.user = o->user;
    return !o->transform || flux__add_stage(l, s);
}

FLUX_DEF flux_loader *flux_dataloader_with(flux_loader_opts o) {
    flux_loader *l = (flux_loader *)flux__handle_new(sizeof *l, FLUX__LOADER);
    if (!l) return NULL;
    if (flux__loader_fill(l, &o)) return (flux_loader *)flux__own(l);
    flux__loader_free(l);
    return NULL;
}

/* A loader of the same data with one more stage, s; `replace`: in place of the last stage. It
   counts its epochs from the start. */
static flux_loader *flux__loader_with(const flux_loader *l, flux__stage s, bool replace) {
    flux_loader *copy = (flux_loader *)flux__handle_new(sizeof *copy, FLUX__LOADER);
    if (!copy) return NULL;
    flux__head head = copy->head;
    *copy = *l;
    copy->head = head;
    copy->epoch = 0;
    copy->array = NULL;
    copy->host = NULL;
    copy->stage = NULL;
    copy->first = NULL;
    copy->run = NULL;
    copy->until = NULL;
    copy->arrays = copy->stages = 0;
    bool good = flux__loader_hold(copy, l->arrays, l->array);
    const size_t bytes = (size_t)l->total * sizeof *l->until + 1;
    if (good && l->until) good = (copy->until = (double *)flux__malloc(bytes)) != NULL;
    if (good && l->until) memcpy(copy->until, l->until, bytes - 1);
    for (int i = 0; good && i < l->stages - replace; i++) good = flux__add_stage(copy, l->stage[i]);
    if (good && flux__add_stage(copy, s)) return (flux_loader *)flux__own(copy);
    flux__loader_free(copy);
    return NULL;
}

/* A loader whose batches are moved to d; the data stays where it is. If the last stage is a move,
   this one replaces it. */
static flux_loader *flux__loader_on(flux_loader *l, flux_device d, bool keep_f64) {
    FLUX__ZEROED(flux__stage, s);
    if (!l) return (flux_loader *)flux__null("to", "loader", l);
    s.kind = FLUX__STAGE_MOVE;
    s.device = d;
    s.keep_f64 = keep_f64;
    return flux__loader_with(l, s, l->stages && l->stage[l->stages - 1].kind == FLUX__STAGE_MOVE);
}

/* Where a loader's batches lie: the last move's device, else the arrays'. */
static flux_device flux__loader_device(const flux_loader *l) {
    flux_device cpu = { 0, 0 };
    for (int i = l->stages - 1; i >= 0; i--)
        if (l->stage[i].kind == FLUX__STAGE_MOVE) return l->stage[i].device;
    return l->arrays ? l->array[0]->device : cpu;
}

FLUX_DEF flux_loader *flux_cuiterator(flux_loader *l) {
    if (!l) return (flux_loader *)flux__null("cuiterator", "l", l);
    /* warns why there is no CUDA and gives l */
    if (!flux_functional("CUDA")) return flux_cu_loader(l);
    flux_device d = { FLUX__CUDA_BACKEND, flux__own_gpu(FLUX__CUDA_BACKEND) };
    return flux__loader_on(l, d, true);
}

FLUX_DEF flux_loader *flux_mapobs(flux_fn f, flux_loader *l) {
    flux__stage s;
    if (!l) return (flux_loader *)flux__null("mapobs", "l", l);
    if (!f) return (flux_loader *)flux__null("mapobs", "f", NULL);
    typedef flux_loader *(*whole)(flux_loader *l);
    static const flux_fn move[] = { flux_gpu, flux_cpu, flux_cu, flux_roc };
    static const whole all[] = { flux_gpu_loader, flux_cpu_loader, flux_cu_loader,
                                 flux_roc_loader };
    for (int i = 0; i < 4; i++)
        /* a move can be made ahead of time, a function can't */
        if (f == move[i]) return all[i](l);
    memset(&s, 0, sizeof s);
    s.kind = FLUX__STAGE_MAP;
    s.map = f;
    return flux__loader_with(l, s, false);
}

FLUX_DEF int64_t (flux_length)(const flux_loader *l) {
    if (!l || FLUX__GONE("length", l)) return flux__null("length", "l", l), -1;
    return l->batches;
}

FLUX__END_COLD

#endif /* FLUX__DATA_LOADER_H */
