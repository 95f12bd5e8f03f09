/* Our half of check_python.sh; not a test on its own.
       python_files write FOLDER             every dtype, with values by formula, in shapes of every rank
       python_files copy IN OUT NAME...      reads tensors by name, writes them again: safetensors
       python_files npy IN OUT               the same for .npy
       python_files npz IN NAME OUT          reads one array of an archive, writes it as x beside another
       python_files elements FILE [NAME]     "i j k value" for each element: .npy, or a tensor of a safetensors file
       python_files torch FOLDER             models as PyTorch's state_dicts, NAME.safetensors, and NAME.io: input x, output y */
#include "../flux.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes that no element type repeats soon: byte b of element k is 37 k + 11 b + 5; bools are true for even k. */
static flux_tensor *pattern(flux_dtype t, flux_shape s) {
    static unsigned char room[1 << 16];
    size_t n = 1, size = flux_dtype_size(t);
    for (int i = 0; i < s.ndim; i++) n *= (size_t)s.dim[i];
    for (size_t k = 0; k < n; k++)
        for (size_t b = 0; b < size; b++) room[k * size + b] = (unsigned char)(t == FLUX_BOOL ? k % 2 == 0 : 37 * k + 11 * b + 5);
    return flux_from_with(room, t, s);
}

static flux_shape ranks(int i) {
    static const int64_t dims[FLUX_MAX_DIMS] = { 3, 2, 1, 2, 1, 3, 1, 2 };
    flux_shape s;
    memset(&s, 0, sizeof s);
    s.ndim = i % 9;
    for (int d = 0; d < s.ndim; d++) s.dim[d] = dims[d];
    if (i > 8) s.dim[i % s.ndim] = 0;
    return s;
}

static int write_all(const char *folder) {
    char path[1000], names[4000] = "", name[40];
    const void *items[200];
    int n = 0;
    for (int t = 0; t < FLUX_NUM_DTYPES; t++)
        for (int i = 0; i < 18; i++) {
            if (i == 9) continue;
            flux_tensor *x = pattern((flux_dtype)t, ranks(i));
            snprintf(name, sizeof name, "%s_%d", flux_dtype_name((flux_dtype)t), i);
            if (n) strcat(names, ", ");
            strcat(names, name);
            items[n++] = x;
            snprintf(path, sizeof path, "%s/%s.npy", folder, name);
            if (t != FLUX_BF16 && (i % 4 == t % 4 || t == 0) && flux_save_npy(x, path) != 0) return 1;
        }
    snprintf(path, sizeof path, "%s/all.safetensors", folder);
    if (flux_save_all_with(path, n, names, items) != 0) return 1;
    flux_tensor *w = pattern(FLUX_F32, FLUX_SHAPE(3, 3));
    flux_layer *shared = flux_chain(flux_dense(.weight = w), flux_named("\"odd\\ name\xc3\xa9", flux_dense(.weight = w)));
    snprintf(path, sizeof path, "%s/tied.safetensors", folder);
    return flux_save(shared, path) != 0;
}

static int copy(const char *in, const char *out, int n, char **names) {
    char all[8000] = "";
    const void *items[200];
    for (int i = 0; i < n; i++) {
        items[i] = flux_load_tensor(in, names[i]);
        if (!items[i]) return 1;
        if (i) strcat(all, ",");
        strcat(all, names[i]);
    }
    return flux_save_all_with(out, n, all, items) != 0;
}

static int elements(const char *path, const char *name) {
    flux_tensor *x = name ? flux_load_tensor(path, name) : flux_load_npy(path);
    flux_shape s = flux_shape_of(x), at = s;
    for (int64_t i = 0; x && i < flux_len(x); i++) {
        int64_t rest = i;
        for (int d = 0; d < s.ndim; d++) at.dim[d] = rest % s.dim[d], rest /= s.dim[d];
        for (int d = 0; d < s.ndim; d++) printf("%d ", (int)at.dim[d]);
        printf("%.17g\n", flux_at_with(x, at));
    }
    return !x;
}

