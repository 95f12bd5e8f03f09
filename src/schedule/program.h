#ifndef FLUX__SCHEDULE_PROGRAM_H
#define FLUX__SCHEDULE_PROGRAM_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../graph/nodes.h"
#include "kernel.h"
#include "key.h"
#include "grouping.h"
#include "gathers.h"

/* ---------------------------------------------------------------------- schedule/program.h
   From a group to a kernel: flux__build_kernel emits the lines of the kernel's
   program, its operands with their strides, and decides which values are stored
   (flux__must_store).

   Invariant: a line uses earlier lines only, and equal lines are one value.
   Each value has a compute type (flux__class_of: f32, f64, i32 or i64) and the
   dtype as stored; values of half formats and of u8 are rounded or wrapped
   after each operation (flux__settle), so that fusion does not change a result.
   The phase of a line is how many reductions must be complete before it. A
   value that is stored for two nodes, or that is a plain load or is outer in a
   node that has every point, gets a line of its own for each. Operands of a
   kernel that is not elementwise come first in its list. */

FLUX__BEGIN_LEAN

/* The compute type of a dtype. */
static int flux__class_of(int dtype) {
    switch (dtype) {
    case FLUX_F64: return FLUX__F64C;
    case FLUX_I64: return FLUX__I64C;
    case FLUX_I32: case FLUX_U8: case FLUX_BOOL: return FLUX__I32C;
    default: return FLUX__F32C;
    }
}

typedef struct flux__builder {            /* the state while one kernel is built */
    flux__planner *p;
    flux__kernel *k;
    int *value_of;                        /* by node: the value that holds it in this kernel, or
                                             -1 */
    bool joined;                          /* the kernel has a product's dims, its maps finer ones */
    bool ok;
} flux__builder;

/* Adds a line to the kernel's program and gives its number; a line equal to an earlier one is not
   added, and the number is that of the earlier one. */
static int flux__append(flux__builder *b, const flux__value *v) {
    flux__kernel *k = b->k;
    int first = v->a > v->b ? v->a : v->b;
    if (v->c > first) first = v->c;
    FLUX__ASSERT(first < k->nvalue);      /* a line uses earlier lines only */
    /* an equal line can only stand behind the values that it uses */
    for (int i = first + 1; i < k->nvalue; i++) {
        const flux__value *w = &k->value[i];
        if (w->a == v->a && w->operand == v->operand && w->op == v->op && w->b == v->b &&
            w->c == v->c && w->kind == v->kind && w->ctype == v->ctype && w->dtype == v->dtype &&
            w->outer == v->outer && w->node == v->node)
            return i;
    }
    flux__value *value =
        (flux__value *)flux__grow(k->value, &k->value_capacity, k->nvalue + 1, sizeof *value);
    if (!value || k->nvalue > 30000) {
        b->ok = false;
        return 0;
    }
    k->value = value;
    value[k->nvalue] = *v;
    return k->nvalue++;
}

/* A line that uses no values and no operand and is not stored. */
static flux__value flux__line(int kind, int op, int ctype, int dtype) {
    flux__value v;
    memset(&v, 0, sizeof v);
    v.kind = (uint8_t)kind, v.op = (uint8_t)op, v.ctype = (uint8_t)ctype, v.dtype = (uint8_t)dtype;
    v.a = v.b = v.c = v.operand = -1;
    v.node = v.out = -1;
    return v;
}

/* Compares two operands field by field, since the padding between fields may differ. */
static bool flux__same_operand(const flux__operand *a, const flux__operand *b) {
    return a->src == b->src && a->dtype == b->dtype && a->offset == b->offset &&
           a->gather == b->gather && flux__same8(a->stride, b->stride) &&
           a->shape.ndim == b->shape.ndim && flux__same8(a->shape.dim, b->shape.dim) &&
           memcmp(a->owner, b->owner, sizeof a->owner) == 0;
}

/* Adds an operand to the kernel and gives its number, which is that of an equal one if there is
   one. */
