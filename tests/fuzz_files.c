/* Whatever bytes a file has, reading it gives what it says or an error: no crash, no read outside, no leak, no hang. The
   readers are those of the table below: of tensors, models, states, preferences, formulas, compiled kernels.

       cc -g -O1 -fsanitize=address,undefined tests/fuzz_files.c -o fuzz -lm && ./fuzz [rounds] [files...]
       clang -g -O1 -DFLUX_LIBFUZZER -fsanitize=fuzzer,address,undefined tests/fuzz_files.c -o fuzz -lm
       FLUX_FUZZ=npy ./fuzz -max_total_time=60 some_folder tests/fixtures/fuzz/npy      (`make fuzz` does it for each)

   FLUX_FUZZ is the name of a reader: that one only. Without libFuzzer the program changes the fixtures in `rounds` ways each
   (default 3000; 0: none), the same ones every time, and hands them to the readers of tensors; and each of the files that are
   named, the corpus in tests/fixtures/fuzz, as it is and changed, to the reader that its folder is named after. */
#if !defined(_WIN32) && !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#define FLUX_IMPLEMENTATION
#define FLUX_CUDA                         /* for the cache of compiled kernels; no driver is opened */
#include "../flux.h"
#include <sys/stat.h>

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
        model = flux_chain_with(2, FLUX__LAYERS(flux_dense(.weight = w, .bias = FLUX_OFF), flux_dense(.weight = w, .bias = FLUX_OFF)), NULL);
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

/* Whatever a gzip file holds, as a reader of tensors takes it. */
static void read_gzip(const uint8_t *data, size_t n) {
    char *copy = (char *)malloc(n + 1);
    if (!copy) abort();
    memcpy(copy, data, n);
    size_t size = n;
    char *out = flux__is_gzip(copy, n) ? (char *)flux__gunzip(copy, &size, "fuzz", "memory") : copy;
    flux__source s = { "fuzz", "memory", NULL, (const unsigned char *)out, size, NULL };
    if ((out == NULL) != flux_failed()) abort();
    flux_clear();
    if (out) read_one(flux__parse_csv, &s), read_one(flux__parse_npy, &s);
    else refused++;
    free(out);
}
/* A table: all columns, and all labels, sorted and each its own. */
static void read_table(const uint8_t *data, size_t n) {
    flux__source s = { "fuzz", "memory", NULL, data, n, NULL };
    flux_table *t = flux__parse_table(&s, &FLUX_OPTIONS(flux_table_opts, "memory"));
    if ((t == NULL) != flux_failed()) abort();
    flux_clear();
    if (!t) {
        refused++;
        return;
    }
    look(flux_columns(t, NULL));
    for (int i = 0; i < flux_table_columns(t); i++) {
        char number[20];
        const flux__series *k = &t->column[i];
        snprintf(number, sizeof number, "%d", i);
        if (!flux_column_name(t, i) || flux_column_missing(t, number) < 0) abort();
        for (int j = 1; k->texts && j < k->labels; j++)
            if (strcmp(k->label[j - 1], k->label[j]) >= 0) abort();
        for (int64_t row = 0; k->texts && row < t->rows; row++) {
            const float v = flux_floats(t->values)[row * t->columns + i];
            if (v == v && !(v >= 0 && v < (float)k->labels)) abort();
        }
    }
}
/* A picture as it is, and resized; without stb, whose decoders are not ours to judge. */
static void read_image(const uint8_t *data, size_t n) {
    flux__source s = { "fuzz", "memory", NULL, data, n, NULL };
    int h = flux__hide();
    look(flux__image_of(&s, 0, 0, 0));
    look(flux__image_of(&s, 3, 5, 4));
    flux__reveal(h, NULL);
}
/* All arrays of an archive. */
static void read_npz(const uint8_t *data, size_t n) {
    flux__source s = { "fuzz", "memory", NULL, data, n, NULL };
    flux__zip z;
    if (!flux__zip_open(&z, "fuzz", NULL, &s)) {
        refused++;
        if (!flux_failed()) abort();
        flux_clear();
        return;
    }
    for (int i = 0; i < z.members; i++) {
        int h = flux__hide();
        if (flux__zipped_wanted(&z, z.member[i].name) != &z.member[i]) abort();
        look(flux__zipped_read(&z, &z.member[i]));
        flux__reveal(h, NULL);
    }
    flux__zip_close(&z);
}

