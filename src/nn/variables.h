#ifndef FLUX__NN_VARIABLES_H
#define FLUX__NN_VARIABLES_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/scopes.h"
#include "../graph/nodes.h"
#include "fields.h"
#include "containers.h"

/* ---------------------------------------------------------------------- nn/variables.h
   Tensors in variables of the program as a model (flux_variables), so that
   flux_setup and flux_update, which know models only, serve them.

   Invariant: a Variable holds the tensor as any layer does, and the address of
   the program's variable, which never owns it. Who gives the field another
   tensor (flux_update, flux_load, flux_loadmodel, flux_set_param) gives it to the
   variable, too (flux__show_variable). A model that was moved goes on doing so; a
   copy, as an average is, has tensors of its own and writes to no variable
   (flux__leave_variable). */

FLUX__BEGIN_COLD

typedef struct flux__variable {
    flux_layer base;
    flux_tensor *value;
    flux_tensor **place;                  /* the program's variable; NULL in a copy */
} flux__variable;

static flux_tensor *flux__variable_call(flux_layer *self, flux_tensor *x) {
    (void)x;
    return (flux_tensor *)flux__fail("call: %s is no function of an input", self->type->name);
}
FLUX_LAYER(flux__variable, "Variable", flux__variable_call, FLUX_PARAM(value))
typedef flux__container flux__variables;
FLUX_LAYER(flux__variables, "Variables", flux__variable_call, FLUX_CHILDREN(layers, count))

FLUX_DEF flux_layer *flux_variables_with(int n, flux_tensor **const *places) {
    flux_layer *each[32];
    if (n < 1 || n > 32 || !places)
        return (flux_layer *)flux__fail("variables: %d variables (1 to 32)", places ? n : 0);
    int h = flux__hide();
    bool ok = true;
    for (int i = 0; i < n && ok; i++) {
        FLUX__ZEROED(flux__variable, v);
        v.place = places[i];
        v.value = places[i] ? *places[i] : NULL;
        ok = v.value && flux__check_operands("variables", 1, &v.value);
        if (!v.value) flux__null("variables", "the tensor of a variable", NULL);
        each[i] = ok ? flux__layer_new(flux__variable_type(), &v) : NULL;
        ok = each[i] != NULL;
    }
    flux_layer *m =
        ok ? flux__group_new("variables", flux__variables_type(), NULL, n, each, NULL, 1) : NULL;
    return (flux_layer *)flux__reveal_object(h, m);
}

/* Gives the program's variable the tensor that its layer holds now; of other layers: nothing. */
static void flux__show_variable(const flux_layer *owner) {
    const flux__variable *v = (const flux__variable *)owner;
    if (owner && owner->type == flux__variable_type() && v->place) *v->place = v->value;
}

/* Ends what a layer that was just copied has to do with the variable of its original. */
static void flux__leave_variable(flux_layer *copy) {
    if (copy->type == flux__variable_type()) ((flux__variable *)copy)->place = NULL;
}

FLUX__END_COLD

#endif /* FLUX__NN_VARIABLES_H */
