/* Random graphs against an interpreter in double (tests/graphs.h): values, gradients and second
   gradients; computed lazily, with nodes looked at as they come, each at once (FLUX_EAGER), and in
   parts of few nodes. A graph that differs is made smaller while it does, and printed.
       GRAPHS=100000 test_graphs      so many (default 300; `make fuzz` asks for many)
       GRAPH_SEED=17 GRAPHS=1 test_graphs      that one; FLUX_GRAPH_SHOW=1 prints it
   Where there is fork, graphs run in child processes, so that one that crashes is made smaller
   too. */
#if !defined(_WIN32) && !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#ifdef __linux__
#define _DEFAULT_SOURCE
#endif
#include "graphs.h"
#ifndef _WIN32
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

/* ------------------------------------------------------------------ comparing */

/* what a child tells its parent */
typedef struct told {
    uint64_t seed;
    int64_t compared, loose, made[G_OPS];
    char why[600];
} told;
static told *tale;
static bool tale_begins(void) {
#ifdef _WIN32
    if (!tale) tale = (told *)calloc(1, sizeof *tale);
    return tale != NULL;
#else
    const int access = PROT_READ | PROT_WRITE, kind = MAP_SHARED | MAP_ANONYMOUS;
    if (!tale) tale = (told *)mmap(NULL, sizeof *tale, access, kind, -1, 0);
    return tale != MAP_FAILED;
#endif
}
typedef struct mode { const char *name; double look; bool eager; int part; } mode;

static const double *read_numbers(flux_tensor *x) {
    return (const double *)flux_data(flux_cpu(flux_to_dtype(x, FLUX_F64)));
}
static bool disagree(const char *what, int i, int64_t at, double got, double want, double within) {
    if (!tale->why[0]) snprintf(tale->why, sizeof tale->why,
        "%s of x%d, element %lld: %.17g, not %.17g within %.3g", what, i, (long long)at, got, want,
        within);
    return false;
}
/* got against d within twice e, and a little for what the bound leaves out. Wide bounds are
   counted: they say nothing. */
static bool near_enough(double got, double d, double e) {
    tale->compared++;
    if (!(e <= 0.1 * fabs(d) + 1e-3)) tale->loose++;
    return !(e < HUGE_VAL) || fabs(got - d) <= 2 * e + 1e-13 * fabs(d) + 1e-300;
}
static bool values_agree(const graph *g, int i, const num *v, flux_tensor *x) {
    const flux_shape s = flux_shape_of(x), want = g->step[i].shape;
    const double *p = NULL;
    if (s.ndim != want.ndim || memcmp(s.dim, want.dim, (size_t)s.ndim * sizeof s.dim[0])
        || flux_dtype_of(x) != g->step[i].type) {
        snprintf(tale->why, sizeof tale->why, "x%d has another shape or dtype (%s)", i,
            flux_dtype_name(flux_dtype_of(x)));
        return false;
    }
    if (shape_len(want) == 0) return true;
    if ((p = read_numbers(x)) == NULL) return snprintf(tale->why, sizeof tale->why, "x%d: %s", i,
        flux_error()), false;
    for (int64_t j = 0; j < shape_len(want); j++)
        if (!near_enough(p[j], v[j].d[0], v[j].e[0]))
            return disagree("value", i, j, p[j], v[j].d[0], 2 * v[j].e[0]);
    return true;
}

/* The directions in which slopes are compared: u of all second gradients, r of all that is summed
   up, and single elements. */
static double *direction(const graph *g, int i, uint32_t seed) {
    const int64_t n = shape_len(g->step[i].shape);
    double *u = (double *)calloc((size_t)n + 1, sizeof *u);
    for (int64_t j = 0; j < n; j++) u[j] = (double)leaf_draw(seed + (uint32_t)i, (uint32_t)j);
    return u;
}
static flux_tensor *second_of(const graph *g, flux_tensor *const *grad) {
    flux_tensor *sum = NULL;
    for (int t = 0; t < g->targets; t++) {
        flux_tensor *u = grad[t] ? graph_leaf(FLUX_F32, g->step[g->target[t]].shape, FILL_REAL, 1,
            77u + (uint32_t)g->target[t]) : NULL;
        flux_tensor *part = u ? flux_sum(flux_mul(grad[t], u)) : NULL;
        if (part) sum = sum ? flux_add(sum, part) : part;
    }
    return sum;
}
/* The slopes along one direction: those of a random one over all targets (t < 0), or of element j
   of target t. */
