/* The training steps of bench_steps.c by hand: OpenBLAS for the products, plain loops that the compiler makes vectors of for
   the rest. What a program for one model alone can do, so the bar for a library. tests/bench/peers.sh runs it beside ours:
       cc -O3 -march=native -fno-math-errno tests/bench/peer_steps_openblas.c -lopenblas -lm */
#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 4, RUNS = 200 };            /* layers; steps that are timed */

typedef struct dense { int in, out; float *w, *b, *dw, *db, *mw, *vw, *mb, *vb, *y, *dy; } dense;
typedef struct model { const char *name; int sizes[MOST + 2], batch; } model;

static double seconds(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float *numbers(size_t n, float scale) {
    float *x = aligned_alloc(64, (n * sizeof *x + 63) / 64 * 64);
    if (!x) exit(1);
    for (size_t i = 0; i < n; i++) x[i] = scale * ((float)rand() / (float)RAND_MAX * 2 - 1);
    return x;
}

static void product(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int m, int n, int k, const float *a, int lda, const float *b, int ldb, float *c) {
    cblas_sgemm(CblasColMajor, ta, tb, m, n, k, 1, a, lda, b, ldb, 0, c, m);
}

static void forward(dense *l, const float *x, int batch, int relu) {
    product(CblasNoTrans, CblasNoTrans, l->out, batch, l->in, l->w, l->out, x, l->in, l->y);
    for (int j = 0; j < batch; j++) {
        float *restrict y = l->y + (size_t)j * (size_t)l->out;
        const float *restrict b = l->b;
        for (int i = 0; i < l->out; i++) {
            float v = y[i] + b[i];
            y[i] = relu && v < 0 ? 0 : v;
        }
    }
}

/* The loss, and its gradient by the logits. */
static float cross_entropy(const dense *l, const float *target, int batch) {
    float loss = 0;
    for (int j = 0; j < batch; j++) {
        const float *y = l->y + (size_t)j * (size_t)l->out, *t = target + (size_t)j * (size_t)l->out;
        float *d = l->dy + (size_t)j * (size_t)l->out, most = y[0], sum = 0;
        for (int i = 1; i < l->out; i++) most = y[i] > most ? y[i] : most;
        for (int i = 0; i < l->out; i++) sum += d[i] = expf(y[i] - most);
        for (int i = 0; i < l->out; i++) loss -= t[i] * (y[i] - most - logf(sum)), d[i] = (d[i] / sum - t[i]) / (float)batch;
    }
    return loss / (float)batch;
}

static void backward(dense *l, const float *x, float *dx, const float *below, int batch) {
    product(CblasNoTrans, CblasTrans, l->out, l->in, batch, l->dy, l->out, x, l->in, l->dw);
    memset(l->db, 0, (size_t)l->out * sizeof *l->db);
    for (int j = 0; j < batch; j++)
        for (int i = 0; i < l->out; i++) l->db[i] += l->dy[(size_t)j * (size_t)l->out + (size_t)i];
    if (!dx) return;
    product(CblasTrans, CblasNoTrans, l->in, batch, l->out, l->w, l->out, l->dy, l->out, dx);
    for (size_t i = 0; i < (size_t)l->in * (size_t)batch; i++) dx[i] = below[i] > 0 ? dx[i] : 0;
}

static void adam(size_t n, float *restrict w, const float *restrict g, float *restrict m, float *restrict v, float rate, float by_m, float by_v) {
    for (size_t i = 0; i < n; i++) {
        m[i] = 0.9f * m[i] + 0.1f * g[i];
        v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
        w[i] -= rate * (m[i] * by_m) / (sqrtf(v[i] * by_v) + 1e-8f);
    }
}

static float step(dense *l, int layers, const float *x, const float *target, int batch, int t) {
    const float by_m = 1 / (1 - powf(0.9f, (float)t)), by_v = 1 / (1 - powf(0.999f, (float)t));
    for (int i = 0; i < layers; i++) forward(&l[i], i ? l[i - 1].y : x, batch, i + 1 < layers);
    float loss = cross_entropy(&l[layers - 1], target, batch);
    for (int i = layers - 1; i >= 0; i--) backward(&l[i], i ? l[i - 1].y : x, i ? l[i - 1].dy : NULL, i ? l[i - 1].y : NULL, batch);
    for (int i = 0; i < layers; i++) {
        adam((size_t)l[i].in * (size_t)l[i].out, l[i].w, l[i].dw, l[i].mw, l[i].vw, 1e-3f, by_m, by_v);
        adam((size_t)l[i].out, l[i].b, l[i].db, l[i].mb, l[i].vb, 1e-3f, by_m, by_v);
    }
    return loss;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void bench(const model *m) {
    dense l[MOST];
    double times[RUNS], start = seconds();
    int layers = 0, done = 0, batch = m->batch;
    float loss = 0;
    for (; m->sizes[layers + 1]; layers++) {
        dense *d = &l[layers];
        d->in = m->sizes[layers], d->out = m->sizes[layers + 1];
        size_t nw = (size_t)d->in * (size_t)d->out, nb = (size_t)d->out, ny = nb * (size_t)batch;
        d->w = numbers(nw, sqrtf(6 / (float)(d->in + d->out))), d->dw = numbers(nw, 0), d->mw = numbers(nw, 0), d->vw = numbers(nw, 0);
        d->b = numbers(nb, 0), d->db = numbers(nb, 0), d->mb = numbers(nb, 0), d->vb = numbers(nb, 0);
        d->y = numbers(ny, 0), d->dy = numbers(ny, 0);
    }
    int classes = l[layers - 1].out;
    float *x = numbers((size_t)m->sizes[0] * (size_t)batch, 1), *target = numbers((size_t)classes * (size_t)batch, 0);
    for (int j = 0; j < batch; j++) target[j * classes + rand() % classes] = 1;
    for (int i = 0; i < RUNS && (i < 20 || seconds() - start < 3); i++) {
        double t = seconds();
        loss = step(l, layers, x, target, batch, i + 1);
        times[done++] = seconds() - t;
    }
    qsort(times, (size_t)done, sizeof *times, compare);
    printf("step %-32s %9.1f us   (fastest %.1f, loss %.3f)\n", m->name, times[done / 2] * 1e6, times[0] * 1e6, (double)loss);
}

int main(void) {
    static const model models[] = {
        { "784-256-10, batch 64", { 784, 256, 10 }, 64 },
        { "784-1024-1024-10, batch 128", { 784, 1024, 1024, 10 }, 128 },
    };
    for (int i = 0; i < 2; i++) bench(&models[i]);
    return 0;
}
