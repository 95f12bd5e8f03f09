/* Memory that runs out during a call. */
#ifndef FLUX_SCARCE_H
#define FLUX_SCARCE_H
#include "test.h"

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
            flux__test_memory(scarce_n);                                                             \
            scarce_done = (call);                                                                    \
            flux__test_memory(-1);                                                                   \
            CHECK(scarce_done || flux_failed());                                                     \
            scarce_failures += !scarce_done;                                                         \
            flux_clear();                                                                            \
            flux_scope_close();                                                                      \
        }                                                                                            \
        flux_on_error(NULL, NULL);                                                                   \
        CHECK(scarce_done && scarce_failures > (least));                                             \
    } while (0)
#endif
