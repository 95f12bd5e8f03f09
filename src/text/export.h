#ifndef FLUX__TEXT_EXPORT_H
#define FLUX__TEXT_EXPORT_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/text.h"
#include "../base/memory.h"
#include "../base/sinks.h"
#include "../base/scopes.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/leaves.h"
#include "../graph/views.h"
#include "../schedule/kernel.h"
#include "../schedule/key.h"
#include "../schedule/order.h"
#include "../schedule/looking.h"
#include "../schedule/spelling.h"
#include "../nn/map.h"
#include "../nn/model.h"
#include "../nn/moves.h" /* flux_cpu_layer */
#include "../nn/compile.h"
#include "../nn/recurrent.h"
#include "models.h"
#include "export_words.h"
#include "export_fused.h"
#include "export_products.h"
#include "export_whole.h"

/* ---------------------------------------------------------------------- text/export.h
   A model as one file of C (flux_export_c). A copy of the model, on the CPU, in
   float32 and in test mode, is called on a placeholder; the nodes that this
   records become a plan, as an evaluation would make it, and each kernel of the
   plan a function of C: the same grouping, order and lives of buffers that every
   back end gets. Kernels with the same text, such as the steps of a recurrent
   layer, are one function.

   Invariant: what depends on weights alone and is not larger than they are is
   computed now and written as weights. A stored node has its place in the static
   array of its dtype from the kernel that makes it to the last that reads it, or
   is one of the results, which lie where the caller wants them. States are
   written back when everything is done, since kernels read the old ones until
   then. The file is written whole or not at all.

   Rejected: a generator for each kind of layer, which would know nothing of a
   user's own layers, and fuse nothing. */

FLUX__BEGIN_COLD

enum { FLUX__NET_OUTS = 8 };                /* most tensors of a result */

/* Where a stored node's elements are; the arrays by type, in the order of flux__net_arrays. */
static const struct { const char *name, *type; int size; } flux__net_arrays[] = {
    { "$_floats", "float", 4 }, { "$_ints", "int", 4 }, { "$_longs", "long long", 8 },
    { "$_bytes", "unsigned char", 1 }
};
enum { FLUX__NET_ARRAYS = 4 };

typedef struct flux__net_export {
    flux_layer *model;                    /* the copy that is called */
    flux_tensor *x, *y[FLUX__NET_OUTS], *root[FLUX__NET_OUTS];
    int nout;
    flux__streams states;
    flux__graph g;
    flux__plan *plan;
    char (*place)[48];                    /* by slot */
    const char **places;                  /* the same as pointers */
    int64_t *at;                          /* by node: its offset in its array; -1: none yet */
    int64_t length[FLUX__NET_ARRAYS], packed, panel, scratch, weights;
    uint8_t ops[FLUX__ELEMENTWISE_COUNT];
    flux__sink functions, calls, *function;   /* function: the text of each, by number */
    int nfunction, function_room;
    int64_t failures;                     /* before all */
    char name[64];
} flux__net_export;

static int flux__net_array(int dtype) {
    return dtype == FLUX_F32 ? 0 : dtype == FLUX_I32 ? 1 : dtype == FLUX_I64 ? 2 : 3;
}

/* ---------------- recording */

/* Sets the function's name: that of the file, with _ for what an identifier may not have, or the
   one that was given, which is to be an identifier. */
static bool flux__net_name(flux__net_export *e, const char *path, const char *given) {
    size_t n = 0;
    const char *from = given ? given : path;
    for (const char *p = path; p && *p && !given; p++)
        if (flux__is_separator(*p)) from = p + 1;
    if (!given && flux__is_digit(*from)) e->name[n++] = '_';
    for (const char *p = from; *p && (given || *p != '.') && n + 1 < sizeof e->name; p++) {
        const bool good = isalnum((unsigned char)*p) && (unsigned char)*p < 128;
        if (given && ((!good && *p != '_') || (p == given && flux__is_digit(*p))))
            return FLUX__REFUSE("export_c: .name is no identifier of C: \"%.60s\"", given);
        e->name[n++] = good ? *p : '_';
    }
    e->name[n] = 0;
    return n > 0 || FLUX__REFUSE("export_c: the path \"%.60s\" gives no name; .name can", path);
}

