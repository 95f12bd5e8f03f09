/* What the library itself takes, one line a figure: operations recorded, a schedule found again, a worker woken. */
#define FLUX_IMPLEMENTATION
#include "../../flux.h"

enum { OPS = 1000 };

/* nanoseconds for each operation that is recorded and never looked at, the end of its scope included */
static double record(flux_tensor *(*op)(flux_tensor *)) {
    flux_tensor *x = flux_eval(flux_rand(4));
    double best = 1e9;
    for (int run = 0; run < 200; run++) {
        const double start = flux__now();
        FLUX_SCOPE for (int i = 0; i < OPS; i++) op(x);
        const double t = (flux__now() - start) / OPS;
        if (t < best) best = t;
    }
    return best * 1e9;
}
static flux_tensor *of_add(flux_tensor *x) { return flux_add(x, x); }
static flux_tensor *of_scale(flux_tensor *x) { return flux_mul(x, 2.0); }
static flux_tensor *of_relu(flux_tensor *x) { return flux_relu(x); }
static flux_tensor *of_reshape(flux_tensor *x) { return flux_reshape(x, 2, 2); }
static flux_tensor *of_sum(flux_tensor *x) { return flux_sum(x); }

/* microseconds to record and look at a graph of so many operations on four elements, whose plan is known */
static double look(int ops) {
    flux_tensor *x = flux_eval(flux_rand(4));
    double best = 1e9;
    for (int run = 0; run < 2000; run++) {
        const double start = flux__now();
        FLUX_SCOPE {
            flux_tensor *y = x;
            for (int i = 0; i < ops; i++) y = flux_add(y, x);
            flux_eval(y);
        }
        const double t = flux__now() - start;
        if (t < best) best = t;
    }
    return best * 1e6;
}

/* from handing work out to its start on a worker */
static double handed_out, taken_up;
static int64_t begun;
static void take_up(void *ctx, int worker, int64_t i) {
    (void)ctx, (void)i;
    if (worker) taken_up = flux__now();
    flux__atomic_add(&begun, 1);
    while (flux__atomic_add(&begun, 0) < 2 && flux__now() - handed_out < 1e-3) flux__relax();      /* the other takes one too */
}
static double wake(double pause) {
    double *all = (double *)malloc(500 * sizeof *all), median;
    int n = 0;
    for (int run = 0; run < 500; run++) {
        for (const double until = flux__now() + pause; flux__now() < until;) flux__relax();
        begun = 0, taken_up = 0, handed_out = flux__now();
        flux__parallel_workers(2, take_up, NULL);
        if (taken_up > 0) all[n++] = taken_up - handed_out;
    }
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && all[j] < all[j - 1]; j--) {
            const double t = all[j];
            all[j] = all[j - 1], all[j - 1] = t;
        }
    median = n ? all[n / 2] * 1e6 : NAN;
    free(all);
    return median;
}

int main(void) {
    static const struct { const char *name; flux_tensor *(*op)(flux_tensor *); } what[] = {
        { "add", of_add }, { "mul by a number", of_scale }, { "relu", of_relu }, { "reshape", of_reshape }, { "sum", of_sum } };
    for (size_t i = 0; i < sizeof what / sizeof *what; i++) FLUX_SCOPE printf("record %-24s %10.0f ns\n", what[i].name, record(what[i].op));
    for (int ops = 1; ops <= 16; ops *= 4) FLUX_SCOPE printf("record and look at %2d operations %12.2f us\n", ops, look(ops));
    flux_threads(2);
    printf("a worker begins, hot loop        %12.2f us (median)\n", wake(5e-6));
    printf("a worker begins, asleep          %12.2f us (median)\n", wake(2e-3));
    return flux_failed();
}
