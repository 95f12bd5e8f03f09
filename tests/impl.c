/* The implementation, compiled once for all tests, examples and benchmarks that use only the public interface. */
#define FLUX_IMPLEMENTATION
#include "../flux.h"