static bool slopes_agree(const graph *g, graph_way *way, flux_tensor *const *grad,
    flux_tensor *const *second, int t, int64_t j) {
    num *v[GRAPH_MOST];
    double *one[GRAPH_TARGETS] = { NULL }, got[2] = { 0, 0 };
    bool good = true;
    for (int k = 0; k < g->targets; k++) {
        const int i = g->target[k];
        const int64_t n = shape_len(g->step[i].shape);
        one[k] = t < 0 ? direction(g, i, 1000) : (double *)calloc((size_t)n + 1, sizeof(double));
        if (t == k) one[k][j] = 1;
        way->along[0][i] = one[k];
        for (int w = 0; w < (g->second ? 2 : 1); w++) {
            flux_tensor *x = w ? second[k] : grad[k];
            const double *p = x && n ? read_numbers(x) : NULL;
            for (int64_t e = 0; p && e < n; e++) got[w] += p[e] * one[k][e];
        }
    }
    graph_values(g, way, v);
    const num y = v[g->loss][0];
    const char *what = t < 0 ? "gradient, summed," : "gradient";
    const int at = t < 0 ? g->loss : g->target[t];
    if (!near_enough(got[0], y.d[1], y.e[1] + graph_slack))
        good = disagree(what, at, j, got[0], y.d[1], 2 * (y.e[1] + graph_slack));
    if (good && g->second && !near_enough(got[1], y.d[3], y.e[3]))
        good = disagree(t < 0 ? "second gradient, summed," : "second gradient", at, j, got[1],
        y.d[3], 2 * y.e[3]);
    graph_forget(g->n, v);
    for (int k = 0; k < g->targets; k++) way->along[0][g->target[k]] = NULL, free(one[k]);
    return good;
}
static bool gradients_agree(const graph *g, flux_tensor *const *grad, flux_tensor *const *second) {
    graph_way way;
    bool good = true;
    memset(&way, 0, sizeof way);
    double *u[GRAPH_TARGETS];
    for (int t = 0; t < g->targets; t++) u[t] = direction(g, g->target[t], 77),
        way.along[1][g->target[t]] = u[t];
    good = slopes_agree(g, &way, grad, second, -1, 0);
    for (int t = 0; t < g->targets; t++) {
        const int64_t n = shape_len(g->step[g->target[t]].shape);
        for (int k = 0; k < 3 && k < n && good; k++)
            good = slopes_agree(g, &way, grad, second, t, k == 0 ? 0 : k == 1 ? n - 1
            : (int64_t)(g->seed % (uint64_t)n));
    }
    for (int t = 0; t < g->targets; t++) free(u[t]);
    return good;
}

static bool one_mode(const graph *g, num *const *v, const mode *how) {
    flux_tensor *x[GRAPH_MOST], *list[GRAPH_MOST + 2 * GRAPH_TARGETS], *grad[GRAPH_TARGETS] = {
        NULL }, *second[GRAPH_TARGETS] = { NULL };
    int n = 0;
    bool good = true;
    flux__test_eager(how->eager);
    if (!graph_build(g, x, how->look, g->seed))
        return snprintf(tale->why, sizeof tale->why, "refused: %s", flux_error()), false;
    for (int i = 0; i < g->n; i++)
        if (g->want[i]) list[n++] = x[i];
    if (g->loss >= 0) {
        const void *what[GRAPH_TARGETS];
        for (int t = 0; t < g->targets; t++) what[t] = x[g->target[t]];
        flux_grads *first = flux_gradient_with(x[g->loss], g->targets, what), *more = NULL;
        for (int t = 0; t < g->targets && first; t++)
            if ((grad[t] = flux_grad(first, x[g->target[t]])) != NULL) list[n++] = grad[t];
        flux_tensor *sum = g->second && first ? second_of(g, grad) : NULL;
        more = sum ? flux_gradient_with(sum, g->targets, what) : NULL;
        for (int t = 0; t < g->targets && more; t++)
            if ((second[t] = flux_grad(more, x[g->target[t]])) != NULL) list[n++] = second[t];
    }
    if (g->together && flux_eval_all(n, list) != 0)
        return snprintf(tale->why, sizeof tale->why, "looked at together: %s", flux_error()), false;
    for (int i = 0; i < g->n && good; i++)
        if (g->want[i]) good = values_agree(g, i, v[i], x[i]);
    if (good && g->loss >= 0) good = gradients_agree(g, grad, second);
    if (good && flux_failed()) good = false, snprintf(tale->why, sizeof tale->why, "an error: %s",
        flux_error());
    return good;
}
static bool graph_agrees(const graph *g) {
    static const mode modes[] = { { "lazily", 0, false, 4096 }, { "half of it looked at", 0.5, false,
        4096 }, { "at once", 0, true, 4096 }, { "in parts", 0, false, 3 } };
    num *v[GRAPH_MOST];
    bool good = true;
    tale->why[0] = 0;
    for (int i = 0; i < g->n; i++) tale->made[g->step[i].op]++;
    graph_values(g, NULL, v);
    for (int m = 0; m < 4 && good; m++) {
        flux__test_part_nodes(modes[m].part);
        FLUX_SCOPE good = one_mode(g, v, &modes[m]);
        flux_clear();
        if (!good) {
            const size_t n = strlen(tale->why);
            snprintf(tale->why + n, sizeof tale->why - n, " (%s)", modes[m].name);
        }
    }
    graph_forget(g->n, v);
    flux__test_eager(false);
    return good;
}

