/* Memory that runs out during a call. */
#ifndef FLUX_SCARCE_H
#define FLUX_SCARCE_H
#include "test.h"

/* Evaluates `call` with room for 0, 1, 2, ... allocations until it is true. Each failure speaks of memory, in
   one sentence if `calls`, how many calls of the library may fail in their own right, is 1; there are more than `least`. */
#define SCARCE(call, least, calls) do {                                                              \
        int scarce_failures = 0;                                                                     \
        bool scarce_done = false;                                                                    \
        flux_on_error(test_silent, &test_sentences);                                                 \
        for (long scarce_n = 0; scarce_n < 1000 && !scarce_done; scarce_n++) {                       \
            flux_device scarce_cpu = { 0, 0 };                                                       \
            flux_scope_open();                                                                       \
            flux_mem_trim(scarce_cpu);                                                               \
            test_sentences = 0;                                                                      \
            flux__test_memory(scarce_n);                                                             \
            scarce_done = (call);                                                                    \
            flux__test_memory(-1);                                                                   \
            CHECK(scarce_done || (test_sentences >= 1 && test_sentences <= (calls)));                \
            if (!scarce_done && !CHECK(strstr(flux_error(), "memory") != NULL))                      \
                fprintf(stderr, "    %s\n", flux_error());                                           \
            scarce_failures += !scarce_done;                                                         \
            flux_clear();                                                                            \
            flux_scope_close();                                                                      \
        }                                                                                            \
        flux_on_error(NULL, NULL);                                                                   \
        CHECK(scarce_done && scarce_failures > (least));                                             \
    } while (0)
#endif
