#ifndef FLUX__NN_CONTAINERS_H
#define FLUX__NN_CONTAINERS_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/scopes.h"
#include "../graph/views.h"
#include "fields.h"
#include "functions.h"
#include "model.h"

/* ---------------------------------------------------------------------- nn/containers.h
   Containers: Chain, Parallel, PairwiseFusion, Maxout and SkipConnection,
   layers that call other layers. All but SkipConnection share one struct and
   differ in their call functions.

   Invariant: a container holds 1 to 255 layers (a Chain may be empty), none of
   them NULL, and no two different layers of the same name, as names are parts of
   paths. Several outputs are joined by the connection: a function of two
   operands reduces them from the left, a layer gets them all as a tuple. A
   function without a name gets the one in the source text of the call
   (flux__label). */

FLUX__BEGIN_COLD

/* Checks the n layers of a container: at least `least`, none NULL or freed, no name twice. */
static bool flux__check_layers(const char *call, int n, int least, flux_layer *const *ls) {
    if (n < least || n > 255 || (n > 0 && !ls))
        return FLUX__REFUSE("%s: %d layers (%d to 255)", call, n, least);
    for (int i = 0; i < n; i++) {
        if (!ls[i])
            return !flux__null_explained() && FLUX__REFUSE("%s: layer %d is NULL", call, i);
        if (FLUX__GONE(call, ls[i])) return false;
        for (int k = 0; k < i; k++)
            if (ls[k] != ls[i] && ls[k]->name && ls[i]->name &&
                strcmp(ls[k]->name, ls[i]->name) == 0)
                return FLUX__REFUSE("%s: layers %d and %d are both called \"%s\"", call, k, i,
                                    ls[i]->name);
    }
    return true;
}

/* The struct of Chain, Parallel, PairwiseFusion and Maxout; connection is NULL in
   Chain and Maxout. */
typedef struct flux__container {
    flux_layer base;
    flux_layer *connection;
    flux_layer **layers;
    int count;
} flux__container;

/* Makes one of them. `names`: the source text of the call's arguments, connection first. */
static flux_layer *flux__group_new(const char *call, const flux_layer_type *type,
                                   flux_layer *connection, int n, flux_layer *const *ls,
                                   const char *names, int least) {
    FLUX__ZEROED(flux__container, m);
    if (!flux__check_layers(call, n, least, ls)) return NULL;
    if (connection) flux__label(connection, names, 0);
    for (int i = 0; i < n; i++) flux__label(ls[i], names, i + (connection ? 1 : 0));
    m.connection = connection;
    m.layers = (flux_layer **)(intptr_t)ls;
    m.count = n;
    return flux__layer_new(type, &m);
}

static flux_tensor *flux__chain_call(flux_layer *self, flux_tensor *x) {
    flux__container *m = (flux__container *)self;
    for (int i = 0; i < m->count && x; i++) x = flux_call_layer(m->layers[i], x);
    return x;
}
typedef flux__container flux__chain_layer;
FLUX_LAYER(flux__chain_layer, "Chain", flux__chain_call, FLUX_CHILDREN(layers, count))

FLUX_DEF flux_layer *flux_chain_with(int n, flux_layer *const *ls, const char *names) {
    return flux__group_new("chain", flux__chain_layer_type(), NULL, n, ls, names, 0);
}

/* The tuple of the outputs of all layers of a chain. */
FLUX_DEF flux_tensor *flux_activations(flux_layer *chain, flux_tensor *x) {
    flux_tensor *ys[255];
    if (!chain || !x) return (flux_tensor *)flux__null("activations", chain ? "x" : "chain", NULL);
    flux__container *m = (flux__container *)chain;
    if (chain->type != flux__chain_layer_type() || m->count < 1)
        return (flux_tensor *)flux__fail("activations: needs a Chain of at least one layer, not %s",
                                         flux__line_of(chain).s);
    int h = flux__hide();
    for (int i = 0; i < m->count; i++) ys[i] = x = flux_call_layer(m->layers[i], x);
    return flux__reveal(h, x ? flux_tuple_with(m->count, ys) : NULL);
}

/* Joins n outputs: a function of two operands reduces them from the left, a layer
   gets their tuple. */
static flux_tensor *flux__connect(flux_layer *connection, int n, flux_tensor *const *ys) {
    const flux__function *f = (const flux__function *)connection;
    if (connection->type == flux__function_type() && f->f2) return flux__fold(f->f2, n, ys);
    return flux_call_with(connection, n, ys);
}

static flux_tensor *flux__mismatch(const char *type, int layers, int inputs) {
    return (flux_tensor *)flux__fail("%s: %d layers, but %d inputs", type, layers, inputs);
}

