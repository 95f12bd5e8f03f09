/* transformer.c - learns from a play by Shakespeare which letter comes next, and then writes on by itself.

       cc -O2 -I. examples/transformer.c -o transformer -lm && ./transformer        (run from the folder of flux.h)

   SHORT=1 in the environment learns for a few steps only. */
#define FLUX_IMPLEMENTATION
#include "../flux.h"
#include "text.h"

enum { STEPS = 64, BATCH = 16, WIDTH = 64, HEADS = 4, LAYERS = 2 };

/* A letter's numbers plus its place's, some blocks, and a guess for each place. */
typedef struct writer { flux_layer base; flux_layer *letters, *places, *blocks, *guess; } writer;

static flux_tensor *writer_call(flux_layer *self, flux_tensor *x) {
    writer *m = (writer *)self;
    flux_tensor *places = flux_to(flux_device_of(x), flux_to_dtype(flux_arange(0, (double)flux_dim(x, 0), 1), FLUX_I32));
    flux_tensor *y = flux_add(flux_call(m->letters, x), flux_call(m->places, places));
    return flux_call(m->guess, flux_call(m->blocks, y));
}
FLUX_LAYER(writer, "Writer", writer_call, FLUX_CHILD(letters), FLUX_CHILD(places), FLUX_CHILD(blocks), FLUX_CHILD(guess))

/* Each letter looks at those before it, then thinks. What goes in is added to what comes out of either. */
static flux_layer *block(void) {
    flux_layer *look = flux_chain(flux_layernorm(FLUX_SHAPE(WIDTH)),
                                  flux_multiheadattention(WIDTH, .nheads = HEADS, .causal = true, .scores = FLUX_OFF));
    flux_layer *think = flux_chain(flux_layernorm(FLUX_SHAPE(WIDTH)), flux_dense(WIDTH, 4 * WIDTH, flux_gelu),
                                   flux_dense(4 * WIDTH, WIDTH));
    return flux_chain(flux_skipconnection(look, flux_add), flux_skipconnection(think, flux_add));
}

static flux_tensor *small(flux_shape s) { return flux_mul(flux_randn_shape(s, FLUX_F32), 0.05); }

static flux_layer *new_writer(int letters) {
    flux_layer *blocks[LAYERS];
    for (int i = 0; i < LAYERS; i++) blocks[i] = block();
    return flux_new(writer, .letters = flux_embedding(letters, WIDTH, small), .places = flux_embedding(STEPS, WIDTH, small),
                    .blocks = flux_chain_of(LAYERS, blocks, NULL),
                    .guess = flux_chain(flux_layernorm(FLUX_SHAPE(WIDTH)), flux_dense(WIDTH, letters)));
}

/* Writes on from the beginning of the text: the last STEPS letters tell the next. */
static void write_on(flux_layer *m, const text *t, int length, flux_device device) {
    int32_t last[STEPS];
    unsigned seed = 7;
    for (int i = 0; i < STEPS; i++) last[i] = t->code[(unsigned char)t->s[i]];
    printf("%.*s|", STEPS, t->s);
    flux_times (k, length) FLUX_INFER {
        flux_tensor *y = flux_call(m, flux_to(device, flux_from(last, STEPS, 1)));
        int next = text_pick(flux_select(flux_select(y, 2, 0), 1, STEPS - 1), 0.7, &seed);
        memmove(last, last + 1, sizeof last - sizeof last[0]);
        last[STEPS - 1] = next;
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
    flux_layer *m = flux_to(device, new_writer(t.letters));
    flux_state *opt = flux_setup(flux_optimiser_chain(flux_clipnorm(1), flux_adamw(2e-3, .lambda = 0.01)), m);
    printf("%s: %d letters of the play, %d different ones, %d numbers to learn\n", flux_device_name(device), (int)t.n, t.letters,
           (int)flux_num_params(m));
    double mean = 0;
    unsigned seed = 1;
    flux_times (i, steps) {
        flux_tensor *x, *y;
        text_pieces(&t, STEPS, BATCH, &seed, &x, &y);
        flux_tensor *loss = flux_logitcrossentropy(flux_call(m, flux_to(device, x)), flux_to(device, y));
        if (i + 1 == steps * 3 / 4) flux_adjust(opt, .eta = 5e-4);
        flux_update(opt, m, flux_gradient(loss, m));
        mean += flux_item(loss) / (steps / 6);
        if ((i + 1) % (steps / 6)) continue;
        printf("step %3d: it hesitates between %.1f letters\n", i + 1, exp(mean));
        mean = 0;
    }
    printf("\n");
    write_on(m, &t, brief ? 60 : 600, device);
    free(t.s);
    return flux_failed();
}
