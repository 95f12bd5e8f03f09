/* The implementation, compiled once for all tests, examples and benchmarks that use only the public interface. */
#include "counted.h"
#define FLUX_IMPLEMENTATION
#include "../flux.h"

#ifdef __cplusplus
extern "C" {
#endif
long test_live(void);
long test_live(void) { return COUNTED(0); }
#ifdef __cplusplus
}
#endif
