#ifndef FLUX__BASE_MEMORY_H
#define FLUX__BASE_MEMORY_H
#include "platform.h"
#include "threads.h"
#include "object.h"
#include "text.h"
#include "errors.h"
#include "backend.h"
#include "dtypes.h"

/* ---------------------------------------------------------------------- base/memory.h
   Memory: allocation of the library's own data, where running out is an error
   (flux__malloc, flux__grow); flux__hashmap, a hash table keyed by address; and
   the buffers that hold tensors' elements, from one caching pool per device
   (flux__class_pool, an array indexed by back end and device id).

   Invariant: a freed buffer stays in its device's pool under its size class, so
   that a training step that repeats allocates nothing. Size classes grow in
   eighths of a power of two, so at most an eighth of a buffer is wasted. On a
   GPU the spare buffer of lowest address is taken first (roughly so where a
   class has very many), in whatever order they were freed: a repeated step gets
   the same addresses, and its launches can be replayed. Live buffers form a
   list, from which an out-of-memory error names the largest. A borrowed buffer
   is the user's own memory: it is never written and never freed.

   Rejected: one lock for all pools, since freeing memory may mean waiting for a
   device; each pool has its own. */

/* hook: flux_device_name, device/registry.h */

FLUX__BEGIN_HOT

static void *flux__malloc(size_t bytes);  /* NULL: "out of memory: N bytes" is recorded */
static void *flux__zalloc(size_t bytes);
static void *flux__grow_more(void *array, int *capacity, int want, size_t size);
/* The array, reallocated if it needs to be, with *capacity for `want` elements of `size`
   bytes. NULL is an error, and the array is as it was. */
static FLUX__INLINE void *flux__grow(void *array, int *capacity, int want, size_t size) {
    return want <= *capacity ? array : flux__grow_more(array, capacity, want, size);
}

/* ---------------- host memory of the library's own */

static void *flux__malloc(size_t bytes) {
    void *p = FLUX_MALLOC(bytes ? bytes : 1);
    if (!p) flux__fail("out of memory: %zu bytes", bytes);
    return p;
}

