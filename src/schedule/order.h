#ifndef FLUX__SCHEDULE_ORDER_H
#define FLUX__SCHEDULE_ORDER_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../graph/nodes.h"
#include "kernel.h"
#include "key.h"
#include "grouping.h"
#include "gathers.h"
#include "program.h"
#include "dispatch.h"

/* ---------------------------------------------------------------------- schedule/order.h
   The order of kernels and the lives of buffers; flux__make_plan puts a plan
   together, and FLUX_LOG=schedule prints it.

   Invariant: a kernel comes after all whose results it reads; of those that
   could come next, the one that was recorded first is taken, so that updates of
   weights come after everything that reads the old ones. A buffer's life ends
   after the last kernel that reads it (frees). A node takes over the buffer of
   the leaf that it replaces (its donated buffer) only if every read of that
   leaf happens before, at the very same point, and no later kernel reads it
   (flux__may_overwrite). A node lies in the buffer of another one (inside) only if the kernel that
   makes that is the last to read it, and reads each part before it writes there. */

FLUX__BEGIN_COLD

/* Inserts x into a binary max-heap of n numbers. */
static void flux__heap_put(int *heap, int n, int x) {
    for (; n > 0 && heap[(n - 1) / 2] < x; n = (n - 1) / 2) heap[n] = heap[(n - 1) / 2];
    heap[n] = x;
}

static int flux__heap_take(int *heap, int n) {       /* n: the size before the removal */
    const int top = heap[0], x = heap[--n];
    int at = 0;
    for (int kid; (kid = 2 * at + 1) < n; heap[at] = heap[kid], at = kid) {
        if (kid + 1 < n && heap[kid + 1] > heap[kid]) kid++;
        if (heap[kid] <= x) break;
    }
    heap[at] = x;
    return top;
}

/* The rank of a group among those that are ready: its number, but calls come first, as they go on
   while kernels run. flux__order_groups gets the group back from it. */
static int flux__urgency(const flux__planner *p, int G) {
    return p->group[G].kind == FLUX__K_CALL ? G + p->ngroup : G;
}

/* Orders the groups so that each comes after all groups that it needs (Kahn's algorithm). Of those
   that are ready, a call is taken, else the one recorded first, which has the highest group number.
   So updates of weights come after everything that reads the old ones. */
static bool flux__order_groups(flux__planner *p, int *order) {
    const size_t n = (size_t)p->ngroup;
    int *memory = (int *)flux__zalloc((3 * n + (size_t)p->nlink + 1) * sizeof *memory), ready = 0,
        at = 0;
    /* user[start[G] ...] are the groups that need G; missing[G]: how many groups G still waits
       for */
    int *missing = memory, *heap = memory + n, *start = memory + 2 * n, *user = start + n + 1;
    if (!memory) return false;
    for (int e = 0; e < p->nlink; e++) start[p->link[e].to + 1]++;
    for (size_t G = 0; G < n; G++) start[G + 1] += start[G];
    for (int G = p->ngroup - 1; G >= 0; G--)
        for (int e = p->needs[G]; e >= 0; e = p->link[e].next)
            user[start[p->link[e].to]++] = G, missing[G]++;
    for (size_t G = n; G > 0; G--) start[G] = start[G - 1];
    start[0] = 0;
    for (int G = 0; G < p->ngroup; G++)
        if (!missing[G]) flux__heap_put(heap, ready++, flux__urgency(p, G));
    while (ready) {
        const int G = order[at++] = flux__heap_take(heap, ready--) % p->ngroup;
        for (int u = start[G]; u < start[G + 1]; u++)
            if (--missing[user[u]] == 0)
                flux__heap_put(heap, ready++, flux__urgency(p, user[u]));
    }
    flux__free(memory);
    return at == p->ngroup || FLUX__REFUSE("schedule: kernels depend on each other in a circle");
}

/* Whether line x of a kernel runs after line y: lines run by phase, within a phase the outer ones
   first, then in order. */
