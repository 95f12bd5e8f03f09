/* FLUX_TRACE: one event a kernel, in JSON that tools read. flux_profile: where the time goes, by layer. */
#ifdef __linux__
#define _DEFAULT_SOURCE                   /* readlink, setenv */
#endif
#include "test.h"
#include <time.h>

#if defined(_WIN32)
#define SET(name, value) _putenv(name "=" value)
#else
int setenv(const char *name, const char *value, int overwrite);   /* hidden by -std=c11 */
#define SET(name, value) setenv(name, value, 1)
#include <sys/wait.h>
#include <unistd.h>
#endif
#define PATH "build/test_trace.json"

static int count(const char *text, const char *part) {
    int n = 0;
    while ((text = strstr(text, part)) != NULL) n++, text++;
    return n;
}

/* A program that ends without flux_shutdown leaves a whole trace. */
TEST(a_program_that_just_ends) {
    ONLY_ON_CPU();
#ifndef _WIN32
    static char text[5000];
    int status = -1;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        SET("FLUX_TRACE", PATH);
        exit(flux_item(flux_sum(flux_exp(flux_eval(flux_zeros(8))))) != 8);
    }
    REQUIRE(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    FILE *f = fopen(PATH, "r");
    REQUIRE(f != NULL);
    CHECK(fread(text, 1, sizeof text - 1, f) > 0 && text[0] == '[' && strstr(text, "\n]\n") == text + strlen(text) - 3);
    fclose(f);
    remove(PATH);
#else
    SKIP("needs fork");
#endif
}

#ifdef __linux__
static char told[400];
static void hear(flux_level level, const char *id, const char *message, void *user) {
    (void)level, (void)user;
    if (strcmp(id, "trace") == 0) snprintf(told + strlen(told), sizeof told - strlen(told), "%s\n", message);
}
#endif
/* A full disk and a folder that is not there are told of once, and the program goes on. */
TEST(a_trace_that_cannot_be_written) {
    ONLY_ON_CPU();
#ifdef __linux__
    static const struct { const char *path, *want; } cases[] = {
        { "/dev/full", "FLUX_TRACE=/dev/full could not be written to its end\n" },
        { "/nowhere/at/all", "FLUX_TRACE=/nowhere/at/all cannot be written: nothing is traced\n" } };
    if (access("/dev/full", W_OK)) SKIP("no /dev/full here");
    for (int i = 0; i < 2; i++) {
        int status = -1;
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            SET("FLUX_TRACE", cases[i].path);
            flux_on_log(hear, NULL);
            const bool good = flux_item(flux_sum(flux_exp(flux_eval(flux_zeros(8))))) == 8;
            flux_shutdown();
            _exit(!good || strcmp(told, cases[i].want) != 0);
        }
        REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
        if (!CHECK(status == 0)) fprintf(stderr, "    %s\n", cases[i].path);
    }
#else
    SKIP("needs /dev/full");
#endif
}

TEST(a_trace_is_one_json_array) {
    static char text[20000];
    SET("FLUX_TRACE", PATH);                               /* read when the first kernel runs */
    FLUX_SCOPE {
        flux_tensor *x = flux_eval(flux_randn(8, 4)), *w = flux_eval(flux_randn(3, 8));
        CHECK(flux_item(flux_sum(flux_tanh(flux_matmul(w, x)))) < 12);
    }
    flux_shutdown();
    flux_scope_open();                                     /* the test's own went with the rest */
    FILE *f = fopen(PATH, "r");
    REQUIRE(f != NULL);
    CHECK(fread(text, 1, sizeof text - 1, f) > 0);
    fclose(f);
    remove(PATH);
    CHECK(text[0] == '[' && strstr(text, "\n]\n") == text + strlen(text) - 3);
    CHECK(count(text, "{") == count(text, "}") && count(text, "\"") % 2 == 0);
    int events = count(text, "\"ph\":\"X\""), kernels = count(text, "\"cat\":\"kernel\"");
    const char *device = getenv("FLUX_TEST_DEVICE");
    char product[200];
    CHECK(kernels == 4 + !!device && events == kernels + 3 + !!device);    /* three evaluations, and from a device the number has to come */
    snprintf(product, sizeof product, "\"args\":{\"bytes\":272,\"device\":\"%s:0\"}", device ? device : "CPU");
    CHECK(strstr(text, "\"name\":\"product 3x4 inner 8:\"") && strstr(text, product));
}