static int flux__add_operand(flux__builder *b, const flux__operand *o) {
    flux__kernel *k = b->k;
    for (int i = 0; i < k->noperand; i++)
        if (flux__same_operand(&k->operand[i], o)) return i;
    flux__operand *operand =
        (flux__operand *)flux__grow(k->operand, &k->operand_capacity, k->noperand + 1,
                                    sizeof *operand);
    if (!operand) {
        b->ok = false;
        return 0;
    }
    k->operand = operand;
    operand[k->noperand] = *o;
    return k->noperand++;
}

/* The slot of a tensor that is no view: leaves come first, then the graph's nodes. */
static int flux__slot_of(flux__builder *b, flux_tensor *base) {
    return flux__finished(base) ? flux__leaf_number(b->p->g, base) : b->p->g->nleaf + base->index;
}

/* Whether a value that is read with these strides is outer: it changes along none of the reduced
   dims, so that it is the same for a whole row. */
static bool flux__is_outer(const flux__kernel *k, const flux_tensor *x, const int64_t *stride) {
    if (!k->reduced) return false;
    for (int d = 0; d < FLUX_MAX_DIMS; d++)
        /* a dim of size 0 has no element to load */
        if ((k->reduced >> d & 1) && (stride[d] || (d < x->ndim && x->dim[d] == 0))) return false;
    return true;
}

/* The strides by which a user reads x, along the kernel's dims: those of a product may be several
   of the user's each. */
static void flux__kernel_strides(flux__builder *b, flux_tensor *x, const int64_t *points,
                                 flux__operand *o) {
    unsigned joined;
    flux__use_strides(x, points, &o->offset, o->stride);
    if (b->joined) flux__coarser(points, b->k->full, &joined, o->stride);
}

/* Emits a load of x, read over the given points of its user. */
static int flux__append_load(flux__builder *b, flux_tensor *x, const int64_t *points) {
    flux__operand o;
    memset(&o, 0, sizeof o);
    flux_tensor *base = flux__base(x);
    o.src = flux__slot_of(b, base);
    o.dtype = base->dtype;
    o.shape = flux__dims(x);
    flux__kernel_strides(b, x, points, &o);
    flux__value v = flux__line(FLUX__V_LOAD, 0, flux__class_of(o.dtype), o.dtype);
    v.outer = flux__is_outer(b->k, x, o.stride);
    v.operand = (int16_t)flux__add_operand(b, &o);
    return flux__append(b, &v);
}

/* Emits a value computed from an element's index in the node's own shape: IOTA counts, RANDOM
   draws. */
static int flux__append_index(flux__builder *b, flux_tensor *t, int node, int kind) {
    flux__operand o;
    int64_t points[FLUX_MAX_DIMS];
    memset(&o, 0, sizeof o);
    o.src = -1;
    o.dtype = FLUX_I64;
    o.shape = flux__dims(t);
    flux__dims8(t, points);
    flux__kernel_strides(b, t, points, &o);
    flux__value v = flux__line(kind, kind == FLUX__V_RANDOM ? (int)t->arg.i[2] : 0,
                               kind == FLUX__V_RANDOM ? FLUX__F32C : FLUX__I64C, t->dtype);
    v.outer = flux__is_outer(b->k, t, o.stride);
    v.operand = (int16_t)flux__add_operand(b, &o);
    v.node = kind == FLUX__V_RANDOM ? node : -1;
    return flux__append(b, &v);
}

/* Emits the value of a NUMBER node, which is no part of the plan: the line says where the run finds
   it, as operand number `operand` of node number `user`. */
static int flux__append_number(flux__builder *b, int ctype, int user, int operand) {
    flux__value v = flux__line(FLUX__V_NUMBER, 0, ctype, FLUX_F32);
    v.outer = b->k->reduced != 0;
    v.node = user << 8 | operand;         /* operand 255: the node itself is the NUMBER */
    return flux__append(b, &v);
}

/* Emits an integer that is a constant of the program itself. */
static int flux__append_literal(flux__builder *b, int ctype, int code) {
    flux__value v = flux__line(FLUX__V_NUMBER, 1, ctype, FLUX_F32);
    v.outer = b->k->reduced != 0;
    v.node = code;
    return flux__append(b, &v);
}

