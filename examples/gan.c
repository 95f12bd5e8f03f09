/* gan.c - two networks learn against each other until one of them draws points on a ring; gan.svg shows them.
       cc -O2 -I. examples/gan.c -lm -o gan && ./gan           in the folder of flux.h
   The artist makes points from noise, the critic tells them from real ones. The critic learns to say "real" and "made",
   the artist to make what the critic calls real: the gradient of its loss goes through the critic, whose own weights stay
   as they are, because only the artist's are asked for. With SHORT=1 in the environment it learns for less long. */
#define FLUX_IMPLEMENTATION
#include "flux.h"
#include "plot.h"
#include <stdlib.h>

enum { BATCH = 256, NOISE = 8, SHOWN = 800, PARTS = 8 };

/* Points on a ring of radius 1, a little off it: 2 x n. */
static flux_tensor *real_points(flux_device device, int n) {
    flux_tensor *angle = flux_mul(flux_rand(1, n), 6.283185307179586);
    flux_tensor *radius = flux_add(flux_mul(flux_randn(1, n), 0.05), 1);
    return flux_to(device, flux_mul(flux_cat(0, flux_cos(angle), flux_sin(angle)), radius));
}

static flux_tensor *made_points(flux_layer *artist, flux_device device, int n) {
    return flux_call(artist, flux_to(device, flux_randn(NOISE, n)));
}

/* How wrong it is to call these points real, or made. */
static flux_tensor *doubt(flux_layer *critic, flux_tensor *points, double real) {
    flux_tensor *logit = flux_call(critic, points);
    return flux_logitbinarycrossentropy(logit, flux_to(flux_device_of(logit), flux_full(real, 1, flux_dim(points, 1))));
}

static flux_layer *network(int in, int out) {
    return flux_chain(flux_dense(in, 64, flux_leakyrelu), flux_dense(64, 64, flux_leakyrelu), flux_dense(64, out));
}

/* The mean distance from the ring, and the share of points in the emptiest eighth of it. */
static double off_the_ring(const float *p, int n, double *emptiest) {
    int count[PARTS] = { 0 };
    double off = 0;
    for (int i = 0; i < n; i++) {
        double x = (double)p[2 * i], y = (double)p[2 * i + 1];
        off += fabs(sqrt(x * x + y * y) - 1) / n;
        count[(int)((atan2(y, x) / 6.283185307179586 + 0.5) * PARTS) % PARTS]++;
    }
    *emptiest = 1;
    for (int i = 0; i < PARTS; i++) *emptiest = fmin(*emptiest, (double)count[i] / n);
    return off;
}

static int draw(const float *real, const float *made) {
    static double at[4][SHOWN];
    for (int i = 0; i < SHOWN; i++)
        for (int k = 0; k < 4; k++) at[k][i] = (double)(k < 2 ? real : made)[2 * i + k % 2];
    plot_series series[] = { { "real", PLOT_DOTS, 3, SHOWN, at[0], at[1] }, { "made", PLOT_DOTS, 0, SHOWN, at[2], at[3] } };
    return plot_svg("gan.svg", "Points on a ring, real ones and made ones", "x", "y", series, 2);
}

int main(void) {
    int steps = getenv("SHORT") ? 900 : 3000;
    flux_device device = flux_get_device();
    flux_seed(1);
    flux_layer *artist = flux_to(device, network(NOISE, 2)), *critic = flux_to(device, network(2, 1));
    flux_state *a = flux_setup(flux_adam(1e-3, .beta = { 0.5, 0.999 }), artist);
    flux_state *c = flux_setup(flux_adam(1e-3, .beta = { 0.5, 0.999 }), critic);
    flux_times (step, steps) {
        flux_tensor *real = real_points(device, BATCH), *made = flux_detach(made_points(artist, device, BATCH));
        flux_tensor *critic_loss = flux_add(doubt(critic, real, 1), doubt(critic, made, 0));
        flux_update(c, critic, flux_gradient(critic_loss, critic));
        flux_tensor *artist_loss = doubt(critic, made_points(artist, device, BATCH), 1);
        flux_update(a, artist, flux_gradient(artist_loss, artist));
        if ((step + 1) % (steps / 6) == 0)
            printf("step %4d: loss of the critic %.3f, of the artist %.3f\n", step + 1, flux_item(critic_loss), flux_item(artist_loss));
    }
    const float *real = flux_floats(flux_cpu(real_points(device, SHOWN)));
    const float *made = flux_floats(flux_cpu(made_points(artist, device, SHOWN)));
    if (!real || !made || draw(real, made) != 0) return 1;
    double emptiest, off = off_the_ring(made, SHOWN, &emptiest);
    printf("what is made is off the ring by %.3f on average, and %.1f %% of it lie in its emptiest eighth\n", off, 100 * emptiest);
    printf("gan.svg shows it\n");
    return flux_failed() || off > 0.2 || emptiest < 0.02;
}