/* ---- profiles */

static flux_layer *nested(void) {
    flux_layer *head = flux_chain(flux_named("out", flux_dense(16, 3)), flux_tanh);
    return flux_to(test_device, flux_chain(flux_dense(8, 16, flux_relu), flux_dense(16, 16, flux_tanh), head));
}
static const char *profile_text(void) {
    static char text[20000];
    size_t n = flux_profile_text(text, sizeof text);
    return n < sizeof text ? text : "";
}
/* How often kernels of rows with this text ran; -1: there is no such row. */
static int times_of(const char *text, const char *part) {
    double ms, share;
    int times = -1, n;
    for (const char *line = text; (line = strchr(line, '\n')) != NULL && line[1];) {
        line++;
        const char *end = strchr(line, '\n'), *at = strstr(line, part);
        if (at && at < end && sscanf(line, "%lf %lf %% %d", &ms, &share, &n) == 3) times = (times < 0 ? 0 : times) + n;
    }
    return times;
}
static void train(void *steps) {
    flux_seed(1);
    flux_layer *m = nested();
    flux_state *opt = flux_setup(flux_optimiser_chain(flux_clipnorm(1), flux_adam(0.01)), m);
    flux_tensor *x = flux_eval(flux_to(test_device, flux_randn(8, 5)));
    flux_times (i, *(int *)steps) flux_update(opt, m, flux_gradient(flux_sum(flux_square(flux_call(m, x))), m));
}

/* What a call needs together it has computed together: a value that is looked at alone on the way costs no result, but time. */
static flux_tensor *loss_at(flux_layer *m, flux_tensor *x, flux_tensor *y) { return flux_mse(flux_call(m, x), y); }
static int evaluations_of(int what) {
    int n = -1;
    double ms;
    FLUX_SCOPE {
        flux_layer *m = flux_dense(3, 2, flux_tanh), *half = flux_f16(m);
        flux_tensor *x = flux_eval(flux_randn(3, 4)), *y = flux_eval(flux_rand(2, 4)), *all[3] = { flux_exp(x), flux_sum(y), flux_mul(x, 2) };
        flux_state *opt = flux_setup(flux_optimiser_chain(flux_clipnorm(1), flux_adam(0.01)), m), *mixed = flux_setup(flux_mixed_precision(flux_adam(0.01)), half);
        flux_loader *data = flux_dataloader(x, y, .batchsize = 2);
        flux_grads *g = what == 2 ? flux_gradient(loss_at(m, x, y), m) : what == 3 ? flux_gradient(flux_scaled_loss(mixed, loss_at(half, x, y)), half) : NULL;
        flux_profile_start();
        CHECK((what == 0   ? flux_data(all[0]) != NULL && flux_data(all[0]) != NULL
               : what == 1 ? flux_eval_all(3, all) == 0 && flux_item(all[1]) > 0
               : what == 2 ? flux_update(opt, m, g) == 0
               : what == 3 ? flux_update(mixed, half, g) == 0
               : what == 4 ? flux_train(loss_at, m, data, opt) == 0
                           : flux_train(loss_at, m, data, opt, .validation = data, .metrics = { flux_metric(flux_r2) }) == 0));
        flux_profile_stop();
        if (sscanf(profile_text(), "profile: %lf ms in %d evaluations", &ms, &n) != 2) n = -1;
    }
    return n;
}
TEST(calls_compute_together) {
    ONLY_ON_CPU();                        /* from a device a number has to come */
    const char *eager = getenv("FLUX_EAGER");
    if (eager && *eager == '1') SKIP("each operation is an evaluation with FLUX_EAGER");
    static const int most[] = { 1, 1, 2, 2, 6, 11 };
    for (int i = 0; i < 6; i++) {
        const int n = evaluations_of(i);
        if (!CHECK(n > 0 && n <= most[i])) fprintf(stderr, "    row %d: %d evaluations\n", i, n);
    }
}

