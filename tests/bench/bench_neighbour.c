/* Products on all threads while another program wants a part of a processor: this one starts such a neighbour itself, which works
   and sleeps in turn. Quiet spells and spells beside it take turns, too. A line a product: one thread's time, the quiet mean of all
   threads, the mean and the median beside the neighbour, and these in quiet times. A thread that has no processor meanwhile costs
   what it would have done: where two threads are on two processors, half of one is a fourth of all, so the mean cannot be below
   1.33 quiet times if the neighbour gets all that it wants, and 1.5 beside one that never sleeps.
       bench_neighbour [share of its time that the neighbour works, 0.5 [its period in ms, 10]]         on Linux and its like */
#define _GNU_SOURCE
#include "../../flux.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double wall(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Starts the neighbour, which stands still until it is told to go on. It is made before there are tensors: their memory would be
   shared with it, and copied at the next write. */
static pid_t neighbour;
static void start_neighbour(double share, double period) {
    const pid_t parent = getpid();
    if ((neighbour = fork()) != 0) return;
    for (raise(SIGSTOP); getppid() == parent;) {       /* it does not outlive the benchmark */
        const double end = wall() + share * period;
        while (wall() < end) {}
        if (share < 1) usleep((useconds_t)((1 - share) * period * 1e6));
    }
    _exit(0);
}

enum { MOST = 200000 };
typedef struct spells { double time[MOST], sum; int n; } spells;

/* Runs the product for so many seconds, and notes how long each took. */
static void spell(spells *s, flux_tensor *a, flux_tensor *b, double seconds) {
    for (double start = wall(); wall() - start < seconds && s->n < MOST; s->n++) FLUX_SCOPE {
        const double now = wall();
        FLUX_NOGRAD flux_eval(flux_matmul(a, b));
        s->sum += s->time[s->n] = wall() - now;
    }
}
static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(spells *s) {
    qsort(s->time, (size_t)s->n, sizeof *s->time, by_size);
    return s->time[s->n / 2];
}

static void bench(int64_t m, int64_t n, int64_t k, flux_dtype dtype) {
    static spells alone, quiet, busy;
    const int rounds = getenv("SHORT") ? 1 : 8;
    const double seconds = getenv("SHORT") ? 0.02 : 0.25;
    flux_tensor *a = flux_eval(flux_rand_with(FLUX_SHAPE(m, k), dtype)), *b = flux_eval(flux_rand_with(FLUX_SHAPE(k, n), dtype));
    alone.n = quiet.n = busy.n = 0, alone.sum = quiet.sum = busy.sum = 0;
    for (int i = 0; i < rounds && !flux_failed(); i++) {
        flux_threads(1), spell(&alone, a, b, seconds / 4), flux_threads(0);
        spell(&quiet, a, b, seconds);
        kill(neighbour, SIGCONT);
        spell(&busy, a, b, seconds);
        kill(neighbour, SIGSTOP);
    }
    if (flux_failed()) { printf("neighbour: %s\n", flux_error()); return; }
    const double one = alone.sum / alone.n, mean = quiet.sum / quiet.n, beside = busy.sum / busy.n;
    const double middle = median(&quiet), beside_middle = median(&busy);
    printf("neighbour %5d x %4d by %4d %s  one thread %8.3f ms  quiet %8.3f  beside it: mean %8.3f (%.2f)  median %8.3f (%.2f)\n", (int)m, (int)k, (int)n,
           dtype == FLUX_F64 ? "f64" : "f32", one * 1e3, mean * 1e3, beside * 1e3, beside / mean, beside_middle * 1e3, beside_middle / middle);
    fflush(stdout);
}

int main(int argc, char **argv) {
    const double share = argc > 1 ? atof(argv[1]) : 0.5, period = argc > 2 ? atof(argv[2]) * 1e-3 : 0.01;
    static const int64_t shapes[][3] = { { 128, 128, 128 }, { 768, 64, 768 }, { 768, 512, 768 }, { 2048, 512, 2048 } };
    start_neighbour(share, period);
    if (neighbour < 0) { puts("neighbour: no process"); return 1; }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) FLUX_SCOPE {
        bench(shapes[i][0], shapes[i][1], shapes[i][2], FLUX_F32);
        if (i == 0) bench(shapes[i][0], shapes[i][1], shapes[i][2], FLUX_F64);
    }
    kill(neighbour, SIGKILL), waitpid(neighbour, NULL, 0);
    return flux_failed();
}
