/* Whatever bytes a file has, reading it gives a tensor or an error: no crash, no read outside, no leak, no hang.

       cc -g -O1 -fsanitize=address,undefined tests/fuzz_files.c -o fuzz -lm && ./fuzz [rounds]
       clang -g -O1 -DFLUX_LIBFUZZER -fsanitize=fuzzer,address,undefined tests/fuzz_files.c -o fuzz -lm
       FLUX_FUZZ=npy ./fuzz -max_total_time=60 some_folder tests/fixtures/files

   FLUX_FUZZ is idx, npy, csv or safetensors: one reader only. Without libFuzzer the program changes the fixtures in
   `rounds` ways each (default 3000), the same ones every time, and hands them to the readers from memory. */
#define FLUX_IMPLEMENTATION
#include "../flux.h"

static void silent(const char *message, void *user) { (void)message, (void)user; }

static int64_t taken, refused;            /* files that gave a tensor, and that did not */
static volatile unsigned char touched;

/* A tensor that was read has all of its memory; an error says why there is none. */
static void look(flux_tensor *t) {
    const unsigned char *p = t ? (const unsigned char *)flux_data(t) : NULL;
    size_t n = t ? (size_t)flux_len(t) * flux_dtype_size(flux_dtype_of(t)) : 0;
    unsigned char sum = 0;
    for (size_t i = 0; p && i < n; i++) sum = (unsigned char)(sum + p[i]);
    touched = sum;
    if (t) taken++;
    else refused++;
    if ((t != NULL) == flux_failed()) {
        fprintf(stderr, "a reader gave %s, and the error \"%s\"\n", t ? "a tensor" : "none", flux_error());
        abort();
    }
    flux_clear();
}

static void read_one(flux_tensor *(*parse)(flux__source *), const flux__source *s) {
    flux__source copy = *s;
    int h = flux__hide();
    look(parse(&copy));
    flux__reveal(h, NULL);
}

/* All tensors of a safetensors file, one by one and into a model: the fixtures have names and shapes that suit it. */
static void read_safetensors(const flux__source *s) {
    static flux_layer *model;
    flux__archive z;
    if (!model) {
        flux_tensor *w = flux_ones(3, 3);
        model = flux_chain_of(2, FLUX__LAYERS(flux_dense(.weight = w, .bias = FLUX_OFF), flux_dense(.weight = w, .bias = FLUX_OFF)), NULL);
        flux_retain(model);
    }
    if (!flux__archive_open(&z, "fuzz", NULL, s)) {
        refused++;
        if (!flux_failed()) abort();
        flux_clear();
        return;
    }
    for (int i = 0; i < z.entries; i++) {
        int h = flux__hide();
        if (flux__find(&z, z.entry[i].name) != &z.entry[i]) abort();
        look(flux__entry_read(&z, &z.entry[i]));
        flux__reveal(h, NULL);
    }
    for (int i = 0; i < z.pairs; i++) (void)flux__find(&z, z.pair[i].value);
    flux__list l;
    flux__thing all = { "", 0, model };
    memset(&l, 0, sizeof l);
    l.call = "fuzz";
    if (!flux__list_visit(&l, &all, true) || !flux__list_finish(&l)) abort();
    if (flux__load_archive(&z, &l, NULL, 0) == flux_failed()) abort();
    flux_clear();
    flux__list_free(&l);
    flux__archive_close(&z);
}

#ifdef __cplusplus
extern "C"
#endif
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *only = getenv("FLUX_FUZZ");
    flux__source s = { "fuzz", "memory", NULL, data, size };
    flux_on_error(silent, NULL);
    flux_scope_open();
    if (!only || !strcmp(only, "idx")) read_one(flux__parse_idx, &s);
    if (!only || !strcmp(only, "npy")) read_one(flux__parse_npy, &s);
    if (!only || !strcmp(only, "csv")) read_one(flux__parse_csv, &s);
    if (!only || !strcmp(only, "safetensors")) read_safetensors(&s);
    flux_scope_close();
    return 0;
}

#ifndef FLUX_LIBFUZZER

static const char *const fixtures[] = {
    "all.safetensors", "widen.safetensors", "foreign.safetensors", "tied.safetensors", "none.safetensors", "f4.npy", "big_i2.npy",
    "fortran.npy", "c_order.npy", "scalar.npy", "empty.npy", "version2.npy", "bad_record.npy", "u8.idx", "f64.idx", "i16.idx", "empty.idx", ""
};
static const char csv_text[] = "a;b;c\n1;2.5;-3e4\n# note\n4;nan;6 # end\r\n\r\n-inf;0.000001;12345678901234567890\n";

static uint64_t dice_state;
static uint32_t dice(uint32_t n) {
    dice_state = dice_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(dice_state >> 33) % n;
}

/* One to four changes: a bit, a byte that means something, a piece cut, doubled or moved. */
static size_t mutate(uint8_t *p, size_t n, size_t room) {
    static const char special[] = "{}[]()\"':,\\ 0129-+eE.L<>|#;\t\n\r";
    for (uint32_t times = 1 + dice(4); times > 0 && n > 0; times--) {
        size_t at = dice((uint32_t)n), length = 1 + dice(12);
        if (length > n - at) length = n - at;
        switch (dice(7)) {
        case 0: p[at] = (uint8_t)(p[at] ^ (1u << dice(8))); break;
        case 1: p[at] = (uint8_t)special[dice(sizeof special - 1)]; break;
        case 2: p[at] = (uint8_t)(dice(2) ? 255 : dice(256)); break;
        case 3: n = at; break;
        case 4:
            memmove(p + at, p + at + length, n - at - length);
            n -= length;
            break;
        case 5:
            if (n + length > room) break;
            memmove(p + at + length, p + at, n - at);
            n += length;
            break;
        default: memmove(p + dice((uint32_t)(n - length + 1)), p + at, length); break;
        }
    }
    return n;
}

int main(int argc, char **argv) {
    static uint8_t data[1 << 14], changed[1 << 15];
    int rounds = argc > 1 ? atoi(argv[1]) : 3000;
    char path[200];
    for (size_t f = 0; f < sizeof fixtures / sizeof *fixtures; f++) {
        size_t n = sizeof csv_text - 1;
        snprintf(path, sizeof path, "tests/fixtures/files/%s", fixtures[f]);
        FILE *file = *fixtures[f] ? fopen(path, "rb") : NULL;
        if (*fixtures[f] && !file) {
            fprintf(stderr, "%s is missing\n", path);
            return 2;
        }
        if (file) {
            n = fread(data, 1, sizeof data, file);
            fclose(file);
        } else memcpy(data, csv_text, n);
        dice_state = f + 1;
        for (int i = 0; i < rounds; i++) {
            memcpy(changed, data, n);
            size_t m = i ? mutate(changed, n, sizeof changed) : n;
            uint8_t *exact = (uint8_t *)malloc(m ? m : 1);     /* so that a read past the end is seen */
            if (!exact) return 2;
            memcpy(exact, changed, m);
            LLVMFuzzerTestOneInput(exact, m);
            free(exact);
        }
    }
    printf("%lld tensors read, %lld files refused\n", (long long)taken, (long long)refused);
    return taken && refused ? 0 : 1;
}
#endif
