#ifndef FLUX__CPU_KEPT_OPERANDS_H
#define FLUX__CPU_KEPT_OPERANDS_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_add, flux__atomic_load */
#include "../base/object.h"
#include "../base/memory.h"
#include "../schedule/kernel.h"
#include "../schedule/dispatch.h"

/* ---------------------------------------------------------------------- cpu/kept_operands.h
   Copies of weights in the order in which operations read them, kept from call to
   call: a model that is only asked, under FLUX_NOGRAD, has the same weights each
   time, which a product would pack, or a convolution transform, again and again. A
   copy hangs on the weight's buffer (flux__buffer.kept) and is made when an
   operation reads the same elements in the same order for the FLUX__KEPT_AFTERth
   time. A small part of a tensor, such as a batch of a data set, has none.

   Invariant: a copy says what the buffer says. Elements never change but where an
   update takes over a buffer, which drops the copies (flux__drop_kept in
   schedule/plans.h), and a plan that does so asks for none of that buffer. Memory
   of the user's own, which may change, has no copies. A result has the same bits
   with a copy and without. No copy is made of more than FLUX__KEPT_MOST bytes in
   all, under flux_mem_limit, or where memory runs out: that is no error. Where a
   tensor finds no memory all copies are dropped (flux__kept_forget), so who reads
   one refers to it.

   Rejected: sums over the weights to find out whether they changed, which take as
   long as packing them; a call by which users freeze a model, which they would
   have to know and to take back. */

FLUX__BEGIN_LEAN

enum {
    FLUX__KEPT_AFTER = 3,
    FLUX__KEPT_PARTS = 4,                 /* at least a buffer's bytes by this are copied */
    FLUX__KEPT_ORDERS = 8                 /* most copies of a buffer */
};
#define FLUX__KEPT_MOST ((int64_t)256 << 20)

/* Whether an operand of a plan's kernels may be read from a copy: it is a leaf that the plan does
   not overwrite. */
static bool flux__keepable(const flux__plan *plan, const flux__operand *o) {
    if (o->src < 0 || o->src >= plan->nleaf) return false;
    for (int at = 0; at < plan->nout; at++)
        if (plan->slot[plan->out[at]].donated == o->src) return false;
    return true;
}

/* The entry of a buffer for elements in an order, which is made if there is none and `make` says
   so, in place of one without a copy if there are too many. NULL: there is none. The caller holds
   the pool's lock. */
static flux__kept *flux__kept_entry(flux__buffer *b, const int64_t *what, bool make) {
    flux__kept *kept = b->kept, *idle = NULL;
    int n = 0;
    while (kept && memcmp(kept->what, what, sizeof kept->what) != 0) {
        if (kept->state == FLUX__KEPT_NOT) idle = kept;
        kept = kept->next, n++;
    }
    if (kept || !make || (n == FLUX__KEPT_ORDERS && !idle)) return kept;
    if (n < FLUX__KEPT_ORDERS) {
        if (!(idle = (flux__kept *)FLUX_MALLOC(sizeof *idle))) return NULL;
        memset(idle, 0, sizeof *idle);
        idle->next = b->kept;
        flux__show_kept(&b->kept, idle);
    }
    idle->uses = 0;
    memcpy(idle->what, what, sizeof idle->what);
    return idle;
}

/* Finds the copy of the elements of operand i of a kernel that `what` (of 16 numbers) describes,
   which takes `bytes`, and refers to it. NULL: there is none. *made: NULL, or the copy is new: the
   caller fills it and calls flux__kept_done. What is recorded for gradients reads a copy that is
   there, and makes none. */
static flux__buffer *flux__kept_find(const flux__run *run, const flux__kernel *k, int i,
                                     const int64_t *what, int64_t bytes, flux__kept **made) {
    flux__buffer *b = run->g->leaf[k->operand[i].src]->buf, *copy = NULL;
    flux__class_pool *pool = flux__class_pool_at(b->device);
    const bool asks = (run->g->node[k->outs[0]]->flags & FLUX__FIXED) != 0;
    bool wanted = false;
    *made = NULL;
    if (b->borrowed || bytes < (int64_t)(b->bytes / FLUX__KEPT_PARTS)) return NULL;
    flux__class_pool_lock(pool);
    flux__kept *kept = flux__kept_entry(b, what, asks);
    if (kept && kept->state == FLUX__KEPT_MADE) {
        copy = kept->copy;
        flux__atomic_add(&copy->refs, 1);
    } else if (kept && kept->state == FLUX__KEPT_NOT && asks && ++kept->uses >= FLUX__KEPT_AFTER)
        wanted = !pool->stats.limit &&
                 flux__atomic_load(&flux__kept_bytes) + bytes <= FLUX__KEPT_MOST;
    if (wanted) {
        kept->state = FLUX__KEPT_MAKING;
        flux__atomic_add(&flux__kept_bytes, bytes);
    }
    flux__class_pool_unlock(pool);
    if (!wanted) return copy;
    if ((copy = flux__buffer_try(b->device, (size_t)bytes, NULL)) != NULL) copy->refs = 2;
    else flux__atomic_add(&flux__kept_bytes, -bytes);
    flux__class_pool_lock(pool);
    kept->copy = copy;
    if (!copy) kept->state = FLUX__KEPT_NOT, kept->uses = 0;
    flux__class_pool_unlock(pool);
    *made = copy ? kept : NULL;
    return copy;
}

/* Ends the making of a copy of flux__kept_find. ok: it is filled. */
static void flux__kept_done(const flux__run *run, const flux__kernel *k, int i, flux__kept *kept,
                            bool ok) {
    flux__buffer *b = run->g->leaf[k->operand[i].src]->buf, *copy = kept->copy;
    flux__class_pool *pool = flux__class_pool_at(b->device);
    flux__class_pool_lock(pool);
    kept->state = ok ? FLUX__KEPT_MADE : FLUX__KEPT_NOT;
    if (!ok) kept->copy = NULL, kept->uses = 0;
    flux__class_pool_unlock(pool);
    if (ok) return;
    flux__atomic_add(&flux__kept_bytes, -(int64_t)copy->bytes);
    flux__buffer_release(copy);
}

FLUX__END_LEAN

#endif /* FLUX__CPU_KEPT_OPERANDS_H */
