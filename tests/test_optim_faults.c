/* Optimisers when memory runs out: every allocation that flux_setup, flux_update, flux_adjust, printing and copying a state
   make fails once. Each time there must be an error, and after a failed update model and state must be as they were.
   (With config=sanitize: nor may anything leak.) And texts of rules, with each piece cut out. */
#define FLUX_IMPLEMENTATION               /* the state, number by number */
#include "test.h"

static long failing, first;               /* of the calls that are judged; the first allocation's number */
static long allocations;                  /* that those calls have made */
/* Around a call that is judged: allocation `failing` of all those calls fails, if it is among this one's. */
static void arm(void) {
    first = flux__test_asked();
    const long none = 1L << 30;           /* but arrays are as long as where one fails (counted.h) */
    flux__test_memory_once(failing >= allocations ? failing - allocations : none);
}
static void disarm(void) {
    flux__test_memory(-1);
    allocations += flux__test_asked() - first;
}

static double fingerprint(flux_layer *m, flux_state *s) {
    double v = 0;
    FLUX_SCOPE {
        v = flux_item(flux_norm(flux_to_dtype(flux_destructure(m), FLUX_F64)));
        for (int i = 0; i < s->nleaves * s->nstates; i++) v += flux_item(flux_norm(s->s[i])) * (i + 1);
        for (int i = 0; i < s->nleaves * s->nrules; i++) v += 1000 * (double)s->t[i];
        for (int i = 0; i < s->nleaves; i++)
            if (s->leaf[i].master) v += flux_item(flux_norm(s->leaf[i].master)) * 0.7;
    }
    return v;
}

static void steps(flux_state *s, flux_layer *m, flux_tensor *x) {
    for (int i = 0; i < 3; i++) FLUX_SCOPE {
        double before = fingerprint(m, s);
        flux_grads *g = flux_gradient(flux_sum(flux_square(flux_call(m, x))), m);
        arm();
        int rc = flux_update(s, m, g);
        disarm();
        CHECK((rc != 0) == flux_failed());
        flux_clear();
        if (rc != 0 && !CHECK(fingerprint(m, s) == before)) fprintf(stderr, "    step %d, allocation %ld\n", i, failing);
    }
}

/* A weight and itself transposed: places that hold views of it get views of the new one. */
typedef struct { flux_layer base; flux_tensor *p, *q; } tied;
static flux_tensor *tied_call(flux_layer *self, flux_tensor *x) {
    tied *m = (tied *)self;
    return flux_matmul(m->q, flux_tanh(flux_matmul(m->p, x)));
}
FLUX_LAYER(tied, "Tied", tied_call, FLUX_PARAM(p), FLUX_PARAM(q))
static flux_layer *ties(void) {
    flux_tensor *w = flux_randn(3, 4);
    return flux_new(tied, .p = flux_transpose(w), .q = w);
}
static flux_layer *two_layers(void) { return flux_chain(flux_dense(3, 4, flux_tanh), flux_dense(4, 2)); }
static flux_layer *(*model)(void) = two_layers;

static void whole_life(flux_rule (*make)(void), flux_dtype dtype) {
    FLUX_SCOPE {
        flux_layer *m = model();
        flux_tensor *x = flux_eval(flux_to_dtype(flux_ones(3, 5), dtype));
        char text[100];
        if (dtype == FLUX_F16) m = flux_f16(m);
        arm();
        flux_state *s = flux_setup(make(), m);
        disarm();
        CHECK((s == NULL) == flux_failed());
        flux_clear();
        if (s) steps(s, m, x);
        arm();
        if (s) {
            flux_state_text(s, text, sizeof text);
            flux_adjust(s, .eta = 0.1);
            CHECK((flux__state_copy(s) == NULL) == flux_failed());
        }
        disarm();
        flux_clear();
    }
}

static void each_allocation(flux_rule (*make)(void), flux_dtype dtype) {
    flux_on_error(test_silent, NULL);
    failing = -1;
    whole_life(make, dtype);
    allocations = 0;
    whole_life(make, dtype);              /* once more: the schedules are known now */
    long n = allocations;
    CHECK(n > 50);
    for (failing = 0; failing < n && test_bad < 20; failing++) {
        if (test_left_out((int)failing, 4)) continue;
        allocations = 0;
        whole_life(make, dtype);
    }
    failing = -1;
    flux_on_error(NULL, NULL);
}

