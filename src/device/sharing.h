#ifndef FLUX__DEVICE_SHARING_H
#define FLUX__DEVICE_SHARING_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/leaves.h"
#include "../graph/views.h"
#include "../schedule/looking.h"
#include "registry.h"

/* ---------------------------------------------------------------------- device/sharing.h
   Memory and streams shared with the rest of the program: the address of a
   tensor (flux_pointer), tensors in memory of others (flux_borrow_on), the
   stream of a GPU, and DLPack both ways.

   Invariant: what is borrowed is never written and never freed here; the buffer
   in it calls `done` once, when its last reference is gone. A tensor that was
   given away is held by one reference, which the receiver's call of the deleter
   takes away. DLPack's structs are declared here in full, with its layout (see
   https://dmlc.github.io/dlpack); a program may have dlpack.h's own beside them,
   so ours may alias them.

   Rejected: byte_offset for what begins within its buffer, which not every
   receiver reads; a copy into memory aligned to 256 bytes, which DLPack once
   asked for and nobody needs. */

FLUX__BEGIN_COLD

FLUX_DEF const void *flux_pointer(flux_tensor *x) {
    int64_t offset, stride[FLUX_MAX_DIMS];
    if (!flux__check_operands("pointer", 1, &x) || !flux_eval(x)) return NULL;
    flux_shape s = flux__dims(x);
    flux_tensor *base = flux__layout(x, &offset, stride);
    if (flux__in_order(&s, stride))
        return (const char *)base->buf->ptr + (size_t)offset * flux__dtypes[x->dtype].size;
    return flux__fail("pointer: the elements of %s, a view, do not follow each other; flux_copy "
                      "makes a tensor of which they do", flux__describe(x).s);
}

/* A tensor of shape s in memory of others: from `first` on lie `span` elements, and number
   `before` of them is the tensor's first; stride is NULL where it is all of them, in order.
   Kernels of a GPU take buffers to begin at a multiple of 16 bytes: what does not is a view of
   a leaf that begins there. `call` names the public call in messages. */
static flux_tensor *flux__borrowed(const char *call, flux_device d, const void *first, flux_dtype t,
                                   flux_shape s, const int64_t *stride, int64_t before,
                                   int64_t span, void (*done)(void *user), void *user) {
    const size_t size = flux__dtypes[t].size;
    int64_t contiguous[FLUX_MAX_DIMS];
    if (!flux__device_is(d))
        return (flux_tensor *)flux__fail("%s: device {%d, %d} can't be used here", call, d.backend,
                                         d.id);
    if (!first && span > 0) return (flux_tensor *)flux__null(call, "ptr", first);
    if ((uintptr_t)first % size)
        return (flux_tensor *)flux__fail("%s: the address of the elements, %s, is no multiple of "
                                         "their %d bytes", call, flux__dtypes[t].name, (int)size);
    const size_t lead = d.backend == FLUX__CPU_BACKEND ? 0 : (uintptr_t)first % 16 / size;
    if (!lead && !stride) return flux__leaf_borrowed(d, first, t, s, done, user);
    if (!stride) flux__contiguous_strides(&s, contiguous);
    int64_t all = span + (int64_t)lead, at = before + (int64_t)lead;
    int h = flux__hide();
    flux_tensor *x = flux__leaf_borrowed(d, (const char *)first - lead * size, t,
                                         flux__shape(&all, 1), NULL, NULL);
    const int64_t *step = stride ? stride : contiguous;
    flux_tensor *y = x ? flux__as_strided(x, &s, at, step, at, step, x) : NULL;
    if (y) x->buf->done = done, x->buf->user = user;
    return flux__reveal(h, y);
}

FLUX_DEF flux_tensor *flux_borrow_on(flux_device d, const void *ptr, flux_dtype t, flux_shape s,
                                     void (*done)(void *user), void *user) {
    if (!flux__check_make("borrow_on", &s, t)) return NULL;
    return flux__borrowed("borrow_on", d, ptr, t, s, NULL, 0, flux__count(&s), done, user);
}

/* Asks a device for its stream, after `set` has made *stream that; false is an error. */
static bool flux__stream_of(const char *call, flux_device d, void **stream, bool set) {
    if (!flux__device_is(d))
        return FLUX__REFUSE("%s: device {%d, %d} can't be used here", call, d.backend, d.id);
    const flux__backend *b = flux__backend_of(d.backend);
    if (!b->stream) return FLUX__REFUSE("%s: %s has no streams", call, flux_device_name(d));
    if (b->stream(d.id, stream, set) == 0) return true;
    return FLUX__REFUSE("%s: work on %s has failed", call, flux_device_name(d));
}

FLUX_DEF void *flux_stream(flux_device d) {
    void *stream = NULL;
    return flux__stream_of("stream", d, &stream, false) ? stream : NULL;
}
FLUX_DEF int flux_use_stream(flux_device d, void *stream) {
    return flux__stream_of("use_stream", d, &stream, true) ? 0 : -1;
}

/* ---------------- DLPack */

