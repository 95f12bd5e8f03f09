/* test.h - a test runner of one page. A test program is

       #include "test.h"                              // with flux.h; `#define FLUX_IMPLEMENTATION` first if it looks inside
       TEST(sum_of_two) {
           CHECK(flux_ndim(x) == 1);                  // goes on after a failure; REQUIRE leaves the test
           CHECK_NEAR(flux_item(x), 3.0, 1e-6);       // by difference or relative to the second; NaN fails
           CHECK_STR(flux_dtype_name(FLUX_F32), "f32");
           CHECK_DATA(x, expected, 1e-6);             // a tensor's elements against a C array of double
           CHECK_ERROR(flux_add(a, b), "shapes");     // must fail saying so, and give NULL; not printed, and forgotten
           if (!have) SKIP("no such thing here");
       }
       TEST_MAIN()

   Tests run in the order they stand in, each in a scope of its own; an error still pending at a test's end is a
   failure, so is what a call has begun and not ended (open.h), and so is a test that checked nothing. `test_x part`
   runs those with `part` in their name. The last line is "N passed, N failed, N skipped", the exit status 1 if any
   failed.

   Registration is by numbered variables: C lets a file declare `static x;` again later with its value, so that 200
   are declared here and TEST gives the next one its value. C++ has constructors for that. (gcc's attribute of that
   name would leave out tcc and MSVC; a list in TEST_MAIN is one to forget.) */
#ifndef FLUX_TEST_H
#define FLUX_TEST_H
#include "library.h"
#if defined(FLUX_IMPLEMENTATION) && !defined(TEST_OPENED)
#  include "open.h"
#endif
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__unix__) || defined(__APPLE__)
#  include <fcntl.h>
#endif

/* What the address and thread sanitizers ask at the start of a program that is built with them: a
   request for more memory than there is gives NULL, as it does without them. */
#ifndef TEST_SANITIZER
#define TEST_SANITIZER "allocator_may_return_null=1"
#endif
#ifdef __cplusplus
extern "C" {
#endif
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return TEST_SANITIZER; }
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return TEST_SANITIZER; }
#ifdef __cplusplus
}
#endif

typedef struct test_case { const char *name; void (*run)(void); } test_case;
static int test_bad, test_checks;         /* of the test that runs now */
static const char *test_why;              /* why it is skipped, or NULL */
static flux_device test_device;           /* where tensors are made: the CPU, or what FLUX_TEST_DEVICE says */

static inline void test_fail(const char *file, int line, const char *what) {
    if (++test_bad <= 10) fprintf(stderr, "%s:%d: %s\n", file, line, what);
}
static inline bool test_check(bool good, const char *file, int line, const char *text) {
    test_checks++;
    if (!good) test_fail(file, line, text);
    if (!good && test_bad <= 10 && flux_failed()) fprintf(stderr, "    pending: %s\n", flux_error());
    return good;
}
static inline bool test_close(double a, double b, double tol) {
    return a == b || fabs(a - b) <= tol || fabs(a - b) <= tol * fabs(b);
}
static inline void test_near(double a, double b, double tol, const char *file, int line, const char *text) {
    char what[400];
    snprintf(what, sizeof what, "%s: %.10g is not %.10g within %g", text, a, b, tol);
    test_check(test_close(a, b, tol), file, line, what);
}
static inline void test_str(const char *a, const char *b, const char *file, int line) {
    char what[1200];
    snprintf(what, sizeof what, "\"%.500s\" is not \"%.500s\"", a ? a : "(NULL)", b ? b : "(NULL)");
    test_check(a && b && !strcmp(a, b), file, line, what);
}
static inline void test_data(flux_tensor *x, const double *want, int64_t n, double tol, const char *file, int line, const char *text) {
    char what[400];
    const double *got = flux_len(x) == n ? (const double *)flux_data(flux_cpu(flux_to_dtype(x, FLUX_F64))) : NULL;
    int64_t i = 0;
    while (got && i < n && test_close(got[i], want[i], tol)) i++;
    if (got && i < n) snprintf(what, sizeof what, "%s: element %d: %.10g is not %.10g within %g", text, (int)i, got[i], want[i], tol);
    else snprintf(what, sizeof what, "%s: %d elements, not %d, or no value", text, (int)flux_len(x), (int)n);
    test_check(got && i == n, file, line, what);
}
/* Where a test may leave files for a moment. */
static inline const char *test_temp(void) {
    const char *folder = getenv("TMPDIR");
    return folder && *folder ? folder : "/tmp";
}
static int test_sentences;                /* that the call said whose error is expected */
/* Prints nothing; counts the sentences in the int at `user`, where there is one. */
static inline void test_silent(const char *message, void *user) { (void)message; if (user) ++*(int *)user; }
static inline void test_before_error(const char *file, int line) {
    if (flux_failed()) test_check(false, file, line, "an error is pending before the one expected");
    flux_clear();
    flux_on_error(test_silent, &test_sentences);
    test_sentences = 0;
}
static inline void test_error(const char *part, const char *file, int line, const char *text) {
    char what[1200];
    bool failed = flux_failed(), good = failed && strstr(flux_error(), part) != NULL;
    snprintf(what, sizeof what, "%.300s: %s \"%.500s\", not one with \"%.200s\"", text, failed ? "the error is" : "no error", flux_error(), part);
    flux_clear();
    flux_on_error(NULL, NULL);
    if (good && test_sentences > 1) snprintf(what, sizeof what, "%.300s says %d sentences for one error", text, test_sentences);
    test_check(good && test_sentences <= 1, file, line, what);
}