/* Gives a placeholder memory, so that it can be a leaf of a plan. */
static bool flux__net_fill(flux_tensor *x) {
    if (!x->buf) x->buf = flux__buffer_new(x->device, (size_t)flux__size(x) *
                                               flux__dtypes[x->dtype].size, x);
    return x->buf != NULL;
}

/* Calls the model's copy on a placeholder, and notes the results and states. */
static bool flux__net_record(flux__net_export *e, flux_layer *m, flux_shape in, bool stateless) {
    flux__thread *t = flux__self();
    FLUX__ZEROED(flux__watch, w);
    flux_layer *there = flux_f32(flux_cpu_layer(m));
    e->model = there ? flux__map_layer(flux__keep_leaf, NULL, there, false) : NULL;
    if (!e->model) return false;
    const bool ready = flux__eval_weights(e->model);
    flux_testmode(e->model, true);
    const flux_dtype given = flux__takes_indices(e->model) ? FLUX_I32 : FLUX_F32;
    e->x = ready ? flux__placeholder(in, given) : NULL;
    if (!e->x) return false;
    const uint64_t draws = t->draws;
    flux__watch *around = t->watch;
    flux__streams *outer = t->streams;
    e->states.ok = true;
    t->watch = &w, t->streams = stateless ? NULL : &e->states;
    flux__as_one(1);
    flux_tensor *y = flux_call_layer(e->model, e->x);
    flux__as_one(-1);
    t->watch = around, t->streams = outer, t->draws = draws;
    flux__free(w.row);
    if (!y || !e->states.ok || flux__failed_since(e->failures)) return false;
    e->nout = flux_num_items(y);
    if (e->nout > FLUX__NET_OUTS)
        return FLUX__REFUSE("export_c: the model gives %d tensors, a file of C at most %d", e->nout,
                            FLUX__NET_OUTS);
    for (int i = 0; i < e->nout; i++) {
        e->y[i] = flux_nth(y, i);
        if (!e->y[i] || e->y[i]->op == FLUX__TUPLE)
            return FLUX__REFUSE("export_c: the model gives a tuple within a tuple");
    }
    bool good = flux__net_fill(e->x);
    for (int i = 0; i < e->states.n; i++) good = good && flux__net_fill(e->states.before[i]);
    return good;
}

/* Makes the roots: of each result its base, if that has the same elements in the same order and is
   no root yet, else a copy. States after the call are copied, as their arrays are the caller's. */
static bool flux__net_roots(flux__net_export *e) {
    for (int i = 0; i < e->nout; i++) {
        flux_tensor *y = e->y[i], *base = flux__base(y);
        int64_t offset, stride[FLUX_MAX_DIMS];
        flux_shape s = flux__dims(y);
        flux__layout(y, &offset, stride);
        bool own = offset == 0 && flux__in_order(&s, stride) && !flux__finished(base) &&
                   base->op != FLUX__NUMBER && flux__size(base) == flux__size(y);
        for (int k = 0; k < i; k++) own = own && e->root[k] != base;
        e->root[i] = own ? base : flux_copy(y);
        if (!e->root[i]) return false;
    }
    for (int i = 0; i < e->states.n; i++) {
        flux_tensor *last = flux_copy(e->states.after[i]);
        if (!last) return false;
        flux_release(e->states.after[i]);
        e->states.after[i] = (flux_tensor *)flux_retain(last);
    }
    return true;
}

/* Collects the graph of all roots in e->g. */
static bool flux__net_collect(flux__net_export *e) {
    do {
        flux__graph_start(&e->g);
        for (int i = 0; i < e->nout && e->g.ok; i++) flux__graph_want(&e->g, e->root[i]);
        for (int i = 0; i < e->states.n && e->g.ok; i++)
            flux__graph_want(&e->g, e->states.after[i]);
    } while (flux__graph_met(&e->g));
    flux__graph_claim(&e->g);
    return e->g.ok;
}

/* Whether a tensor's value comes with the call. */
static bool flux__net_given(const flux__net_export *e, const flux_tensor *x) {
    bool given = x == e->x;
    for (int i = 0; i < e->states.n; i++) given = given || x == e->states.before[i];
    return given;
}