/* Layer i gets input i; a single input goes to all layers, a single layer gets all inputs. */
static flux_tensor *flux__parallel_call(flux_layer *self, flux_tensor *x) {
    flux__container *m = (flux__container *)self;
    int inputs = flux_num_items(x), n = m->count > inputs ? m->count : inputs;
    flux_tensor *xs[255], *ys[255];
    if (inputs != 1 && m->count != 1 && inputs != m->count)
        return flux__mismatch("Parallel", m->count, inputs);
    if (!flux__untuple(x, xs)) return NULL;
    for (int i = 0; i < n; i++)
        if (!(ys[i] = flux_call_layer(m->layers[m->count > 1 ? i : 0], xs[inputs > 1 ? i : 0])))
            return NULL;
    return flux__connect(m->connection, n, ys);
}
typedef flux__container flux__parallel_layer;
FLUX_LAYER(flux__parallel_layer, "Parallel", flux__parallel_call, FLUX_CHILD(connection),
           FLUX_CHILDREN(layers, count))

FLUX_DEF flux_layer *flux_parallel_with(flux_layer *connection, int n, flux_layer *const *ls,
                                      const char *names) {
    if (!connection) return (flux_layer *)flux__null("parallel", "connection", NULL);
    return flux__group_new("parallel", flux__parallel_layer_type(), connection, n, ls, names, 1);
}

/* y0 = l0(x0), y1 = l1(connection(y0, x1)), ...: the tuple of all y. A single x
   serves as all inputs. */
static flux_tensor *flux__fusion_call(flux_layer *self, flux_tensor *x) {
    flux__container *m = (flux__container *)self;
    int inputs = flux_num_items(x);
    flux_tensor *xs[255], *ys[255], *pair[2];
    if (inputs != 1 && inputs != m->count)
        return flux__mismatch("PairwiseFusion", m->count, inputs);
    if (!flux__untuple(x, xs)) return NULL;
    for (int i = 0; i < m->count; i++) {
        flux_tensor *in = xs[inputs > 1 ? i : 0];
        if (i > 0) {
            pair[0] = ys[i - 1];
            pair[1] = in;
            in = flux__connect(m->connection, 2, pair);
        }
        if (!(ys[i] = flux_call_layer(m->layers[i], in))) return NULL;
    }
    return flux_tuple_with(m->count, ys);
}
typedef flux__container flux__fusion;
FLUX_LAYER(flux__fusion, "PairwiseFusion", flux__fusion_call, FLUX_CHILD(connection),
           FLUX_CHILDREN(layers, count))

FLUX_DEF flux_layer *flux_pairwisefusion_with(flux_layer *connection, int n, flux_layer *const *ls,
                                            const char *names) {
    if (!connection) return (flux_layer *)flux__null("pairwisefusion", "connection", NULL);
    return flux__group_new("pairwisefusion", flux__fusion_type(), connection, n, ls, names, 1);
}

/* The largest of the outputs of all layers for the same x, by element. */
static flux_tensor *flux__maxout_call(flux_layer *self, flux_tensor *x) {
    flux__container *m = (flux__container *)self;
    flux_tensor *y = flux_call_layer(m->layers[0], x);
    for (int i = 1; i < m->count && y; i++) y = flux_max2(y, flux_call_layer(m->layers[i], x));
    return y;
}
typedef flux__container flux__maxout;
FLUX_LAYER(flux__maxout, "Maxout", flux__maxout_call, FLUX_CHILDREN(layers, count))

FLUX_DEF flux_layer *flux_maxout_with(int n, flux_layer *const *ls, const char *names) {
    return flux__group_new("maxout", flux__maxout_type(), NULL, n, ls, names, 1);
}

typedef struct flux__skip { flux_layer base; flux_layer *layers, *connection; } flux__skip;

/* connection(layers(x), x) */
static flux_tensor *flux__skip_call(flux_layer *self, flux_tensor *x) {
    flux__skip *m = (flux__skip *)self;
    flux_tensor *pair[2];
    pair[0] = flux_call_layer(m->layers, x);
    pair[1] = x;
    return pair[0] ? flux__connect(m->connection, 2, pair) : NULL;
}
FLUX_LAYER(flux__skip, "SkipConnection", flux__skip_call, FLUX_CHILD(layers),
           FLUX_CHILD(connection))

/* SkipConnection: `body` is the layer whose output the connection joins with the input. */
FLUX_DEF flux_layer *flux_skipconnection_with(flux_layer *body, flux_layer *connection,
                                            const char *names) {
    FLUX__ZEROED(flux__skip, m);
    if (!body || !connection)
        return (flux_layer *)flux__null("skipconnection", body ? "connection" : "layer", NULL);
    flux__label(body, names, 0);
    flux__label(connection, names, 1);
    m.layers = body;
    m.connection = connection;
    return flux__layer_new(flux__skip_type(), &m);
}

FLUX__END_COLD

#endif /* FLUX__NN_CONTAINERS_H */
