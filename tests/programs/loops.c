/* Loops and blocks: turns that are scopes, what goes from turn to turn, inference, all in C and in C++.
   expect: turns 5
   expect: left at 3
   expect: h 10
   expect: kept 3
   expect: returned 7
   expect: memory stays: yes */
#define FLUX_IMPLEMENTATION
#include "flux.h"

static int returned(void) {
    flux_times (i, 100) FLUX_INFER {
        flux_tensor *x = flux_eval(flux_full(i, 1000));
        if (flux_at(x, 5) == 7) return i;
    }
    return -1;
}

int main(void) {
    int turns = 0, left = 0;
    flux_times (i, 5) turns++;
    flux_times (i, 10) flux_times (j, 10) {
        if (i + j > 3) break;
        left = i;
    }
    printf("turns %d\nleft at %d\n", turns, left);

    flux_tensor *one = flux_eval(flux_ones(1000)), *h = NULL, *kept = NULL;
    int64_t live = 0;
    flux_times (i, 10) {
        h = flux_carry(h, h ? flux_add(h, one) : one);
        if (i == 3) live = flux_mem_stats(flux_device_of(one)).live;
    }
    printf("h %g\n", flux_at(h, 999));
    FLUX_INFER { kept = flux_keep(flux_add(flux_add(one, one), one)); }
    printf("kept %g\nreturned %d\n", flux_at(kept, 0), returned());
    printf("memory stays: %s\n", flux_mem_stats(flux_device_of(one)).live <= live + 8192 ? "yes" : "no");
    return flux_failed();
}