/* Writes to `fixed` (room for all nodes) the largest nodes that depend on weights alone, if they
   are no larger than what they are made of or 256 elements; gives their number, 0 on an error. */
static int flux__net_constants(flux__net_export *e, flux_tensor **fixed) {
    flux__graph *g = &e->g;
    int n = 0;
    int64_t *weight = (int64_t *)flux__malloc((size_t)g->nnode * sizeof *weight);
    uint8_t *used = (uint8_t *)flux__zalloc((size_t)g->nnode);
    for (int i = 0; weight && used && i < g->nnode; i++) {       /* -1: it depends on the input */
        flux_tensor *t = g->node[i];
        weight[i] = t->op == FLUX__RANDOM || t->op == FLUX__CALL ? -1 : 256;
        for (int k = 0; k < flux__reads(t); k++) {
            flux_tensor *x = flux__base(t->in[k]);
            const int64_t size = flux__in_graph(g, x) ? weight[x->index]
                                 : flux__net_given(e, x) ? -1 : flux__size(x);
            if (size < 0 || weight[i] < 0) weight[i] = -1;
            else if (size > weight[i]) weight[i] = size;
        }
        if (flux__size(t) > weight[i] || (g->flag[i] & FLUX__ROOT)) weight[i] = -1;
        for (int k = 0; k < flux__reads(t) && weight[i] < 0; k++) {
            flux_tensor *x = flux__base(t->in[k]);
            if (flux__in_graph(g, x) && weight[x->index] >= 0) used[x->index] = 1;
        }
    }
    for (int i = 0; weight && used && i < g->nnode; i++)
        if (used[i] && g->node[i]->op != FLUX__NUMBER) fixed[n++] = g->node[i];
    flux__free(weight);
    flux__free(used);
    return n;
}

/* Computes what depends on weights alone. */
static bool flux__net_fold(flux__net_export *e) {
    bool ok = flux__net_collect(e);
    flux_tensor **fixed = (flux_tensor **)flux__malloc((size_t)e->g.nnode * sizeof *fixed);
    int n = ok && fixed ? flux__net_constants(e, fixed) : -1;
    for (int i = 0; i < n; i++) flux_retain(fixed[i]);
    flux__graph_free(&e->g);
    ok = n >= 0 && (n == 0 || flux_eval_all(n, fixed) == 0);
    for (int i = 0; i < n; i++) flux_release(fixed[i]);
    flux__free(fixed);
    return ok;
}

/* ---------------- what can be written */

static bool flux__net_dtype(int dtype) {
    return dtype != FLUX_F64 && dtype != FLUX_F16 && dtype != FLUX_BF16;
}

/* Whether C is written for kernels of this kind. */
static bool flux__net_kind(const flux__net_export *e, const flux__kernel *k) {
    const flux_tensor *t = k->node >= 0 ? e->g.node[k->node] : NULL;
    if (k->kind < FLUX__K_SORT && (k->kind != FLUX__K_ATTEND || !t->arg.i[2])) return true;
    return FLUX__REFUSE("export_c: the model has %s, which no file of C is written for",
                        k->call ? k->call->name : t ? flux__op_names[t->op] : "a call");
}

/* Whether C is written for a kernel; if not, the error names what stands in the way. */
static bool flux__net_can(const flux__net_export *e, const flux__kernel *k) {
    const char *node = k->node >= 0 ? flux__op_names[e->g.node[k->node]->op] : "values";
    int dtype = FLUX_F32;
    for (int i = 0; i < k->nvalue; i++) {
        const flux__value *v = &k->value[i];
        if (v->kind == FLUX__V_OP) node = flux__op_names[v->op];
        if (v->kind == FLUX__V_RANDOM)
            return FLUX__REFUSE("export_c: the model draws random numbers, also in test mode");
        if (v->ctype == FLUX__F64C || v->kind == FLUX__V_ROUND) dtype = FLUX_F64;
        if (dtype == FLUX_F64) break;
    }
    for (int i = 0; i < k->noperand; i++)
        if (k->operand[i].src >= 0 && !flux__net_dtype(k->operand[i].dtype))
            dtype = k->operand[i].dtype;
    for (int i = 0; i < k->nouts; i++)
        if (!flux__net_dtype(e->g.node[k->outs[i]]->dtype)) dtype = e->g.node[k->outs[i]]->dtype;
    return flux__net_dtype(dtype) ||
           FLUX__REFUSE("export_c: the model computes %s (%s) in other floats than float32", node,
                        flux__kernel_kinds[k->kind]);
}

