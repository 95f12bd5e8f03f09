/* vae.c - learns to describe a handwritten digit by two numbers, and to draw it from them; writes the pictures.
       cc -O2 -I. examples/vae.c -lm -o vae && ./vae           in the folder of flux.h
   A variational autoencoder: the encoder gives each digit a small cloud of places on a map, the decoder draws from one
   place in the cloud, and all clouds together are held near the middle. So every place of the map becomes a digit:
   vae_map.pgm draws them all, vae_pairs.pgm shows digits beside what came of them. SHORT=1: a few epochs only. */
#define FLUX_IMPLEMENTATION
#include "flux.h"
#include <stdlib.h>

enum { SIDE = 8, PIXELS = SIDE * SIDE, MAP = 20, ZOOM = 4 };

typedef struct vae { flux_layer base; flux_layer *encoder, *middle, *spread, *decoder; } vae;

static flux_tensor *vae_call(flux_layer *self, flux_tensor *x) {          /* (logits of pixels, middle, log variance) */
    vae *m = (vae *)self;
    flux_tensor *e = flux_call(m->encoder, x), *mu = flux_call(m->middle, e), *lv = flux_call(m->spread, e), *z = mu;
    if (flux_training(self)) {
        flux_tensor *chance = flux_to(flux_device_of(x), flux_randn_with(flux_shape_of(mu), FLUX_F32));
        z = flux_add(mu, flux_mul(flux_exp(flux_mul(lv, 0.5)), chance));
    }
    return flux_tuple(flux_call(m->decoder, z), mu, lv);
}
FLUX_LAYER(vae, "VAE", vae_call, FLUX_CHILD(encoder), FLUX_CHILD(middle), FLUX_CHILD(spread), FLUX_CHILD(decoder))

/* How badly the pixels are drawn, and how far the clouds are from one standard cloud; a sample's share of both. */
static flux_tensor *loss_of(flux_layer *m, flux_tensor *x) {
    flux_tensor *out = flux_call(m, x), *mu = flux_nth(out, 1), *lv = flux_nth(out, 2);
    flux_tensor *drawing = flux_logitbinarycrossentropy(flux_nth(out, 0), x, .agg = FLUX_SUM);
    flux_tensor *far = flux_mul(flux_sum(flux_sub(flux_add(flux_square(mu), flux_exp(lv)), flux_add(lv, 1.0))), 0.5);
    return flux_div(flux_add(drawing, far), (double)flux_dim(x, 1));
}

/* Columns of 64 pixels from 0 to 1, laid out in rows of `across`, as a picture. */
static int write_pgm(const char *path, flux_tensor *digits, int across) {
    const float *v = flux_floats(flux_cpu(digits));
    FILE *f = v ? fopen(path, "wb") : NULL;
    int width = across * SIDE * ZOOM, height = (int)flux_dim(digits, 1) / across * SIDE * ZOOM;
    if (!f) return 1;
    fprintf(f, "P5\n%d %d\n255\n", width, height);
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) {
            int digit = y / (SIDE * ZOOM) * across + x / (SIDE * ZOOM), pixel = y / ZOOM % SIDE * SIDE + x / ZOOM % SIDE;
            fputc(255 - (int)(255 * v[digit * PIXELS + pixel]), f);
        }
    return fclose(f);
}

/* Some columns as characters, side by side. */
static void show(const char *title, flux_tensor *digits, int n) {
    const float *v = flux_floats(flux_cpu(digits));
    printf("%s\n", title);
    for (int y = 0; v && y < SIDE; y++, printf("\n"))
        for (int i = 0; i < n; i++)
            for (int x = 0; x < SIDE + 1; x++) printf("%c", x == SIDE ? ' ' : " .:-=+*#%@"[(int)(9.99f * v[i * PIXELS + y * SIDE + x])]);
}

int main(void) {
    flux_device device = flux_get_device();
    flux_tensor *all = flux_load_csv("examples/data/digits.csv");         /* 65 x 1797 */
    if (!all) return 1;
    flux_tensor *x = flux_mul(flux_slice(all, 0, 0, PIXELS), 1.0 / 16);
    flux_seed(2);
    flux_layer *m = flux_to(device, flux_new(vae, .encoder = flux_chain(flux_dense(PIXELS, 256, flux_relu), flux_dense(256, 128, flux_relu)),
        .middle = flux_dense(128, 2), .spread = flux_dense(128, 2),
        .decoder = flux_chain(flux_dense(2, 128, flux_relu), flux_dense(128, 256, flux_relu), flux_dense(256, PIXELS))));
    flux_state *opt = flux_setup(flux_adam(2e-3), m);
    flux_loader *data = flux_to(device, flux_dataloader(x, .batchsize = 64, .shuffle = true));
    double last = 0;
    int epochs = getenv("SHORT") ? 4 : 120;
    printf("%s\n", flux_device_name(device));
    flux_times (turn, epochs) {
        int i = turn + 1;
        flux_tensor *sum = flux_scalar(0);
        if (i == epochs * 3 / 4) flux_adjust(opt, .eta = 4e-4);
        flux_each (b, data) {
            flux_tensor *loss = loss_of(m, b.x);
            flux_update(opt, m, flux_gradient(loss, m));
            sum = flux_carry(sum, flux_add(flux_cpu(loss), sum));
        }
        last = flux_item(sum) / (double)flux_len(data);
        if (i % (epochs / 4) == 0) printf("epoch %3d: loss %.2f\n", i, last);
    }
    flux_testmode(m, true);
    flux_tensor *some = flux_to(device, flux_take(x, 10));                /* the digits 0 to 9 */
    flux_tensor *drawn = flux_sigmoid(flux_nth(flux_call(m, some), 0));
    show("\nten digits", some, 8);
    show("what two numbers tell of them", drawn, 8);

    float place[MAP * MAP][2];                                            /* evenly over the middle of the map */
    for (int i = 0; i < MAP * MAP; i++) {
        place[i][0] = -2.2f + 4.4f * (float)(i % MAP) / (MAP - 1);
        place[i][1] = -2.2f + 4.4f * (float)(i / MAP) / (MAP - 1);
    }
    flux_tensor *map = flux_sigmoid(flux_call(((vae *)m)->decoder, flux_to(device, flux_from(&place[0][0], 2, MAP * MAP))));
    if (write_pgm("vae_map.pgm", map, MAP) || write_pgm("vae_pairs.pgm", flux_cat(1, some, drawn), 10)) return 1;
    printf("\nvae_map.pgm is the map of all digits, vae_pairs.pgm those ten in full\n");
    return flux_failed() || !(last < (getenv("SHORT") ? 30 : 26));
}