static bool flux__runs_after(const flux__kernel *k, int x, int y) {
    int px = k->value[x].phase * 2 + !k->value[x].outer,
        py = k->value[y].phase * 2 + !k->value[y].outer;
    return px != py ? px > py : x > y;
}

/* Whether a line that runs after line `store` loads from the leaf or uses a value loaded from
   it. */
static bool flux__read_later(const flux__kernel *k, int leaf, int store) {
    for (int i = 0; i < k->nvalue; i++) {
        const flux__value *v = &k->value[i];
        if (v->kind != FLUX__V_LOAD || k->operand[v->operand].src != leaf) continue;
        if (flux__runs_after(k, i, store)) return true;
        for (int u = 0; u < k->nvalue; u++) {
            const flux__value *w = &k->value[u];
            if ((w->a == i || w->b == i || w->c == i) && flux__runs_after(k, u, store)) return true;
        }
    }
    return false;
}

/* Whether a node (slot) may take over the buffer of a leaf. Kernel number `at` computes the node
   and is the last that reads the leaf. It must read the leaf only at the very point that it then
   stores to: contiguously, without offset, and before the store. Neither do the first two operands
   of a matrix product allow it, nor may an inner value of a kernel with reduced dims do so. */
static bool flux__may_overwrite(const flux__plan *plan, int at, int slot, int leaf) {
    const flux__kernel *k = &plan->kernel[at];
    if (k->kind != FLUX__K_FUSED && k->kind != FLUX__K_MATMUL) return false;
    bool outer = false;
    for (int v = 0; v < k->nvalue; v++)
        if (k->value[v].out == plan->nleaf + slot) {
            outer = k->value[v].outer;
            if (flux__read_later(k, leaf, v)) return false;
        }
    if (k->reduced && !outer) return false;
    int first = k->kind == FLUX__K_MATMUL ? 2 : 0;
    for (int o = 0; o < k->noperand; o++) {
        if (k->operand[o].src != leaf) continue;
        if (o < first || k->operand[o].offset) return false;
        int64_t step = 1;
        for (int d = 0; d < FLUX_MAX_DIMS; d++) {
            bool gone = k->reduced >> d & 1;
            if (k->operand[o].stride[d] != (k->full[d] > 1 && !gone ? step : 0)) return false;
            if (!gone) step *= k->full[d];
        }
    }
    return true;
}

/* Fills plan->slot: for each stored node which kernel computes it and which reads it last, its
   size, and whether it takes over a leaf's buffer, if the graph allows that (g->donated) and
   flux__may_overwrite does. */
static bool flux__find_lives(flux__plan *plan, flux__graph *g) {
    /* by leaf: number of the kernel that reads it last */
    int *last = (int *)flux__zalloc((size_t)plan->nleaf * sizeof *last);
    if (!last) return false;
    for (int k = 0; k < plan->nkernel; k++) {
        flux__kernel *kernel = &plan->kernel[k];
        for (int v = 0; v < kernel->nvalue; v++)
            if (kernel->value[v].out >= 0)
                plan->slot[kernel->value[v].out - plan->nleaf].out_kernel = k;
        if (kernel->kind > FLUX__K_MATMUL) plan->slot[kernel->node].out_kernel = k;
        for (int o = 0; o < kernel->noperand; o++) {
            const int src = kernel->operand[o].src;
            if (src >= plan->nleaf) plan->slot[src - plan->nleaf].last_kernel = k;
            else if (src >= 0) last[src] = k;
        }
    }
    for (int i = 0; i < plan->nnode; i++) {
        flux__slot_info *s = &plan->slot[i];
        size_t capacity;
        const int donated = g->donated[i];
        s->donated = s->inside = -1;
        if (!s->stored) continue;
        if (s->last_kernel < s->out_kernel) s->last_kernel = s->out_kernel;
        s->bytes = flux__size(g->node[i]) * (int64_t)flux__dtypes[g->node[i]->dtype].size;
        s->size_class = flux__size_class((size_t)s->bytes, &capacity);
        s->keep = (g->flag[i] & FLUX__KEEP) != 0;
        s->device = g->node[i]->device;
        if (donated >= 0 && last[donated] <= s->out_kernel &&
            flux__may_overwrite(plan, s->out_kernel, i, donated))
            s->donated = donated;
    }
    flux__free(last);
    return true;
}