/* Two variables, made and updated: what fails changes neither. Returns how many allocations it took. */
static long life_of_variables(void) {
    FLUX_SCOPE {
        flux_tensor *w = flux_eval(flux_ones(3)), *b = flux_eval(flux_scalar(2)), *first = w;
        allocations = 0;
        arm();
        flux_layer *both = flux_variables(&w, &b);
        disarm();
        CHECK((both == NULL) == flux_failed());
        flux_clear();
        flux_state *s = both ? flux_setup(flux_adam(), both) : NULL;
        flux_grads *g = s ? flux_gradient(flux_mul(flux_sum(flux_square(w)), b), w, b) : NULL;
        arm();
        int rc = s ? flux_update(s, both, g) : -1;
        disarm();
        flux_clear();
        CHECK(rc == 0 ? w != first : w == first);
        CHECK(flux_at(first, 0) == 1);
    }
    return allocations;
}

TEST(variables) {
    flux_on_error(test_silent, NULL);
    failing = -1;
    life_of_variables();
    long n = life_of_variables();
    CHECK(n > 5);
    for (failing = 0; failing < n; failing++) life_of_variables();
    failing = -1;
    flux_on_error(NULL, NULL);
}

/* What a run is after one more step. */
static double one_more(flux_layer *m, flux_state *s, flux_tensor *x) {
    CHECK(flux_update(s, m, flux_gradient(flux_sum(flux_square(flux_call(m, x))), m)) == 0);
    return flux_item(flux_norm(flux_to_dtype(flux_destructure(m), FLUX_F64)));
}

/* A run is saved, and loaded into another: a save that says that it is done has left a whole file, and after a load that
   does, the other run goes on as this one, so it has its counts of steps and master copies. */
static void life_of_a_file(flux_rule (*make)(void), flux_dtype dtype) {
    const char *path = "build/test_optim_faults.safetensors";
    FLUX_SCOPE {
        flux_layer *model = flux_chain(flux_dense(3, 4, flux_tanh), flux_dense(4, 2));
        flux_tensor *x = flux_eval(flux_to_dtype(flux_ones(3, 5), dtype));
        if (dtype == FLUX_F16) model = flux_f16(model);
        flux_layer *once_more = flux_copy_layer(model), *last = flux_copy_layer(model);
        flux_state *opt = flux_setup(make(), model), *second = flux_setup(make(), once_more), *third = flux_setup(make(), last);
        for (int i = 0; i < 3; i++) one_more(model, opt, x);
        allocations = 0;
        flux_mem_trim((flux_device){ 0, 0 });                  /* nothing is left over for a small tensor */
        arm();
        int saved = flux_save_all_with(path, 2, "model, opt", (const void *[]){ model, opt });
        disarm();
        CHECK((saved != 0) == flux_failed());
        flux_clear();
        if (saved == 0) CHECK(flux_load_all_with(path, 2, "model, opt", (const void *[]){ once_more, second }) == 0);
        else CHECK(flux_save_all_with(path, 2, "model, opt", (const void *[]){ model, opt }) == 0);
        arm();
        int loaded = flux_load_all_with(path, 2, "model, opt", (const void *[]){ last, third });
        disarm();
        CHECK((loaded != 0) == flux_failed());
        flux_clear();
        const double next = one_more(model, opt, x);
        if (saved == 0) CHECK(one_more(once_more, second, x) == next);
        if (loaded == 0) CHECK(one_more(last, third, x) == next);
        CHECK(remove(path) == 0);
    }
}
static void each_allocation_of_a_file(flux_rule (*make)(void), flux_dtype dtype) {
    flux_on_error(test_silent, NULL);
    failing = -1;
    life_of_a_file(make, dtype);
    life_of_a_file(make, dtype);
    const long n = allocations;
    CHECK(n > 30);
    for (failing = 0; failing < n && test_bad < 20; failing++)
        if (!test_left_out((int)failing, 4)) life_of_a_file(make, dtype);
    failing = -1;
    flux_on_error(NULL, NULL);
}

static flux_rule adam(void) { return flux_adam(); }
static flux_rule descent(void) { return flux_descent(); }
static flux_rule chain(void) { return flux_accumgrad(2, flux_optimiser_chain(flux_clipnorm(1), flux_momentum(), flux_adam())); }
static flux_rule mixed(void) { return flux_mixed_precision(flux_oadam()); }