/* Every parameter and state is drawn anew, between 0.5 and 1.5, so that no bias and no running mean is what it starts as. */
static flux_tensor *drawn(flux_tensor *x) {
    flux_shape s = flux_shape_of(x);
    return flux_to_dtype(flux_add(flux_rand_with(s, FLUX_F32), 0.5), flux_dtype_of(x));
}

static int write_model(const char *folder, const char *name, flux_layer *start, flux_tensor *x, const char *map) {
    char path[1000];
    flux_layer *m = flux_fmap(drawn, start);
    flux_testmode(m, true);
    flux_tensor *y = flux_call(m, x);
    snprintf(path, sizeof path, "%s/%s.safetensors", folder, name);
    if (flux_save_torch(m, path, map) != 0) return 1;
    snprintf(path, sizeof path, "%s/%s.io", folder, name);
    return flux_save_all(path, x, y) != 0;
}

static int write_models(const char *folder) {
    flux_shape one = FLUX_SHAPE(1), two = FLUX_SHAPE(2);
    flux_tensor *w = flux_zeros(4, 4), *words = flux_randint(0, 7, 5, 2);
    flux_layer *cnn = flux_chain(flux_conv_layer(FLUX_SHAPE(3, 2), 2, 4, .pad = one), flux_batchnorm(4), flux_relu,
        flux_crosscor_layer(FLUX_SHAPE(2, 3), 4, 4, .bias = FLUX_OFF), flux_instancenorm(4, .affine = FLUX_ON, .track_stats = FLUX_ON), flux_groupnorm(4, 2),
        flux_conv_transpose_layer(FLUX_SHAPE(3, 2), 4, 3, .stride = two), flux_layernorm(FLUX_SHAPE(15, 12, 3)), flux_flatten, flux_dense(540, 5));
    flux_layer *seq = flux_chain(flux_embedding(7, 4), flux_rnn(4, 4), flux_lstm(4, 4), flux_lstm(4, 4), flux_gru(4, 4, .hidden_bias = true),
        flux_gru(4, 4), flux_multiheadattention(4, .nheads = 2, .bias = true, .scores = FLUX_OFF));
    flux_layer *tied = flux_chain(flux_dense(.weight = w), flux_tanh, flux_dense(.weight = w));
    flux_layer *pair = flux_chain(flux_named("bilinear", flux_bilinear(4, 4, 3)));
    return write_model(folder, "cnn", cnn, flux_randn(8, 7, 2, 3), NULL) ||
           write_model(folder, "seq", seq, words, "layers.1 = rnn, layers.2 = lstm.*_l0, layers.3 = lstm.*_l1, layers.4 = gru, layers.5 = gru1, layers.6 = attn, layers.0 = words") ||
           write_model(folder, "tied", tied, flux_randn(4, 3), NULL) || write_model(folder, "pair", pair, flux_randn(4, 3), NULL);
}

int main(int argc, char **argv) {
    const char *what = argc > 2 ? argv[1] : "";
    if (!strcmp(what, "write")) return write_all(argv[2]);
    if (!strcmp(what, "torch")) return write_models(argv[2]);
    if (!strcmp(what, "copy") && argc > 4 && argc < 200) return copy(argv[2], argv[3], argc - 4, argv + 4);
    if (!strcmp(what, "npy") && argc == 4) return flux_save_npy(flux_load_npy(argv[2]), argv[3]) != 0;
    if (!strcmp(what, "npz") && argc == 5) {
        flux_tensor *x = flux_load_npz(argv[2], argv[3]), *first = flux_zeros(2, 2);
        return flux_save_npz(argv[4], first, x) != 0;
    }
    if (!strcmp(what, "elements")) return elements(argv[2], argc > 3 ? argv[3] : NULL);
    fprintf(stderr, "see the comment at the top of python_files.c\n");
    return 2;
}