#if defined(__GNUC__)
#  define FLUX__MAY_ALIAS __attribute__((may_alias))
#else
#  define FLUX__MAY_ALIAS
#endif
typedef struct FLUX__MAY_ALIAS flux__dl_tensor {         /* DLTensor */
    void *data;
    int32_t device_type, device_id, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;             /* strides in elements; NULL: row-major, contiguous */
    uint64_t byte_offset;
} flux__dl_tensor;
typedef struct FLUX__MAY_ALIAS flux__dl_managed {        /* DLManagedTensor */
    flux__dl_tensor tensor;
    void *context;
    void (*deleter)(struct flux__dl_managed *);
} flux__dl_managed;
typedef struct FLUX__MAY_ALIAS flux__dl_versioned {      /* DLManagedTensorVersioned */
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct flux__dl_versioned *);
    uint64_t flags;                       /* 1: read-only */
    flux__dl_tensor tensor;
} flux__dl_versioned;

/* DLPack's numbers for kinds of memory and the back ends that can use it, ours first. */
static const struct { int type, backend; } flux__dl_devices[] = {
    { 1, FLUX__CPU_BACKEND },     { 2, FLUX__CUDA_BACKEND },   { 10, FLUX__AMDGPU_BACKEND },
    { 3, FLUX__CPU_BACKEND },     { 11, FLUX__CPU_BACKEND },   { 13, FLUX__CUDA_BACKEND } };
/* Its code and bits for each dtype. */
static const struct { uint8_t code, bits; } flux__dl_dtypes[FLUX_NUM_DTYPES] = {
    { 2, 32 }, { 2, 64 }, { 2, 16 }, { 4, 16 }, { 0, 32 }, { 0, 64 }, { 1, 8 }, { 6, 8 } };

typedef struct flux__dl_given {           /* a tensor given away, in either struct */
    union { flux__dl_managed old; flux__dl_versioned now; } as;
    flux_tensor *x;
    int64_t shape[FLUX_MAX_DIMS], strides[FLUX_MAX_DIMS];
} flux__dl_given;

static void flux__dl_end(flux__dl_given *g) {
    flux_release(g->x);
    flux__free(g);
}
static void flux__dl_end_old(flux__dl_managed *m) { flux__dl_end((flux__dl_given *)m->context); }
static void flux__dl_end_now(flux__dl_versioned *m) { flux__dl_end((flux__dl_given *)m->context); }

/* Computes x and describes it in *t; returns what the deleter frees, or NULL with an error. */
static flux__dl_given *flux__dl_give(const char *call, flux_tensor *x, flux__dl_tensor *t) {
    int64_t offset, stride[FLUX_MAX_DIMS];
    int device = 0;
    bool flipped = false;
    flux__layout(x, &offset, stride);
    for (int i = 0; i < x->ndim; i++) flipped = flipped || stride[i] < 0;
    if (flipped) x = flux_copy(x);
    if (!x || !flux_eval(x)) return NULL;
    const flux_tensor *base = flux__layout(x, &offset, stride);
    while (flux__dl_devices[device].backend != x->device.backend)
        if (++device == 3)
            return (flux__dl_given *)flux__fail("%s: DLPack does not know %s", call,
                                                flux_device_name(x->device));
    flux__dl_given *g = (flux__dl_given *)flux__zalloc(sizeof *g);
    if (!g) return NULL;
    for (int i = 0; i < x->ndim; i++) {
        g->shape[x->ndim - 1 - i] = x->dim[i];
        g->strides[x->ndim - 1 - i] = stride[i];
    }
    g->x = (flux_tensor *)flux_retain(x);
    memset(t, 0, sizeof *t);
    t->data = (char *)base->buf->ptr + (size_t)offset * flux__dtypes[x->dtype].size;
    t->device_type = flux__dl_devices[device].type;
    t->device_id = device ? x->device.id : 0;
    t->ndim = x->ndim;
    t->code = flux__dl_dtypes[x->dtype].code;
    t->bits = flux__dl_dtypes[x->dtype].bits;
    t->lanes = 1;
    t->shape = g->shape;
    t->strides = g->strides;
    return g;
}

FLUX_DEF struct DLManagedTensor *flux_to_dlpack(flux_tensor *x) {
    flux__dl_tensor t;
    if (!flux__check_operands("to_dlpack", 1, &x)) return NULL;
    flux__dl_given *g = flux__dl_give("to_dlpack", x, &t);
    if (!g) return NULL;
    g->as.old.tensor = t;
    g->as.old.context = g;
    g->as.old.deleter = flux__dl_end_old;
    return (struct DLManagedTensor *)&g->as.old;
}
FLUX_DEF struct DLManagedTensorVersioned *flux_to_dlpack_versioned(flux_tensor *x) {
    flux__dl_tensor t;
    if (!flux__check_operands("to_dlpack", 1, &x)) return NULL;
    flux__dl_given *g = flux__dl_give("to_dlpack", x, &t);
    if (!g) return NULL;
    g->as.now.major = 1;
    g->as.now.context = g;
    g->as.now.deleter = flux__dl_end_now;
    g->as.now.flags = 1;
    g->as.now.tensor = t;
    return (struct DLManagedTensorVersioned *)&g->as.now;
}

