/* The implementation, compiled once for all tests, examples and benchmarks that use only the public
   interface and tests/inside.h; and, with TEST_OPENED, for those that use its own functions. */
#define FLUX_IMPL_C
#define FLUX_IMPLEMENTATION
#include "counted.h"
#ifdef TEST_OPENED
#  include "with_stb.h"
#  include "opened/defined.h"
#else
#  include "../flux.h"
#endif
#include "open.h"

INSIDE void flux__test_eager(bool eager) {
    flux__atomic_store32(&flux__eager_known, eager ? 2 : 1);
}
INSIDE void flux__test_part_nodes(int n) { flux__part_nodes = n; }
INSIDE void flux__test_planes(double least) {
#if defined(FLUX_CUDA) || defined(FLUX_HIP)
    flux__planes_least = least;
#else
    (void)least;
#endif
}
INSIDE bool flux__test_neon(void) {
#if FLUX__NEON
    return flux__section_now() == &flux__section_x4 && flux__gemm_kernels(false, false)->columns == 12 &&
           flux__gemm_kernels(true, false)->columns == 12;
#else
    return false;
#endif
}
INSIDE void *flux__test_thread(void (*run)(void *), void *arg) {
    flux__os_thread *thread = (flux__os_thread *)malloc(sizeof *thread);
    if (thread && flux__thread_start(thread, run, arg)) return thread;
    free(thread);
    return NULL;
}
INSIDE void flux__test_join(void *thread) {
    flux__thread_join((flux__os_thread *)thread);
    free(thread);
}
