/* transformer.c - learns from a play by Shakespeare which letter comes next, and then writes on by itself.
       cc -O2 -I. examples/transformer.c -lm -o transformer && ./transformer           in the folder of flux.h
   SHORT=1 in the environment learns for a few steps only. */
#define FLUX_IMPLEMENTATION
#include "flux.h"
#include "text.h"
#include <string.h>

enum { STEPS = 64, BATCH = 16, WIDTH = 64, HEADS = 4, LAYERS = 2 };

/* Each letter looks at those before it, at their distance from it (rotary positions), then thinks. What goes in is added
   to what comes out of either. */
static flux_layer *block(void) {
    flux_layer *look = flux_chain(flux_rmsnorm(FLUX_SHAPE(WIDTH)),
                                  flux_multiheadattention(WIDTH, .nheads = HEADS, .causal = true, .rotary = 10000, .scores = FLUX_OFF));
    flux_layer *think = flux_chain(flux_rmsnorm(FLUX_SHAPE(WIDTH)), flux_swiglu(WIDTH, 3 * WIDTH));
    return flux_chain(flux_skipconnection(look, flux_add), flux_skipconnection(think, flux_add));
}

static flux_tensor *small(flux_shape s) { return flux_mul(flux_randn_with(s, FLUX_F32), 0.05); }

/* A letter's numbers, the blocks, and a guess for each place. */
static flux_layer *new_writer(int letters) {
    flux_layer *blocks[LAYERS];
    for (int i = 0; i < LAYERS; i++) blocks[i] = block();
    return flux_chain(flux_embedding(letters, WIDTH, small), flux_chain_with(LAYERS, blocks, NULL), flux_rmsnorm(FLUX_SHAPE(WIDTH)),
                      flux_dense(WIDTH, letters));
}

/* Writes on from the beginning of the text. The model keeps what it knows of the letters before (flux_cache), so that each
   takes one step. When STEPS letters are full, it reads the last half of them again and goes on. */
static void write_on(flux_layer *m, const text *t, int length, flux_device device) {
    int32_t last[STEPS];
    int n = STEPS / 2, unread = n;
    for (int i = 0; i < n; i++) last[i] = t->code[(unsigned char)t->s[i]];
    printf("%.*s|", n, t->s);
    flux_cache(m, STEPS);
    flux_times (k, length) FLUX_INFER {
        if (n == STEPS) {
            memmove(last, last + STEPS / 2, sizeof last / 2);
            n = unread = STEPS / 2;
            flux_cache(m, STEPS);
        }
        flux_tensor *y = flux_call(m, flux_to(device, flux_from(last + n - unread, unread, 1)));
        flux_tensor *next = flux_categorical(flux_slice(y, 1, unread - 1, unread), .temperature = 0.7, .top_p = 0.95);
        last[n++] = (int32_t)flux_item(next);
        unread = 1;
        putchar(t->letter[last[n - 1]]);
        fflush(stdout);
    }
    flux_cache(m, 0);
    printf("\n");
}

int main(void) {
    bool brief = getenv("SHORT") != NULL;
    int steps = brief ? 12 : 900;
    text t;
    if (text_load(&t, "examples/data/coriolanus.txt")) return 1;
    flux_seed(1);
    flux_device device = flux_get_device();
    flux_layer *m = flux_to(device, new_writer(t.letters));
    flux_state *opt = flux_setup(flux_optimiser_chain(flux_clipnorm(1), flux_adamw(2e-3, .lambda = 0.01)), m);
    printf("%s: %d letters of the play, %d different ones, %d numbers to learn\n", flux_device_name(device), (int)t.n, t.letters,
           (int)flux_num_params(m));
    double mean = 0, among = 0;
    unsigned seed = 1;
    flux_times (i, steps) {
        flux_tensor *x, *y;
        text_pieces(&t, STEPS, BATCH, &seed, &x, &y);
        flux_tensor *loss = flux_logitcrossentropy(flux_call(m, flux_to(device, x)), flux_to(device, y));
        if (i + 1 == steps * 3 / 4) flux_adjust(opt, .eta = 5e-4);
        flux_update(opt, m, flux_gradient(loss, m));
        mean += flux_item(loss) / (steps / 6);
        if ((i + 1) % (steps / 6)) continue;
        printf("step %3d: it hesitates between %.1f letters\n", i + 1, among = exp(mean));
        mean = 0;
    }
    printf("\n");
    write_on(m, &t, brief ? 60 : 600, device);
    free(t.s);
    return flux_failed() || !(among < (brief ? 40 : 6));
}