static void *flux__zalloc(size_t bytes) {
    void *p = flux__malloc(bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

/* Makes room for one more element in an array of n. array: the address of the pointer to it, of
   whatever type, which is set. Returns the new element; NULL is an error, and all is as it was. */
static void *flux__one_more(void *array, int *capacity, int n, size_t size) {
    void *p;
    memcpy(&p, array, sizeof p);
    p = flux__grow(p, capacity, n + 1, size);
    if (!p) return NULL;
    memcpy(array, &p, sizeof p);
    return (char *)p + (size_t)n * size;
}

/* A copy of a text, which the caller frees; NULL is an error. */
static char *flux__copy_text(const char *text) {
    const size_t n = strlen(text) + 1;
    char *copy = (char *)flux__malloc(n);
    return copy ? (char *)memcpy(copy, text, n) : NULL;
}

/* A handle of this kind, its other bytes zeroed, with one reference; NULL is an error. */
static void *flux__handle_new(size_t bytes, int kind) {
    flux__head *h = (flux__head *)flux__zalloc(bytes);
    if (h) h->kind = kind, h->refs = 1;
    return h;
}

#ifndef FLUX__EXACT_BLOCKS                /* tests have blocks as long as what they hold (counted.h) */
#  define FLUX__EXACT_BLOCKS false
#endif
static void *flux__grow_more(void *array, int *capacity, int want, size_t size) {
    int more = *capacity < 32 ? 64 : *capacity * 2;
    if (more < want || (FLUX__EXACT_BLOCKS && want < 1000)) more = want;
    void *p = FLUX_REALLOC(array, (size_t)more * size);
    if (!p) return flux__fail("out of memory: %zu bytes", (size_t)more * size);
    *capacity = more;
    return p;
}

/* ---------------- a hash map whose keys are addresses
   Open addressing with linear probing; capacity is a power of two, at least 2 count. */

/* The pair of this key, or the empty pair (key NULL) where the key belongs. p->at is not NULL. */
static flux__pair *flux__hashmap_find(const flux__hashmap *p, const void *key) {
    size_t i = (size_t)(((uint64_t)(uintptr_t)key >> 4) * 0x9e3779b97f4a7c15u >> 20);
    while (p->at[i & (p->capacity - 1)].key && p->at[i & (p->capacity - 1)].key != key) i++;
    return &p->at[i & (p->capacity - 1)];
}

static bool flux__hashmap_has(const flux__hashmap *p, const void *key) {
    return p->at && flux__hashmap_find(p, key)->key;
}
static void *flux__hashmap_get(const flux__hashmap *p, const void *key) {
    return p->at ? flux__hashmap_find(p, key)->value : NULL;
}

/* The pair of this key. If there is none, it is added with value NULL and *fresh becomes true. The
   address holds until the next call. NULL: out of memory. */
static flux__pair *flux__hashmap_at(flux__hashmap *p, const void *key, bool *fresh) {
    if (2 * (p->count + 1) > p->capacity) {
        flux__hashmap more;
        more.capacity = p->capacity ? 2 * p->capacity : 32;
        more.count = p->count;
        more.at = (flux__pair *)flux__zalloc(more.capacity * sizeof *more.at);
        if (!more.at) return NULL;
        for (size_t i = 0; i < p->capacity; i++)
            if (p->at[i].key) *flux__hashmap_find(&more, p->at[i].key) = p->at[i];
        flux__free(p->at);
        *p = more;
    }
    flux__pair *pair = flux__hashmap_find(p, key);
    *fresh = !pair->key;
    if (*fresh) {
        pair->key = key;
        p->count++;
    }
    return pair;
}

static void flux__hashmap_free(flux__hashmap *p) {
    flux__free(p->at);
    memset(p, 0, sizeof *p);
}

/* ---------------- buffers: a pool of freed ones by size class, for each device */

#define FLUX__MAX_IDS 16
#define FLUX__SIZES 256

typedef struct flux__class_pool {
    flux__buffer *spare[FLUX__SIZES];     /* freed buffers by class; refs: address of the next */
    flux__buffer *live;                   /* those in use, linked by before and after */
    flux_mem stats;
    int64_t looked;                       /* when stats.live is above flux__scope_most + looked,
                                             flux__scopes_look is due: a scope may hold too much */
} flux__class_pool;
static flux__class_pool flux__class_pools[FLUX__BACKENDS][FLUX__MAX_IDS];
static int64_t flux__scope_most = (int64_t)1 << 30;     /* bytes that a scope may hold unwarned */

/* Each pool has its own lock (at the same place of flux__class_pool_locks), since freeing device
   memory may wait for the device. FLUX__MAX_LOCKS initialises FLUX__MAX_IDS locks. */
#define FLUX__FOUR_LOCKS FLUX__MUTEX_INIT, FLUX__MUTEX_INIT, FLUX__MUTEX_INIT, FLUX__MUTEX_INIT
#define FLUX__MAX_LOCKS { FLUX__FOUR_LOCKS, FLUX__FOUR_LOCKS, FLUX__FOUR_LOCKS, FLUX__FOUR_LOCKS }
static flux__mutex flux__class_pool_locks[FLUX__BACKENDS][FLUX__MAX_IDS] = {
    FLUX__MAX_LOCKS, FLUX__MAX_LOCKS, FLUX__MAX_LOCKS, FLUX__MAX_LOCKS };

/* The pool of a device that exists. */
static FLUX__INLINE flux__class_pool *flux__class_pool_at(flux_device d) {
    return &flux__class_pools[d.backend][d.id];
}
static void flux__class_pool_lock(const flux__class_pool *pool) {
    flux__mutex_lock(&flux__class_pool_locks[0][0] + (pool - &flux__class_pools[0][0]));
}
static void flux__class_pool_unlock(const flux__class_pool *pool) {
    flux__mutex_unlock(&flux__class_pool_locks[0][0] + (pool - &flux__class_pools[0][0]));
}

/* The size class of so many bytes; *capacity: the size in bytes of its buffers. They grow in
   eighths of a power of two, from 64 bytes, so at most an eighth of a buffer is wasted. */
static FLUX__INLINE int flux__size_class(size_t bytes, size_t *capacity) {
    size_t unit = (bytes + 63) / 64, top = 1;
    int power = 0;
    if (unit == 0) unit = 1;
    while (top * 2 <= unit) top *= 2, power++;
    size_t step = top < 8 ? 1 : top / 8, k = (unit - top + step - 1) / step;
    if (k == 8 || (step == 1 && k == top)) k = 0, power++, top *= 2, step = top < 8 ? 1 : top / 8;
    *capacity = (top + k * step) * 64;
    return power * 8 + (int)k;
}

/* Frees all spare buffers of a pool whose lock the caller holds. */
static FLUX__COLD void flux__class_pool_trim(flux_device d, flux__class_pool *pool) {
    for (int i = 0; i < FLUX__SIZES; i++)
        while (pool->spare[i]) {
            flux__buffer *b = pool->spare[i];
            pool->spare[i] = (flux__buffer *)(intptr_t)b->refs;
            pool->stats.reserved -= (int64_t)b->capacity;
            if (!d.backend) FLUX__UNPOISON(b->ptr, b->capacity);
            flux__backend_of(d.backend)->free(d.id, b->ptr, b->capacity);
            flux__free(b);
        }
}

/* A buffer of size class size_class (capacity bytes): a spare one, or a new one. If the limit of
   flux_mem_limit is reached or the device has no memory, the spare buffers are freed and the
   allocation is tried again. NULL: out of memory, not yet recorded as an error. The caller holds
   the pool's lock. */
static flux__buffer *flux__class_pool_take(flux_device d, flux__class_pool *pool, int size_class,
                                            size_t capacity) {
    flux__buffer *b = pool->spare[size_class];
    if (b) {
        FLUX__ASSERT(b->size_class == size_class && b->capacity == capacity);
        pool->spare[size_class] = (flux__buffer *)(intptr_t)b->refs;
        if (!d.backend) FLUX__UNPOISON(b->ptr, b->capacity);
        return b;
    }
    int64_t limit = pool->stats.limit;
    if (limit && pool->stats.reserved + (int64_t)capacity > limit) flux__class_pool_trim(d, pool);
    if (limit && pool->stats.reserved + (int64_t)capacity > limit) return NULL;
    b = (flux__buffer *)FLUX_MALLOC(sizeof *b);
    if (!b) return NULL;
    int64_t failures = flux__failures();
    b->ptr = flux__backend_of(d.backend)->alloc(d.id, capacity);
    if (!b->ptr && !flux__failed_since(failures)) {       /* out of memory; no other error */
        flux__class_pool_trim(d, pool);
        b->ptr = flux__backend_of(d.backend)->alloc(d.id, capacity);
    }
    if (!b->ptr) {
        flux__free(b);
        return NULL;
    }
    pool->stats.reserved += (int64_t)capacity;
    b->capacity = capacity;
    b->size_class = size_class;
    return b;
}

/* Puts a freed buffer among the spare ones of its class. A GPU's are kept in order of address, so
   that flux__class_pool_take gives the lowest first: a step that repeats then gets the same
   addresses, in whatever order its buffers were freed, and its graph of launches (a CUDA graph)
   can run again unchanged. The search for the place ends after 256 buffers, beyond which the order
   is only roughly kept. */
static void flux__class_pool_give(flux__class_pool *pool, int size_class, flux__buffer *b) {
    flux__buffer *before = NULL, *next = pool->spare[size_class];
    for (int i = 0; i < 256 && next && b->device.backend &&
                    (uintptr_t)next->ptr < (uintptr_t)b->ptr; i++)
        before = next, next = (flux__buffer *)(intptr_t)next->refs;
    b->refs = (int64_t)(intptr_t)next;
    if (!b->device.backend) FLUX__POISON(b->ptr, b->capacity);
    if (before) before->refs = (int64_t)(intptr_t)b;
    else pool->spare[size_class] = b;
}

/* Adds a buffer to its pool's list of live ones. */
static void flux__buffer_join(flux__class_pool *pool, flux__buffer *b) {
    b->before = NULL;
    b->after = pool->live;
    if (pool->live) pool->live->before = b;
    pool->live = b;
}

/* Takes a buffer out of its pool's list of live ones. */
static void flux__buffer_part(flux__class_pool *pool, flux__buffer *b) {
    FLUX__ASSERT(b->before ? b->before->after == b : pool->live == b);
    if (b->before) b->before->after = b->after;
    else pool->live = b->after;
    if (b->after) b->after->before = b->before;
}

/* Records dtype and shape of the tensor whose value the buffer holds, for messages about memory.
   The caller holds the pool's lock. */
static void flux__buffer_label(flux__buffer *b, const flux_tensor *x, size_t bytes) {
    b->bytes = bytes;
    b->ndim = x->ndim;
    b->dtype = x->dtype;
    memcpy(b->dim, x->dim, sizeof b->dim);
}

/* Whether flux__buffer_label would change nothing. It needs no lock, since only the buffer's owner
   labels it. */
static bool flux__buffer_labelled(const flux__buffer *b, const flux_tensor *x, size_t bytes) {
    return b->bytes == bytes && b->ndim == x->ndim && b->dtype == x->dtype &&
           memcmp(b->dim, x->dim, sizeof b->dim) == 0;
}

/* A number of bytes as text: "1.50 MiB". */
static FLUX__COLD flux__text flux__bytes_text(double bytes) {
    static const char *const units[] = { "bytes", "KiB", "MiB", "GiB", "TiB" };
    flux__text t;
    int u = 0;
    while (u < 4 && bytes >= 1024) bytes /= 1024, u++;
    snprintf(t.s, sizeof t.s, u ? "%.2f %s" : "%.0f %s", bytes, units[u]);
    return t;
}

/* Writes the three largest sizes of live buffers and how many have each, as in
   "f32 1024x1024 (4.00 MiB), 2 x f32 512x512 (1.00 MiB)". The caller holds the pool's lock. */
static FLUX__COLD void flux__class_pool_largest(const flux__class_pool *pool, char *out, size_t n) {
    const flux__buffer *last = NULL;
    flux__sink s = flux__sink_to(out, n);
    for (int i = 0; i < 3 && s.len + 120 < n; i++) {
        const flux__buffer *most = NULL;
        int count = 0;
        for (const flux__buffer *b = pool->live; b; b = b->after)
            if ((!last || b->bytes < last->bytes) && (!most || b->bytes > most->bytes)) most = b;
        for (const flux__buffer *b = pool->live; b && most; b = b->after)
            count += b->bytes == most->bytes;
        if (!most) break;
        if (i) flux__put(&s, ", ");
        if (count > 1) flux__putf(&s, "%d x ", count);
        if (most->ndim >= 0) flux__putf(&s, "%s ", flux_dtype_name((flux_dtype)most->dtype));
        for (int d = 0; d < most->ndim; d++)
            flux__putf(&s, d ? "x%lld" : "%lld", (long long)most->dim[d]);
        flux__putf(&s, most->ndim > 0 ? " (%s)" : "(%s)", flux__bytes_text((double)most->bytes).s);
        last = most;
    }
    flux__sink_end(&s);
}

/* Records the out-of-memory error of a device: the bytes asked for, what is in use, held or free
   there, and the largest buffers in use (`largest`, from flux__class_pool_largest). Returns
   NULL. */
static FLUX__COLD flux__buffer *flux__no_room(flux_device d, size_t bytes, flux_mem now,
                                              const char *largest) {
    char capacity[280] = "";
    size_t available = 0, total = 0;
    const flux__backend *b = flux__backend_of(d.backend);
    if (now.limit)
        snprintf(capacity, sizeof capacity, ", under the limit of flux_mem_limit, %s",
                 flux__bytes_text((double)now.limit).s);
    else if (b->memory && b->memory(d.id, &available, &total) == 0)
        snprintf(capacity, sizeof capacity, "; %s of %s are free there",
                 flux__bytes_text((double)available).s, flux__bytes_text((double)total).s);
    return (flux__buffer *)flux__fail(
        "out of memory on %s: %zu bytes asked for (%s), %s in use, %s held%s%s%s",
        flux_device_name(d), bytes, flux__bytes_text((double)bytes).s,
        flux__bytes_text((double)now.live).s, flux__bytes_text((double)now.reserved).s, capacity,
        *largest ? "; the largest: " : "", largest);
}

/* A buffer of at least `bytes` bytes with one reference; NULL: there is no memory, which is not yet
   an error. for_whom: the tensor whose value it will hold, or NULL. */
static flux__buffer *flux__buffer_try(flux_device d, size_t bytes, const flux_tensor *for_whom) {
    size_t capacity;
    bool look = false;
    int size_class = flux__size_class(bytes, &capacity);
    flux__class_pool *pool = flux__class_pool_at(d);
    flux__hold();
    flux__class_pool_lock(pool);
    flux__buffer *b = flux__class_pool_take(d, pool, size_class, capacity);
    if (b) {
        pool->stats.live += (int64_t)capacity;
        if (pool->stats.live > pool->stats.peak) pool->stats.peak = pool->stats.live;
        look = pool->stats.live - flux__scope_most > pool->looked;
        if (look) pool->looked = pool->stats.live + pool->stats.live / 16 - flux__scope_most;
        b->bytes = bytes;
        b->ndim = -1;
        b->kept = NULL;                   /* before another thread finds it in the list */
        if (for_whom) flux__buffer_label(b, for_whom, bytes);
        flux__buffer_join(pool, b);
    }
    flux__class_pool_unlock(pool);
    flux__tell();
    if (!b) return NULL;
    if (look && flux__self()) flux__self()->look = true;
    if (!d.backend) FLUX__POISON((char *)b->ptr + bytes, capacity - bytes);
    b->refs = 1;
    b->device = d;
    b->borrowed = false;
    return b;
}

static int64_t flux__kept_bytes;          /* atomic: bytes of all copies that buffers keep */

/* Takes the copies of a buffer's elements in other orders from it, all but those that are being
   made, and puts them before `list`. Returns the list. The caller holds the pool's lock. */
static flux__kept *flux__kept_take(flux__buffer *b, flux__kept *list) {
    flux__kept **at = &b->kept, *kept;
    while ((kept = *at) != NULL) {
        if (kept->state == FLUX__KEPT_MAKING) {
            at = &kept->next;
            continue;
        }
        flux__show_kept(at, kept->next);
        kept->next = list, list = kept;
    }
    return list;
}

static void flux__buffer_release(flux__buffer *b);
/* Frees a list of copies. The caller holds no lock. */
static FLUX__COLD void flux__kept_free(flux__kept *list) {
    for (flux__kept *kept; (kept = list) != NULL;) {
        list = kept->next;
        if (kept->copy) flux__atomic_add(&flux__kept_bytes, -(int64_t)kept->copy->bytes);
        flux__buffer_release(kept->copy);
        flux__free(kept);
    }
}

/* Drops the copies of a buffer whose elements have changed. */
static FLUX__COLD void flux__kept_drop(flux__buffer *b) {
    flux__class_pool *pool = flux__class_pool_at(b->device);
    flux__class_pool_lock(pool);
    flux__kept *list = flux__kept_take(b, NULL);
    flux__class_pool_unlock(pool);
    flux__kept_free(list);
}

/* Drops all copies, as memory is wanted for something else. False: there were none. */
static FLUX__COLD bool flux__kept_forget(flux__class_pool *pool) {
    flux__kept *list = NULL;
    flux__class_pool_lock(pool);
    for (flux__buffer *b = pool->live; b; b = b->after) list = flux__kept_take(b, list);
    flux__class_pool_unlock(pool);
    const bool some = list != NULL;
    flux__kept_free(list);
    return some;
}

/* A buffer as by flux__buffer_try; but where there is no memory all copies of weights are dropped,
   and if that does not help it is an error. */
static flux__buffer *flux__buffer_new(flux_device d, size_t bytes, const flux_tensor *for_whom) {
    size_t capacity;
    char largest[400];
    if (bytes >> 23 > (size_t)1 << 23 || flux__size_class(bytes, &capacity) >= FLUX__SIZES ||
        d.id < 0 || d.id >= FLUX__MAX_IDS)
        return (flux__buffer *)flux__fail("out of memory: a tensor of %.3g bytes was asked for",
                                          (double)bytes);
    flux__class_pool *pool = flux__class_pool_at(d);
    flux__buffer *b = flux__buffer_try(d, bytes, for_whom);
    if (!b && flux__kept_forget(pool)) b = flux__buffer_try(d, bytes, for_whom);
    if (b) return b;
    flux__class_pool_lock(pool);
    const flux_mem now = pool->stats;
    flux__class_pool_largest(pool, largest, sizeof largest);
    flux__class_pool_unlock(pool);
    return flux__no_room(d, bytes, now, largest);
}

/* Drops one reference (b may be NULL); after the last the buffer goes back to its pool. */
static void flux__buffer_release(flux__buffer *b) {
    if (!b || flux__atomic_add(&b->refs, -1) > 0) return;
    if (b->borrowed) {
        /* the owner may use its memory for something else, once what is queued has read it */
        if (b->done && b->device.backend) flux__backend_of(b->device.backend)->wait(b->device.id);
        if (b->done) b->done(b->user);
        flux__free(b);
        return;
    }
    FLUX__ASSERT(b->refs == 0);           /* an owner released it twice, if it is less */
    flux__class_pool *pool = flux__class_pool_at(b->device);
    flux__class_pool_lock(pool);
    flux__kept *list = b->kept ? flux__kept_take(b, NULL) : NULL;
    FLUX__ASSERT(!b->kept);               /* who makes a copy refers to the buffer */
    flux__buffer_part(pool, b);
    pool->stats.live -= (int64_t)b->capacity;
    flux__class_pool_give(pool, b->size_class, b);
    flux__class_pool_unlock(pool);
    if (list) flux__kept_free(list);
}

/* The pool of a device that a user named in the call `call`; NULL is an error. */
static FLUX__COLD flux__class_pool *flux__class_pool_of(flux_device d, const char *call) {
    if (d.backend >= 0 && d.backend < FLUX__BACKENDS && d.id >= 0 && d.id < FLUX__MAX_IDS)
        return flux__class_pool_at(d);
    return (flux__class_pool *)flux__fail("%s: device {%d, %d} does not exist", call, d.backend,
                                          d.id);
}

FLUX_DEF FLUX__COLD flux_mem flux_mem_stats(flux_device d) {
    flux_mem none = { 0, 0, 0, 0 };
    flux__class_pool *pool = flux__class_pool_of(d, "mem_stats");
    if (!pool) return none;
    flux__class_pool_lock(pool);
    none = pool->stats;
    flux__class_pool_unlock(pool);
    return none;
}

FLUX_DEF FLUX__COLD void flux_mem_limit(flux_device d, int64_t bytes) {
    flux__class_pool *pool = flux__class_pool_of(d, "mem_limit");
    if (!pool) return;
    if (bytes < 0) {
        flux__fail("mem_limit: %lld bytes is not a limit (0 means none)", (long long)bytes);
        return;
    }
    flux__class_pool_lock(pool);
    pool->stats.limit = bytes;
    flux__class_pool_unlock(pool);
    if (bytes) flux__kept_forget(pool);
}

FLUX_DEF void flux_allow_tf32(bool on) { flux__atomic_store32(&flux__tf32, on); }

FLUX_DEF FLUX__COLD void flux_mem_trim(flux_device d) {
    flux__class_pool *pool = flux__class_pool_of(d, "mem_trim");
    if (!pool) return;
    flux__hold();
    flux__kept_forget(pool);
    flux__class_pool_lock(pool);
    flux__class_pool_trim(d, pool);
    flux__class_pool_unlock(pool);
    flux__tell();
}

FLUX__END_HOT

#endif /* FLUX__BASE_MEMORY_H */
