/* policy.c - learns to catch: a ball falls, a bat at the bottom moves left, stays or moves right. Nobody says how.
       cc -O2 -I. examples/policy.c -lm -o policy && ./policy           in the folder of flux.h
   An actor says how likely each move is, a critic how well things stand. Many games are played by chance; then moves that
   went better than the critic thought become likelier, and the critic learns what became of it. The model is a struct of
   one's own, with both as children. SHORT=1 in the environment plays fewer rounds. */
#define FLUX_IMPLEMENTATION
#include "flux.h"
#include <stdlib.h>
#include <string.h>

enum { WIDE = 7, HIGH = 8, CELLS = WIDE * HIGH, GAMES = 64, MOVES = HIGH - 1, SEEN = GAMES * MOVES };

typedef struct { flux_layer base; flux_layer *actor, *critic; } actor_critic;

static flux_tensor *actor_critic_call(flux_layer *self, flux_tensor *x) {
    actor_critic *m = (actor_critic *)self;
    return flux_tuple(flux_call(m->actor, x), flux_call(m->critic, x));
}
FLUX_LAYER(actor_critic, "ActorCritic", actor_critic_call, FLUX_CHILD(actor), FLUX_CHILD(critic))

typedef struct game { int ball, drift, row, bat; } game;

static unsigned seed = 1;
static int chance(int n) { return (int)((seed = seed * 1664525u + 1013904223u) >> 8) % n; }

static int within(int x) { return x < 0 ? 0 : x >= WIDE ? WIDE - 1 : x; }

static void play(game *g, int move) {                    /* move: 0 left, 1 stay, 2 right */
    g->bat = within(g->bat + move - 1);
    if (g->ball + g->drift < 0 || g->ball + g->drift >= WIDE) g->drift = -g->drift;
    g->ball += g->drift;
    g->row++;
}

static void look(const game *g, float *x) {              /* the ball's place, its drift, the bat's place */
    memset(x, 0, sizeof(float) * (CELLS + 3 + WIDE));
    x[g->row * WIDE + g->ball] = 1;
    x[CELLS + 1 + g->drift] = 1;
    x[CELLS + 3 + g->bat] = 1;
}
enum { INPUT = CELLS + 3 + WIDE };

/* A move for each game, by the actor's probabilities. */
static void choose(flux_layer *m, const float *x, int n, int32_t *move, flux_device device) {
    FLUX_INFER {
        flux_tensor *drawn = flux_categorical(flux_nth(flux_call(m, flux_to(device, flux_from(x, INPUT, n))), 0));
        const int64_t *v = (const int64_t *)flux_data(drawn);
        for (int i = 0; v && i < n; i++) move[i] = (int32_t)v[i];
    }
}

/* Plays GAMES games at once, writes down what was seen, done and came of it; how many balls were caught. */
static int play_all(flux_layer *m, float (*x)[INPUT], int32_t *move, float *gain, flux_device device) {
    game g[GAMES];
    int caught = 0;
    for (int i = 0; i < GAMES; i++) g[i].ball = chance(WIDE), g[i].drift = chance(3) - 1, g[i].row = 0, g[i].bat = chance(WIDE);
    for (int t = 0; t < MOVES; t++) {
        for (int i = 0; i < GAMES; i++) look(&g[i], x[t * GAMES + i]);
        choose(m, x[t * GAMES], GAMES, move + t * GAMES, device);
        for (int i = 0; i < GAMES; i++) play(&g[i], move[t * GAMES + i]);
    }
    for (int i = 0; i < GAMES; i++) {
        bool hit = g[i].ball == g[i].bat;
        caught += hit;
        for (int t = 0; t < MOVES; t++) gain[t * GAMES + i] = hit ? 1.0f : -1.0f;
    }
    return caught;
}

static void show(flux_layer *m, flux_device device) {
    game g = { 1, 1, 0, 6 };
    int at[HIGH][2];
    for (int t = 0; t < HIGH; t++) {
        float x[INPUT];
        int32_t move = 1;
        at[t][0] = g.ball, at[t][1] = g.bat;
        if (t == MOVES) break;
        look(&g, x);
        choose(m, x, 1, &move, device);
        play(&g, move);
    }
    for (int t = 0; t < HIGH; t++) {
        char line[WIDE + 1] = "       ", bat[WIDE + 1] = "       ";
        line[at[t][0]] = 'o', bat[at[t][1]] = '=';
        printf("   |%s|   move %d: bat |%s|\n", line, t, bat);
    }
    printf("%s\n", at[MOVES][0] == at[MOVES][1] ? "   caught" : "   missed");
}

int main(void) {
    static float x[SEEN][INPUT], gain[SEEN];
    static int32_t move[SEEN];
    int rounds = getenv("SHORT") ? 300 : 800, part = rounds / 10, caught = 0, share = 0;
    flux_device device = flux_get_device();
    flux_seed(1);
    flux_layer *m = flux_to(device, flux_new(actor_critic, .actor = flux_chain(flux_dense(INPUT, 64, flux_tanh), flux_dense(64, 3)),
                                             .critic = flux_chain(flux_dense(INPUT, 64, flux_tanh), flux_dense(64, 1))));
    flux_state *opt = flux_setup(flux_adam(3e-3), m);
    printf("%s\n", flux_device_name(device));
    flux_print(m);
    flux_times (i, rounds) {
        caught += play_all(m, x, move, gain, device);
        flux_tensor *seen = flux_to(device, flux_from(&x[0][0], INPUT, SEEN)), *came = flux_to(device, flux_from(gain, 1, SEEN));
        flux_tensor *both = flux_call(m, seen), *logits = flux_nth(both, 0), *expected = flux_nth(both, 1);
        flux_tensor *better = flux_detach(flux_sub(came, expected));
        flux_tensor *unlikely = flux_logitcrossentropy(logits, flux_to(device, flux_from(move, SEEN)), .agg = FLUX_NONE);
        flux_tensor *sure = flux_mean(flux_sum(flux_mul(flux_softmax(logits), flux_logsoftmax(logits)), 0));
        flux_tensor *loss = flux_add(flux_mean(flux_mul(better, unlikely)), flux_add(flux_mse(expected, came), flux_mul(sure, 0.01)));
        flux_update(opt, m, flux_gradient(loss, m));
        if ((i + 1) % part) continue;
        share = caught * 100 / (GAMES * part), caught = 0;
        printf("round %4d: %3d of 100 caught |%.*s%*s|\n", i + 1, share, share / 2,
               "##################################################", 50 - share / 2, "");
    }
    printf("\nthe ball and the bat in one game:\n");
    show(m, device);
    return flux_failed() || share < (getenv("SHORT") ? 50 : 80);
}
