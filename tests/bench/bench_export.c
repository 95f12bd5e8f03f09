/* Models as files of C (flux_export_c) beside flux_call, one thread: microseconds of a call, and how many times as fast
   as the library the file is, compiled by CC (else cc) with CFLAGS (else -O3 -march=native). One line a figure. */
#define FLUX_IMPLEMENTATION
#include "../../flux.h"
#include <time.h>

static double seconds(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The fastest of many runs, in seconds. */
static double library(flux_layer *m, flux_tensor *x) {
    double best = 1e9, start = seconds();
    for (int i = 0; i < 30 || seconds() - start < 0.5; i++) {
        double t = seconds();
        FLUX_INFER flux_eval(flux_call(m, x));
        t = seconds() - t;
        best = t < best ? t : best;
    }
    return best;
}

static const char *from_environment(const char *name, const char *otherwise) {
    const char *v = getenv(name);
    return v && *v ? v : otherwise;
}

/* The same for the file: the last line of the program that calls it. */
static double file(flux_layer *m, flux_tensor *x, int64_t out, const char *folder, bool state) {
    char path[400], command[1200];
    double best = -1;
    snprintf(path, sizeof path, "%s/net.c", folder);
    if (flux_export_c(m, flux_shape_of(x), path)) return -1;
    snprintf(path, sizeof path, "%s/main.c", folder);
    FILE *f = fopen(path, "w");
    if (!f) return -1;
    fprintf(f, "#define net_DECLARE\n#include \"net.c\"\n#include <stdio.h>\n#include <time.h>\n"
               "static double seconds(void) { struct timespec t; timespec_get(&t, TIME_UTC);\n"
               "    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec; }\n"
               "static %s in[%lld]; static float out[%lld]; %s\n", flux_dtype_of(x) == FLUX_F32 ? "float" : "int",
            (long long)flux_len(x), (long long)out, state ? "static net_state state;" : "");
    fprintf(f, "int main(void) {\n    double best = 1e9, start = seconds();\n"
               "    for (int i = 0; i < %lld; i++) in[i] = (float)(i * 37 %% 101) / 101 * %s;\n"
               "    for (int i = 0; i < 30 || seconds() - start < 0.5; i++) {\n"
               "        const int calls = best < 1e-4 ? 10 : 1;\n"          /* ten long ones are never undisturbed */
               "        double t = seconds();\n        for (int k = 0; k < calls; k++) net(%sin, out);\n"
               "        t = (seconds() - t) / calls;\n        best = t < best ? t : best;\n    }\n"
               "    printf(\"%%.9g\\n\", best);\n    return 0;\n}\n", (long long)flux_len(x), flux_dtype_of(x) == FLUX_F32 ? "2 - 1" : "63",
            state ? "&state, " : "");
    fclose(f);
    snprintf(command, sizeof command, "cd '%s' && %.100s %.200s net.c main.c -o main -lm && ./main >time", folder,
             from_environment("CC", "cc"), from_environment("CFLAGS", "-O3 -march=native"));
    if (system(command) != 0) return -1;
    snprintf(path, sizeof path, "%s/time", folder);
    f = fopen(path, "r");
    if (f && fscanf(f, "%lf", &best) != 1) best = -1;
    if (f) fclose(f);
    return best;
}

static const char *folder;
static void one_thread(void) {
#if defined(_WIN32)
    _putenv_s("FLUX_NUM_THREADS", "1");
#else
    setenv("FLUX_NUM_THREADS", "1", 1);
#endif
}
static void bench(const char *name, flux_layer *m, flux_tensor *x, bool state) {
    flux_tensor *y = NULL;
    FLUX_INFER y = flux_keep(flux_call(m, x));
    double ours = library(m, x), theirs = file(m, x, flux_len(y), folder, state);
    printf("%-52s flux_call %9.2f us   file %9.2f us   %5.2f times as fast\n", name, ours * 1e6, theirs * 1e6, ours / theirs);
}

static flux_layer *cnn(void) {
    return flux_chain(
        flux_conv_layer(FLUX_SHAPE(3, 3), 1, 16, .pad = FLUX_SAMEPAD), flux_batchnorm(16, flux_relu),
        flux_maxpool_layer(FLUX_SHAPE(2, 2)),
        flux_conv_layer(FLUX_SHAPE(3, 3), 16, 32, .pad = FLUX_SAMEPAD), flux_batchnorm(32, flux_relu),
        flux_maxpool_layer(FLUX_SHAPE(2, 2)),
        flux_conv_layer(FLUX_SHAPE(3, 3), 32, 64, .pad = FLUX_SAMEPAD), flux_batchnorm(64, flux_relu),
        flux_globalmeanpool(), flux_flatten, flux_dense(64, 10));
}
static flux_layer *mlp(void) { return flux_chain(flux_dense(784, 256, flux_relu), flux_dense(256, 10), flux_softmax); }
static flux_layer *block(int64_t width) {
    return flux_chain(
        flux_skipconnection(flux_chain(flux_layernorm(FLUX_SHAPE(width)),
                                       flux_multiheadattention(width, .nheads = 4, .causal = true, .scores = FLUX_OFF)), flux_add),
        flux_skipconnection(flux_chain(flux_layernorm(FLUX_SHAPE(width)), flux_dense(width, 4 * width, flux_gelu),
                                       flux_dense(4 * width, width)), flux_add));
}

int main(void) {
    char temporary[300], command[400];
    snprintf(temporary, sizeof temporary, "%.250s/flux_bench_export", from_environment("TMPDIR", "/tmp"));
    snprintf(command, sizeof command, "mkdir -p '%s'", temporary);
    folder = temporary;
    if (system(command) != 0) return 1;
    flux_seed(1);
    one_thread();
    FLUX_SCOPE bench("digits' CNN, 8 x 8, one image", cnn(), flux_randn(8, 8, 1, 1), false);
    FLUX_SCOPE bench("digits' CNN, 8 x 8, batch 64", cnn(), flux_randn(8, 8, 1, 64), false);
    FLUX_SCOPE bench("the same CNN, 28 x 28, one image", cnn(), flux_randn(28, 28, 1, 1), false);
    FLUX_SCOPE bench("the same CNN, 28 x 28, batch 16", cnn(), flux_randn(28, 28, 1, 16), false);
    FLUX_SCOPE bench("784-256-10, one sample", mlp(), flux_randn(784, 1), false);
    FLUX_SCOPE bench("784-256-10, batch 64", mlp(), flux_randn(784, 64), false);
    FLUX_SCOPE bench("GRU of 64, one step, one sequence", flux_chain(flux_gru(32, 64), flux_dense(64, 10)), flux_randn(32, 1, 1), true);
    FLUX_SCOPE bench("GRU of 64, 32 steps, one sequence", flux_chain(flux_gru(32, 64), flux_dense(64, 10)), flux_randn(32, 32, 1), true);
    FLUX_SCOPE bench("GRU of 64, 32 steps, batch 16", flux_chain(flux_gru(32, 64), flux_dense(64, 10)), flux_randn(32, 32, 16), true);
    FLUX_SCOPE bench("LSTM of 128, 32 steps, batch 16", flux_chain(flux_lstm(64, 128), flux_dense(128, 10)), flux_randn(64, 32, 16), true);
    FLUX_SCOPE bench("transformer, 2 layers of 64, length 64, one text", flux_chain(flux_embedding(64, 64), block(64), block(64), flux_dense(64, 64)),
                     flux_to_dtype(flux_floor(flux_mul(flux_rand(64, 1), 64)), FLUX_I32), false);
    snprintf(command, sizeof command, "rm -r '%s'", temporary);
    return system(command) != 0 || flux_failed();
}