/* What a call that failed gives: NULL, NaN, the code -1. (One that gives a count is compared: `f() == 0`.) What else an
   expression gives is not looked at. */
enum { TEST_OTHER, TEST_POINTER, TEST_NUMBER, TEST_CODE, TEST_COUNT };
/* Of a comparison it is not known which it should be. */
static inline bool test_code(int code, const char *text) { return code == -1 || (code == 1 && strstr(text, "==")); }
static inline void test_nothing(const char *file, int line, const char *text, int kind, ...) {
    char what[400];
    va_list args;
    va_start(args, kind);
    const bool good = kind == TEST_POINTER ? va_arg(args, void *) == NULL
                    : kind == TEST_NUMBER ? isnan(va_arg(args, double))
                    : kind == TEST_CODE ? test_code(va_arg(args, int), text)
                    : kind == TEST_COUNT ? va_arg(args, int64_t) == -1 : true;
    va_end(args);
    snprintf(what, sizeof what, "%.300s failed, but gives what a call gives that did not", text);
    if (!good) test_check(false, file, line, what);
}
#if (defined(__GNUC__) || defined(__TINYC__)) && !defined(__cplusplus)
#  define TEST_IS_VOID(e) __builtin_types_compatible_p(__typeof__(e), void)
#  define TEST_GIVES(e) __builtin_choose_expr(TEST_IS_VOID(e), ((void)(e), 0), (e))
#  define TEST_KIND(e)                                                                               \
    (TEST_IS_VOID(e) ? TEST_OTHER                                                                    \
     : _Generic(TEST_GIVES(e), flux_tensor *: TEST_POINTER, flux_layer *: TEST_POINTER,              \
                flux_state *: TEST_POINTER, flux_grads *: TEST_POINTER, flux_loader *: TEST_POINTER, \
                flux_table *: TEST_POINTER, flux_folder *: TEST_POINTER, flux_comm *: TEST_POINTER,  \
                double: TEST_NUMBER, int: TEST_CODE, int64_t: TEST_COUNT, default: TEST_OTHER))
#  define TEST_FAILS(e) test_nothing(__FILE__, __LINE__, #e, TEST_KIND(e), TEST_GIVES(e))
#else
#  define TEST_FAILS(e) (void)(e)
#endif

