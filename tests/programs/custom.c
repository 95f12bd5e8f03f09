/* A model of one's own: naming its fields is all that moving, printing, gradients and updates need.
   expect: CPU -> CPU
   expect: ActorCritic
   expect: visits 3
   expect: the critic learns: yes
   expect: one tensor still: yes */
#define FLUX_IMPLEMENTATION
#include "flux.h"

typedef struct {
    flux_layer base;
    flux_layer *actor;        /* a child */
    flux_tensor *critic;      /* trained */
    int visits;               /* neither: copied as it is */
} actor_critic;

static flux_tensor *actor_critic_call(flux_layer *self, flux_tensor *x) {
    actor_critic *m = (actor_critic *)self;
    m->visits++;
    return flux_mul(flux_call(m->actor, x), m->critic);
}

FLUX_LAYER(actor_critic, "ActorCritic", actor_critic_call, FLUX_CHILD(actor), FLUX_PARAM(critic))

int main(void) {
    flux_layer *m = flux_new(actor_critic, .actor = flux_dense(2, 2), .critic = flux_ones(2));
    flux_layer *g = flux_fmap(flux_cu, m);
    actor_critic *was = (actor_critic *)m, *is = (actor_critic *)g;
    printf("%s -> %s\n", flux_device_name(flux_device_of(was->critic)), flux_device_name(flux_device_of(is->critic)));
    flux_print(g);

    flux_tensor *x = flux_rand(2, 8), *y = flux_rand(2, 8);
    flux_state *opt = flux_setup(flux_descent(0.1), g);
    double first = flux_item(flux_mse(flux_call(g, x), y));
    FLUX_SCOPE {
        flux_tensor *loss = flux_mse(flux_call(g, x), y);
        flux_update(opt, g, flux_gradient(loss, g));
    }
    double second = flux_item(flux_mse(flux_call(g, x), y));
    printf("visits %d\n", is->visits);
    printf("the critic learns: %s\n", second < first ? "yes" : "no");

    flux_layer *tied = flux_dense(3, 3), *twice = flux_gpu(flux_chain(tied, tied));
    printf("one tensor still: %s\n", flux_weight(flux_child(twice, 0)) == flux_weight(flux_child(twice, 1)) ? "yes" : "no");
    flux_print(twice);
    return flux_failed();
}