/* ---------------- memory */

/* Finds a place in its array for node i, beside all nodes that live at the same time: the lowest
   that fits. */
static void flux__net_put_node(flux__net_export *e, int i) {
    const flux__slot_info *s = &e->plan->slot[i];
    const int array = flux__net_array(e->g.node[i]->dtype);
    const int64_t n = flux__size(e->g.node[i]), whole = n < 64 ? 4 : 16,
                  size = (n + whole - 1) / whole * whole;
    int64_t at = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int o = 0; o < e->plan->nout; o++) {
            const int k = e->plan->out[o];
            const flux__slot_info *other = &e->plan->slot[k];
            if (e->at[k] < 0 || flux__net_array(e->g.node[k]->dtype) != array ||
                other->last_kernel < s->out_kernel || other->out_kernel > s->last_kernel ||
                e->at[k] >= at + size || e->at[k] + flux__size(e->g.node[k]) <= at) continue;
            at = (e->at[k] + flux__size(e->g.node[k]) + whole - 1) / whole * whole;
            moved = true;
        }
    }
    e->at[i] = at;
    if (e->length[array] < at + size) e->length[array] = at + size;
}

/* Names the places of all slots: leaves, results, and nodes in working memory, of which the
   largest are placed first. */
static bool flux__net_places(flux__net_export *e) {
    const flux__plan *plan = e->plan;
    const size_t slots = (size_t)(plan->nleaf + plan->nnode) + 1;
    e->place = (char (*)[48])flux__zalloc(slots * sizeof *e->place);
    e->places = (const char **)flux__malloc(slots * sizeof *e->places);
    e->at = (int64_t *)flux__malloc(slots * sizeof *e->at);
    if (!e->place || !e->places || !e->at) return false;
    for (size_t i = 0; i < slots; i++) e->places[i] = e->place[i], e->at[i] = -1;
    for (int i = 0; i < plan->nleaf; i++) {
        int state = 0;
        while (state < e->states.n && e->states.before[state] != e->g.leaf[i]) state++;
        if (e->g.leaf[i] == e->x) snprintf(e->place[i], sizeof *e->place, "in");
        else if (state < e->states.n)
            snprintf(e->place[i], sizeof *e->place, "state->s%d", state);
        else snprintf(e->place[i], sizeof *e->place, "$_w%d", i);
    }
    for (int i = 0; i < e->states.n; i++)           /* states are read when all is done */
        plan->slot[e->states.after[i]->index].last_kernel = plan->nkernel;
    for (;;) {
        int largest = -1;
        for (int o = 0; o < plan->nout; o++) {
            const int i = plan->out[o];
            bool root = false;
            for (int k = 0; k < e->nout; k++) root = root || e->root[k] == e->g.node[i];
            if (root || e->at[i] >= 0) continue;
            if (largest < 0 || flux__size(e->g.node[i]) > flux__size(e->g.node[largest]))
                largest = i;
        }
        if (largest < 0) break;
        flux__net_put_node(e, largest);
        snprintf(e->place[plan->nleaf + largest], sizeof *e->place, "%s + %lld",
                 flux__net_arrays[flux__net_array(e->g.node[largest]->dtype)].name,
                 (long long)e->at[largest]);
    }
    for (int i = 0; i < e->nout; i++)
        snprintf(e->place[plan->nleaf + e->root[i]->index], sizeof *e->place, i ? "out%d" : "out",
                 i);
    return true;
}

/* ---------------- kernels */

/* Puts text with each line indented by the braces that are open, from `depth` on. */
static void flux__net_indent(flux__sink *s, const char *text, int depth) {
    while (*text) {
        const char *end = strchr(text, '\n');
        const size_t n = end ? (size_t)(end - text) : strlen(text);
        int here = depth - (*text == '}');
        if (*text != '#') flux__put_pad(s, 4 * here);
        flux__put_bytes(s, text, n);
        flux__put(s, "\n");
        for (size_t i = 0; i < n; i++) depth += (text[i] == '{') - (text[i] == '}');
        text += n + (end != NULL);
    }
}

