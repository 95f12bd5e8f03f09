/* Models of real size, built as a user builds them: inference and a training step with AdamW, float32. A line a figure: the fastest
   of several, and the most memory that the process had. Each figure is a process of its own, since what a process once had at most
   never falls again. tests/bench/peer_models.py has the same models in PyTorch, tests/bench/models.sh sets the two side by side.
       bench_models [-s seconds for each] [-b] [MODEL[,MODEL...] [WHAT[,WHAT...]]]
   -b: in bf16.
   WHAT is infer or train with a batch behind it, as infer1; without it each model has infer1, infer8 and a training step. Threads:
   FLUX_NUM_THREADS. */
#define _POSIX_C_SOURCE 200809L
#include "../../flux.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__unix__) || defined(__APPLE__)
#  include <sys/resource.h>
#  include <sys/wait.h>
#  include <unistd.h>
#endif

/* What others do meanwhile counts only where it must: with several threads. */
static double seconds(void) {
    const char *threads = getenv("FLUX_NUM_THREADS");
    struct timespec t;
    if (threads && !strcmp(threads, "1")) return (double)clock() / CLOCKS_PER_SEC;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- networks for images: w x h x channels x batch */

static flux_layer *conv(int64_t kernel, int64_t in, int64_t out, int64_t stride) {
    return flux_conv_layer(FLUX_SHAPE(kernel, kernel), in, out, .stride = FLUX_SHAPE(stride), .pad = FLUX_SHAPE(kernel / 2),
                           .bias = FLUX_OFF);
}

/* A residual block of ResNet-18 (two 3 x 3) or -50 (1 x 1, 3 x 3, 1 x 1 to four times as many channels). */
static flux_layer *residual(int64_t in, int64_t width, int64_t stride, bool bottleneck) {
    int64_t out = bottleneck ? 4 * width : width;
    flux_layer *body = bottleneck
        ? flux_chain(conv(1, in, width, 1), flux_batchnorm(width, flux_relu), conv(3, width, width, stride),
                     flux_batchnorm(width, flux_relu), conv(1, width, out, 1), flux_batchnorm(out))
        : flux_chain(conv(3, in, width, stride), flux_batchnorm(width, flux_relu), conv(3, width, width, 1), flux_batchnorm(width));
    flux_layer *sum = in == out && stride == 1
        ? flux_skipconnection(body, flux_add)
        : flux_parallel(flux_add, body, flux_chain(conv(1, in, out, stride), flux_batchnorm(out)));
    return flux_chain(sum, flux_relu);
}

static flux_layer *resnet(const int *blocks, bool bottleneck) {
    flux_layer *l[32];
    int n = 0;
    int64_t in = 64, width = 64;
    l[n++] = conv(7, 3, 64, 2);
    l[n++] = flux_batchnorm(64, flux_relu);
    l[n++] = flux_maxpool_layer(FLUX_SHAPE(3, 3), .stride = FLUX_SHAPE(2), .pad = FLUX_SHAPE(1));
    for (int s = 0; s < 4; s++, width *= 2)
        for (int b = 0; b < blocks[s]; b++, in = bottleneck ? 4 * width : width)
            l[n++] = residual(in, width, b == 0 && s > 0 ? 2 : 1, bottleneck);
    l[n++] = flux_globalmeanpool();
    l[n++] = flux_function(flux_flatten, "flatten");
    l[n++] = flux_dense(in, 1000);
    return flux_chain_with(n, l, NULL);
}
static flux_layer *resnet18(void) { return resnet((const int[]){ 2, 2, 2, 2 }, false); }
static flux_layer *resnet50(void) { return resnet((const int[]){ 3, 4, 6, 3 }, true); }

/* An inverted residual of MobileNetV2: to `expand` times as many channels, depthwise 3 x 3, back. */
static flux_layer *inverted(int64_t in, int64_t out, int64_t stride, int64_t expand) {
    flux_layer *l[8];
    int n = 0;
    int64_t wide = in * expand;
    if (expand > 1) l[n++] = conv(1, in, wide, 1), l[n++] = flux_batchnorm(wide, flux_relu6);
    l[n++] = flux_depthwiseconv(FLUX_SHAPE(3, 3), wide, wide, .stride = FLUX_SHAPE(stride), .pad = FLUX_SHAPE(1), .bias = FLUX_OFF);
    l[n++] = flux_batchnorm(wide, flux_relu6);
    l[n++] = conv(1, wide, out, 1), l[n++] = flux_batchnorm(out);
    flux_layer *body = flux_chain_with(n, l, NULL);
    return in == out && stride == 1 ? flux_skipconnection(body, flux_add) : body;
}

static flux_layer *mobilenet(void) {
    static const int64_t stage[7][4] = { { 1, 16, 1, 1 },  { 6, 24, 2, 2 },  { 6, 32, 3, 2 },  { 6, 64, 4, 2 },
                                         { 6, 96, 3, 1 },  { 6, 160, 3, 2 }, { 6, 320, 1, 1 } };
    flux_layer *l[32];
    int n = 0;
    int64_t in = 32;
    l[n++] = conv(3, 3, 32, 2);
    l[n++] = flux_batchnorm(32, flux_relu6);
    for (int s = 0; s < 7; s++)
        for (int b = 0; b < stage[s][2]; b++, in = stage[s][1])
            l[n++] = inverted(in, stage[s][1], b ? 1 : stage[s][3], stage[s][0]);
    l[n++] = conv(1, in, 1280, 1);
    l[n++] = flux_batchnorm(1280, flux_relu6);
    l[n++] = flux_globalmeanpool();
    l[n++] = flux_function(flux_flatten, "flatten");
    l[n++] = flux_dense(1280, 1000);
    return flux_chain_with(n, l, NULL);
}

static flux_layer *vgg11(void) {
    static const int64_t width[] = { 64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0 };
    flux_layer *l[20];
    int n = 0;
    int64_t in = 3;
    for (size_t i = 0; i < sizeof width / sizeof *width; i++) {
        if (width[i]) l[n++] = flux_conv_layer(FLUX_SHAPE(3, 3), in, width[i], flux_relu, .pad = FLUX_SAMEPAD), in = width[i];
        else l[n++] = flux_maxpool_layer(FLUX_SHAPE(2, 2));
    }
    l[n++] = flux_function(flux_flatten, "flatten");
    l[n++] = flux_dense(512 * 7 * 7, 4096, flux_relu);
    l[n++] = flux_dense(4096, 4096, flux_relu);
    l[n++] = flux_dense(4096, 1000);
    return flux_chain_with(n, l, NULL);
}

/* A U-Net: at each level two convolutions, the level below between a max pooling and a transposed convolution, whose result lies
   beside the level's own in the channels, and two convolutions more. */
static flux_tensor *beside(flux_tensor *a, flux_tensor *b) { return flux_cat(2, a, b); }
static flux_layer *twice(int64_t in, int64_t out) {
    return flux_chain(conv(3, in, out, 1), flux_batchnorm(out, flux_relu), conv(3, out, out, 1), flux_batchnorm(out, flux_relu));
}
static flux_layer *level(int64_t in, int64_t width, int below) {
    if (!below) return twice(in, width);
    flux_layer *down = flux_chain(flux_maxpool_layer(FLUX_SHAPE(2, 2)), level(width, 2 * width, below - 1),
                                  flux_conv_transpose_layer(FLUX_SHAPE(2, 2), 2 * width, width, .stride = FLUX_SHAPE(2)));
    return flux_chain(twice(in, width), flux_skipconnection(down, flux_function2(beside, "beside")), twice(2 * width, width));
}
static flux_layer *unet(void) {
    return flux_chain(level(1, 16, 3), flux_conv_layer(FLUX_SHAPE(1, 1), 16, 1));
}

/* ---- sequences and vectors */

/* A transformer's block: attention, then a network of two layers, each added to what it was given. */
static flux_layer *block(int64_t width, int heads, bool causal) {
    flux_layer *look = flux_chain(flux_layernorm(FLUX_SHAPE(width)),
                                  flux_multiheadattention(width, .nheads = heads, .causal = causal, .bias = true, .scores = FLUX_OFF));
    flux_layer *think = flux_chain(flux_layernorm(FLUX_SHAPE(width)), flux_dense(width, 4 * width, flux_gelu),
                                   flux_dense(4 * width, width));
    return flux_chain(flux_skipconnection(look, flux_add), flux_skipconnection(think, flux_add));
}
static flux_layer *blocks(int n, int64_t width, int heads, bool causal) {
    flux_layer *l[32];
    for (int i = 0; i < n; i++) l[i] = block(width, heads, causal);
    l[n] = flux_layernorm(FLUX_SHAPE(width));
    return flux_chain_with(n + 1, l, NULL);
}
static flux_tensor *small(flux_shape s) { return flux_mul(flux_randn_with(s, FLUX_F32), 0.02); }

/* GPT-2: its last layer is the table of words once more. */
typedef struct gpt { flux_layer base; flux_layer *words, *places, *blocks; } gpt;
static flux_tensor *gpt_call(flux_layer *self, flux_tensor *x) {
    gpt *m = (gpt *)self;
    flux_tensor *places = flux_to_dtype(flux_arange(0, (double)flux_dim(x, 0), 1), FLUX_I32);
    flux_tensor *y = flux_call(m->blocks, flux_add(flux_call(m->words, x), flux_call(m->places, places)));
    flux_shape s = flux_shape_of(y);
    y = flux_matmul(flux_transpose(flux_weight(m->words)), flux_reshape(y, s.dim[0], -1));
    return flux_reshape(y, -1, s.dim[1], s.dim[2]);
}
FLUX_LAYER(gpt, "GPT", gpt_call, FLUX_CHILD(words), FLUX_CHILD(places), FLUX_CHILD(blocks))
static flux_layer *gpt2(void) {
    return flux_new(gpt, .words = flux_embedding(50257, 768, small), .places = flux_embedding(1024, 768, small),
                    .blocks = blocks(12, 768, 12, true));
}

/* A vision transformer of 5 million (ViT-Ti/16): patches of 16 x 16 and a class token. */
typedef struct vit { flux_layer base; flux_layer *patches, *blocks, *head; flux_tensor *token, *places; } vit;
static flux_tensor *vit_call(flux_layer *self, flux_tensor *x) {
    vit *m = (vit *)self;
    flux_tensor *y = flux_call(m->patches, x);
    flux_shape s = flux_shape_of(y);
    y = flux_permute(flux_reshape(y, s.dim[0] * s.dim[1], s.dim[2], s.dim[3]), 1, 0, 2);
    y = flux_cat(1, flux_broadcast_to(m->token, s.dim[2], 1, s.dim[3]), y);
    y = flux_call(m->blocks, flux_add(y, m->places));
    return flux_call(m->head, flux_select(y, 1, 0));
}
FLUX_LAYER(vit, "ViT", vit_call, FLUX_CHILD(patches), FLUX_CHILD(blocks), FLUX_CHILD(head), FLUX_PARAM(token), FLUX_PARAM(places))
static flux_layer *vit5m(void) {
    return flux_new(vit, .patches = flux_conv_layer(FLUX_SHAPE(16, 16), 3, 192, .stride = FLUX_SHAPE(16)),
                    .blocks = blocks(12, 192, 3, false), .head = flux_dense(192, 1000), .token = small(FLUX_SHAPE(192, 1, 1)),
                    .places = small(FLUX_SHAPE(192, 197)));
}

static flux_layer *lstm(void) { return flux_chain(flux_lstm(512, 512), flux_lstm(512, 512), flux_dense(512, 64)); }

/* A temporal convolutional network: residual blocks of two causal convolutions, each twice as far apart as before. */
static flux_layer *tcn(void) {
    flux_layer *l[9];
    for (int i = 0; i < 8; i++) {
        flux_layer *c[2];
        for (int k = 0; k < 2; k++)
            c[k] = flux_conv_layer(FLUX_SHAPE(3), 64, 64, flux_relu, .dilation = FLUX_SHAPE(1 << i), .pad = FLUX_SHAPE(2 << i, 0));
        l[i] = flux_chain(flux_skipconnection(flux_chain_with(2, c, NULL), flux_add), flux_relu);
    }
    l[8] = flux_conv_layer(FLUX_SHAPE(1), 64, 10);
    return flux_chain_with(9, l, NULL);
}

static flux_layer *autoencoder(void) {
    return flux_chain(flux_dense(784, 1024, flux_relu), flux_dense(1024, 64, flux_relu), flux_dense(64, 1024, flux_relu),
                      flux_dense(1024, 784, flux_sigmoid));
}

/* ---- what goes in, and how far off what comes out is */

static flux_tensor *whole(flux_shape s, int below) {
    return flux_eval(flux_to_dtype(flux_floor(flux_mul(flux_rand_with(s, FLUX_F32), below)), FLUX_I32));
}
static flux_tensor *numbers(flux_shape s) { return flux_eval(flux_rand_with(s, FLUX_F32)); }
static flux_tensor *image(int64_t n) { return numbers(FLUX_SHAPE(224, 224, 3, n)); }
static flux_tensor *of_1000(int64_t n) { return whole(FLUX_SHAPE(n), 1000); }
static flux_tensor *photo(int64_t n) { return numbers(FLUX_SHAPE(128, 128, 1, n)); }
static flux_tensor *words(int64_t n) { return whole(FLUX_SHAPE(64, n), 50257); }
static flux_tensor *steps(int64_t n) { return numbers(FLUX_SHAPE(512, 128, n)); }
static flux_tensor *of_64(int64_t n) { return whole(FLUX_SHAPE(128, n), 64); }
static flux_tensor *series(int64_t n) { return numbers(FLUX_SHAPE(1024, 64, n)); }
static flux_tensor *series10(int64_t n) { return numbers(FLUX_SHAPE(1024, 10, n)); }
static flux_tensor *digit(int64_t n) { return numbers(FLUX_SHAPE(784, n)); }

static flux_tensor *class_loss(flux_tensor *y, flux_tensor *t) { return flux_logitcrossentropy(y, t); }
static flux_tensor *pixel_loss(flux_tensor *y, flux_tensor *t) { return flux_logitbinarycrossentropy(y, t); }
static flux_tensor *square_loss(flux_tensor *y, flux_tensor *t) { return flux_mse(y, t); }

static const struct model {
    const char *name;
    flux_layer *(*make)(void);
    flux_tensor *(*x)(int64_t batch), *(*y)(int64_t batch);
    flux_tensor *(*loss)(flux_tensor *y, flux_tensor *t);
    int train;                            /* the training step's batch */
} models[] = {
    { "resnet18", resnet18, image, of_1000, class_loss, 8 },    { "resnet50", resnet50, image, of_1000, class_loss, 4 },
    { "mobilenet", mobilenet, image, of_1000, class_loss, 8 },  { "unet", unet, photo, photo, pixel_loss, 8 },
    { "vgg11", vgg11, image, of_1000, class_loss, 4 },          { "gpt2", gpt2, words, words, class_loss, 4 },
    { "vit", vit5m, image, of_1000, class_loss, 8 },            { "lstm", lstm, steps, of_64, class_loss, 8 },
    { "tcn", tcn, series, series10, square_loss, 8 },           { "autoencoder", autoencoder, digit, digit, square_loss, 128 },
};

static bool half;                         /* models and what goes in are bf16 */

/* The fastest of several, at least five: weights are packed, to be kept, by the third call. */
static void bench(const struct model *of, bool train, int batch, double budget) {
    double fastest = 1e9, start, peak = 0;
    int n = 0;
    flux_seed(1);
    FLUX_SCOPE {
        flux_layer *m = half ? flux_bf16(of->make()) : of->make();
        flux_tensor *x = of->x(batch), *y = of->y(batch);
        if (half && flux_dtype_of(x) == FLUX_F32) x = flux_eval(flux_to_dtype(x, FLUX_BF16));
        flux_state *opt = train ? flux_setup(flux_adamw(1e-4, .lambda = 0.01), m) : NULL;
        for (start = seconds(); (n < 6 || seconds() - start < budget) && !flux_failed(); n++) {
            double t = seconds();
            if (train) FLUX_SCOPE flux_update(opt, m, flux_gradient(of->loss(flux_call(m, x), y), m));
            else FLUX_INFER flux_eval(flux_call(m, x));
            t = seconds() - t;
            if (n > 0 && t < fastest) fastest = t;
        }
    }
#if defined(__unix__) || defined(__APPLE__)
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    peak = (double)use.ru_maxrss / 1e3;
#endif
    if (flux_failed()) printf("model %-12s failed: %s\n", of->name, flux_error());
    else printf("model %-12s %s%-4d %10.3f ms  %8.1f MB\n", of->name, train ? "train" : "infer", batch, fastest * 1e3, peak);
    fflush(stdout);
}

/* The same in a child, where there are such. */
static int apart(const struct model *of, bool train, int batch, double budget) {
    int status = 0;
#if defined(__unix__) || defined(__APPLE__)
    pid_t child = fork();
    if (child > 0) return waitpid(child, &status, 0) == child ? status : 1;
    bench(of, train, batch, budget);
    if (child == 0) exit(flux_failed());
#else
    bench(of, train, batch, budget);
#endif
    return flux_failed() || status;
}

/* Whether a list, separated by commas, has the name. */
static bool listed(const char *list, const char *name) {
    for (size_t n = strlen(name); *list; list += strcspn(list, ","), list += *list == ',')
        if (!strncmp(list, name, n) && (list[n] == ',' || !list[n])) return true;
    return false;
}

int main(int argc, char **argv) {
    double budget = getenv("SHORT") ? 0.1 : 2;
    int failed = 0, batch;
    if (argc > 2 && !strcmp(argv[1], "-s")) budget = atof(argv[2]), argc -= 2, argv += 2;
    if (argc > 1 && !strcmp(argv[1], "-b")) half = true, argc--, argv++;
    const char *names = argc > 1 ? argv[1] : NULL, *what = argc > 2 ? argv[2] : NULL;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const struct model *m = &models[i];
        if (names && strcmp(names, "all") && !listed(names, m->name)) continue;
        for (int k = 1; k <= 8 && !what; k += 7) failed |= apart(m, false, k, budget);
        if (!what) failed |= apart(m, true, m->train, budget);
        for (const char *w = what; w && *w; w += strcspn(w, ","), w += *w == ',')
            if (!strncmp(w, "infer", 5) || !strncmp(w, "train", 5))
                if ((batch = atoi(w + 5)) > 0) failed |= apart(m, *w == 't', batch, budget);
    }
    return failed != 0;
}