/* Emits a line that uses the values a, x and c (-1: none). It is outer if all of these are. */
static int flux__append_use(flux__builder *b, int kind, int op, int ctype, int dtype, int a, int x,
                          int c) {
    flux__value v = flux__line(kind, op, ctype, dtype);
    v.a = (int16_t)a, v.b = (int16_t)x, v.c = (int16_t)c;
    v.outer = b->k->reduced != 0 && b->k->value[a].outer && (x < 0 || b->k->value[x].outer) &&
              (c < 0 || b->k->value[c].outer);
    return flux__append(b, &v);
}

/* Converts a value to compute type ctype, if it has another. */
static int flux__as_class(flux__builder *b, int v, int ctype) {
    if (!b->ok || b->k->value[v].ctype == ctype) return v;
    return flux__append_use(b, FLUX__V_CONVERT, 0, ctype, b->k->value[v].dtype, v, -1, -1);
}

/* The value of operand k of a node, in compute type ctype: a value of this kernel, a load from
   memory, or a number. */
static int flux__append_node(flux__builder *b, int node);
static int flux__append_operand(flux__builder *b, flux_tensor *user, int user_node, int k,
                                int ctype) {
    flux_tensor *x = user->in[k], *base = flux__base(x);
    int64_t points[FLUX_MAX_DIMS];
    if (flux__in_place_number(b->p->g, base) ||
        (base->op == FLUX__NUMBER && flux__in_graph(b->p->g, base) &&
         b->value_of[base->index] < 0))
        return flux__append_number(b, ctype, user_node, k);
    if (!flux__finished(base) && b->value_of[base->index] >= 0)
        return flux__as_class(b, b->value_of[base->index], ctype);
    if (flux__is_anew(b->p, base))
        return flux__as_class(b, flux__append_node(b, base->index), ctype);
    flux__dims8(flux__is_reduce(user) ? user->in[0] : user, points);
    return flux__as_class(b, flux__append_load(b, x, points), ctype);
}

/* Brings a value into its dtype after an operation: half formats are rounded, u8 is wrapped. */
static int flux__settle(flux__builder *b, int v, int dtype) {
    if (!b->ok) return v;
    if (dtype == FLUX_F16 || dtype == FLUX_BF16)
        return flux__append_use(b, FLUX__V_ROUND, dtype, b->k->value[v].ctype, dtype, v, -1, -1);
    if (dtype == FLUX_U8)
        return flux__append_use(b, FLUX__V_WRAP, dtype, b->k->value[v].ctype, dtype, v, -1, -1);
    return v;
}

/* Emits a cast. To bool it is x != 0; from a real dtype to u8 the value is first clamped to 0 ...
   255. */
static int flux__append_cast(flux__builder *b, flux_tensor *t, int node) {
    flux_tensor *x = t->in[0];
    int from = flux__class_of(x->dtype), to = flux__class_of(t->dtype);
    /* a bool is 0 or 1 in any compute type */
    int v = flux__append_operand(b, t, node, 0, x->dtype == FLUX_BOOL ? to : from);
    if (!b->ok) return 0;
    if (t->dtype == FLUX_BOOL)
        return flux__append_use(b, FLUX__V_OP, FLUX__OP_NE, b->k->value[v].ctype, FLUX_BOOL, v,
                              flux__append_literal(b, b->k->value[v].ctype, 0), -1);
    if (t->dtype == FLUX_U8 && flux__dtypes[x->dtype].real) {
        v = flux__append_use(b, FLUX__V_OP, FLUX__OP_MAX2, from, x->dtype, v,
                           flux__append_literal(b, from, 0), -1);
        v = flux__append_use(b, FLUX__V_OP, FLUX__OP_MIN2, from, x->dtype, v,
                           flux__append_literal(b, from, 255), -1);
    }
    return flux__settle(b, flux__as_class(b, v, to), t->dtype);
}

/* Whether a tensor is a value of this kernel in compute type f32, as the result of a comparison of
   floats is. */
static bool flux__is_floats_here(const flux__builder *b, flux_tensor *x) {
    const flux_tensor *base = flux__base(x);
    return !flux__finished(base) && b->value_of[base->index] >= 0 &&
           b->k->value[b->value_of[base->index]].ctype == FLUX__F32C;
}

/* Emits a row of the elementwise table. A comparison (rule C) has the compute type of its operands;
   an operation on bools (rule B) is computed in f32 if one of its operands is a value in f32
   here. An operation of rule F on integers is an error: graph/elementwise.h converts these. */