/* The number of the function with this text, which is written now if no other kernel has it; -1:
   no memory. `text` is freed or kept. */
static int flux__net_function(flux__net_export *e, flux__sink *text) {
    for (int i = 0; i < e->nfunction; i++)
        if (e->function[i].len == text->len && strcmp(e->function[i].out, text->out) == 0) {
            flux__free(text->out);
            return i;
        }
    flux__sink *one = (flux__sink *)flux__one_more(&e->function, &e->function_room, e->nfunction,
                                                   sizeof *one);
    if (!one) {
        flux__free(text->out);
        return -1;
    }
    *one = *text;
    flux__putf(&e->functions, "\nstatic void $_k%d(", e->nfunction);
    const char *body = strchr(text->out, '\n') + 1;
    flux__put_bytes(&e->functions, text->out, (size_t)(body - text->out - 1));
    flux__put(&e->functions, ") {\n");
    flux__net_indent(&e->functions, body, 1);
    flux__put(&e->functions, "}\n");
    return e->nfunction++;
}

/* Writes the body of a kernel of any kind. */
static void flux__net_body(flux__net_kernel *c) {
    const flux_tensor *t = c->k->node >= 0 ? c->g->node[c->k->node] : NULL;
    if (c->k->kind == FLUX__K_FUSED) flux__net_fused(c);
    else if (c->k->kind == FLUX__K_MATMUL) flux__net_product(c);
    else if (c->k->kind == FLUX__K_CAT) flux__net_cat(c, t);
    else if (c->k->kind == FLUX__K_STRIDED_SCATTER) flux__net_spread(c, t);
    else if (c->k->kind == FLUX__K_INTERPOLATE) flux__net_interpolation(c, t);
    else if (c->k->kind == FLUX__K_ATTEND) flux__net_attend(c, t);
    else flux__net_index(c, t);
}

/* Writes kernel number `at`: its function, and the call. */
static bool flux__net_write_kernel(flux__net_export *e, int at) {
    FLUX__ZEROED(flux__net_kernel, c);
    char words[400];
    bool empty = true;
    c.plan = e->plan, c.g = &e->g, c.k = &e->plan->kernel[at], c.place = e->places;
    c.ops = e->ops, c.packed = e->packed, c.panel = e->panel, c.scratch = e->scratch, c.ok = true;
    strcpy(c.named, ",");
    for (int i = 0; i < c.k->nouts; i++)
        empty = empty && flux__size(e->g.node[c.k->outs[i]]) == 0;
    if (empty) return true;
    c.s = flux__sink_growing(), c.params = flux__sink_growing(), c.args = flux__sink_growing();
    flux__net_body(&c);
    e->packed = c.packed, e->panel = c.panel, e->scratch = c.scratch;
    flux__sink text = flux__sink_growing();
    if (c.ok && !c.s.failed && !c.params.failed && !c.args.failed && c.s.len) {
        flux__sink_end(&c.s), flux__sink_end(&c.params), flux__sink_end(&c.args);
        flux__put(&text, c.params.out), flux__put(&text, "\n"), flux__put(&text, c.s.out);
        flux__sink_end(&text);
    } else c.ok = false;
    const bool whole = c.ok && !text.failed;
    const int function = whole ? flux__net_function(e, &text) : -1;
    if (!whole) flux__free(text.out);
    flux__kernel_words(e->plan, &e->g, c.k, false, words, sizeof words);
    if (function >= 0) {
        flux__putf(&e->calls, "    /* %.200s */\n    $_k%d(", words, function);
        flux__put(&e->calls, c.args.out);
        flux__put(&e->calls, ");\n");
    }
    flux__free(c.s.out), flux__free(c.params.out), flux__free(c.args.out);
    return function >= 0;
}

/* ---------------- the file */

/* Puts a text inside a comment: what would end it, or begin another, is taken apart. */
static void flux__net_comment(flux__sink *s, const char *text) {
    flux__put(s, "   ");
    for (; *text; text++) {
        flux__put_bytes(s, text, 1);
        if ((text[0] == '*' && text[1] == '/') || (text[0] == '/' && text[1] == '*'))
            flux__put(s, " ");
        if (*text == '\n' && text[1]) flux__put(s, "   ");
    }
    flux__put(s, "\n");
}