/* ---------------------------------------- many of them, in child processes */

#ifdef _WIN32
static bool apart(void) { return false; }
#else
static void quiet(const char *message, void *user) { (void)message, (void)user; }
/* a child may not use a device that its parent has opened */
static bool apart(void) { return !test_device.backend; }
#endif
static bool run_apart(const graph *g, uint64_t first, int n) {
#ifdef _WIN32
    (void)g, (void)first, (void)n;
    return true;
#else
    int status = 0;
    fflush(stdout), fflush(stderr);
    const pid_t pid = fork();
    if (pid == 0) {
        bool good = true;
        graph one;
        flux_on_error(quiet, NULL);
        for (int i = 0; i < (g ? 1 : n) && good; i++) {
            alarm(60);
            tale->seed = first + (uint64_t)i;
            tale->why[0] = 0;
            if (!g) graph_random(&one, tale->seed, true);
            good = graph_agrees(g ? g : &one);
        }
        _exit(!good);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0) { }
    if (status && !tale->why[0]) snprintf(tale->why, sizeof tale->why,
        "the process ended with status %d", status);
    return pid > 0 && status == 0;
#endif
}
static bool differs(const graph *g, void *user) {
    (void)user;
    return !(apart() ? run_apart(g, 0, 1) : graph_agrees(g));
}
static void show(uint64_t seed) {
    graph g;
    char why[600];
    snprintf(why, sizeof why, "%s", tale->why);
    graph_random(&g, seed, true);
    graph_shrink(&g, differs, NULL);
    const bool still = differs(&g, NULL);
    fprintf(stderr, "graph %llu: %s\n  made smaller: %s\n", (unsigned long long)seed, why, still
        ? tale->why : "it agrees when it runs alone");
    graph_print(stderr, &g);
}

TEST(random_graphs_are_what_double_says) {
    const char *many = getenv("GRAPHS"), *seed_text = getenv("GRAPH_SEED");
    const int graphs = many ? atoi(many) : test_device.backend ? (getenv("SHORT") ? 20 : 60) : 300;
    uint64_t seed = seed_text ? strtoull(seed_text, NULL, 10) : 1;
    const uint64_t end = seed + (uint64_t)graphs;
    int bad = 0;
    REQUIRE(tale_begins());
    while (seed < end && bad < 3) {
        const int n = end - seed > 50 ? 50 : (int)(end - seed);
        bool good = true;
        graph one;
        if (getenv("FLUX_GRAPH_SHOW")) graph_random(&one, seed, true), graph_print(stderr, &one);
        if (apart()) good = run_apart(NULL, seed, n);
        for (int i = 0; i < n && good && !apart(); i++) {
            graph_random(&one, tale->seed = seed + (uint64_t)i, true);
            good = graph_agrees(&one);
        }
        CHECK(good);
        seed = good ? seed + (uint64_t)n : tale->seed + 1;
        if (!good) bad++, show(tale->seed);
    }
    /* the bounds are tight enough to mean something */
    printf("%lld numbers compared, %lld of them loosely\n", (long long)tale->compared,
        (long long)tale->loose);
    CHECK(tale->compared > graphs && tale->loose * 5 < tale->compared);
    for (int op = 0; op < G_OPS && graphs >= 300; op++)
        if (!CHECK(tale->made[op] > 0)) fprintf(stderr, "    no graph has %s\n", graph_names[op]);
}

static bool agrees_lazily(const graph *g) {
    static const mode lazily = { "lazily", 0, false, 4096 };
    num *v[GRAPH_MOST];
    bool good = true;
    tale->why[0] = 0;
    graph_values(g, NULL, v);
    FLUX_SCOPE good = one_mode(g, v, &lazily);
    flux_clear();
    graph_forget(g->n, v);
    return good;
}

/* A plan is found again by what is thought to tell graphs apart: short graphs, and after each of
   them some that differ from it in one thing. */
TEST(graphs_that_differ_in_one_thing) {
    const int graphs = test_device.backend ? 40 : 250;
    int others = 0, bad = 0;
    REQUIRE(tale_begins());
    flux__test_eager(false), flux__test_part_nodes(4096);
    for (int i = 0; i < graphs && bad < 3; i++) {
        graph g, near;
        graph_of_steps(&g, (uint64_t)i, true, i % 2, 1 + i % 3);
        bool good = agrees_lazily(&g);
        if (!CHECK(good)) bad++, fprintf(stderr, "    %s\n", tale->why), graph_print(stderr, &g);
        for (int tries = 0, n = 0; tries < 200 && n < 10 && good; tries++) {
            if (!graph_neighbour(&near, &g)) continue;
            n++, others++;
            if (CHECK(good = agrees_lazily(&near))) continue;
            bad++, fprintf(stderr, "    %s\n    computed after\n", tale->why);
            graph_print(stderr, &g), fprintf(stderr, "    this:\n"), graph_print(stderr, &near);
        }
    }
    CHECK(others > 5 * graphs || bad);
}

TEST_MAIN()
