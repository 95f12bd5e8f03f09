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

/* Computes what f makes, with one allocation after the other failing alone, and with all from it on, until none fails: it is
   right, or there is none, and that has been said. What f makes depends on nothing but user, and takes memory at `least` times. */
static inline double scarce_sum(flux_tensor *y) { return flux_item(flux_sum(flux_to_dtype(flux_nth(y, 0), FLUX_F64))); }
static inline void scarce_value(const char *name, flux_tensor *(*f)(void *user), void *user, double want, long least) {
    const flux_device cpu = { 0, 0 };
    bool refused = true;
    long k = 0;
    flux_on_error(test_silent, NULL);
    for (; refused && k < 4000; k += 1 + (k > 60)) {
        char what[200];
        double got = NAN;
        flux_scope_open();
        flux_mem_trim(cpu);
        if (k % 2) flux__test_memory(k / 2);
        else flux__test_memory_once(k / 2);
        flux_tensor *y = f(user), *first = y ? flux_eval(flux_nth(y, 0)) : NULL;
        refused = flux__test_refused() > 0;
        flux__test_memory(-1);
        const bool failed = flux_failed();
        flux_clear();
        if (first) got = scarce_sum(first);
        snprintf(what, sizeof what, "%.80s: allocation %ld fails: %.17g, not %.17g", name, k / 2, got, want);
        test_check((first || failed) && (first ? got == want : refused), __FILE__, __LINE__, what);
        flux_scope_close();
    }
    flux_on_error(NULL, NULL);
    test_check(!refused && k / 2 >= least, __FILE__, __LINE__, name);
}
#endif