/* The times of the rows, with that beside kernels, are the whole, and so are their shares and counts. */
static void adds_up(const char *text) {
    double all = 0, ms, share, sum = 0, shares = 0;
    int evaluations = 0, kernels = 0, n, count = 0, rows = 0;
    CHECK(sscanf(text, "profile: %lf ms in %d evaluations of %d kernels", &all, &evaluations, &kernels) == 3);
    for (const char *line = strstr(text, "kernel\n"); line && *++line; line = strchr(line, '\n')) {
        if (sscanf(line, "%lf %lf %%", &ms, &share) != 2) continue;
        CHECK(!signbit(ms) && !signbit(share));
        if (sscanf(line, "%lf %lf %% %d", &ms, &share, &n) == 3) count += strstr(line, " more rows\n") ? 0 : n;
        sum += ms, shares += share, rows++;
    }
    CHECK(rows > 2 && evaluations > 0 && all > 0);
    CHECK_NEAR(sum, all, 0.0006 * (rows + 1));
    CHECK_NEAR(shares, 100, 0.06 * (rows + 1));
    CHECK(count == kernels || rows > 40);
}

TEST(a_profile_by_layer) {
    int steps = 7;
    double took = 0;
    const time_t begun = time(NULL);
    flux_profile_start();
    train(&steps);
    flux_profile_stop();
    CHECK(sscanf(profile_text(), "profile: %lf ms", &took) == 1 && took < 1000 * (2 + difftime(time(NULL), begun)));      /* what has passed */
    char *text = malloc(strlen(profile_text()) + 1);
    REQUIRE(text != NULL);
    strcpy(text, profile_text());
    adds_up(text);
    CHECK(times_of(text, "layers.0 Dense: product: add relu") == 7);
    CHECK(times_of(text, "layers.1 Dense: product: add tanh") == 7);
    CHECK(times_of(text, "layers.2.layers.out Dense: product") == 7);
    CHECK(times_of(text, "layers.1 Dense backward: product") >= 14);       /* by its weight and by its input */
    CHECK(times_of(text, "layers.2.layers.out Dense backward: product") >= 14);
    CHECK(times_of(text, "layers.0 Dense backward: product") == 7);        /* nobody asks for that by x */
    CHECK(strstr(text, "beside kernels") != NULL);
    CHECK(times_of(text, "layers.2.layers.1 tanh: fused") == 7 && times_of(text, "update: fused") >= 7);
    /* nothing is measured after the end, and a start forgets */
    train(&steps);
    CHECK_STR(profile_text(), text);
    free(text);
    flux_profile_start();
    CHECK(times_of(profile_text(), "Dense") == -1);
    steps = 1;
    train(&steps);
    CHECK(times_of(profile_text(), "layers.0 Dense: product: add relu") == 1);
    flux_profile_stop();
    CHECK_ERROR(flux_profile(NULL, NULL), "profile: the function is NULL");
}

/* What several uses of a parameter come to is no layer's. */
TEST(a_profile_of_a_tied_layer) {
    flux_layer *tied = flux_dense(8, 8, flux_tanh), *m = flux_to(test_device, flux_chain(tied, flux_dense(8, 8), tied));
    flux_tensor *x = flux_eval(flux_to(test_device, flux_randn(8, 5)));
    flux_profile_start();
    flux_grads *g = flux_gradient(flux_sum(flux_square(flux_call(m, x))), m);
    flux_eval(flux_grad_param(g, m, "layers.0.bias"));
    flux_profile_stop();
    CHECK(times_of(profile_text(), "B  backward: fused: sum") == 1 || times_of(profile_text(), "s  backward: fused: sum") == 1);
}

