/* Training steps on sequences: forward, backward and Adam. One line a figure. */
#define FLUX_IMPLEMENTATION
#include "../../flux.h"
#include <time.h>

static double seconds(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void bench(const char *name, flux_layer *net, flux_tensor *x, flux_tensor *labels) {
    enum { RUNS = 200 };
    double times[RUNS], start = seconds();
    int done = 0;
    flux_device cpu = { 0, 0 };
    flux_state *opt = flux_setup(flux_adam(1e-3), net);
    for (int i = 0; i < RUNS && (i < 20 || seconds() - start < 3); i++) {
        double t = seconds();
        FLUX_SCOPE flux_update(opt, net, flux_gradient(flux_logitcrossentropy(flux_call(net, x), labels), net));
        times[done++] = seconds() - t;
    }
    qsort(times, (size_t)done, sizeof *times, compare);
    printf("step %-48s %9.1f us   (fastest %.1f, memory at most %.1f MB)\n", name, times[done / 2] * 1e6, times[0] * 1e6,
           (double)flux_mem_stats(cpu).peak / 1e6);
}

static flux_tensor *tokens(int64_t steps, int64_t batch, int vocabulary) {
    return flux_eval(flux_to_dtype(flux_floor(flux_mul(flux_rand(steps, batch), vocabulary)), FLUX_I32));
}

/* x + attention of its normalised self, then x + a network of two layers of its normalised self. */
static flux_layer *block(int64_t width) {
    return flux_chain(
        flux_skipconnection(flux_chain(flux_layernorm(FLUX_SHAPE(width)),
                                       flux_multiheadattention(width, .nheads = 4, .causal = true, .scores = FLUX_OFF)), flux_add),
        flux_skipconnection(flux_chain(flux_layernorm(FLUX_SHAPE(width)), flux_dense(width, 4 * width, flux_gelu),
                                       flux_dense(4 * width, width)), flux_add));
}

int main(void) {
    flux_seed(1);
    FLUX_SCOPE bench("LSTM, 64 hidden, length 32, batch 64", flux_chain(flux_lstm(64, 64), flux_dense(64, 32)),
                     flux_eval(flux_randn(64, 32, 64)), tokens(32, 64, 32));
    FLUX_SCOPE bench("transformer, 2 layers of 64, length 64, batch 32",
                     flux_chain(flux_embedding(64, 64), block(64), block(64), flux_dense(64, 64)), tokens(64, 32, 64), tokens(64, 32, 64));
    return flux_failed();
}