/* Lets the operands of call number k that no later kernel reads lie in the memory of its result,
   where the call would copy them to; at the 64 bytes that kernels like only. */
static void flux__find_inside(flux__plan *plan, const flux__graph *g, int k) {
    const flux__kernel *call = &plan->kernel[k];
    int64_t at = 0;
    for (int o = 0; o < (int)g->node[call->node]->arg.i[1]; o++) {
        const flux__operand *x = &call->operand[o];
        const int64_t bytes = flux__count(&x->shape) * flux__dtypes[x->dtype].size;
        flux__slot_info *s = x->src < plan->nleaf ? NULL : &plan->slot[x->src - plan->nleaf];
        if (s && s->stored && !s->keep && s->donated < 0 && s->inside < 0 && s->last_kernel == k &&
            s->bytes == bytes && x->offset == 0 && at % 64 == 0 &&
            flux__same_device(s->device, call->device))
            s->inside = call->node, s->at = at;
        at += bytes;
    }
}

/* The only node that a kernel stores, or -1. */
static int flux__only_result(const flux__plan *plan, const flux__kernel *k) {
    int node = -1;
    for (int v = 0; v < k->nvalue; v++) {
        if (k->value[v].out < 0) continue;
        if (node >= 0) return -1;
        node = k->value[v].out - plan->nleaf;
    }
    return node;
}

/* Whether batch number i of a product reads, of the image that it pads, nothing but slice number i,
   of as many elements as the batch has results, as a depthwise convolution does whose results are
   as many as its x's elements. */
static bool flux__pads_slice_by_slice(const flux__graph *g, const flux__kernel *k) {
    const flux__operand *a = &k->operand[0];
    const flux_shape *x = &a->padding->shape;
    const flux_tensor *t = g->node[a->padding->node];
    int64_t whole[FLUX_MAX_DIMS], points = 1, slice = 1, first = a->offset, last = a->offset,
            batches = 1, slices = 1;
    int d = 0;
    for (int p = 2; p < FLUX_MAX_DIMS; p++) batches *= k->full[p];
    for (; d < x->ndim && points < k->mnk[0]; d++) points *= x->dim[d], slice *= t->dim[d];
    flux__contiguous_strides(x, whole);
    for (int i = 0; i < x->ndim; i++)
        if ((x->dim[i] > 1 && a->padding->stride[i] != whole[i]) ||
            (i >= d && x->dim[i] != t->dim[i])) return false;
    for (int i = d; i < x->ndim; i++) slices *= x->dim[i];
    int64_t next = slice;
    for (int p = 0; p < FLUX_MAX_DIMS; p++)
        for (int i = 0; i < a->shape.ndim; i++) {
            const int64_t step = a->stride[i], n = a->shape.dim[i];
            if (a->owner[i] != p || n == 1) continue;
            if (p < 2) *(step < 0 ? &first : &last) += (n - 1) * step;
            else if (step != next) return false;
            else next *= n;
        }
    return points == k->mnk[0] && k->mnk[1] == 1 && slices == batches && next == slice * batches &&
           !a->padding->offset && first >= 0 && last < slice;
}

/* Lets the image that product number k pads itself lie in the memory of its result, if no later
   kernel reads it and each part of it is read before the result that lies there is written. */
