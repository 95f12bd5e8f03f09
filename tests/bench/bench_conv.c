/* Convolutions through the public interface, each recorded and evaluated by itself: forward, by the weight and by the input, in the
   shapes of usual training. One line a shape, GFLOP/s of the three; FLUX_NUM_THREADS sets the threads. Beside oneDNN, which is given
   the same memory (its layouts nchw and oihw), also ratios, their geometric mean and the worst of them; tests/bench/peers.sh does so:
       cc -O2 -DHAVE_DNNL tests/bench/bench_conv.c -ldnnl -lm
   The two take turns, the best of each counts; with several threads there is a pause between, for its threads to calm down. oneDNN's
   primitives are made beforehand, its scratch memory is kept, and its results are compared with ours.
   bench_conv [seconds for each [part of a shape's name]] */
#define FLUX_IMPLEMENTATION
#include "../../flux.h"
#include <time.h>
#ifdef HAVE_DNNL
#include <dnnl.h>
#endif

typedef struct shape { int kernel, in, out, size, batch, stride; } shape;
static const shape shapes[] = {
    { 3, 1, 8, 28, 64, 1 },    { 3, 8, 16, 14, 64, 1 },   { 3, 8, 16, 28, 64, 1 },   { 3, 16, 32, 14, 64, 1 },
    { 3, 32, 64, 14, 64, 1 },  { 3, 3, 64, 112, 4, 1 },   { 7, 3, 64, 112, 4, 2 },   { 3, 64, 64, 56, 8, 1 },
    { 3, 128, 128, 28, 8, 1 }, { 3, 256, 256, 14, 8, 1 }, { 3, 512, 512, 7, 8, 1 },  { 3, 64, 128, 56, 4, 2 },
    { 1, 64, 256, 56, 4, 1 },  { 1, 256, 64, 56, 4, 1 },  { 1, 256, 512, 14, 8, 1 }, { 1, 512, 512, 7, 16, 1 },
};
enum { FORWARD, BY_WEIGHT, BY_INPUT };
static const char *const directions[] = { "forward", "by weight", "by input" };

