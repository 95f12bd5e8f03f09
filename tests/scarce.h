/* Memory that runs out during a call, for a test that brings its own implementation: to be included before that. */
#ifndef FLUX_SCARCE_H
#define FLUX_SCARCE_H
#include "counted.h"

/* Evaluates `call` with room for 0, 1, 2, ... allocations until it is true. Each failure says so, and there are more than
   `least` of them. */
#define SCARCE(call, least) do {                                                                     \
        int scarce_failures = 0;                                                                     \
        bool scarce_done = false;                                                                    \
        flux_on_error(test_silent, NULL);                                                            \
        for (long scarce_n = 0; scarce_n < 1000 && !scarce_done; scarce_n++) {                       \
            flux_device scarce_cpu = { 0, 0 };                                                       \
            flux_scope_open();                                                                       \
            flux_mem_trim(scarce_cpu);                                                               \
            memory_left = scarce_n;                                                                  \
            scarce_done = (call);                                                                    \
            memory_left = -1;                                                                        \
            CHECK(scarce_done || flux_failed());                                                     \
            scarce_failures += !scarce_done;                                                         \
            flux_clear();                                                                            \
            flux_scope_close();                                                                      \
        }                                                                                            \
        flux_on_error(NULL, NULL);                                                                   \
        CHECK(scarce_done && scarce_failures > (least));                                             \
    } while (0)
#endif