TEST(adam) { each_allocation(adam, FLUX_F32); }
TEST(accumulated_chain) { each_allocation(chain, FLUX_F32); }
TEST(mixed_precision) { each_allocation(mixed, FLUX_F16); }
TEST(views) {
    model = ties;
    each_allocation(descent, FLUX_F32);
    model = two_layers;
}
TEST(files) {
    each_allocation_of_a_file(adam, FLUX_F32);
    each_allocation_of_a_file(chain, FLUX_F32);
    each_allocation_of_a_file(mixed, FLUX_F16);
}

/* Layers whose products take memory of their own as they run: where that fails, weights may have changed already, if only a part
   of one, and that is said. */
static int step_of(flux_state *s, flux_layer *m, flux_tensor *x, long fails) {
    flux_mem_trim((flux_device){ 0, 0 });
    flux__threads_stop();                 /* which frees what products have kept */
    flux_grads *g = flux_gradient(flux_mean(flux_square(flux_call(m, x))), m);
    flux__test_memory_once(fails);
    return flux_update(s, m, g);
}
static void half_an_update(flux_layer *m, int64_t in) {
    int half = 0, failed = 0;
    bool done = false;
    flux_state *s = flux_setup(flux_descent(0.01), m);
    flux_tensor *x = flux_eval(flux_rand(in, 50));
    for (int i = 0; i < 2; i++) FLUX_SCOPE CHECK(fingerprint(m, s) > 0 && step_of(s, m, x, 1L << 30) == 0);    /* its plan is known now */
    for (long k = 0; k < 200 && !done; k++) FLUX_SCOPE {
        const double before = fingerprint(m, s);
        const int rc = step_of(s, m, x, k);
        done = !flux__test_refused();
        flux__test_memory(-1);
        const bool says = strstr(flux_error(), "half done") != NULL;
        flux_clear();
        CHECK(rc == 0 ? !says : says || fingerprint(m, s) == before);
        half += says, failed += rc != 0;
    }
    CHECK(done && failed > 4 && half > 0 && half < failed);
}
TEST(half_an_update_is_told) {
    if (test_device.backend) SKIP("products take memory as they run on the CPU alone");
    const int threads = flux__num_threads();
    flux_threads(1);                      /* for k to name the same allocation each time */
    flux_on_error(test_silent, NULL);
    FLUX_SCOPE half_an_update(flux_chain(flux_dense(90, 130, flux_tanh), flux_dense(130, 70)), 90);
    FLUX_SCOPE half_an_update(flux_dense(700, 350, .bias = FLUX_OFF), 700);
    flux_on_error(NULL, NULL);
    flux_threads(threads);
}

/* Of the text of rules each piece is cut out: what is left is refused, or is what is written for other numbers. */
static void without_numbers(char *text) {
    char *to = text;
    for (; *text; text++) if (!strchr("0123456789.+-e", *text)) *to++ = *text;
    *to = 0;
}
static void check_text(const flux_state *s, char *text) {
    flux_rule_opts o[4];
    char got[300];
    if (!flux__read_rules(text, s, o)) return;
    flux__rules_text(s, o, got, sizeof got);
    without_numbers(got), without_numbers(text);
    if (!CHECK(!strcmp(got, text))) fprintf(stderr, "    %s\n", text);
}
TEST(rules_of_spoilt_text) {
    const flux_rule rules[5] = { flux_mixed_precision(flux_optimiser_chain(flux_clipgrad(), flux_descent())), flux_mixed_precision(flux_adam()),
        flux_clipnorm(1, .global = true), flux_rmsprop(.centred = true), flux_adamw(.couple = FLUX_OFF) };
    for (int k = 0; k < 5; k++) {
        flux_state *s = flux_setup(rules[k], flux_dense(1, 1));
        char whole[300], part[300];
        const int n = (int)flux__rules_text(s, NULL, whole, sizeof whole);
        REQUIRE(s->nrules <= 4 && n > 5 && n < 300);
        flux_rule_opts o[4];
        CHECK(flux__read_rules(whole, s, o));
        for (int i = 0; i < n; i++)
            for (int j = i + 1; j <= n; j++) {
                snprintf(part, sizeof part, "%.*s%s", i, whole, whole + j);
                check_text(s, part);
            }
    }
}
TEST_MAIN()
