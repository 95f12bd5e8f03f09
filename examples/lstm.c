/* lstm.c - learns from a play by Shakespeare which letter comes next, reading one letter after the other, and then writes.
       cc -O2 -I. examples/lstm.c -lm -o lstm && ./lstm           in the folder of flux.h
   It is transformer.c with memory in place of attention: what it has read is in the LSTM's state, which goes from letter
   to letter when it writes. SHORT=1 in the environment learns for a few steps only. */
#define FLUX_IMPLEMENTATION
#include "flux.h"
#include "text.h"
#include <string.h>

enum { STEPS = 48, BATCH = 32, WIDTH = 128 };

/* flux_call(m, letters) gives (guesses, h, c); flux_call(m, letters, h, c) goes on from there. */
typedef struct writer { flux_layer base; flux_layer *letters, *memory, *guess; } writer;

static flux_tensor *writer_call(flux_layer *self, flux_tensor *x) {
    writer *m = (writer *)self;
    flux_tensor *in = flux_call(m->letters, flux_nth(x, 0));
    flux_tensor *y = flux_num_items(x) > 1 ? flux_call(m->memory, in, flux_nth(x, 1), flux_nth(x, 2)) : flux_call(m->memory, in);
    return flux_tuple(flux_call(m->guess, flux_nth(y, 0)), flux_nth(y, 1), flux_nth(y, 2));
}
FLUX_LAYER(writer, "Writer", writer_call, FLUX_CHILD(letters), FLUX_CHILD(memory), FLUX_CHILD(guess))

/* Reads `start`, then writes: each letter and the state go back in. */
static void write_on(flux_layer *m, const text *t, const char *start, int length, double temperature, flux_device device) {
    flux_tensor *h = NULL, *c = NULL;
    unsigned seed = 3;
    int32_t next = 0;
    int reads = (int)strlen(start);
    printf("%s", start);
    flux_times (k, reads + length - 1) FLUX_INFER {
        if (k < reads) next = t->code[(unsigned char)start[k]];
        flux_tensor *x = flux_to(device, flux_from(&next, 1, 1)), *y = h ? flux_call(m, x, h, c) : flux_call(m, x);
        h = flux_carry(h, flux_nth(y, 1));
        c = flux_carry(c, flux_nth(y, 2));
        if (k + 1 < reads) continue;
        next = text_pick(flux_reshape(flux_nth(y, 0), t->letters), temperature, &seed);
        putchar(t->letter[next]);
        fflush(stdout);
    }
    printf("\n");
}

int main(void) {
    bool brief = getenv("SHORT") != NULL;
    int steps = brief ? 12 : 900;
    text t;
    if (text_load(&t, "examples/data/coriolanus.txt")) return 1;
    flux_seed(1);
    flux_device device = flux_get_device();
    flux_layer *m = flux_to(device, flux_new(writer, .letters = flux_embedding(t.letters, 32),
                                             .memory = flux_lstm(32, WIDTH, .return_state = true), .guess = flux_dense(WIDTH, t.letters)));
    flux_state *opt = flux_setup(flux_adam(4e-3), m);
    printf("%s\n", flux_device_name(device));
    flux_print(m);
    double mean = 0, among = 0;
    unsigned seed = 1;
    flux_times (i, steps) {
        flux_tensor *x, *y;
        text_pieces(&t, STEPS, BATCH, &seed, &x, &y);
        flux_tensor *guesses = flux_nth(flux_call(m, flux_to(device, x)), 0);
        flux_tensor *loss = flux_logitcrossentropy(guesses, flux_to(device, y));
        if (i + 1 == steps * 3 / 4) flux_adjust(opt, .eta = 1e-3);
        flux_update(opt, m, flux_gradient(loss, m));
        mean += flux_item(loss) / (steps / 6);
        if ((i + 1) % (steps / 6)) continue;
        printf("step %3d: it hesitates between %.1f letters\n", i + 1, among = exp(mean));
        mean = 0;
    }
    printf("\nboldly:\n");
    write_on(m, &t, "MENENIUS:\n", brief ? 60 : 300, 0.9, device);
    printf("\ncautiously:\n");
    write_on(m, &t, "MENENIUS:\n", brief ? 60 : 300, 0.4, device);
    free(t.s);
    return flux_failed() || !(among < (brief ? 40 : 6));
}