static void flux__pad_in_place(flux__plan *plan, const flux__graph *g, int k) {
    const flux__kernel *product = &plan->kernel[k];
    const int node = flux__only_result(plan, product), x = product->operand[0].src - plan->nleaf;
    if (node < 0 || x < 0 || !flux__pads_slice_by_slice(g, product)) return;
    flux__slot_info *s = &plan->slot[x];
    const flux__slot_info *y = &plan->slot[node];
    bool free = s->stored && !s->keep && s->donated < 0 && s->inside < 0 && s->last_kernel == k &&
                g->node[x]->dtype == g->node[node]->dtype && s->bytes == y->bytes &&
                y->donated < 0 && y->inside < 0 &&
                flux__same_device(s->device, y->device);
    for (int o = 1; o < product->noperand; o++)
        free = free && product->operand[o].src != product->operand[0].src;
    for (int i = 0; i < plan->nnode && free; i++)      /* nothing lies in x itself */
        free = !plan->slot[i].stored || plan->slot[i].inside != x;
    if (free) s->inside = node, s->at = 0;
}
static void flux__find_in_place(flux__plan *plan, const flux__graph *g) {
    for (int k = 0; k < plan->nkernel; k++)
        if (plan->kernel[k].kind == FLUX__K_MATMUL && plan->kernel[k].operand[0].padding)
            flux__pad_in_place(plan, g, k);
}

/* Finds for each call the first kernel that reads its result (read_at), before which it is
   finished. What no kernel reads lives as long as the plan, since it is still being written. */
static void flux__find_calls(flux__plan *plan, const flux__graph *g) {
    for (int k = 0; k < plan->nkernel; k++) {
        flux__kernel *kernel = &plan->kernel[k];
        const bool call = kernel->kind == FLUX__K_CALL;
        const int n = call ? (int)g->node[kernel->node]->arg.i[1] : kernel->noperand;
        if (call) kernel->read_at = plan->nkernel, plan->ncall++;
        for (int o = 0; o < n && plan->ncall; o++) {
            const int node = kernel->operand[o].src - plan->nleaf;
            flux__kernel *by = node < 0 ? NULL : &plan->kernel[plan->slot[node].out_kernel];
            if (!by || by->kind != FLUX__K_CALL) continue;
            kernel->waits = true;
            if (by->read_at > k) by->read_at = k;
        }
    }
    for (int k = 0; k < plan->nkernel && plan->ncall; k++) {
        if (plan->kernel[k].kind != FLUX__K_CALL) continue;
        if (plan->kernel[k].read_at == plan->nkernel)
            plan->slot[plan->kernel[k].node].last_kernel = plan->nkernel - 1;
        if (plan->kernel[k].call->in_place) flux__find_inside(plan, g, k);
    }
}

/* Lists the nodes that each kernel stores (outs) and those whose buffers are free after it (frees),
   and all stored nodes of the plan (out). Takes a kernel's device from its results. */
static bool flux__find_frees(flux__plan *plan) {
    for (int k = 0; k < plan->nkernel; k++) {
        flux__kernel *kernel = &plan->kernel[k];
        size_t most = (size_t)(kernel->noperand + kernel->nvalue + 1);
        kernel->outs = (int *)flux__plan_take(plan, 2 * most * sizeof(int));
        if (!kernel->outs) return false;
        kernel->frees = kernel->outs + most;
    }
    for (int i = 0; i < plan->nnode; i++) plan->nout += plan->slot[i].stored;
    plan->out = (int *)flux__plan_take(plan, (size_t)plan->nout * sizeof(int));
    if (!plan->out) return false;
    for (int i = 0, at = 0; i < plan->nnode; i++) {
        const flux__slot_info *s = &plan->slot[i];
        if (!s->stored) continue;
        plan->out[at++] = i;
        flux__kernel *makes = &plan->kernel[s->out_kernel], *last = &plan->kernel[s->last_kernel];
        if (!makes->nouts) makes->device = s->device, makes->idle = makes->kind < FLUX__K_MOVE;
        makes->idle = makes->idle && s->bytes == 0;
        makes->outs[makes->nouts++] = i;
        if (!s->keep) last->frees[last->nfrees++] = i;
    }
    return true;
}

