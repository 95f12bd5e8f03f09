/* Our half of check_python.sh; not a test on its own.
       python_files write FOLDER             every dtype, with values by formula, in shapes of every rank
       python_files copy IN OUT NAME...      reads tensors by name, writes them again: safetensors
       python_files npy IN OUT               the same for .npy
       python_files elements FILE [NAME]     "i j k value" for each element: .npy, or a tensor of a safetensors file */
#define FLUX_IMPLEMENTATION
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
    return flux_from_data(room, t, s);
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
    if (flux_save_items(path, n, names, items) != 0) return 1;
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
    return flux_save_items(out, n, all, items) != 0;
}

static int elements(const char *path, const char *name) {
    flux_tensor *x = name ? flux_load_tensor(path, name) : flux_load_npy(path);
    flux_shape s = flux_shape_of(x), at = s;
    for (int64_t i = 0; x && i < flux_len(x); i++) {
        int64_t rest = i;
        for (int d = 0; d < s.ndim; d++) at.dim[d] = rest % s.dim[d], rest /= s.dim[d];
        for (int d = 0; d < s.ndim; d++) printf("%d ", (int)at.dim[d]);
        printf("%.17g\n", flux_at_shape(x, at));
    }
    return !x;
}

int main(int argc, char **argv) {
    const char *what = argc > 2 ? argv[1] : "";
    if (!strcmp(what, "write")) return write_all(argv[2]);
    if (!strcmp(what, "copy") && argc > 4 && argc < 200) return copy(argv[2], argv[3], argc - 4, argv + 4);
    if (!strcmp(what, "npy") && argc == 4) return flux_save_npy(flux_load_npy(argv[2]), argv[3]) != 0;
    if (!strcmp(what, "elements")) return elements(argv[2], argc > 3 ? argv[3] : NULL);
    fprintf(stderr, "see the comment at the top of python_files.c\n");
    return 2;
}