/* Puts "float out[64][10]: 10 x 64": an array of C has the dimensions backwards. */
static void flux__net_array_text(flux__sink *s, const char *name, const flux_tensor *x) {
    const flux_shape shape = flux__dims(x);
    flux__putf(s, "   %s %s", flux__dtype_types[x->dtype], name);
    for (int d = x->ndim - 1; d >= 0; d--) flux__putf(s, "[%lld]", (long long)x->dim[d]);
    if (!x->ndim) flux__put(s, "[1]");
    flux__put(s, ", a tensor of ");
    for (int d = 0; d < shape.ndim; d++)
        flux__putf(s, d ? " x %lld" : "%lld", (long long)shape.dim[d]);
    flux__put(s, shape.ndim ? "\n" : "no dimension\n");
}

/* Puts "void net(net_state *state, const float *in, float *out)". */
static void flux__net_prototype(flux__sink *s, const flux__net_export *e) {
    flux__putf(s, "void $(%sconst %s *in", e->states.n ? "$_state *state, " : "",
               flux__dtype_types[e->x->dtype]);
    for (int i = 0; i < e->nout; i++) {
        flux__putf(s, ", %s *out", flux__dtype_types[e->y[i]->dtype]);
        if (i) flux__putf(s, "%d", i);
    }
    flux__put(s, ")");
}

/* Puts the comment at the start: the model, input and results, memory, how to compile. $ and @ are
   not replaced in it. */
static void flux__net_heading(flux__sink *s, const flux__net_export *e, flux_layer *m) {
    int64_t bytes = e->scratch * 4;
    flux__sink model = flux__sink_growing();
    for (int i = 0; i < FLUX__NET_ARRAYS; i++) bytes += e->length[i] * flux__net_arrays[i].size;
    flux__putf(s, "/* %s.c: a model, written by flux.h's flux_export_c\n\n", e->name);
    flux__put_whole_model(&model, m);
    flux__sink_end(&model);
    if (!model.failed && model.out) flux__net_comment(s, model.out);
    else s->failed = true;
    flux__free(model.out);
    flux__put(s, "\n   In and out, the last index running fastest; they may not overlap:\n");
    flux__net_array_text(s, "in", e->x);
    for (int i = 0; i < e->nout; i++) {
        char name[16];
        snprintf(name, sizeof name, i ? "out%d" : "out", i);
        flux__net_array_text(s, name, e->y[i]);
    }
    flux__putf(s, "\n   Working memory, static: %lld bytes", (long long)bytes);
    if (e->packed || e->panel) {
        const long long row = 8 * (long long)e->packed, rows = row + 8 * (long long)e->panel;
        flux__putf(s, " and %lld more (%lld with SSE or NEON, %lld with AVX, %lld with AVX-512)",
                   row, 4 * rows, 8 * rows, 16 * rows);
    }
    flux__putf(s, ".\n   Weights, constant, so that they stay in flash: %lld bytes.\n",
               (long long)e->weights);
    flux__putf(s, "   Not for several threads at once.\n\n   Compile: cc -O3 -march=native -c %s.c"
               " (and link with -lm), but without -ffast-math.\n", e->name);
    flux__putf(s, "   To declare it elsewhere: #define %s_DECLARE and #include this file.\n",
               e->name);
    if (e->states.n)
        flux__putf(s, "   %s_reset begins a new sequence; %s goes on from call to call.\n", e->name,
                   e->name);
    flux__put(s, "*/\n");
}

/* Puts the declarations, which the file may be included for. */
static void flux__net_declarations(flux__sink *s, const flux__net_export *e) {
    flux__put(s, "#ifndef $_DECLARED\n#define $_DECLARED\n"
              "#if defined(__cplusplus)\nextern \"C\" {\n#endif\n");
    if (e->states.n) flux__put(s, "typedef struct $_state {\n");
    for (int i = 0; i < e->states.n; i++)
        flux__putf(s, "    float s%d[%lld];\n", i, (long long)flux__size(e->states.before[i]));
    if (e->states.n) flux__put(s, "} $_state;\nvoid $_reset($_state *state);\n");
    flux__net_prototype(s, e);
    flux__put(s, ";\n#if defined(__cplusplus)\n}\n#endif\n#endif\n\n#ifndef $_DECLARE\n"
              "#include <math.h>\n#include <string.h>\n#if defined(__GNUC__)\n"
              "#  define @_R __restrict\n#else\n#  define @_R\n#endif\n"
              "#if defined(__GNUC__) && (defined(__SSE__) || defined(__ARM_NEON))\n"
              "#  define @_ALIGNED __attribute__((aligned(64)))\n#else\n#  define @_ALIGNED\n"
              "#endif\n");
}