/* Frees a plan and all that back ends made of its kernels. */
static void flux__plan_free(flux__plan *plan) {
    for (int i = 0; plan->kernel && i < plan->nkernel; i++) {
        if (plan->replay && plan->kernel[i].call) plan->kernel[i].call->forget(plan);
        flux__kernel_unready(&plan->kernel[i]);
    }
    while (plan->chunk) {
        flux__chunk *chunk = plan->chunk;
        plan->chunk = chunk->next;
        flux__free(chunk);
    }
    flux__free(plan->kernel);
    flux__free(plan->slot);
    flux__free(plan->key);
    flux__free(plan);
}

static void flux__log_plan(const flux__plan *plan, flux__graph *g);

/* Orders the groups and builds a kernel of each, finds the lives of buffers, and has the kernels
   made ready by their back ends. */
static bool flux__plan_kernels(flux__planner *p, flux__plan *plan, int *order) {
    plan->kernel = (flux__kernel *)flux__zalloc((size_t)p->ngroup * sizeof *plan->kernel);
    plan->slot = (flux__slot_info *)flux__zalloc((size_t)p->n * sizeof *plan->slot);
    if (!plan->kernel || !plan->slot || !flux__order_groups(p, order)) return false;
    for (int i = 0; i < p->ngroup; i++) {
        plan->nkernel = i + 1;
        if (!flux__build_kernel(p, order[i], &plan->kernel[i], plan)) return false;
    }
    if (!flux__find_lives(plan, p->g)) return false;
    flux__find_calls(plan, p->g);
    flux__find_in_place(plan, p->g);
    if (!flux__find_frees(plan)) return false;
    return flux__kernels_ready(plan, p->g);
}

/* Prepares a planner for the graph: allocates its arrays by node and finds the uses of all
   nodes. */
static bool flux__planner_start(flux__planner *p, flux__graph *g) {
    const size_t n = (size_t)g->nnode + 1;
    memset(p, 0, sizeof *p);
    p->g = g, p->n = g->nnode, p->ok = true;
    p->group = (flux__group *)flux__malloc(n * sizeof *p->group);
    p->gather = (bool *)flux__zalloc(2 * n);
    p->anew = (uint8_t *)p->gather + n;
    /* all arrays that have an int for each node */
    int *memory = (int *)flux__malloc((9 * n + 1) * sizeof *memory);
    p->group_of = memory;
    if (!p->group || !p->gather || !memory) return false;
    p->needs = memory + n, p->level = memory + 2 * n, p->tried = memory + 3 * n,
    p->user_of = memory + 4 * n;
    p->member = memory + 5 * n, p->member_start = memory + 6 * n, p->value_of = memory + 7 * n,
    p->use_start = memory + 8 * n;
    memset(p->use_start, 0, (n + 1) * sizeof *memory);
    memset(p->value_of, -1, n * sizeof *memory);
    return flux__find_uses(p);
}

static void flux__planner_end(flux__planner *p) {
    flux__free(p->group);
    flux__free(p->gather);
    flux__free(p->group_of);     /* the other int arrays lie in the same block */
    flux__free(p->link);
    flux__free(p->raised);
    flux__free(p->building.value);
    flux__free(p->building.operand);
    flux__free(p->use);
}

/* Makes the plan of a graph: groups its nodes into kernels, orders and builds these, finds the
   lives of buffers and has the kernels made ready by their back ends. NULL and an error if it
   fails. */
static flux__plan *flux__make_plan(flux__graph *g) {
    flux__planner p;
    if (g->nnode > FLUX__MOST_NODES)
        return (flux__plan *)flux__fail("%d operations at once are too many (%d at most): look at "
                                        "values on the way, by flux_eval",
                                        g->nnode, FLUX__MOST_NODES);
    flux__plan *plan = (flux__plan *)flux__zalloc(sizeof *plan);
    bool ok = flux__planner_start(&p, g) && plan && flux__assign_groups(&p);
    if (ok) {
        plan->nleaf = g->nleaf, plan->nnode = g->nnode;
        flux__find_anew(&p);
        flux__list_members(&p);
        /* the array of levels is free now and holds the order */
        ok = flux__plan_kernels(&p, plan, p.level);
    }
    if (ok && flux__log_schedules()) flux__log_plan(plan, g);
    flux__planner_end(&p);
    if (!ok && plan) {
        flux__plan_free(plan);
        plan = NULL;
    }
    return plan;
}