/* ------------------------------------------------------------------ readers that take a path */

/* of this process alone, for files and as the kernels' cache */
static char folder[600];
static void leave_nothing(void) {
    char command[700];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0) fprintf(stderr, "%s is left\n", folder);
}
static void make_folder(void) {
    const char *temp = getenv("TMPDIR");
    if (*folder) return;
    snprintf(folder, sizeof folder, "%.500s/flux_fuzz_%d", temp && *temp ? temp : "/tmp",
        flux__process_id());
    if (mkdir(folder, 0700) != 0) abort();
    setenv("FLUX_CACHE_DIR", folder, 1);
    atexit(leave_nothing);
}
static void write_file(const char *path, const uint8_t *data, size_t n) {
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f) != 0) abort();
}
static const char *file_of(const uint8_t *data, size_t n) {
    static char path[700];
    make_folder();
    snprintf(path, sizeof path, "%s/file", folder);
    write_file(path, data, n);
    return path;
}
/* A code says whether it was done, and an error why not. */
static void judge(int code) {
    if (code) refused++;
    else taken++;
    if ((code != 0) != flux_failed()) {
        fprintf(stderr, "a reader gave %d, and the error \"%s\"\n", code, flux_error());
        abort();
    }
    flux_clear();
}

static void read_torch(const uint8_t *data, size_t n) {
    static flux_layer *model;
    if (!model) {
        model = flux_chain(flux_conv_layer(FLUX_SHAPE(2, 2), 1, 2), flux_batchnorm(2),
            flux_gru(3, 2, .hidden_bias = true), flux_dense(3, 4));
        flux_retain(model);
    }
    judge(flux_load_torch(model, file_of(data, n), NULL));
}
/* A state is not only read: a step is made with what was in the file. */
static void read_state(const uint8_t *data, size_t n) {
    static flux_layer *model;
    flux_state *s;
    char text[400];
    if (!model) model = (flux_layer *)flux_retain(flux_dense(2, 2));
    s = flux_setup(flux_mixed_precision(flux_optimiser_chain(flux_clipnorm(1), flux_adam(0.01))),
        model);
    const int code = flux_load_state(s, file_of(data, n));
    judge(code);
    if (code) return;
    flux_update(s, model, flux_gradient(flux_scaled_loss(s,
        flux_mean(flux_square(flux_call(model, flux_ones(2, 3))))), model));
    flux_state_text(s, text, sizeof text);
    flux_clear();
}

/* ------------------------------------------------------------------ readers of text */

/* The key is found or not; and what flux_gpu_backend_set would make of the text has the key, or has
   it no more. */
