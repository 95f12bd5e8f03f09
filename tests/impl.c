/* The implementation, compiled once for all tests, examples and benchmarks that use only the public interface. */
#include "counted.h"
#define FLUX_IMPLEMENTATION
#include "../flux.h"

#ifdef __cplusplus
extern "C" {
#endif
long flux__test_live(void);
long flux__test_live(void) { return COUNTED(memory_live, 0); }
void flux__test_memory(long left);
void flux__test_memory(long left) { (void)COUNTED(memory_left, left - COUNTED(memory_left, 0)); }
#ifdef __cplusplus
}
#endif