static const char *const flux__kernel_kinds[] = {
    "fused", "product", "gather", "scatter_add", "spread", "cat", "interpolation", "attention",
    "sort", "move", "call"
};

static int64_t flux__out_bytes(const flux_tensor *t) {
    return flux__size(t) * flux__dtypes[t->dtype].size;
}

/* The bytes that a kernel reads and writes, each tensor counted once. */
static int64_t flux__kernel_bytes(const flux__kernel *k, const flux__graph *g) {
    int64_t bytes = 0;
    for (int i = 0; i < k->noperand; i++)
        if (k->operand[i].src >= 0)
            bytes += flux__count(&k->operand[i].shape) * flux__dtypes[k->operand[i].dtype].size;
    for (int i = 0; i < k->nouts; i++) bytes += flux__out_bytes(g->node[k->outs[i]]);
    return bytes;
}

/* How much of "product 256x64 inner 784: add relu->[256x64 f32]" describes a kernel: "product: add
   relu", the sizes too, or also the reduced dims and what is stored. */
enum { FLUX__WORDS_KIND, FLUX__WORDS_SIZES, FLUX__WORDS_FULL };
static void flux__kernel_words(const flux__plan *plan, const flux__graph *g, const flux__kernel *k,
                               int detail, char *out, size_t capacity) {
    const bool full = detail == FLUX__WORDS_FULL, sizes = detail >= FLUX__WORDS_SIZES;
    static const char *const reds[] = { "sum", "prod", "max", "min" };
    flux_shape s = flux__shape(k->full, FLUX_MAX_DIMS);
    size_t n = 0;
#define FLUX__ADD(...)                                                                             \
    do if (n < capacity) n += (size_t)snprintf(out + n, capacity - n, __VA_ARGS__); while (0)
    while (s.ndim > 1 && s.dim[s.ndim - 1] == 1) s.ndim--;
    flux__text t = flux__shape_text(&s);
    FLUX__ADD("%s", k->call ? k->call->name : flux__kernel_kinds[k->kind]);
    if (sizes) FLUX__ADD(" %s", t.s);
    if (k->kind == FLUX__K_MATMUL && sizes) FLUX__ADD(" inner %lld", (long long)k->mnk[2]);
    if (k->reduced && full) FLUX__ADD(", reduced dims %#x", k->reduced);
    FLUX__ADD(":");
    for (int v = 0; v < k->nvalue; v++) {
        const flux__value *line = &k->value[v];
        if (line->kind == FLUX__V_OP) FLUX__ADD(" %s", flux__op_names[line->op]);
        if (line->kind == FLUX__V_REDUCE) FLUX__ADD(" %s", reds[line->op]);
        if (line->kind == FLUX__V_ARGREDUCE) FLUX__ADD(" arg");
        if (line->kind == FLUX__V_RANDOM || line->kind == FLUX__V_IOTA)
            FLUX__ADD(line->kind == FLUX__V_IOTA ? " iota" : " random");
        if (line->out < 0 || !full) continue;
        flux__text o = flux__describe(g->node[line->out - plan->nleaf]);
        FLUX__ADD("->[%s%s]", o.s,
                  plan->slot[line->out - plan->nleaf].donated >= 0 ? ", in place" : "");
    }
}

/* Prints the plan for FLUX_LOG=schedule, one line per kernel. */
static void flux__log_plan(const flux__plan *plan, flux__graph *g) {
    char words[2000];
    fprintf(stderr, "flux: schedule of %d operations in %d kernels\n", plan->nnode, plan->nkernel);
    for (int i = 0; i < plan->nkernel; i++) {
        flux__kernel_words(plan, g, &plan->kernel[i], FLUX__WORDS_FULL, words, sizeof words);
        fprintf(stderr, "  %2d. %s\n", i + 1, words);
    }
}

FLUX__END_COLD

#endif /* FLUX__SCHEDULE_ORDER_H */