static int flux__append_elementwise(flux__builder *b, flux_tensor *t, int node) {
    int v[3] = { -1, -1, -1 }, ctype = flux__class_of(t->dtype);
    char rule = flux__rules[t->op];
    for (int k = 0; k < t->nin && rule == 'B'; k++)
        if (flux__is_floats_here(b, t->in[k])) ctype = FLUX__F32C;
    if (rule == 'C')
        ctype = flux__class_of(t->in[0]->flags & FLUX__WEAK && t->nin > 1 ? t->in[1]->dtype
                                                                        : t->in[0]->dtype);
    if (rule == 'F' && ctype > FLUX__F64C) {
        flux__fail("%s: no kernel for %s", flux__op_names[t->op], flux__dtypes[t->dtype].name);
        b->ok = false;
    }
    for (int k = 0; k < t->nin && b->ok; k++) v[k] = flux__append_operand(b, t, node, k, ctype);
    if (!b->ok) return 0;
    return flux__settle(b, flux__append_use(b, FLUX__V_OP, t->op, ctype, t->dtype, v[0], v[1],
                                            v[2]),
                        t->dtype);
}

/* Emits a reduction or the index of a maximum or minimum. */
static int flux__append_reduce(flux__builder *b, flux_tensor *t, int node) {
    int ctype = flux__class_of(t->in[0]->dtype), x = flux__append_operand(b, t, node, 0, ctype);
    bool arg = t->op == FLUX__ARGREDUCE;
    if (!b->ok) return 0;
    /* all reduced dims have size 1 */
    if (!flux__real_mask(t)) return arg ? flux__append_literal(b, FLUX__I64C, 0) : x;
    flux__value v = flux__line(arg ? FLUX__V_ARGREDUCE : FLUX__V_REDUCE, (int)t->arg.i[0],
                               arg ? FLUX__I64C : ctype, t->dtype);
    v.a = (int16_t)x;
    v.outer = true;
    return flux__settle(b, flux__append(b, &v), t->dtype);
}

/* Emits the lines of a node and gives the number of its value. */
static int flux__append_node(flux__builder *b, int node) {
    flux_tensor *t = b->p->g->node[node];
    flux__value v;
    if (t->op < FLUX__ELEMENTWISE_COUNT) return flux__append_elementwise(b, t, node);
    switch (t->op) {
    case FLUX__CAST: return flux__append_cast(b, t, node);
    case FLUX__COPY: return flux__append_operand(b, t, node, 0, flux__class_of(t->dtype));
    case FLUX__NUMBER: return flux__append_number(b, flux__class_of(t->dtype), node, 255);
    case FLUX__IOTA: return flux__append_index(b, t, node, FLUX__V_IOTA);
    case FLUX__RANDOM: return flux__append_index(b, t, node, FLUX__V_RANDOM);
    case FLUX__MATMUL:
        v = flux__line(FLUX__V_PRODUCT, 0, flux__class_of(t->dtype), t->dtype);
        return flux__settle(b, flux__append(b, &v), t->dtype);
    default: return flux__append_reduce(b, t, node);
    }
}

/* Takes memory that lasts as long as the plan. A plan may have a million kernels, so what they take
   comes from chunks, whose size grows with the plan. */
static void *flux__plan_take(flux__plan *plan, size_t bytes) {
    flux__chunk *chunk = plan->chunk;
    const size_t head = (sizeof *chunk + 15) & ~(size_t)15, n = (bytes + 15) & ~(size_t)15;
    if (!chunk || chunk->capacity - chunk->used < n) {
        const int64_t all = plan->bytes;
        size_t capacity = all < 4096 ? 2048u : all > 1 << 26 ? 1u << 25 : (size_t)all / 2;
        if (capacity < n || (FLUX__EXACT_BLOCKS && all < 1 << 20)) capacity = n;
        chunk = (flux__chunk *)flux__malloc(head + capacity);
        if (!chunk) return NULL;
        chunk->next = plan->chunk, chunk->used = 0, chunk->capacity = capacity;
        plan->chunk = chunk;
        plan->bytes += (int64_t)(head + capacity);
    }
    void *p = (char *)chunk + head + chunk->used;
    chunk->used += n;
    return p;
}