/* Multiply-adds and bytes are those of the sizes: 64 x 64 x 64 products, 3 of 16 KiB each. */
TEST(what_a_product_does) {
    flux_tensor *a = flux_eval(flux_to(test_device, flux_ones(64, 64)));
    flux_profile_start();
    flux_times (i, 3) flux_eval(flux_matmul(a, a));
    flux_profile_stop();
    double ms, share, rate, moved;
    int times;
    const char *row = strstr(profile_text(), "kernel\n");
    REQUIRE(row && sscanf(row + 7, "%lf %lf %% %d %lf %lf", &ms, &share, &times, &rate, &moved) == 5);
    CHECK(times == 3 && strstr(row, "16.000 KiB  product\n"));
    if (rate < 0.5) return;               /* too slow for the table's decimals to tell */
    CHECK_NEAR(rate / moved, 64.0 * 64 * 64 / (3 * 64 * 64 * 4), 0.02 * 6);
    CHECK_NEAR(rate * ms / 1e3 * 1e9, 3 * 64.0 * 64 * 64, 0.2 * 3 * 64 * 64 * 64);
}
/* Of more than 40 kinds of kernels the longest are shown, in order, and the others are one row, so that the shares add up; the same
   table each time. */
TEST(a_profile_of_many_kernels) {
    static flux_tensor *(*const f[])(flux_tensor *) = { flux_exp, flux_sin, flux_cos, flux_tan, flux_atan, flux_neg, flux_square };
    flux_tensor *x = flux_eval(flux_to(test_device, flux_ones(7)));
    const int kinds = test_left_out(1, 2) ? 7 : 49;
    char first[20000], rest[60];
    flux_profile_start();
    for (int i = 0; i < kinds; i++) flux_eval(f[i / 7](f[i % 7](x)));
    flux_profile_stop();
    snprintf(first, sizeof first, "%s", profile_text());
    adds_up(first);
    CHECK_STR(profile_text(), first);
    snprintf(rest, sizeof rest, " %d more rows\n", kinds - 40);
    CHECK((kinds > 40) == (strstr(first, rest) != NULL) && count(first, "fused: ") == (kinds > 40 ? 40 : kinds));
    for (int more = 0; more < 2 && kinds > 40; more++) {        /* as many as are shown, and one more */
        flux_profile_start();
        for (int i = 0; i < 40 + more; i++) flux_eval(f[i / 7](f[i % 7](x)));
        flux_profile_stop();
        CHECK(count(profile_text(), "fused: ") == 40 && count(profile_text(), " 1 more rows\n") == more && count(profile_text(), " more rows\n") == more);
    }
    double before = HUGE_VAL, ms;
    for (const char *line = strstr(first, "kernel\n"); line && strchr(++line, '\n'); line = strchr(line, '\n'))
        if (strstr(line, "fused: ") && strstr(line, "fused: ") < strchr(line, '\n') && sscanf(line, "%lf", &ms) == 1) CHECK(ms <= before), before = ms;
}

/* FLUX_PROFILE prints the table when the program ends, and 0 or nothing is no. */
TEST(a_profile_at_the_end) {
    ONLY_ON_CPU();
#ifdef __linux__
    static const struct { const char *value; bool printed; } cases[] = { { "1", true }, { "0", false }, { "", false } };
    char self[400], command[1200], text[20000];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    REQUIRE(n > 0);
    self[n] = 0;
    for (int i = 0; i < 3; i++) {
        snprintf(command, sizeof command, "FLUX_PROFILE='%s' '%s' what_a_product >" PATH ".end 2>&1", cases[i].value, self);
        CHECK(system(command) == 0);
        FILE *file = fopen(PATH ".end", "r");
        REQUIRE(file != NULL);
        text[fread(text, 1, sizeof text - 1, file)] = 0;
        fclose(file);
        remove(PATH ".end");
        CHECK((strstr(text, "profile: ") != NULL) == cases[i].printed && (strstr(text, "beside kernels") != NULL) == cases[i].printed);
        CHECK((times_of(text, "product") == 3) == cases[i].printed && count(text, " 0 failed") == 1);
    }
#else
    SKIP("starts itself by /proc");
#endif
}

TEST_MAIN()
