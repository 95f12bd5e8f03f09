/* classify.c - a trained model as a part of a larger program: loaded once, then asked by several threads at a time.
       cc -O2 -I. examples/classify.c -lm -lpthread -o classify && ./classify              in the folder of flux.h
       c++ -O2 -x c++ -I. examples/classify.c -lm -lpthread -o classify && ./classify      the same as C++
       cc -O2 -fPIC -shared -DLIBRARY -I. examples/classify.c -lm -lpthread -o libclassify.so
   The three functions below are all that the program sees: declare them in a header of yours, with extern "C" for C++.
   A model may be called by many threads at once. Each thread has scopes and errors of its own, so that every function
   frees what it made, and tells of what went wrong by its result. */
#define FLUX_IMPLEMENTATION
#include "flux.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct classifier classifier;
classifier *classifier_open(const char *path);                            /* NULL: the file is not there, or another model's */
int classify(classifier *c, const float *image, float *chance);           /* 64 pixels in 0 to 1, ten numbers out; the digit */
void classifier_close(classifier *c);

static flux_layer *new_model(void) {
    return flux_chain(flux_dense(64, 128, flux_relu), flux_dropout(0.1), flux_dense(128, 10));
}

/* What the scope made is freed at its end; what is retained has an owner more, and lives until it is released. */
classifier *classifier_open(const char *path) {
    flux_layer *model = NULL;
    FLUX_SCOPE {
        flux_layer *m = flux_gpu(new_model());
        if (flux_load(m, path) == 0) model = (flux_layer *)flux_retain(m);
    }
    flux_clear();                                                         /* a caller need not know of flux_failed */
    return (classifier *)model;
}

int classify(classifier *c, const float *image, float *chance) {
    flux_layer *model = (flux_layer *)c;
    int digit = -1;
    FLUX_INFER {
        flux_tensor *x = flux_to(flux_device_of(model), flux_from(image, 64, 1));
        flux_tensor *p = flux_softmax(flux_call(model, x));
        if (flux_read(p, chance, 10 * sizeof *chance) == 0) digit = (int)flux_item(flux_argmax(p));
    }
    flux_clear();
    return digit;
}

void classifier_close(classifier *c) { flux_release(c); }

#ifdef __cplusplus
}
#endif

#ifndef LIBRARY                           /* the larger program: four threads that share one classifier */
#include <pthread.h>
#include <stdlib.h>

enum { THREADS = 4 };
typedef struct part { classifier *c; const float *digits; int begin, end, right; } part;

static void *work(void *user) {
    part *p = (part *)user;
    float image[64], chance[10];
    for (int i = p->begin; i < p->end; i++) {
        for (int k = 0; k < 64; k++) image[k] = p->digits[i * 65 + k] / 16;
        p->right += classify(p->c, image, chance) == (int)p->digits[i * 65 + 64];
    }
    return NULL;
}

/* The model's file comes from somewhere; here it is made. */
static int train(flux_tensor *all, const char *path) {
    flux_tensor *x = flux_mul(flux_slice(all, 0, 0, 64), 1.0 / 16), *label = flux_to_dtype(flux_select(all, 0, 64), FLUX_I32);
    flux_layer *model = flux_gpu(new_model());
    flux_loader *data = flux_gpu(flux_dataloader(x, label, .batchsize = 32, .shuffle = true));
    flux_state *opt = flux_setup(flux_adam(.eta = 3e-3), model);
    flux_times (epoch, getenv("SHORT") ? 3 : 15)
        flux_each (b, data)
            flux_update(opt, model, flux_gradient(flux_logitcrossentropy(flux_call(model, b.x), b.y), model));
    return flux_save(model, path);
}

int main(void) {
    flux_seed(1);
    flux_tensor *all = flux_load_csv("examples/data/digits.csv");         /* 65 x 1797 */
    if (!all || train(all, "classify.safetensors") != 0) return 1;
    classifier *c = classifier_open("classify.safetensors");
    if (!c) return 1;

    part parts[THREADS];
    pthread_t thread[THREADS];
    int n = (int)flux_dim(all, 1), right = 0;
    const float *digits = flux_floats(all);
    for (int i = 0; i < THREADS; i++) {
        parts[i].c = c, parts[i].digits = digits, parts[i].right = 0;
        parts[i].begin = n * i / THREADS, parts[i].end = n * (i + 1) / THREADS;
        if (pthread_create(&thread[i], NULL, work, &parts[i]) != 0) return 1;
    }
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL), right += parts[i].right;
    classifier_close(c);
    printf("%d threads read %d digits, %.1f %% of them rightly\n", THREADS, n, 100.0 * right / n);
    return flux_failed() || right < 0.9 * n;
}
#endif