#define CHECK(cond) test_check((cond) ? true : false, __FILE__, __LINE__, #cond)
#define REQUIRE(cond) do { if (!CHECK(cond)) return; } while (0)
#define CHECK_NEAR(a, b, tol) test_near((double)(a), (double)(b), (double)(tol), __FILE__, __LINE__, #a)
#define CHECK_STR(a, b) test_str(a, b, __FILE__, __LINE__)
#define CHECK_DATA(x, array, tol) test_data(x, array, (int64_t)(sizeof(array) / sizeof *(array)), (double)(tol), __FILE__, __LINE__, #x)
#define CHECK_ERROR(expr, part) do {                                                                 \
        test_before_error(__FILE__, __LINE__);                                                       \
        TEST_FAILS(expr);                                                                            \
        test_error(part, __FILE__, __LINE__, #expr);                                                 \
    } while (0)
#define SKIP(why) do { test_why = (why); return; } while (0)
/* With SHORT=1 one in so many cases is run on a device, whose compiler needs minutes for all of them, and on a processor
   that is emulated (EMULATED=1), which takes 50 times as long as a real one; a line says "short NAME" of each
   test of which not all was run. REST=" NAME NAME ..." runs what that left out: of these tests the other cases. */
static bool test_shortened;               /* the test that runs now */
static inline const char *test_rest(void) {
    const char *names = getenv("REST");
    return names && *names ? names : NULL;
}
static inline bool test_is_rest(const char *name) {
    const char *at = test_rest();
    const size_t n = strlen(name);
    for (; at && (at = strstr(at, name)) != NULL; at += n)
        if (at[-1] == ' ' && at[n] == ' ') return true;
    return false;
}
static inline bool test_left_out(int i, int one_in) {
    if (test_rest()) return i % one_in == 0;
    if (!getenv("SHORT") || !(test_device.backend || getenv("EMULATED")) || i % one_in == 0) return false;
    return test_shortened = true;
}

/* Runs this program again, with these words, as on another chip of the software GPU: what the devices are is told to a process when
   it starts. `whole`: all of it, though the rest is asked for, since a short run leaves this chip out. True: all is well there. */
static const char *test_program = "";
static inline bool test_as_chip(const char *chip, const char *words, bool whole) {
    char command[5000];
    snprintf(command, sizeof command, "%sSOFTGPU_ARCH=%s '%s' %s", whole ? "REST= " : "", chip, test_program, words);
    return system(command) == 0;
}

#define ONLY_ON_CPU() do { if (test_device.backend) SKIP("about memory that the host can reach"); } while (0)

/* FLUX_TEST_DEVICE=CUDA or =AMDGPU: tensors are made there, so the same tests are of that back end. */
static inline bool test_go_to_device(void) {
    const char *backend = getenv("FLUX_TEST_DEVICE");
    if (!backend || !*backend) return true;
    if (flux_get_devices(backend, &test_device, 1) < 1) return printf("skipped all: %s: %s\n", backend, flux_functional_reason(backend)), false;
    flux_default_device(test_device);
    return true;
}

/* At the end a program on the CPU holds nothing: no memory (config=sanitize says whose), no file that was opened on the way,
   and has closed none that was open before. */
static inline long test_open_files(void) {
    long n = 0;
#if defined(__unix__) || defined(__APPLE__)
    for (int i = 0; i < 256; i++) n += fcntl(i, F_GETFD) >= 0;
#endif
    return n;
}
static long test_kept;                    /* blocks that the library keeps for good, as it does communicators */
static inline bool test_left(const char *what, long n) {
    if (n) printf("FAILED  all: %ld %s left\n", n, what);      /* fewer than none: one was freed twice */
    return n != 0;
}

/* What a call begins it ends: nothing but the test's own scope is open. */
static inline void test_ended(int scopes) {
    char what[100];
    const char *open = flux__test_open(scopes);
    snprintf(what, sizeof what, "this has not ended: %s", open ? open : "");
    if (open) test_fail(__FILE__, __LINE__, what);
}

