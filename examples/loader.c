/* loader.c - a data set of your own: images that are drawn when they are asked for, by worker
   threads that stay ahead of the training. The order is the same for any number of workers.
       cc -O2 -I. examples/loader.c -lm -o loader && ./loader           in the folder of flux.h */
#define FLUX_IMPLEMENTATION
#include "flux.h"
#include <math.h>

enum { SIDE = 16, IMAGES = 4096 };

/* Image i: a disc or a square of some size, somewhere, in grey noise. Nothing is stored: i alone
   says what is on it. What is made here belongs to the loader; workers call this at the same time. */
static int draw(void *user, int64_t i, int n, flux_tensor **out) {
    float pixel[SIDE][SIDE], square = (float)(i % 2);
    uint64_t r = (uint64_t)i * 6364136223846793005u + *(const uint64_t *)user;
    if (n != 2) return 1;                          /* non-zero: flux_each stops with an error */
    r = (r ^ r >> 33) * 0xFF51AFD7ED558CCDu;
    double size = 4 + (double)(r >> 56) / 128;
    double cx = 6 + (double)(r >> 48 & 255) / 85, cy = 6 + (double)(r >> 40 & 255) / 85;
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) {
            double dx = fabs(x - cx), dy = fabs(y - cy);
            bool inside = dx * dx + dy * dy < size * size;
            if (i % 2) inside = fmax(dx, dy) < size * 0.886;         /* of the same area */
            r = r * 6364136223846793005u + 1442695040888963407u;
            pixel[y][x] = (inside ? 0.8f : 0.2f) + 0.2f * (float)(r >> 40) / 16777216.0f;
        }
    out[0] = flux_from(&pixel[0][0], SIDE * SIDE);
    out[1] = flux_from(&square, 1);
    return 0;
}
static int64_t length(void *user) { (void)user; return IMAGES; }

int main(void) {
    uint64_t seed = 11, other = 12;
    flux_dataset images = { &seed, length, draw, 2 }, unseen = { &other, length, draw, 2 };
    flux_device device = flux_get_device();
    flux_loader *train = flux_dataloader(.data = &images, .batchsize = 64, .shuffle = true, .workers = 2);
    flux_loader *test = flux_dataloader(.data = &unseen, .batchsize = 256, .workers = 2);
    flux_print(train);
    train = flux_to(device, train), test = flux_to(device, test);

    flux_seed(1);
    flux_layer *model = flux_to(device, flux_chain(flux_dense(SIDE * SIDE, 64, flux_relu),
                                                   flux_dense(64, 32, flux_relu), flux_dense(32, 1)));
    flux_state *opt = flux_setup(flux_adam(4e-3), model);
    flux_times (epoch, 12) {
        flux_each (b, train, .progress = "epoch") {
            flux_tensor *loss = flux_logitbinarycrossentropy(flux_call(model, b.x), b.y);
            flux_update(opt, model, flux_gradient(loss, model));
            flux_progress("loss", loss);
        }
    }
    double right = 0;
    FLUX_NOGRAD flux_each (b, test) {
        flux_tensor *hit = flux_eq(flux_gt(flux_call(model, b.x), 0), flux_gt(b.y, 0.5));
        right += flux_item(flux_mean(hit)) * (double)b.size;
    }
    printf("%.1f %% of %d images that it never saw are told apart\n", 100 * right / IMAGES, IMAGES);
    return flux_failed() || right < 0.9 * IMAGES;
}