static void read_preferences(const uint8_t *data, size_t n) {
    static const char *const names[] = { "CUDA", NULL };
    flux__toml t, again;
    flux__edit e;
    if (!flux__toml_read(&t, (const char *)data, n, "Flux", "gpu_backend")) {
        refused++;
        if (!t.wrong || flux__toml_line(&t, t.at) < 1) abort();
        return;
    }
    taken++;
    if (t.value_end > n || t.value > n || t.line_end > n || t.header_end > n || t.dotted_end > n)
        abort();
    for (int i = 0; i < 2; i++) {
        if ((!names[i] && !t.value_end) || !flux__prefs_edit(&t, names[i], &e)) continue;
        const size_t put = strlen(e.put), m = e.a + put + (n - e.b);
        char *text = (char *)malloc(m + 1);
        if (!text) abort();
        memcpy(text, data, e.a), memcpy(text + e.a, e.put, put),
            memcpy(text + e.a + put, data + e.b, n - e.b);
        const bool good = flux__toml_read(&again, text, m, "Flux", "gpu_backend");
        if (!good || (names[i] ? !again.is_string || strcmp(again.text, names[i]) != 0
            : again.value_end != 0)) {
            fprintf(stderr, "gpu_backend_set makes of these preferences:\n%.*s\n", (int)m, text);
            abort();
        }
        free(text);
    }
}
/* Formulas; computed where no large number is in them. */
static void read_formula(const uint8_t *data, size_t n) {
    static flux_tensor *value[2];
    char *text = (char *)malloc(n + 1);
    int digits = 0, most = 0;
    if (!text) abort();
    if (!value[0]) value[0] = (flux_tensor *)flux_retain(flux_randn(3, 3)),
        value[1] = (flux_tensor *)flux_retain(flux_randn(3));
    memcpy(text, data, n), text[n] = 0;
    for (size_t i = 0; i < n; i++) {
        digits = (text[i] >= '0' && text[i] <= '9') || text[i] == '.' || text[i] == 'e'
            ? digits + 1 : 0;
        most = digits > most ? digits : most;
    }
    flux_tensor *t = flux_expr_with(text, 2, "x, y", value);
    if ((t != NULL) == flux_failed()) abort();
    if (t) taken++;
    else refused++;
    if (t && most < 3 && n < 60 && flux_len(t) < 10000) flux_eval(t);
    flux_clear();
    free(text);
}

/* ---------------------------------------- the cache of compiled kernels */

static const char *version_1(void) { return "1"; }
static bool takes_any(const char *version) { return (void)version, true; }
static void write_entry(flux__private *den, const char *name, const uint8_t *data, size_t n) {
    char path[820];
    snprintf(path, sizeof path, "%s%s", den->path, name);
    write_file(path, data, n);
    flux__private_close(den);
}
/* The first byte says which of an entry's guards hold, so that what is behind them is reached: its
   key, its sum; or that the rest is the note of who made the entries. */
static void read_cache(const uint8_t *data, size_t n) {
    static flux__driver driver;
    static flux__gpu gpu;
    char name[200];
    flux__private den;
    uint64_t source[2] = { 3, 4 }, key[2];
    flux__cache_head head;
    flux__cache_maker maker;
    make_folder();
    driver.name = "fuzz", driver.version = version_1, driver.takes = takes_any, gpu.driver = &driver;
    snprintf(gpu.info.arch, sizeof gpu.info.arch, "x");
    if (n < 1) return;
    uint8_t *copy = (uint8_t *)malloc(n), flags = data[0];
    if (!copy) abort();
    memcpy(copy, data + 1, --n);
    if (flags & 4) {
        flux__cache_maker_name(name, sizeof name, &driver, "x");
        if (!flux__cache_open(&den)) abort();
        write_entry(&den, name, copy, n);
        if (flux__cache_made_by(&driver, "x", &maker))
            taken += strlen(maker.version) < sizeof maker.version;
        else refused++;
    } else {
        if (!flux__cache_entry(&den, name, sizeof name, &gpu, source, "1", key)) abort();
        if ((flags & 1) && n >= sizeof head) {
            memcpy(&head, copy, sizeof head);
            memcpy(head.magic, "fluxgpu2", 8), memcpy(head.key, key, sizeof key);
            if (flags & 2) head.bytes = n - sizeof head, head.sum[0] = 1, head.sum[1] = 2,
                flux__hash_bytes(head.sum, copy + sizeof head, n - sizeof head);
            memcpy(copy, &head, sizeof head);
        }
        write_entry(&den, name, copy, n);
        void *image = flux__cache_read(&gpu, source, "1");
        if (image && memcmp(image, copy + sizeof head, n - sizeof head) != 0) abort();
        if (image) taken++;
        else refused++;
        if (image) FLUX_FREE(image);
    }
    free(copy);
    flux_clear();
}

/* ------------------------------------------------------------------ all of them */

