/* Single operations of bench_models.c's models and their gradients, float32, in the processor's time: beside a memcpy of the bytes that each must
   move, in turn with it. What it must read, it reads once, what it makes, it writes once; a norm in train mode reads twice, since its
   statistics come first. A line a figure; a ratio of 1 is a copy's pace. tests/bench/peer_operations.py has the same in PyTorch.
       bench_operations [-s seconds for each] [part of a name]         with FLUX_NUM_THREADS=1 */
#define _POSIX_C_SOURCE 200809L
#include "../../flux.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

static flux_tensor *second;               /* what an operation takes besides */
static flux_layer *layer;

static flux_tensor *maxpool3(flux_tensor *x) {
    return flux_maxpool(x, FLUX_SHAPE(3, 3), .stride = FLUX_SHAPE(2), .pad = FLUX_SHAPE(1));
}
static flux_tensor *maxpool2(flux_tensor *x) { return flux_maxpool(x, FLUX_SHAPE(2, 2)); }
static flux_tensor *meanpool2(flux_tensor *x) { return flux_meanpool(x, FLUX_SHAPE(2, 2)); }
static flux_tensor *meanpool3(flux_tensor *x) {
    return flux_meanpool(x, FLUX_SHAPE(3, 3), .stride = FLUX_SHAPE(2), .pad = FLUX_SHAPE(1));
}
static flux_tensor *cat(flux_tensor *x) { return flux_cat(2, x, second); }
static flux_tensor *residual(flux_tensor *x) { return flux_relu(flux_add(x, second)); }
static flux_tensor *pad(flux_tensor *x) { return flux_pad(x, 0, 1, 1, 1, 1); }
static flux_tensor *softmax(flux_tensor *x) { return flux_softmax(x); }
static flux_tensor *logsoftmax(flux_tensor *x) { return flux_logsoftmax(x); }
static flux_tensor *sorted(flux_tensor *x) { return flux_sort(x); }
static flux_tensor *called(flux_tensor *x) { return flux_call(layer, x); }
static flux_tensor *looked_up(flux_tensor *x) {    /* x is the table */
    return flux_gather(x, 1, second);
}

static flux_layer *global(void) { return flux_globalmeanpool(); }
static flux_layer *nearest(void) { return flux_upsample(FLUX_NEAREST, .scale = { 2 }); }
static flux_layer *bilinear(void) { return flux_upsample(FLUX_BILINEAR, .scale = { 2 }); }
static flux_layer *norm(void) { return flux_batchnorm(64, flux_relu); }
static flux_layer *layers(void) { return flux_layernorm(FLUX_SHAPE(768)); }
static flux_layer *groups(void) { return flux_groupnorm(64, 8); }
static flux_layer *depthwise_by(int stride) {
    return flux_depthwiseconv(FLUX_SHAPE(3, 3), 64, 64, flux_relu6, .pad = FLUX_SHAPE(1), .stride = FLUX_SHAPE(stride));
}
static flux_layer *depthwise(void) { return depthwise_by(1); }
static flux_layer *depthwise2(void) { return depthwise_by(2); }
static flux_layer *grouped(void) {
    return flux_conv_layer(FLUX_SHAPE(3, 3), 64, 64, flux_relu, .pad = FLUX_SHAPE(1), .groups = 4);
}
static flux_layer *grouped32(void) {
    return flux_conv_layer(FLUX_SHAPE(3, 3), 128, 128, flux_relu, .pad = FLUX_SHAPE(1), .groups = 32);
}

