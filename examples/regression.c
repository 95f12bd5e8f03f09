/* regression.c - finds the curve behind noisy samples, and draws it: regression.svg, for a browser.
       cc -O2 -I. examples/regression.c -lm -o regression && ./regression           in the folder of flux.h */
#define FLUX_IMPLEMENTATION
#include "flux.h"
#include "plot.h"

enum { SAMPLES = 200 };

static double truth(double x) { return sin(2 * x) * exp(-x * x / 8); }

int main(void) {
    static double xs[SAMPLES], noisy[SAMPLES], exact[SAMPLES], found[SAMPLES];
    flux_device device = flux_get_device();
    flux_seed(1);
    const float *noise = flux_floats(flux_randn(SAMPLES));
    float xf[SAMPLES], yf[SAMPLES];
    for (int i = 0; i < SAMPLES && noise; i++) {
        xs[i] = -3 + 6.0 * i / (SAMPLES - 1);
        exact[i] = truth(xs[i]);
        noisy[i] = exact[i] + 0.15 * (double)noise[i];
        xf[i] = (float)xs[i], yf[i] = (float)noisy[i];
    }
    flux_tensor *x = flux_to(device, flux_from(xf, 1, SAMPLES));
    flux_tensor *y = flux_to(device, flux_from(yf, 1, SAMPLES));

    flux_layer *model = flux_to(device, flux_chain(flux_dense(1, 32, flux_tanh),
                                                   flux_dense(32, 32, flux_tanh), flux_dense(32, 1)));
    flux_state *opt = flux_setup(flux_adam(0.01), model);
    flux_times (step, 600) {
        flux_tensor *loss = flux_mse(flux_call(model, x), y);
        flux_update(opt, model, flux_gradient(loss, model));
        if (step % 100 == 99) printf("step %d: mean squared error %.4f\n", step + 1, flux_item(loss));
    }

    const float *curve = flux_floats(flux_call(model, x));
    double error = 0;
    for (int i = 0; i < SAMPLES && curve; i++) {
        found[i] = (double)curve[i];
        error += (found[i] - exact[i]) * (found[i] - exact[i]) / SAMPLES;
    }
    printf("from the true curve it is off by %.3f on average; the noise was 0.15\n", sqrt(error));

    plot_series series[] = { { "noisy samples", PLOT_DOTS, 3, SAMPLES, xs, noisy },
                             { "the true curve", PLOT_LINE, 1, SAMPLES, xs, exact },
                             { "what the model found", PLOT_LINE, 0, SAMPLES, xs, found } };
    if (plot_svg("regression.svg", "A curve found in noisy samples", "x", "y", series, 3) != 0) return 1;
    printf("regression.svg shows both\n");
    return flux_failed() || !(sqrt(error) < 0.1);
}