static inline int test_run_all(const test_case *const *cases, int n, const char *part) {
    int passed = 0, failed = 0, skipped = 0;
    const long files = test_open_files();
    if (!test_go_to_device()) n = 0, skipped = 1;
    for (int i = 0; i < n; i++) {
        if (!cases[i]->run || (part && !strstr(cases[i]->name, part))) continue;
        if (test_rest() && !test_is_rest(cases[i]->name)) continue;
        test_bad = test_checks = 0;
        test_shortened = false;
        test_why = NULL;
        flux_scope_open();
        cases[i]->run();
        if (flux_failed()) test_fail(__FILE__, __LINE__, flux_error());
        flux_clear();
        test_ended(2);
        flux_scope_close();
        if (!test_bad && !test_why && !test_checks) test_fail(__FILE__, __LINE__, "the test checked nothing");
        if (test_bad) printf("FAILED  %s: %d of %d checks\n", cases[i]->name, test_bad, test_checks);
        else if (test_why) printf("skipped %s: %s\n", cases[i]->name, test_why);
        if (test_shortened) printf("short   %s\n", cases[i]->name);
        if (test_bad) failed++;
        else if (test_why) skipped++;
        else passed++;
        fflush(stdout);
    }
    flux_shutdown();
    if (!test_device.backend && (test_left("blocks of memory are", flux__test_live() - test_kept) || test_left("files more or fewer are", labs(test_open_files() - files)))) failed++;
    const char *work = test_device.backend || test_kept ? NULL : flux__test_at_work();
    if (work) printf("FAILED  all: this is counted as under way at the end: %s\n", work), failed++;
    const long spoilt = flux__test_spoilt();
    if (spoilt) printf("FAILED  all: %ld blocks of memory were written past\n", spoilt), failed++;
    const long unlocked = flux__test_locks_free();
    if (unlocked) printf("FAILED  all: %ld locks were given up that nobody held\n", unlocked), failed++;
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed > 0;
}

#define TEST_CAT_(a, b) a##b
#define TEST_CAT(a, b) TEST_CAT_(a, b)
#ifdef __cplusplus
static const test_case *test_cases[200];
static int test_count;
struct test_entry {
    test_case at;
    test_entry(const char *name, void (*run)(void)) : at() { at.name = name, at.run = run; if (test_count < 200) test_cases[test_count++] = &at; }
};
#define TEST(name)                                                                                   \
    static void test_of_##name(void);                                                                   \
    static test_entry test_entry_##name(#name, test_of_##name);                                         \
    static void test_of_##name(void)
#define TEST_MAIN() int main(int argc, char **argv) { test_program = argv[0]; return test_run_all(test_cases, test_count, argc > 1 ? argv[1] : NULL); }
#else
#define TEST(name)                                                                                   \
    static void test_of_##name(void);                                                                   \
    static test_case TEST_CAT(test__, __COUNTER__) = { #name, test_of_##name };                         \
    static void test_of_##name(void)
#define TEST_TEN(f, d) f(d##0) f(d##1) f(d##2) f(d##3) f(d##4) f(d##5) f(d##6) f(d##7) f(d##8) f(d##9)
#define TEST_ALL(f)                                                                                            \
    TEST_TEN(f, ) TEST_TEN(f, 1) TEST_TEN(f, 2) TEST_TEN(f, 3) TEST_TEN(f, 4) TEST_TEN(f, 5) TEST_TEN(f, 6)    \
    TEST_TEN(f, 7) TEST_TEN(f, 8) TEST_TEN(f, 9) TEST_TEN(f, 10) TEST_TEN(f, 11) TEST_TEN(f, 12) TEST_TEN(f, 13) \
    TEST_TEN(f, 14) TEST_TEN(f, 15) TEST_TEN(f, 16) TEST_TEN(f, 17) TEST_TEN(f, 18) TEST_TEN(f, 19)
#define TEST_SLOT(n) static test_case test__##n;
#define TEST_ADDRESS(n) &test__##n,
TEST_ALL(TEST_SLOT)
#define TEST_MAIN()                                                                                  \
    typedef char test_too_many[__COUNTER__ <= 200 ? 1 : -1];                                         \
    int main(int argc, char **argv) {                                                                \
        static const test_case *const cases[] = { TEST_ALL(TEST_ADDRESS) NULL };                     \
        test_program = argv[0];                                                                      \
        return test_run_all(cases, (int)(sizeof(test_too_many) * 200), argc > 1 ? argv[1] : NULL);   \
    }
#endif
#endif