/* The dtype and device of a DLPack tensor; false, with an error, if there are none such here. */
static bool flux__dl_known(const flux__dl_tensor *t, flux_dtype *dtype, flux_device *d) {
    int n = (int)(sizeof flux__dl_devices / sizeof *flux__dl_devices), i = 0, k = 0;
    if (t->ndim < 0 || t->ndim > FLUX_MAX_DIMS || (t->ndim && !t->shape))
        return FLUX__REFUSE("from_dlpack: it has %d dimensions, a tensor has 0 to %d", (int)t->ndim,
                            FLUX_MAX_DIMS);
    while (i < n && flux__dl_devices[i].type != t->device_type) i++;
    if (i == n)
        return FLUX__REFUSE("from_dlpack: memory of DLPack's kind %d can't be used here",
                            (int)t->device_type);
    d->backend = flux__dl_devices[i].backend;
    d->id = d->backend == FLUX__CPU_BACKEND ? 0 : t->device_id;
    while (k < FLUX_NUM_DTYPES &&
           (flux__dl_dtypes[k].code != t->code || flux__dl_dtypes[k].bits != t->bits)) k++;
    if (k == FLUX_NUM_DTYPES || t->lanes != 1)
        return FLUX__REFUSE("from_dlpack: there is no dtype of DLPack's code %d, %d bits, %d lanes",
                            t->code, t->bits, t->lanes);
    *dtype = (flux_dtype)k;
    return true;
}

/* The strides of our dims in elements of t's memory, and how many elements lie before the first
   and from there to the last one that is reached; false is an error. */
static bool flux__dl_strides(const flux__dl_tensor *t, const flux_shape *s, int64_t *stride,
                             int64_t *before, int64_t *span) {
    flux__contiguous_strides(s, stride);
    *before = 0, *span = flux__count(s) > 0;
    for (int i = 0; *span && i < s->ndim; i++) {
        if (t->strides) stride[i] = t->strides[s->ndim - 1 - i];
        if (s->dim[i] == 1) stride[i] = 0;
        const int64_t most = INT64_C(1) << 48,
                      step = stride[i] >= 0 ? stride[i] : stride[i] < -most ? most + 1 : -stride[i];
        if ((step && s->dim[i] > most / step) || *span > most)
            return FLUX__REFUSE("from_dlpack: a stride of %lld elements is too long",
                                (long long)stride[i]);
        *span += step * (s->dim[i] - 1);
        if (stride[i] < 0) *before += step * (s->dim[i] - 1);
    }
    return true;
}

/* A tensor in the memory of t, which calls done(user) at its end: contiguous elements, or a view of
   all from the first to the last one. */
static flux_tensor *flux__dl_take(const flux__dl_tensor *t, void (*done)(void *user), void *user) {
    flux_dtype dtype;
    flux_device d;
    int64_t stride[FLUX_MAX_DIMS], before, span;
    flux_shape s = flux__shape(NULL, t->ndim);
    if (!flux__dl_known(t, &dtype, &d)) return NULL;
    for (int i = 0; i < s.ndim; i++) s.dim[i] = t->shape[s.ndim - 1 - i];
    if (!flux__check_make("from_dlpack", &s, dtype) ||
        !flux__dl_strides(t, &s, stride, &before, &span))
        return NULL;
    const char *first = t->data ? (const char *)t->data + t->byte_offset : NULL;
    const bool plain = !span || flux__in_order(&s, stride);
    if (first) first -= (size_t)before * flux__dtypes[dtype].size;
    return flux__borrowed("from_dlpack", d, first, dtype, s, plain ? NULL : stride, before, span,
                          done, user);
}

static void flux__dl_done_old(void *managed) {
    flux__dl_managed *m = (flux__dl_managed *)managed;
    if (m->deleter) m->deleter(m);
}
static void flux__dl_done_now(void *managed) {
    flux__dl_versioned *m = (flux__dl_versioned *)managed;
    if (m->deleter) m->deleter(m);
}

FLUX_DEF flux_tensor *flux_from_dlpack(struct DLManagedTensor *t) {
    flux__dl_managed *m = (flux__dl_managed *)t;
    if (!m) return (flux_tensor *)flux__null("from_dlpack", "t", t);
    int h = flux__hide();
    return flux__reveal(h, flux__dl_take(&m->tensor, flux__dl_done_old, m));
}
FLUX_DEF flux_tensor *flux_from_dlpack_versioned(struct DLManagedTensorVersioned *t) {
    flux__dl_versioned *m = (flux__dl_versioned *)t;
    if (!m) return (flux_tensor *)flux__null("from_dlpack", "t", t);
    if (m->major != 1)
        return (flux_tensor *)flux__fail("from_dlpack: it is of DLPack %u, and 1 is known here",
                                         (unsigned)m->major);
    int h = flux__hide();
    return flux__reveal(h, flux__dl_take(&m->tensor, flux__dl_done_now, m));
}

FLUX__END_COLD

#endif /* FLUX__DEVICE_SHARING_H */
