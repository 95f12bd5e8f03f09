/* FLUX_TRACE: one event a kernel, in JSON that tools read. */
#include "test.h"

#if defined(_WIN32)
#define SET(name, value) _putenv(name "=" value)
#else
int setenv(const char *name, const char *value, int overwrite);   /* hidden by -std=c11 */
#define SET(name, value) setenv(name, value, 1)
#endif
#define PATH "build/test_trace.json"

static int count(const char *text, const char *part) {
    int n = 0;
    while ((text = strstr(text, part)) != NULL) n++, text++;
    return n;
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
TEST_MAIN()
