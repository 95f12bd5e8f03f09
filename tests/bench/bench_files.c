/* Reading files, best of five after the first, by the clock and in the processor's time, in bytes of the file a second: a csv of plain numbers, an .npy, a safetensors of 188 MB as a
   tensor and into a model, a batch of a loader; and beside them what a copy of as many bytes takes. The files, in the folder
   for temporary files, are in the system's cache. peer_files.py reads the same ones by NumPy, pandas and safetensors:
       FLUX_NUM_THREADS=1 build/release/tests/bench/bench_files keep && python3 tests/bench/peer_files.py */
#define FLUX_IMPLEMENTATION
#include "../../flux.h"
#include <time.h>

static char path[3][600];
static flux_layer *model;
static flux_loader *loader;
static char *from, *to;
enum { COPIED = 188 << 20 };

static void place(int i, const char *name) {
    const char *folder = getenv("TMPDIR");
    snprintf(path[i], sizeof path[i], "%.500s/flux_bench.%s", folder && *folder ? folder : "/tmp", name);
}
static double bytes_of(int i) {
    int64_t stamp[2] = { 0, 0 };
    flux__file_stamp(path[i], stamp);
    return (double)stamp[0];
}

static void make_csv(void) {
    FILE *f = fopen(path[0], "wb");
    unsigned state = 1;
    fprintf(f, "a,b,c,d,e,f,g,h,i,j\n");
    for (int line = 0; line < 400000; line++)
        for (int k = 0; k < 10; k++) {
            state = state * 1664525u + 1013904223u;
            fprintf(f, "%.6g%c", k % 3 ? (double)(state >> 8) / (1 << 24) - 0.5 : (double)(state >> 20), k < 9 ? ',' : '\n');
        }
    fclose(f);
}

static void read_csv(void) { flux_load_csv(path[0]); }
static void read_npy(void) { flux_load_npy(path[1]); }
static void read_model(void) { flux_load(model, path[2]); }
static void read_tensor(void) { flux_load_tensor(path[2], "layers.0.weight"); }
static void copy_bytes(void) { memcpy(to, from, COPIED); }
static void copy_fresh(void) {
    char *fresh = (char *)malloc(COPIED);
    memcpy(fresh, from, COPIED);
    from[1] = fresh[COPIED - 1];
    free(fresh);
}
static void batches(void) {
    flux_each (b, loader) (void)flux_data(b.x);
}

static void time_it(const char *what, void (*f)(void), double bytes) {
    double best = 1e30, first = 0, busy = 1e30;
    for (int i = 0; i < 6; i++)
        FLUX_SCOPE {
            const double start = flux__now();
            const clock_t begun = clock();
            f();
            const double t = flux__now() - start, used = (double)(clock() - begun) / CLOCKS_PER_SEC;
            if (i && used < busy) busy = used;
            if (!i) first = t;
            else if (t < best) best = t;
        }
    printf("%-40s %8.1f ms %6.2f GB/s   of the processor's time %6.2f GB/s   the first time %.1f ms\n", what, 1e3 * best, bytes / best / 1e9,
           bytes / busy / 1e9, 1e3 * first);
    fflush(stdout);
}

int main(int argc, char **argv) {
    (void)argv;
    place(0, "csv"), place(1, "npy"), place(2, "safetensors");
    make_csv();
    model = flux_chain(flux_dense(4096, 4096), flux_dense(4096, 4096), flux_dense(4096, 3484));
    flux_save_npy(flux_rand(4096, 10000), path[1]);
    flux_save(model, path[2]);
    loader = flux_dataloader(flux_rand(4096, 10000), .batchsize = 256, .shuffle = true);
    from = (char *)malloc(COPIED), to = (char *)malloc(COPIED);
    memset(from, 1, COPIED), memset(to, 2, COPIED);
    time_it("memcpy, 197 MB", copy_bytes, COPIED);
    time_it("memcpy into fresh memory, 197 MB", copy_fresh, COPIED);
    time_it("csv, 10 columns of 6 digits", read_csv, bytes_of(0));
    time_it("npy, 164 MB", read_npy, bytes_of(1));
    time_it("safetensors into a model, 191 MB", read_model, bytes_of(2));
    time_it("one tensor of it, 67 MB", read_tensor, 4096.0 * 4096 * 4);
    time_it("batches of a loader, shuffled, 164 MB", batches, 4096.0 * 10000 * 4);
    for (int i = 0; i < 3 && argc < 2; i++) remove(path[i]);
    return flux_failed();
}