/* Puts a leaf as a constant array. */
static void flux__net_leaf(flux__sink *s, const flux_tensor *x, int number) {
    const int64_t n = flux__size(x);
    const void *at = x->buf->ptr;
    flux__putf(s, "static const %s $_w%d[%lld]%s = {", flux__dtype_types[x->dtype], number,
               (long long)n, n >= 64 ? " @_ALIGNED" : "");
    for (int64_t i = 0; i < n; i++) {
        flux__put(s, i ? i % 8 ? ", " : ",\n    " : "\n    ");
        if (x->dtype == FLUX_F32) flux__put_c_float(s, ((const float *)at)[i]);
        else if (x->dtype == FLUX_I32) flux__putf(s, "%ld", (long)((const int32_t *)at)[i]);
        else if (x->dtype == FLUX_I64)
            flux__putf(s, "%lldLL", (long long)((const int64_t *)at)[i]);
        else flux__putf(s, "%d", (int)((const uint8_t *)at)[i]);
    }
    flux__put(s, "\n};\n");
}

/* Puts the functions that the model's caller sees. */
static void flux__net_entries(flux__sink *s, flux__net_export *e) {
    if (e->states.n)
        flux__put(s, "\nvoid $_reset($_state *state) { memset(state, 0, sizeof *state); }\n");
    flux__put(s, "\n");
    flux__net_prototype(s, e);
    flux__put(s, " {\n");
    flux__sink_end(&e->calls);
    if (e->calls.out) flux__put(s, e->calls.out);
    for (int i = 0; i < e->states.n; i++) {
        flux__putf(s, "    memcpy(state->s%d, ", i);
        flux__put(s, e->place[e->plan->nleaf + e->states.after[i]->index]);
        flux__putf(s, ", sizeof state->s%d);\n", i);
    }
    flux__put(s, "    (void)in;\n}\n#endif\n");
}

/* Puts everything behind the heading, with $ and @ still in it. */
static bool flux__net_program(flux__net_export *e, flux__sink *s) {
    flux__sink own = flux__sink_growing();
    for (int op = 0; op < FLUX__ELEMENTWISE_COUNT; op++)
        for (int ctype = 0; ctype < FLUX__CLASSES; ctype++)
            if (e->ops[op] >> ctype & 1) flux__put_c_formula(&own, op, ctype);
    if (e->functions.out) flux__sink_end(&e->functions), flux__put(&own, e->functions.out);
    flux__sink_end(&own);
    flux__net_declarations(s, e);
    bool ok = !own.failed && !e->functions.failed && flux__put_c_helpers(s, own.out ? own.out : "");
    flux__put(s, "\n");
    for (int i = 0; i < e->plan->nleaf && ok; i++)
        if (strncmp(e->place[i], "$_w", 3) == 0) {
            flux__net_leaf(s, e->g.leaf[i], i);
            e->weights += flux__size(e->g.leaf[i]) * flux__dtypes[e->g.leaf[i]->dtype].size;
        }
    for (int i = 0; i < FLUX__NET_ARRAYS; i++)
        if (e->length[i])
            flux__putf(s, "static %s %s[%lld] @_ALIGNED;\n", flux__net_arrays[i].type,
                       flux__net_arrays[i].name, (long long)e->length[i]);
    if (e->packed)
        flux__putf(s, "static float $_pack[%lld * @_ROWS] @_ALIGNED;\n", (long long)e->packed);
    if (e->panel)
        flux__putf(s, "#if @_LANES > 1\nstatic float $_panel[%lld * @_ROWS] @_ALIGNED;\n#endif\n",
                   (long long)e->panel);
    if (e->scratch)
        flux__putf(s, "static float $_scratch[%lld] @_ALIGNED;\n", (long long)e->scratch);
    if (ok && own.out) flux__put(s, own.out);
    flux__free(own.out);
    flux__net_entries(s, e);
    flux__sink_end(s);
    return ok && !s->failed && !e->calls.failed;
}