/* What a product pads itself, t being the padded image. NULL: out of memory. */
static const flux__padding *flux__padding_of(flux__builder *b, const flux_tensor *t,
                                             flux__plan *plan) {
    flux__padding *padding = (flux__padding *)flux__plan_take(plan, sizeof *padding);
    if (!padding) {
        b->ok = false;
        return NULL;
    }
    padding->node = t->index, padding->shape = flux__dims(t->in[0]);
    flux__layout(t->in[0], &padding->offset, padding->stride);
    return padding;
}

/* Adds an operand with the offset and strides of its layout, along its own dims. For a copy that is
   never made, the operand is the source of that copy, and of windows of an image whose padding is
   not made either, the image. */
static void flux__plain_operand(flux__builder *b, flux_tensor *x, flux__plan *plan) {
    flux__operand o, *operand;
    flux__kernel *k = b->k;
    memset(&o, 0, sizeof o);
    if (flux__is_gather(b->p, flux__base(x))) {
        o.gather = flux__owners(x, flux__base(x), o.owner);
        x = flux__base(x)->in[0];
    }
    o.dtype = x->dtype;
    o.shape = flux__dims(x);
    const bool padded = flux__is_gather(b->p, flux__base(x)),
               pads = padded && flux__has_trait(x->device, FLUX__PADS_IMAGES);
    if (padded && !pads) {
        flux__bounds *bounds = (flux__bounds *)flux__plan_take(plan, sizeof *bounds);
        if (!bounds) b->ok = false;
        else flux__unpadded(x, &o.offset, o.stride, bounds);
        o.bounds = bounds;
    } else flux__layout(x, &o.offset, o.stride);
    if (pads) o.padding = flux__padding_of(b, flux__base(x), plan);
    o.src = flux__slot_of(b, flux__base(flux__read_for(b->p, x)));
    for (int d = x->ndim; d < FLUX_MAX_DIMS; d++) o.stride[d] = 0;
    operand =
        (flux__operand *)flux__grow(k->operand, &k->operand_capacity, k->noperand + 1,
                                    sizeof *operand);
    if (!operand) {
        b->ok = false;
        return;
    }
    k->operand = operand;
    operand[k->noperand++] = o;
}

/* Sets the phase of each line: one more than that of a reduction that it uses, and no lower than
   those of all values that it uses. */
static void flux__set_phases(flux__kernel *k) {
    for (int i = 0; i < k->nvalue; i++) {
        flux__value *v = &k->value[i];
        int use[3], phase = 0;
        use[0] = v->a, use[1] = v->b, use[2] = v->c;
        for (int j = 0; j < 3; j++) {
            if (use[j] < 0) continue;
            const flux__value *w = &k->value[use[j]];
            int after = w->phase + (w->kind == FLUX__V_REDUCE || w->kind == FLUX__V_ARGREDUCE);
            if (after > phase) phase = after;
        }
        v->phase = (int16_t)phase;
    }
}

/* Whether a node must be stored: it is a root, or another kernel reads it. Maps and reductions take
   the value of a NUMBER in place, so it is not stored for them. */
static bool flux__must_store(flux__planner *p, int node) {
    if (p->anew[node]) return !(p->anew[node] & FLUX__ANEW);
    if (p->g->flag[node] & FLUX__ROOT) return true;
    for (int u = p->use_start[node]; u < p->use_start[node + 1]; u++) {
        const flux_tensor *user = p->g->node[p->use[u] >> 8];
        bool apart = p->group_of[p->use[u] >> 8] != p->group_of[node];
        if (apart && (p->g->node[node]->op != FLUX__NUMBER ||
                      !(flux__is_map(user) || flux__is_reduce(user))))
            return true;
    }
    return false;
}

/* Whether a node of this kernel has one element for each outer point, instead of one for every
   point. */
static bool flux__outer_shaped(const flux__kernel *k, const flux_tensor *t) {
    int64_t s[FLUX_MAX_DIMS];
    flux__dims8(t, s);
    return k->reduced != 0 && !flux__same8(s, k->full);
}

/* The value to store for a node: v, or a line of its own that copies v. The latter is needed if v
   is stored for another node already, if v is a LOAD, IOTA or RANDOM, which has the strides of its
   source, or if one of v and the node is outer and the other is not. */