static void read_source(const uint8_t *data, size_t n, flux_tensor *(*parse)(flux__source *)) {
    flux__source s = { "fuzz", "memory", NULL, data, n, NULL };
    read_one(parse, &s);
}
static void read_idx(const uint8_t *data, size_t n) { read_source(data, n, flux__parse_idx); }
static void read_npy(const uint8_t *data, size_t n) { read_source(data, n, flux__parse_npy); }
static void read_csv(const uint8_t *data, size_t n) { read_source(data, n, flux__parse_csv); }
static void read_model(const uint8_t *data, size_t n) {
    flux__source s = { "fuzz", "memory", NULL, data, n, NULL };
    read_safetensors(&s);
}
typedef struct reader { const char *name; void (*read)(const uint8_t *data, size_t n);
    bool fixtures; } reader;
static const reader readers[] = {
    { "idx", read_idx, true }, { "npy", read_npy, true }, { "csv", read_csv, true }, {
        "safetensors", read_model, true },
    { "image", read_image, false }, { "table", read_table, false }, { "gzip", read_gzip, false }, { "npz", read_npz, false },
    { "torch", read_torch, false }, { "state", read_state, false }, {
        "preferences", read_preferences, false },
    { "formula", read_formula, false }, { "cache", read_cache, false }
};
enum { READERS = sizeof readers / sizeof *readers };
/* only: NULL: those that the fixtures are for. */
static bool read_with(const char *only, const uint8_t *data, size_t n) {
    bool known = !only;
    flux_on_error(silent, NULL);
    flux_threads(1);
    for (int i = 0; i < READERS; i++) {
        if (only ? strcmp(only, readers[i].name) != 0 : !readers[i].fixtures) continue;
        known = true;
        flux_scope_open();
        readers[i].read(data, n);
        flux_scope_close();
    }
    return known;
}
#ifdef __cplusplus
extern "C"
#endif
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!read_with(getenv("FLUX_FUZZ"), data, size)) abort();
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

/* Hands a file's bytes to the readers, and so many changes of them. */
static void change_often(const char *only, const uint8_t *data, size_t n, int rounds,
    uint64_t seed) {
    static uint8_t changed[1 << 15];
    dice_state = seed;
    for (int i = 0; i < rounds; i++) {
        memcpy(changed, data, n);
        size_t m = i ? mutate(changed, n, sizeof changed) : n;
        uint8_t *exact = (uint8_t *)malloc(m ? m : 1);     /* so that a read past the end is seen */
        if (!exact) abort();
        memcpy(exact, changed, m);
        if (!read_with(only, exact, m)) {
            fprintf(stderr, "no reader is called %s\n", only);
            exit(2);
        }
        free(exact);
    }
}
static size_t bytes_of(const char *path, uint8_t *data, size_t room) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        fprintf(stderr, "%s is missing\n", path);
        exit(2);
    }
    size_t n = fread(data, 1, room, file);
    fclose(file);
    return n;
}
/* .../npy/name: "npy" */
static const char *reader_of(const char *path) {
    static char name[40];
    const char *end = strrchr(path, '/'), *at = end;
    while (at && at > path && at[-1] != '/') at--;
    snprintf(name, sizeof name, "%.*s", at ? (int)(end - at) : 0, at ? at : "");
    return name;
}

int main(int argc, char **argv) {
    static uint8_t data[1 << 14];
    int rounds = argc > 1 ? atoi(argv[1]) : 3000;
    char path[200];
    for (size_t f = 0; f < sizeof fixtures / sizeof *fixtures; f++) {
        size_t n = sizeof csv_text - 1;
        snprintf(path, sizeof path, "tests/fixtures/files/%s", fixtures[f]);
        if (*fixtures[f]) n = bytes_of(path, data, sizeof data);
        else memcpy(data, csv_text, n);
        change_often(NULL, data, n, rounds, f + 1);
    }
    for (int i = 2; i < argc; i++) {
        size_t n = bytes_of(argv[i], data, sizeof data);
        change_often(reader_of(argv[i]), data, n, rounds ? rounds : 60, (uint64_t)i);
    }
    printf("%lld read, %lld refused\n", (long long)taken, (long long)refused);
    return taken && refused ? 0 : 1;          /* neither all nor nothing is good */
}
#endif
