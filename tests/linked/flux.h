/* flux.h for examples that `make examples` links to one implementation: theirs is left out. */
#undef FLUX_IMPLEMENTATION
#include "../../flux.h"