/* Writes the text to a file, with the function's name for $ and that in capitals for @. */
static bool flux__net_save(const flux__net_export *e, const char *path, const flux__sink *heading,
                         const flux__sink *text) {
    char capitals[sizeof e->name];
    flux__out *out = flux__out_open(path, "export_c");
    size_t i = 0;
    for (; e->name[i]; i++) capitals[i] = (char)toupper((unsigned char)e->name[i]);
    capitals[i] = 0;
    flux__out_write(out, heading->out, heading->len);
    for (const char *p = text->out; *p;) {    /* after one that fails, writes do nothing */
        const size_t n = strcspn(p, "$@");
        flux__out_write(out, p, n);
        if (p[n]) flux__out_write(out, p[n] == '$' ? e->name : capitals, i);
        p += n + (p[n] != 0);
    }
    return flux__out_commit(out);
}

/* Plans the recorded graph and writes it; the graph is collected. Walks and the model's words leave
   out what memory is lacking for, and record an error: then there is no file. */
static bool flux__net_write(flux__net_export *e, flux_layer *m, const char *path) {
    flux__sink heading = flux__sink_growing(), text = flux__sink_growing();
    flux__graph_key(&e->g);
    e->plan = e->g.ok ? flux__make_plan(&e->g) : NULL;
    bool ok = e->plan != NULL;
    for (int i = 0; i < e->g.nnode && ok; i++)
        if (flux__size(e->g.node[i]) > INT_MAX / 2)
            ok = FLUX__REFUSE("export_c: %s of %s is too large for a file of C",
                              flux__op_names[e->g.node[i]->op], flux__describe(e->g.node[i]).s);
    for (int i = 0; ok && i < e->plan->nkernel; i++) ok = flux__net_kind(e, &e->plan->kernel[i]);
    for (int i = 0; ok && i < e->plan->nkernel; i++) ok = flux__net_can(e, &e->plan->kernel[i]);
    ok = ok && flux__net_places(e);
    e->functions = flux__sink_growing(), e->calls = flux__sink_growing();
    for (int i = 0; ok && i < e->plan->nkernel; i++) ok = flux__net_write_kernel(e, i);
    ok = ok && flux__net_program(e, &text);
    if (ok) flux__net_heading(&heading, e, m);
    flux__sink_end(&heading);
    ok = ok && !heading.failed && !flux__failed_since(e->failures) &&
         flux__net_save(e, path, &heading, &text);
    flux__free(heading.out), flux__free(text.out);
    flux__free(e->functions.out), flux__free(e->calls.out);
    for (int i = 0; i < e->nfunction; i++) flux__free(e->function[i].out);
    flux__free(e->function), flux__free(e->place), flux__free((void *)e->places);
    flux__free(e->at);
    if (e->plan) flux__plan_free(e->plan);
    return ok;
}

FLUX_DEF int flux_export_c_with(flux_export_opts o) {
    FLUX__ZEROED(flux__net_export, e);
    if (!o.model || !o.path)
        return flux__null("export_c", o.model ? "path" : "model", NULL), -1;
    if (!flux__check_shape("export_c", &o.shape) || !flux__net_name(&e, o.path, o.name)) return -1;
    int h = flux__hide();
    e.failures = flux__failures();
    const int b = flux__nograd_enter();
    bool ok = flux__net_record(&e, o.model, o.shape, o.stateless) && flux__net_roots(&e) &&
              flux__net_fold(&e);
    if (ok) {
        ok = flux__net_collect(&e) && flux__net_write(&e, o.model, o.path);
        flux__graph_free(&e.g);
    }
    flux__nograd_leave(b);
    for (int i = 0; i < e.states.n; i++)
        flux_release(e.states.before[i]), flux_release(e.states.after[i]);
    flux__free(e.states.before), flux__free(e.states.after);
    if (!ok && !flux__failed_since(e.failures)) flux__fail("export_c: out of memory");
    flux__reveal_object(h, NULL);
    return ok ? 0 : -1;
}

FLUX__END_COLD

#endif /* FLUX__TEXT_EXPORT_H */
