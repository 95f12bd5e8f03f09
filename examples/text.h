/* A text as numbers, for the examples that learn to write: each letter that occurs is a class. */
#ifndef TEXT_H
#define TEXT_H
#include "flux.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct text {
    char *s;
    int64_t n;
    int letters, code[256];      /* how many different ones; the number of each */
    char letter[256];
} text;

static inline int text_load(text *t, const char *path) {
    FILE *f = fopen(path, "rb");
    bool there[256] = { false };
    t->s = (char *)malloc(1 << 20);
    t->n = f && t->s ? (int64_t)fread(t->s, 1, 1 << 20, f) : 0;
    if (f) fclose(f);
    t->letters = 0;
    for (int64_t i = 0; i < t->n; i++) there[(unsigned char)t->s[i]] = true;
    for (int c = 0; c < 256; c++)
        if (there[c]) t->code[c] = t->letters, t->letter[t->letters++] = (char)c;
    if (!t->n) fprintf(stderr, "%s cannot be read; run this from the folder of flux.h\n", path);
    return t->n ? 0 : 1;
}

static inline unsigned text_random(unsigned *seed) { return (*seed = *seed * 1664525u + 1013904223u) >> 8; }

/* Pieces from anywhere: x, and y, which is one letter further on; both steps x batch. */
static inline void text_pieces(const text *t, int steps, int batch, unsigned *seed, flux_tensor **x, flux_tensor **y) {
    int32_t *a = (int32_t *)malloc(sizeof(int32_t) * (size_t)(2 * steps * batch)), *b = a + steps * batch;
    for (int i = 0; a && i < batch; i++) {
        int64_t at = text_random(seed) % (t->n - steps - 1);
        for (int k = 0; k < steps; k++) {
            a[i * steps + k] = t->code[(unsigned char)t->s[at + k]];
            b[i * steps + k] = t->code[(unsigned char)t->s[at + k + 1]];
        }
    }
    *x = flux_from(a, steps, batch);
    *y = flux_from(b, steps, batch);
    free(a);
}

/* A letter by chance, each by its probability; a low temperature favours the likely. */
static inline int text_pick(flux_tensor *logits, double temperature, unsigned *seed) {
    flux_tensor *p = flux_cpu(flux_softmax(flux_div(logits, temperature)));
    const float *v = flux_floats(p);
    double u = text_random(seed) / 16777216.0;
    int i = 0;
    for (; v && i + 1 < flux_len(p) && u >= (double)v[i]; i++) u -= (double)v[i];
    return i;
}
#endif