enum { X_FOR_GRADIENT = 1, TWICE = 2, SECOND = 4, WORDS = 8, TEST = 16, Y_FOR_GRADIENT = 32 };
static const struct operation {
    const char *name;
    flux_tensor *(*f)(flux_tensor *x);
    flux_layer *(*make)(void);
    int64_t dim[4];
    int flags;
} operations[] = {
    { "maxpool 3x3 by 2", maxpool3, NULL, { 112, 112, 64, 8 }, X_FOR_GRADIENT },
    { "maxpool 2x2", maxpool2, NULL, { 112, 112, 64, 8 }, X_FOR_GRADIENT },
    { "meanpool 3x3 by 2", meanpool3, NULL, { 112, 112, 64, 8 }, 0 },
    { "meanpool 2x2", meanpool2, NULL, { 112, 112, 64, 8 }, 0 },
    { "global mean", called, global, { 14, 14, 1024, 32 }, 0 },
    { "batchnorm, train", called, norm, { 112, 112, 64, 8 }, X_FOR_GRADIENT | TWICE },
    { "batchnorm 14", called, norm, { 14, 14, 64, 128 }, X_FOR_GRADIENT | TWICE },
    { "batchnorm, test", called, norm, { 112, 112, 64, 8 }, X_FOR_GRADIENT | TEST },
    { "residual, relu", residual, NULL, { 56, 56, 256, 8 }, SECOND | Y_FOR_GRADIENT },
    { "concatenation", cat, NULL, { 128, 128, 16, 16 }, SECOND },
    { "upsample nearest", called, nearest, { 56, 56, 64, 8 }, 0 },
    { "upsample bilinear", called, bilinear, { 56, 56, 64, 8 }, 0 },
    { "pad", pad, NULL, { 112, 112, 64, 8 }, 0 },
    { "embedding", looked_up, NULL, { 768, 50257, 1, 1 }, WORDS },
    { "softmax", softmax, NULL, { 50257, 256, 1, 1 }, Y_FOR_GRADIENT },
    { "logsoftmax", logsoftmax, NULL, { 50257, 256, 1, 1 }, Y_FOR_GRADIENT },
    { "softmax 64", softmax, NULL, { 64, 65536, 1, 1 }, Y_FOR_GRADIENT },
    { "layernorm 768", called, layers, { 768, 4096, 1, 1 }, X_FOR_GRADIENT },
    { "groupnorm", called, groups, { 56, 56, 64, 8 }, X_FOR_GRADIENT | TWICE },
    { "depthwise, relu6", called, depthwise, { 56, 56, 64, 8 }, Y_FOR_GRADIENT },
    { "depthwise by 2", called, depthwise2, { 56, 56, 64, 8 }, Y_FOR_GRADIENT },
    { "grouped, 4 x 16", called, grouped, { 28, 28, 64, 8 }, Y_FOR_GRADIENT },
    { "grouped, 32 x 4", called, grouped32, { 28, 28, 128, 8 }, Y_FOR_GRADIENT },
    { "sort 1000", sorted, NULL, { 1000, 1000, 1, 1 }, 0 },
};

static double bytes_of(const flux_tensor *x) { return 4 * (double)flux_length(x); }

static void bench(const struct operation *o, bool gradient, double budget) {
    double best = 1e9, copy = 1e9, t, now, bytes;
    const bool test = (o->flags & TEST) != 0, words = (o->flags & WORDS) != 0;
    flux_shape s = FLUX_SHAPE(o->dim[0], o->dim[1], o->dim[2], o->dim[3]);
    while (s.ndim > 2 && s.dim[s.ndim - 1] == 1) s.ndim--;
    flux_tensor *x = flux_eval(flux_rand_with(s, FLUX_F32));
    layer = o->make ? o->make() : NULL;
    if (layer && o->make == norm) flux_testmode(layer, test);
    if (layer && o->make == norm && !test) flux_trainmode(layer, true);
    if (words) second = flux_eval(flux_to_dtype(flux_floor(flux_mul(flux_rand(256), 50257)), FLUX_I64));
    else second = o->flags & SECOND ? flux_eval(flux_rand_with(s, FLUX_F32)) : NULL;
    flux_tensor *y = flux_eval(o->f(x)), *g = flux_eval(flux_rand_with(flux_shape_of(y), FLUX_F32));
    if (gradient) {
        bytes = bytes_of(x) + bytes_of(g);
        if (o->flags & X_FOR_GRADIENT) bytes += bytes_of(x);
        if (o->flags & Y_FOR_GRADIENT) bytes += bytes_of(y);
        if (o->flags & TWICE) bytes += bytes_of(x) + bytes_of(g);
    } else {
        bytes = bytes_of(words ? y : x) + bytes_of(y) + (o->flags & TWICE ? bytes_of(x) : 0);
        if (o->flags & SECOND) bytes += bytes_of(x);
    }
    const size_t half = (size_t)bytes / 2;
    char *from = (char *)malloc(half), *to = (char *)malloc(half);
    if (from && to) memset(from, 1, half), memset(to, 2, half);    /* pages of their own */
    int n = 0;
    for (double start = seconds(); from && to && (n < 4 || seconds() - start < budget) && !flux_failed(); n++) {
        now = seconds();
        FLUX_SCOPE {
            flux_tensor *loss = gradient ? flux_sum(flux_mul(o->f(x), g)) : NULL;
            /* what is itself not to have a gradient, as in a training step, keeps nothing between */
            FLUX_NOGRAD flux_eval(gradient ? flux_grad(flux_gradient(loss, x), x) : o->f(x));
        }
        if ((t = seconds() - now) < best) best = t;
        now = seconds();
        memcpy(to, from, half);
        if ((t = seconds() - now) < copy && to[half / 2] == 1) copy = t;
    }
    if (flux_failed()) printf("%s: %s\n", o->name, flux_error());
    else printf("operation %-20s %-8s %9.3f ms %6.2f of a copy's pace\n", o->name, gradient ? "gradient" : "forward", best * 1e3,
                copy / best);
    fflush(stdout);
    free(from), free(to);
}

int main(int argc, char **argv) {
    double budget = getenv("SHORT") ? 0.02 : 0.5;
    if (argc > 2 && !strcmp(argv[1], "-s")) budget = atof(argv[2]), argc -= 2, argv += 2;
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        for (int gradient = 0; gradient < 2 && (argc < 2 || strstr(operations[i].name, argv[1])); gradient++)
            FLUX_SCOPE bench(&operations[i], gradient != 0, budget);
    return flux_failed();
}
