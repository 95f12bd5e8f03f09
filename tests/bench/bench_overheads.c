/* What the library itself takes, one line a figure: operations recorded, a schedule found again, a worker woken, and
   an operation of a graph of a thousand to a million, which should cost nearly the same. MOST=n in the environment:
   no larger graphs. */
#define FLUX_IMPLEMENTATION
#include "../../flux.h"
#include <time.h>

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

/* Graphs of n operations on x, each a chain in which no operation can begin before the last has ended. */
static flux_tensor *running_sum(flux_tensor *x, int64_t n) {
    flux_tensor *y = x;
    for (int64_t i = 0; i < n; i++) y = flux_add(y, x);
    return y;
}
static flux_tensor *elementwise(flux_tensor *x, int64_t n) {
    flux_tensor *y = x;
    for (int64_t i = 0; i < n; i++)
        y = i % 3 == 0 ? flux_tanh(y) : i % 3 == 1 ? flux_mul(y, x) : flux_add(y, 0.5);
    return y;
}
static flux_tensor *products(flux_tensor *x, int64_t n) {
    flux_tensor *y = x, *w = flux_eval(flux_rand(4, 4));
    for (int64_t i = 0; i < n; i++) y = flux_matmul(w, y);
    return y;
}

typedef struct parts { double record, look, again, release; } parts;

/* seconds of the processor, which others' work changes less than the clock's */
static double spent(void) { return (double)clock() / CLOCKS_PER_SEC; }

/* of the fastest of several runs, each with a plan of its own; again: by the plan that is there then */
static parts pending(flux_tensor *(*graph)(flux_tensor *, int64_t), bool gradient, int64_t n) {
    parts best = { 1e9, 1e9, 1e9, 1e9 };
    for (int run = 0; run < (n < 5000 ? 20 : n < 50000 ? 4 : 1); run++) {
        flux__thread *t = flux__self();
        if (t->plans) flux__plans_free(t->plans), t->plans = NULL;
        for (int again = 0; again < 2; again++) {
            double at[4] = { 0 };
            FLUX_SCOPE {
                flux_tensor *x = flux_eval(flux_mul(flux_eye(4), 0.5));
                at[0] = spent();
                flux_tensor *y = graph(x, n), *loss = gradient ? flux_sum(y) : NULL;
                if (gradient) y = flux_grad(flux_gradient(loss, x), x);
                at[1] = spent();
                flux_eval(y);
                at[2] = spent();
            }
            at[3] = spent();
            if (at[1] - at[0] < best.record) best.record = at[1] - at[0];
            if (!again && at[2] - at[1] < best.look) best.look = at[2] - at[1];
            if (again && at[2] - at[1] < best.again) best.again = at[2] - at[1];
            if (at[3] - at[2] < best.release) best.release = at[3] - at[2];
        }
    }
    return best;
}

static void pending_graphs(void) {
    static const struct { const char *name; flux_tensor *(*graph)(flux_tensor *, int64_t); } what[] = {
        { "running sum", running_sum }, { "elementwise", elementwise }, { "products", products } };
    const char *most = getenv("MOST");
    printf("us an operation: recorded + planned and run + released = all; run by a known plan\n");
    for (int gradient = 0; gradient < 2; gradient++)
        for (size_t i = 0; i < sizeof what / sizeof *what; i++) {
            double first = 0;
            for (int64_t n = 1000; n <= (most ? atoll(most) : 1000000); n *= 10) {
                const parts p = pending(what[i].graph, gradient != 0, n);
                const double all = (p.record + p.look + p.release) / (double)n * 1e6;
                if (n == 1000) first = all;
                const double one = 1e6 / (double)n;
                printf("%-12s%s %8lld: %6.3f + %6.3f + %6.3f = %6.3f (x %.2f); again %6.3f\n", what[i].name,
                       gradient ? "'s gradient" : "           ", (long long)n, p.record * one, p.look * one,
                       p.release * one, all, all / first, p.again * one);
                fflush(stdout);
            }
        }
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
    pending_graphs();
    flux_threads(2);
    printf("a worker begins, hot loop        %12.2f us (median)\n", wake(5e-6));
    printf("a worker begins, asleep          %12.2f us (median)\n", wake(2e-3));
    return flux_failed();
}
