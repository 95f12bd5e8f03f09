/* The lines of use of each public name, tests/test_uses.c, while memory runs out (uses.h), and some more. */
#define USE_FAULTS
#include "uses.h"

#ifndef _WIN32
TEST(loaders_of_loaders) {
    flux_tensor *x = flux_eval(flux_arange(0, 6, 1)), *w = flux_ones(6);
    USE(flux_mapobs) {
        flux_loader *l = flux_dataloader(x, .weights = w, .batchsize = 2), *mapped = flux_mapobs(flux_exp, l);
        double n = 0;
        flux_each (b, mapped) n += (double)flux_len(b.x);
        CHECK(n == 6);
    }
}
TEST(modes_and_caches) {
    flux_layer *m = flux_chain(flux_embedding(4, 4), flux_positionembedding(4, 8), flux_multiheadattention(4, .nheads = 2, .causal = true, .scores = FLUX_OFF));
    USE(flux_cache) { IS(flux_cache(m, 8), 0); IS(flux_cache(m, 0), 0); }
}
#endif
#include "test_uses.c"
