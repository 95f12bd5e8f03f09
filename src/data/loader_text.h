#ifndef FLUX__DATA_LOADER_TEXT_H
#define FLUX__DATA_LOADER_TEXT_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/dtypes.h"
#include "../base/text.h"
#include "../graph/nodes.h"
#include "../device/registry.h"
#include "orders.h"
#include "loader.h"
#include "batch.h"

/* ---------------------------------------------------------------------- data/loader_text.h
   A loader as text, as flux_print shows it: the shapes it holds, its options,
   and the shapes of its first batch.

   Invariant: printing makes the first batch in the order in which the data
   stand and by the loader's seed, so it neither draws from the thread's random
   numbers nor counts an epoch. Options appear only where they differ from the
   defaults, but for batchsize. A failure leaves an empty text and a pending
   error. */

FLUX__BEGIN_COLD

/* Writes "2x3 f32", or "4-element tuple of 2 f32". The last dimension of an array that a loader
   holds counts observations. */
static void flux__put_part(flux__sink *s, const flux_tensor *x) {
    bool tuple = x->op == FLUX__TUPLE;
    if (tuple) {
        flux__put_integer(s, x->nin, false);
        flux__put(s, "-element tuple of ");
        x = x->in[0];
    }
    for (int d = 0; d < x->ndim; d++) {
        if (d) flux__put(s, flux__glyph(FLUX__TIMES));
        flux__put_integer(s, x->dim[d], false);
    }
    flux__put(s, x->ndim ? " " : "scalar ");
    flux__put(s, flux_dtype_name((flux_dtype)x->dtype));
}

static void flux__put_option(flux__sink *s, const char *name, int64_t number, bool shown) {
    if (!shown) return;
    flux__put(s, ", ");
    flux__put(s, name);
    if (number >= 0) flux__put_integer(s, number, false);
}

/* The options that a loader was made with, where they are not the defaults. */
static void flux__put_options(flux__sink *s, const flux_loader *l) {
    flux_device d = flux__loader_device(l);
    if (l->single) flux__put(s, ", batchsize=-1");
    else flux__put_option(s, "batchsize=", l->batch, true);
    flux__put_option(s, "shuffle=true", -1, l->shuffle && !l->until);
    flux__put_option(s, "weighted=true", -1, l->until != NULL);
    flux__put_option(s, "partial=false", -1, !l->partial);
    flux__put_option(s, "collate=none", -1, l->collate == FLUX_COLLATE_NONE);
    flux__put_option(s, "workers=", l->workers, l->workers > 0);
    flux__put_option(s, "rank=", l->rank, l->ranks > 1);
    flux__put_option(s, "ranks=", l->ranks, l->ranks > 1);
    flux__put_option(s, "even=drop", -1, l->dealt < l->total);
    flux__put_option(s, "even=repeat", -1, l->dealt > l->total);
    flux__put_option(s, "device=", -1, d.backend != FLUX__CPU_BACKEND);
    if (d.backend == FLUX__CPU_BACKEND) return;
    flux__put(s, flux_device_backend(d));
    flux__put(s, "(");
    flux__put_integer(s, d.id, false);
    flux__put(s, ")");
}

/* Writes a loader: the arrays it holds, its options, and the shapes of its first batch, which is
   made for this. */
static bool flux__put_loader(flux__sink *s, flux_loader *l) {
    FLUX__ZEROED(flux__made, m);
    flux__put_integer(s, l->batches, false);
    flux__put(s, "-element DataLoader(");
    for (int i = 0; i < l->arrays; i++) {
        if (i) flux__put(s, ", ");
        flux__put_part(s, l->array[i]);
    }
    if (l->set.get) flux__put_integer(s, l->total, false);
    if (l->set.get) flux__put(s, " observations");
    flux__put_options(s, l);
    flux__put(s, ")");
    if (l->batches < 1) return true;
    bool good = flux__batch_make(l, NULL, flux__scramble(l->seed), 0, false, false, &m);
    flux__put(s, "\n  with first element:\n  ");
    for (int i = 0; i < m.count; i++) {
        if (i) flux__put(s, ", ");
        flux__put_part(s, m.item[i]);
    }
    flux__made_free(&m);
    return good;
}

FLUX_DEF size_t flux_loader_text(flux_loader *l, char *out, size_t n) {
    flux__sink s = flux__sink_to(out, n);
    if (!l) flux__null("loader_text", "l", l);
    else if (!flux__put_loader(&s, l)) s.len = 0;
    return flux__sink_end(&s);
}

FLUX__END_COLD

#endif /* FLUX__DATA_LOADER_TEXT_H */