static int flux__storable(flux__builder *b, int v, const flux_tensor *t) {
    const flux__value *w = &b->k->value[v];
    bool outer = flux__outer_shaped(b->k, t),
         source = w->kind <= FLUX__V_RANDOM && w->kind != FLUX__V_NUMBER;
    if (!b->ok || (w->out < 0 && !source && w->outer == outer)) return v;
    flux__value line = flux__line(FLUX__V_CONVERT, 1, w->ctype, t->dtype);
    line.a = (int16_t)v, line.outer = outer;
    /* A node number that no other line has makes flux__append add the line. */
    line.node = b->k->nvalue;
    return flux__append(b, &line);
}

/* Copies the kernel's lines and operands out of the planner's arrays, which keep their spare
   capacity for the next kernel, into memory of the plan. */
static bool flux__settle_kernel(flux__planner *p, flux__kernel *k, flux__plan *plan) {
    flux__kernel *from = &p->building;
    from->value = k->value, from->value_capacity = k->value_capacity, from->operand = k->operand,
    from->operand_capacity = k->operand_capacity;
    k->value = (flux__value *)flux__plan_take(plan, (size_t)k->nvalue * sizeof *k->value);
    k->operand = (flux__operand *)flux__plan_take(plan, (size_t)k->noperand * sizeof *k->operand);
    k->value_capacity = k->nvalue, k->operand_capacity = k->noperand;
    if (!k->value || !k->operand) return false;
    if (k->nvalue) memcpy(k->value, from->value, (size_t)k->nvalue * sizeof *k->value);
    if (k->noperand) memcpy(k->operand, from->operand, (size_t)k->noperand * sizeof *k->operand);
    return true;
}

/* Builds kernel k from group G: emits operands and program lines of the group's nodes in order,
   decides which values are stored, and sets the phases. False: out of memory or too many lines. */
static bool flux__build_kernel(flux__planner *p, int G, flux__kernel *k, flux__plan *plan) {
    flux__builder b;
    flux__group *group = &p->group[G];
    const int *node = p->member + p->member_start[G],
              n = p->member_start[G + 1] - p->member_start[G];
    b.p = p, b.k = k, b.ok = true, b.joined = group->joined != 0;
    b.value_of = p->value_of;
    memset(k, 0, sizeof *k);
    k->value = p->building.value, k->value_capacity = p->building.value_capacity;
    k->operand = p->building.operand, k->operand_capacity = p->building.operand_capacity;
    k->kind = group->kind;
    k->node = -1;
    if (group->kind != FLUX__K_FUSED) {   /* the operands of the operation itself come first */
        k->node = group->product >= 0 ? group->product : group->last;
        const flux_tensor *t = p->g->node[k->node];
        memcpy(k->mnk, t->arg.i, sizeof k->mnk);
        if (k->kind == FLUX__K_CALL) k->call = (const flux__plan_call *)(intptr_t)t->arg.i[0];
        for (int j = 0; j < t->nin; j++) flux__plain_operand(&b, t->in[j], plan);
    }
    k->reduced = group->reduced;
    memcpy(k->full, group->full, sizeof k->full);
    if (b.joined) flux__dims8(p->g->node[k->node], k->full);
    for (int m = 0; m < n && b.ok; m++) {
        const int i = node[m];
        flux_tensor *t = p->g->node[i];
        /* most often the next node of the group, too */
        flux__soon(p->g->node, i + FLUX__SOON, p->n);
        bool fused = group->kind == FLUX__K_FUSED || group->kind == FLUX__K_MATMUL;
        bool store = flux__must_store(p, i);
        if (fused && b.ok) {
            int v = flux__append_node(&b, i);
            b.value_of[i] = v;
            if (store && b.ok)
                v = flux__storable(&b, v, t), k->value[v].out = p->g->nleaf + i,
                k->value[v].dtype = t->dtype;
        }
        if (store || !fused) plan->slot[i].stored = true;
    }
    for (int m = 0; m < n; m++) b.value_of[node[m]] = -1;
    if (!flux__settle_kernel(p, k, plan)) return false;
    flux__set_phases(k);
    return b.ok;
}

FLUX__END_LEAN

#endif /* FLUX__SCHEDULE_PROGRAM_H */