static double wall(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
/* What others do meanwhile counts only where it must. */
static double seconds(void) { return flux__num_threads() > 1 ? wall() : (double)clock() / CLOCKS_PER_SEC; }

typedef struct conv { const shape *s; int what, out; flux_tensor *x, *w, *gy; } conv;

static flux_tensor *made(const conv *c) {
    flux_shape pad = FLUX_SHAPE(c->s->kernel / 2), stride = FLUX_SHAPE(c->s->stride);
    flux_tensor *y = flux_crosscor(c->x, c->w, .pad = pad, .stride = stride);
    if (c->what == FORWARD) return y;
    flux_tensor *of = c->what == BY_WEIGHT ? c->w : c->x;
    return flux_grad(flux_gradient(flux_sum(flux_mul(y, c->gy)), of), of);
}

static double ours(const conv *c, int times) {
    double t = seconds();
    for (int i = 0; i < times; i++)
        FLUX_SCOPE { flux_eval(made(c)); }
    return (seconds() - t) / times;
}

#ifdef HAVE_DNNL
typedef struct peer { dnnl_engine_t engine; dnnl_stream_t stream; dnnl_primitive_t run; dnnl_exec_arg_t arg[4]; int nargs; float *y; size_t n; } peer;

static bool check(dnnl_status_t s) {
    if (s != dnnl_success) printf("oneDNN: status %d\n", (int)s);
    return s == dnnl_success;
}

static dnnl_memory_t memory(peer *p, dnnl_memory_desc_t *d, const void *data) {
    dnnl_memory_t m = NULL;
    check(dnnl_memory_create(&m, d, p->engine, (void *)(uintptr_t)data));
    return m;
}

/* The same convolution in its hands; *name: which of its implementations it takes. */
static peer their(const conv *c, const char **name) {
    const shape *s = c->s;
    dnnl_dims_t x = { s->batch, s->in, s->size, s->size }, w = { s->out, s->in, s->kernel, s->kernel }, y = { s->batch, s->out, c->out, c->out };
    dnnl_dims_t stride = { s->stride, s->stride }, pad = { s->kernel / 2, s->kernel / 2 };
    dnnl_memory_desc_t xd, wd, yd;
    dnnl_convolution_desc_t d;
    dnnl_primitive_desc_t hint = NULL, made_of;
    const_dnnl_primitive_desc_t of;
    peer p;
    memset(&p, 0, sizeof p);
    check(dnnl_engine_create(&p.engine, dnnl_cpu, 0));
    check(dnnl_stream_create(&p.stream, p.engine, dnnl_stream_default_flags));
    check(dnnl_memory_desc_init_by_tag(&xd, 4, x, dnnl_f32, dnnl_nchw));
    check(dnnl_memory_desc_init_by_tag(&wd, 4, w, dnnl_f32, dnnl_oihw));
    check(dnnl_memory_desc_init_by_tag(&yd, 4, y, dnnl_f32, dnnl_nchw));
    check(dnnl_convolution_forward_desc_init(&d, dnnl_forward_training, dnnl_convolution_direct, &xd, &wd, NULL, &yd, stride, pad, pad));
    check(dnnl_primitive_desc_create(&made_of, &d, NULL, p.engine, NULL));
    if (c->what != FORWARD) {
        hint = made_of;
        if (c->what == BY_INPUT) check(dnnl_convolution_backward_data_desc_init(&d, dnnl_convolution_direct, &xd, &wd, &yd, stride, pad, pad));
        else check(dnnl_convolution_backward_weights_desc_init(&d, dnnl_convolution_direct, &xd, &wd, NULL, &yd, stride, pad, pad));
        check(dnnl_primitive_desc_create(&made_of, &d, NULL, p.engine, hint));
    }
    check(dnnl_primitive_create(&p.run, made_of));
    check(dnnl_primitive_get_primitive_desc(p.run, &of));
    check(dnnl_primitive_desc_query(of, dnnl_query_impl_info_str, 0, name));
    p.n = (size_t)(c->what == FORWARD ? y[0] * y[1] * y[2] * y[3] : c->what == BY_WEIGHT ? w[0] * w[1] * w[2] * w[3] : x[0] * x[1] * x[2] * x[3]);
    p.y = (float *)calloc(p.n, sizeof *p.y);
    int args[] = { c->what == BY_INPUT ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, c->what == BY_WEIGHT ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS,
                   c->what == FORWARD ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST };
    const void *data[] = { c->what == BY_INPUT ? p.y : flux_data(c->x), c->what == BY_WEIGHT ? p.y : flux_data(c->w), c->what == FORWARD ? p.y : flux_data(c->gy) };
    dnnl_memory_desc_t *md[] = { &xd, &wd, &yd };
    for (p.nargs = 0; p.nargs < 3; p.nargs++) p.arg[p.nargs].arg = args[p.nargs], p.arg[p.nargs].memory = memory(&p, md[p.nargs], data[p.nargs]);
    return p;
}

static double theirs(peer *p, int times) {
    double t = seconds();
    for (int i = 0; i < times; i++) {
        check(dnnl_primitive_execute(p->run, p->stream, p->nargs, p->arg));
        check(dnnl_stream_wait(p->stream));
    }
    return (seconds() - t) / times;
}

static void compare(const conv *c, const peer *p) {
    FLUX_SCOPE {
        const float *y = (const float *)flux_data(flux_eval(made(c)));
        double worst = 0, most = 0;
        for (size_t i = 0; i < p->n; i++) {
            double d = fabs((double)y[i] - (double)p->y[i]), m = fabs((double)p->y[i]);
            if (d > worst) worst = d;
            if (m > most) most = m;
        }
        if (!(worst <= 1e-4 * most)) printf("  DIFFERS: by %g of %g ", worst, most);
    }
}
#endif

static double bench(const shape *s, int what, double budget, double *other, const char **name) {
    double best = 1e9, t;
    *other = 1e9, *name = "";
    FLUX_SCOPE {
        conv c = { s, what, (s->size + 2 * (s->kernel / 2) - s->kernel) / s->stride + 1, NULL, NULL, NULL };
        c.x = flux_eval(flux_randn(s->size, s->size, s->in, s->batch)), c.w = flux_eval(flux_randn(s->kernel, s->kernel, s->in, s->out));
        c.gy = flux_eval(flux_randn(c.out, c.out, s->out, s->batch));
        ours(&c, 1);
        int times = (int)(0.002 / (ours(&c, 2) + 1e-7)) + 1;
        double end = wall() + budget;
#ifdef HAVE_DNNL
        peer p = their(&c, name);
        theirs(&p, 1);
        compare(&c, &p);
#endif
        do {
            for (double rest = wall() + (flux__num_threads() > 1 ? 0.03 : 0); wall() < rest;) {}
            for (int i = 0; i < 3; i++) if ((t = ours(&c, times)) < best) best = t;
#ifdef HAVE_DNNL
            for (int i = 0; i < 3; i++) if ((t = theirs(&p, times)) < *other) *other = t;
#endif
        } while (wall() < end);
#ifdef HAVE_DNNL
        for (int i = 0; i < p.nargs; i++) dnnl_memory_destroy(p.arg[i].memory);
        dnnl_primitive_destroy(p.run), dnnl_stream_destroy(p.stream), dnnl_engine_destroy(p.engine), free(p.y);
#endif
    }
    return best;
}

int main(int argc, char **argv) {
    double budget = argc > 1 ? atof(argv[1]) : getenv("SHORT") ? 0.001 : 0.15, product[3] = { 0 }, worst[3] = { 1e9, 1e9, 1e9 };
    const char *only = argc > 2 ? argv[2] : "", *name;
    char where[3][64];
    int count = 0;
    flux_seed(1);
    printf("convolutions, %d threads: milliseconds, GFLOP/s%s\n", flux__num_threads(),
#ifdef HAVE_DNNL
           ", how many times as fast as oneDNN, and which of its implementations that is"
#else
           ""
#endif
    );
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const shape *s = &shapes[i];
        char text[64];
        double size = (double)((s->size + 2 * (s->kernel / 2) - s->kernel) / s->stride + 1), flops = 2 * size * size * s->kernel * s->kernel * s->in * s->out * s->batch;
        snprintf(text, sizeof text, "%dx%d %d-%d %dx%d batch %d%s", s->kernel, s->kernel, s->in, s->out, s->size, s->size, s->batch, s->stride > 1 ? " by 2" : "");
        if (!strstr(text, only)) continue;
        printf("conv %-32s", text);
        for (int what = 0; what < 3; what++) {
            double other, best = bench(s, what, budget, &other, &name), ratio = other / best;
            printf("  %s %9.3f ms %6.1f", directions[what], best * 1e3, flops / best * 1e-9);
#ifdef HAVE_DNNL
            printf(" %5.2f (%s)", ratio, name);
            product[what] += log(ratio);
            if (ratio < worst[what]) worst[what] = ratio, snprintf(where[what], sizeof where[what], "%s", text);
#else
            (void)ratio;
#endif
            fflush(stdout);
        }
        printf("\n");
        count++;
    }
#ifdef HAVE_DNNL
    for (int what = 0; what < 3; what++)
        printf("convolutions %s beside oneDNN: geometric mean %.3f, worst %.2f (%s)\n", directions[what], exp(product[what] / count), worst[what], where[what]);
#else
    (void)product, (void)worst, (void)where, (void)count;
#endif
    return flux_failed();
}
