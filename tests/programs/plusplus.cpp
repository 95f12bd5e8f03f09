// The same library in C++: options as structs where C++ has no way to name fields after positional ones.
// expect: Total: 4 arrays
// expect: learns: yes
// expect: visits 4
// expect: sum 10
// expect: columns: 3
#define FLUX_IMPLEMENTATION
#include "flux.h"

struct counted { flux_layer base; flux_layer *body; flux_tensor *scale; int visits; };
static flux_tensor *counted_call(flux_layer *self, flux_tensor *x) {
    counted *m = reinterpret_cast<counted *>(self);
    m->visits++;
    return flux_mul(flux_call(m->body, x), m->scale);
}
FLUX_LAYER(counted, "Counted", counted_call, FLUX_CHILD(body), FLUX_PARAM(scale))

int main() {
    flux_layer *m = flux_gpu(flux_chain(flux_dense(2, 8, flux_tanh), flux_dense(8, 1)));
    flux_print(m);
    flux_layer *own = flux_new(counted, {}, m, flux_ones(1), 0);

    flux_tensor *x = flux_rand(2, 64), *y = flux_mul(flux_sum(x, 0), 0.5);
    flux_loader_opts o = flux_loader_opts();
    o.x = x;
    o.y = y;
    o.batchsize = 32;
    o.shuffle = true;
    flux_loader *data = flux_dataloader_with(o);
    flux_state *opt = flux_setup(flux_rule_with("Adam", flux_rule_opts()), own);
    double first = flux_item(flux_mse(flux_call(own, x), y));
    flux_each (b, data) {
        flux_tensor *loss = flux_mse(flux_call(own, b.x), b.y);
        flux_update(opt, own, flux_gradient(loss, own));
    }
    double last = flux_item(flux_mse(flux_call(own, x), y));
    printf("learns: %s\n", last < first ? "yes" : "no");
    printf("visits %d\n", reinterpret_cast<counted *>(own)->visits);

    const float rows[2][2] = { { 1, 2 }, { 3, 4 } };
    flux_tensor *t = flux_from(&rows[0][0], 2, 2);
    FLUX_SCOPE { t = flux_keep(flux_add(t, 0)); }
    printf("sum %g\n", flux_item(flux_sum(t)));
    flux_tensor *wide = flux_cat(1, t, flux_reshape(flux_select(t, 1, 0), 2, 1));
    printf("columns: %d\n", static_cast<int>(flux_dim(wide, 1)));
    FLUX_NOGRAD { flux_print(flux_where(flux_gt(wide, 2), wide, 0)); }
    return flux_failed();
}
