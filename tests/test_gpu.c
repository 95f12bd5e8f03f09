/* The GPU layer: what a step costs, what happens when a driver says no, the cache on disk, several devices. Runs where
   FLUX_TEST_DEVICE says, as tests/on_device.sh sets it; faults and counts need the software GPU.

   What depends on the environment that a process starts with, or that breaks a device, runs in a process of its own:
   this program once more, with the arguments `child NAME`. */
#if defined __linux__
#define _GNU_SOURCE
#endif
#define FLUX_IMPLEMENTATION
#include "test.h"
#if defined __linux__ && defined FLUX_CUDA && defined FLUX_HIP
#include <dirent.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <errno.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---------------- a disk that gets full: this stands before libc's */

static long disk_room = -1;               /* bytes until it is; -1: it has room */
ssize_t write(int fd, const void *p, size_t n) {
    struct stat file;
    if (disk_room >= 0 && fstat(fd, &file) == 0 && S_ISREG(file.st_mode)) {
        if (disk_room == 0) return errno = ENOSPC, -1;
        if ((long)n > disk_room) n = (size_t)disk_room;
        disk_room -= (long)n;
    }
    return (ssize_t)syscall(SYS_write, fd, p, n);
}

/* ---------------- the software GPU's counts and faults */

typedef struct soft { void (*fail)(const char *, int, int); long (*calls)(const char *); void (*reset)(void); long (*live)(const char *); } soft;
static soft driver, compiler;
static void *driver_library;
static bool is_soft, on_cuda;

static void *open_named(const char *variable) {
    const char *path = getenv(variable);
    return path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}
static bool find(void *library, const char *name, void *to) {
    void *p = library ? dlsym(library, name) : NULL;
    if (p) memcpy(to, &p, sizeof p);
    return p != NULL;
}
static bool find_all(void *library, soft *s) {
    return find(library, "softgpu_fail", &s->fail) && find(library, "softgpu_calls", &s->calls) &&
           find(library, "softgpu_reset_counts", &s->reset) && find(library, "softgpu_live", &s->live);
}
static void find_soft(void) {
    on_cuda = test_device.backend == FLUX__CUDA_BACKEND;
    driver_library = open_named(on_cuda ? "FLUX_CUDA_LIBRARY" : "FLUX_HIP_LIBRARY");
    is_soft = getenv("SOFTGPU") && find_all(driver_library, &driver) && find_all(open_named(on_cuda ? "FLUX_NVRTC" : "FLUX_HIPRTC"), &compiler);
}
static long calls(const char *cu, const char *hip) { return driver.calls(on_cuda ? cu : hip); }
static long live_objects(void) {
    return driver.live("memory") + driver.live("pinned") + driver.live("streams") + driver.live("events") + driver.live("modules") + driver.live("graphs") +
           compiler.live("programs");
}
static long synchronisations(void) {
    static const char *const names[] = { "cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuStreamQuery",
        "hipStreamSynchronize", "hipDeviceSynchronize", "hipEventSynchronize", "hipMemcpyHtoD", "hipMemcpyDtoH", "hipMemcpy" };
    long n = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) n += driver.calls(names[i]);
    return n;
}
static flux__gpu *the_gpu(void) { return &flux__gpus[test_device.backend - FLUX__CUDA_BACKEND][test_device.id]; }

#define ON_A_GPU() do { find_soft(); if (!test_device.backend) SKIP("needs a GPU, or tests/on_device.sh"); } while (0)
#define SOFT_ONLY() do { ON_A_GPU(); if (!is_soft) SKIP("faults and counts need the software GPU"); } while (0)

/* ---------------- a process of its own */

/* Runs `child NAME` with settings "NAME=value" ("NAME" alone: unset), up to NULL; gives how it ended. */
static int start_child(pid_t *pid, const char *name, va_list settings) {
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n < 0) return -1;
    path[n] = 0;
    fflush(stdout), fflush(stderr);
    *pid = fork();
    if (*pid == 0) {
        for (const char *s = va_arg(settings, const char *); s; s = va_arg(settings, const char *)) {
            char copy[5000];
            snprintf(copy, sizeof copy, "%s", s);
            char *value = strchr(copy, '=');
            if (value) *value++ = 0, setenv(copy, value, 1);
            else unsetenv(copy);
        }
        execl(path, path, "child", name, (char *)NULL);
        _exit(127);
    }
    return *pid < 0 ? -1 : 0;
}
static int end_child(pid_t pid) {
    int status = -1;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    return status;
}
static int child(const char *name, ...) {
    va_list settings;
    pid_t pid;
    va_start(settings, name);
    int status = start_child(&pid, name, settings);
    va_end(settings);
    return status == 0 ? end_child(pid) : status;
}
static pid_t child_beside(const char *name, ...) {
    va_list settings;
    pid_t pid = -1;
    va_start(settings, name);
    start_child(&pid, name, settings);
    va_end(settings);
    return pid;
}

/* ---------------- something to train */

static flux_tensor *there(flux_tensor *x) { return flux_eval(flux_to(test_device, x)); }
static flux_layer *small_model(void) { return flux_chain(flux_dense(6, 8, flux_relu), flux_dense(8, 3)); }

typedef struct training { flux_layer *model; flux_state *opt; flux_tensor *x, *y; } training;

static bool training_start(training *t, flux_device d) {
    flux_device cpu = { 0, 0 }, was = test_device;
    flux_seed(7);
    test_device = d;
    flux_default_device(cpu);             /* the same numbers wherever it goes */
    t->model = flux_to(d, small_model());
    t->x = there(flux_randn(6, 5));
    t->y = there(flux_softmax(flux_randn(3, 5)));
    t->opt = t->model ? flux_setup(flux_adam(0.05), t->model) : NULL;
    test_device = was;
    flux_default_device(was);
    return t->model && t->opt && t->x && t->y;
}
static int training_step(training *t) {
    int rc = -1;
    FLUX_SCOPE {
        flux_tensor *loss = flux_logitcrossentropy(flux_call(t->model, t->x), t->y);
        flux_grads *g = flux_gradient(loss, t->model);
        rc = g ? flux_update(t->opt, t->model, g) : -1;
    }
    return rc;
}

enum { WEIGHTS = 6 * 8 + 8 + 8 * 3 + 3 };
static bool weights(flux_layer *m, float *out) {
    flux_tensor *p[8];
    int n = flux_params(m, p, 8);
    size_t at = 0;
    bool ok = n == 4;
    for (int i = 0; i < n && ok; i++) {
        size_t bytes = (size_t)flux_len(p[i]) * 4;
        flux_tensor *copy = flux_copy(p[i]);
        ok = flux_read(copy, out + at, bytes) == 0;
        at += bytes / 4;
    }
    return ok && at == WEIGHTS;
}
static bool near(const float *a, const float *b, int n, double tol) {
    for (int i = 0; i < n; i++)
        if (!(fabs((double)a[i] - (double)b[i]) <= tol)) return false;
    return true;
}
enum { STEPS = 5 };                       /* launched one by one, then as a graph that is made, then as it is */
static bool steps(training *t) {
    bool ok = true;
    for (int i = 0; i < STEPS && ok; i++) ok = training_step(t) == 0;
    return ok;
}
static const float *expected_weights(void) {   /* after so many steps on the CPU */
    static float w[WEIGHTS];
    static bool known;
    flux_device cpu = { 0, 0 };
    training t;
    if (known) return w;
    FLUX_SCOPE {
        known = training_start(&t, cpu) && steps(&t) && weights(t.model, w);
    }
    CHECK(known);
    return w;
}
static bool trains(void) {                /* as many steps here give the CPU's numbers */
    training t;
    float w[WEIGHTS] = { 0 };
    bool ok = false;
    FLUX_SCOPE {
        ok = training_start(&t, test_device) && steps(&t) && weights(t.model, w);
    }
    return ok && near(w, expected_weights(), WEIGHTS, 1e-4);
}

/* ---------------- what a step costs */

/* Whatever the default device is, a model trains where it lies. */
TEST(training_is_where_the_model_is) {
    flux_device cpu = { 0, 0 }, d[2];
    ON_A_GPU();
    d[0] = cpu, d[1] = test_device;
    for (int i = 0; i < 4; i++) {
        training t;
        float w[WEIGHTS];
        FLUX_SCOPE {
            REQUIRE(training_start(&t, d[i % 2]));
            flux_default_device(d[i / 2]);
            CHECK(steps(&t) && weights(t.model, w) && near(w, expected_weights(), WEIGHTS, 1e-4));
        }
    }
    flux_default_device(test_device);
}

TEST(a_step_allocates_nothing_and_waits_for_nothing) {
    training t;
    ON_A_GPU();
    REQUIRE(training_start(&t, test_device));
    flux__gpu_counters before, after;
    int64_t launches = 0;
    void *at[4] = { NULL, NULL, NULL, NULL };
    flux_tensor *p[4];
    for (int step = 0; step < 6; step++) {
        if (is_soft) driver.reset();
        before = the_gpu()->counters;
        REQUIRE(training_step(&t) == 0);
        after = the_gpu()->counters;
        if (step < 2) {
            launches = after.launches - before.launches;
            REQUIRE(flux_params(t.model, p, 4) == 4);
            for (int i = 0; i < 4; i++) at[i] = flux__base(p[i])->buf->ptr;
            continue;
        }
        CHECK(after.launches - before.launches == launches && launches > 4);
        CHECK(after.graph_launches - before.graph_launches == 1 && after.graphs - before.graphs <= (step == 2));
        if (step > 2) CHECK(after.graph_updates - before.graph_updates == 4);          /* the step count, for each parameter; no address */
        CHECK(after.waits == before.waits);
        CHECK(after.allocations == before.allocations && after.uploads == before.uploads && after.downloads == before.downloads);
        CHECK(after.programs_compiled == before.programs_compiled && after.programs_read == before.programs_read);
        REQUIRE(flux_params(t.model, p, 4) == 4);
        for (int i = 0; i < 4; i++) CHECK(flux__base(p[i])->buf->ptr == at[i]);   /* in place */
        if (!is_soft) continue;
        CHECK(calls("cuMemAlloc_v2", "hipMalloc") == 0 && calls("cuMemHostAlloc", "hipHostMalloc") == 0 && calls("cuMemFree_v2", "hipFree") == 0);
        CHECK(calls("cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync") == 0 && calls("cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync") == 0);
        CHECK(calls("cuMemcpyDtoDAsync_v2", "hipMemcpyDtoDAsync") == 0 && calls("cuMemcpyPeerAsync", "hipMemcpyPeerAsync") == 0);
        CHECK(calls("cuGraphLaunch", "hipGraphLaunch") == 1 && calls("cuLaunchKernel", "hipModuleLaunchKernel") == 0 && synchronisations() == 0);
    }
    CHECK(trains());
}

/* ---------------- faults */

static bool half_done;                    /* an update was stopped midway, and has said so: its numbers are lost */

/* A fault that came up is an error which names what was done and the device; a second try then succeeds. */
static bool told(void) {
    half_done = strstr(flux_error(), "the update was half done") != NULL;
    char name[40];
    snprintf(name, sizeof name, "%s device %d", flux_device_backend(test_device), test_device.id);
    bool good = flux_failed() && strstr(flux_error(), name) != NULL;
    if (!good) fprintf(stderr, "    the error: \"%s\"\n", flux_error());
    flux_clear();
    return good;
}

/* Opening, some steps, moves, a file. Each part may fail once, which must leave all as it was. Gives the failures. */
static int life(void) {
    const char *file = getenv("FLUX_TEST_FILE");
    training t = { NULL, NULL, NULL, NULL };
    float now[WEIGHTS], then[WEIGHTS];
    int failed = 0;
    flux_scope_open();
    if (!training_start(&t, test_device)) {
        failed++;
        CHECK(told());
        if (!CHECK(training_start(&t, test_device))) goto out;
    }
    for (int step = 0; step < STEPS; step++) {
        if (!weights(t.model, then)) {
            failed++;
            CHECK(told() && weights(t.model, then));
        }
        if (training_step(&t) == 0) continue;
        failed++;
        CHECK(told());
        if (half_done) goto out;
        CHECK(weights(t.model, now) && !memcmp(now, then, sizeof now));
        if (!CHECK(training_step(&t) == 0)) goto out;
    }
    flux_layer *host = flux_cpu(t.model);
    if (!host || !weights(host, now)) {
        failed++;
        CHECK(told());
        host = flux_cpu(t.model);
        if (!CHECK(host && weights(host, now))) goto out;
    }
    CHECK(near(now, expected_weights(), WEIGHTS, 1e-4));
    if (flux_save(t.model, file) != 0) {
        failed++;
        CHECK(told());
        CHECK(access(file, F_OK) != 0);   /* whole or not at all */
        CHECK(flux_save(t.model, file) == 0);
    }
    flux_layer *again = flux_to(test_device, small_model());
    if (!again || flux_load(again, file) != 0 || !weights(again, then)) {
        failed++;
        CHECK(told());
        again = flux_to(test_device, small_model());
        CHECK(again && flux_load(again, file) == 0 && weights(again, then));
    }
    CHECK(!memcmp(now, then, sizeof now));
out:
    remove(file);
    flux_scope_close();
    if (flux_failed()) fprintf(stderr, "    %s\n", flux_error());
    CHECK(!flux_failed());
    flux_clear();
    return failed;
}

/* From one device to another and back. */
static int trips(void) {
    flux_device d[2];
    int failed = 0;
    flux_get_devices(flux_device_backend(test_device), d, 2);
    flux_scope_open();
    float want[600], got[600];
    for (int i = 0; i < 600; i++) want[i] = (float)i;
    for (int tries = 0; tries < 3; tries++)
        FLUX_SCOPE {
            flux_tensor *x = there(flux_from(want, 600)), *y = flux_eval(flux_to(d[1], flux_add(x, 1.0))), *z = flux_eval(flux_to(d[0], flux_sub(y, 1.0)));
            if (z && flux_read(z, got, sizeof got) == 0) {
                CHECK(!memcmp(want, got, sizeof got));
                flux_synchronise_device(d[0]);
            }
            if (!flux_failed()) tries = 3;
            else {
                failed++;
                CHECK(strstr(flux_error(), "device 0") || strstr(flux_error(), "device 1"));
                flux_clear();
                CHECK(tries < 2);
            }
        }
    flux_mem_trim(d[1]);
    flux_scope_close();
    return failed;
}

/* Each use of one function of the driver or compiler fails, so many times in a row. */
static void fault_each(int (*what)(void), const soft *library, const char *name, int code, int times, bool frees) {
    library->reset();
    what();
    flux_shutdown();
    long n = library->calls(name);
    int seen = 0;
    for (long i = 1; i <= n && test_bad < 5; i += 1 + i / 6) {
        int bad = test_bad;
        long memory = driver.live("memory"), objects = live_objects();     /* of faults in giving back */
        library->reset();
        for (int j = 0; j < times; j++) library->fail(name, (int)i + j, code);
        int failures = what();
        seen += failures;
        flux_mem_trim(test_device);
        if (!frees) CHECK(driver.live("memory") <= memory + (what == trips ? 2 : 1));      /* the devices' own */
        flux_shutdown();
        if (!frees) CHECK(live_objects() == objects);
        library->reset();
        if (test_bad > bad) fprintf(stderr, "    with %s failing at its use number %ld of %ld (%d failures)\n", name, i, n, failures);
    }
    CHECK(times < 2 || seen > 0 || n == 0);
    if (getenv("GPU_FAULTS")) fprintf(stderr, "%s: %ld uses, %d told\n", name, n, seen);
}

static void driver_faults(int (*what)(void)) {
    /* without these a driver can't be given back anything */
    static const char *const quiet[] = { "Free", "Destroy", "Unload", "Push", "Pop", "Release", "hipGetDevice", "hipSetDevice" };
    size_t n = on_cuda ? sizeof flux__cu_names / sizeof *flux__cu_names : sizeof flux__roc_names / sizeof *flux__roc_names;
    flux_on_error(test_silent, NULL);
    for (size_t i = 0; i < n && test_bad < 5; i++) {
        const char *name = on_cuda ? flux__cu_names[i].name : flux__roc_names[i].name;
        bool frees = false, room = strstr(name, "MemAlloc") || strcmp(name, "hipMalloc") == 0, launch = strstr(name, "Launch") && !strstr(name, "Graph");
        for (size_t j = 0; j < sizeof quiet / sizeof *quiet; j++) frees = frees || strstr(name, quiet[j]) != NULL;
        if (strstr(name, "GetErrorString")) continue;
        fault_each(what, &driver, name, room ? 2 : 1, 1, frees);
        if (room || launch) fault_each(what, &driver, name, room ? 2 : 1, 2, frees);
    }
}
static void faults(void) { driver_faults(life); }
static void trip_faults(void) { driver_faults(trips); }
static void compiler_faults(void) {
    size_t n = on_cuda ? sizeof flux__nvrtc_names / sizeof *flux__nvrtc_names : sizeof flux__hiprtc_names / sizeof *flux__hiprtc_names;
    flux_on_error(test_silent, NULL);
    for (size_t i = 0; i < n && test_bad < 5; i++) {
        const char *name = on_cuda ? flux__nvrtc_names[i].name : flux__hiprtc_names[i].name;
        if (strstr(name, "GetErrorString") || strstr(name, "Destroy")) continue;       /* the library's own leak, if it fails */
        fault_each(life, &compiler, name, 1, 1, false);
    }
    fault_each(life, &driver, on_cuda ? "cuModuleLoadData" : "hipModuleLoadData", 200, 1, false);
}
static bool run_with_file(const char *name, const char *cache) {
    char file[600], set[640];
    snprintf(file, sizeof file, "%s/flux-gpu-%d.safetensors", test_temp(), (int)getpid());
    snprintf(set, sizeof set, "FLUX_TEST_FILE=%s", file);
    int status = child(name, set, cache, "SOFTGPU_QUIET=1", NULL);
    remove(file);
    return status == 0;
}
TEST(each_driver_call_may_fail) {
    SOFT_ONLY();
    CHECK(run_with_file("faults", "A=1"));
}
TEST(each_driver_call_between_devices_may_fail) {
    flux_device d[2];
    SOFT_ONLY();
    if (flux_get_devices(flux_device_backend(test_device), d, 2) < 2) SKIP("needs two devices");
    CHECK(run_with_file("trip_faults", "A=1"));
}
TEST(each_compiler_call_may_fail) {       /* no cache: every program is compiled */
    SOFT_ONLY();
    CHECK(run_with_file("compiler_faults", "FLUX_CACHE_DIR=/dev/null/none"));
}

/* A launch that fails twice in the midst of an update cannot be undone, and says so. */
static void half_way(void) {
    training t;
    const char *launch = on_cuda ? "cuLaunchKernel" : "hipModuleLaunchKernel";
    float before[WEIGHTS], after[WEIGHTS];
    REQUIRE(training_start(&t, test_device) && training_step(&t) == 0 && training_step(&t) == 0);
    driver.reset();
    REQUIRE(training_step(&t) == 0);
    long n = driver.calls(launch);
    int half = 0;
    for (int i = 1; i <= n; i++) {
        REQUIRE(weights(t.model, before));
        driver.reset();
        driver.fail(launch, i, 1);
        driver.fail(launch, i + 1, 1);
        flux_on_error(test_silent, NULL);
        CHECK(training_step(&t) != 0);
        bool says = strstr(flux_error(), "half done") != NULL;
        CHECK(strstr(flux_error(), "launching a kernel") != NULL);
        flux_clear();
        flux_on_error(NULL, NULL);
        driver.reset();
        REQUIRE(weights(t.model, after));
        if (!says) CHECK(!memcmp(before, after, sizeof before));
        half += says;
        CHECK(training_step(&t) == 0);
    }
    CHECK(n > 2 && half < n);
}
TEST(an_update_that_fails_half_way) {
    SOFT_ONLY();
    CHECK(child("half_way", "FLUX_REPLAY=0", NULL) == 0);
}

/* ---------------- launches of a plan found again are one graph */

static flux_layer *varied_model(void) {
    return flux_chain(flux_dense(5, 11, flux_relu), flux_dropout(0.4), flux_batchnorm(11), flux_dense(11, 9, flux_tanh), flux_dense(9, 4));
}
enum { VARIED = 2000, VARIED_STEPS = 24 };
typedef struct varied { float w[VARIED]; int64_t count, graphs, launches; } varied;

/* Trains with all that may differ from step to step: the learning rate, random numbers, the batch's size, what is kept. */
static bool vary(varied *v, flux_device d, bool replay) {
    flux__gpu *g = &flux__gpus[d.backend - FLUX__CUDA_BACKEND][d.id];
    flux_tensor *p[16], *kept[VARIED_STEPS];
    bool ok = true;
    memset(v, 0, sizeof *v);
    g->replaying = replay;
    flux__gpu_counters before = g->counters;
    flux_scope_open();
    flux_seed(11);
    flux_layer *m = flux_to(d, varied_model());
    flux_state *opt = m ? flux_setup(flux_adam(0.05), m) : NULL;
    flux_tensor *x = flux_eval(flux_to(d, flux_randn(5, 12))), *y = flux_eval(flux_to(d, flux_softmax(flux_randn(4, 12))));
    int nkept = 0;
    for (int step = 0; step < VARIED_STEPS && ok && opt; step++) {
        int64_t n = step % 7 == 5 ? 7 : 12;
        flux_scope_open();
        flux_tensor *loss = flux_logitcrossentropy(flux_call(m, flux_slice(x, 1, 0, n)), flux_slice(y, 1, 0, n));
        if (step % 6 == 4) flux_adjust(opt, 0.05 / (step + 1));
        flux_grads *grads = flux_gradient(loss, m);
        ok = grads && flux_update(opt, m, grads) == 0;
        if (step > 10) kept[nkept++] = (flux_tensor *)flux_retain(loss);       /* what is kept grows, and with it addresses move */
        if (step % 5 == 3) ok = ok && isfinite(flux_item(loss));
        flux_scope_close();
    }
    int n = opt ? flux_params(m, p, 16) : 0;
    for (int i = 0; i < n && ok; i++) {
        size_t bytes = (size_t)flux_len(p[i]) * 4;
        ok = flux_read(flux_copy(p[i]), v->w + v->count, bytes) == 0;
        v->count += (int64_t)bytes / 4;
    }
    for (int i = 0; i < nkept && ok; i++) v->w[v->count++] = (float)flux_item(kept[i]);
    for (int i = 0; i < nkept; i++) flux_release(kept[i]);
    flux_scope_close();
    v->graphs = g->counters.graph_launches - before.graph_launches;
    v->launches = g->counters.launches - before.launches;
    g->replaying = true;
    return ok && n == 8 && nkept == VARIED_STEPS - 11;
}
static bool same_numbers(const varied *a, const varied *b) { return a->count == b->count && !memcmp(a->w, b->w, (size_t)a->count * sizeof(float)); }

TEST(a_replay_gives_the_same_bits) {
    static varied one_by_one, replayed;
    ON_A_GPU();
    flux_device d[8];
    int n = flux_get_devices(flux_device_backend(test_device), d, 8);
    for (int i = 0; i < n; i++) {
        flux_default_device(d[i]);
        CHECK(flux_eval(flux_ones(1)) != NULL);    /* open */
        REQUIRE(vary(&one_by_one, d[i], false) && vary(&replayed, d[i], true));
        CHECK(one_by_one.graphs == 0 && replayed.graphs > VARIED_STEPS / 2 && one_by_one.launches == replayed.launches);
        CHECK(same_numbers(&one_by_one, &replayed));
    }
    flux_default_device(test_device);
}

/* After very many changes a graph is made anew. */
TEST(a_replay_is_renewed) {
    static varied a, b;
    ON_A_GPU();
    REQUIRE(vary(&a, test_device, true));
    for (flux__graph_exec *p = the_gpu()->execs; p; p = p->next) p->told = FLUX__GRAPH_EXEC_MOST - 5;
    int64_t made = the_gpu()->counters.graphs;
    REQUIRE(vary(&b, test_device, true));
    CHECK(the_gpu()->counters.graphs > made && same_numbers(&a, &b));
}

/* Each use of each call about graphs fails once: nobody notices but the counters. */
static void graph_faults(void) {
    static const char *const names[][2] = {
        { "cuGraphCreate", "hipGraphCreate" }, { "cuGraphAddKernelNode_v2", "hipGraphAddKernelNode" },
        { "cuGraphInstantiateWithFlags", "hipGraphInstantiateWithFlags" }, { "cuGraphExecKernelNodeSetParams_v2", "hipGraphExecKernelNodeSetParams" },
        { "cuGraphLaunch", "hipGraphLaunch" }, { "cuGraphExecDestroy", "hipGraphExecDestroy" }, { "cuGraphDestroy", "hipGraphDestroy" } };
    static varied want, got;
    CHECK(flux_eval(flux_ones(1)) != NULL);
    REQUIRE(vary(&want, test_device, false));
    for (int i = 0; i < 7; i++) {
        const char *name = names[i][!on_cuda];
        flux__plans_free(flux__self()->plans);     /* what a fault has ruled out is tried again */
        flux__self()->plans = NULL;
        driver.reset();
        REQUIRE(vary(&got, test_device, true));
        long uses = driver.calls(name);
        CHECK(uses > 0 || strstr(name, "Destroy"));
        for (long use = 1; use <= uses || use == 1; use += 1 + use / 3) {
            flux__plans_free(flux__self()->plans);
            flux__self()->plans = NULL;
            driver.reset();
            driver.fail(name, (int)use, i == 4 ? 2 : 1);
            if (!CHECK(vary(&got, test_device, true) && same_numbers(&want, &got))) fprintf(stderr, "    with %s failing at its use number %ld\n", name, use);
            if (i < 2) CHECK(driver.live("graphs") <= 2 * 2);        /* nothing is left of a graph that was given up */
        }
        driver.reset();
    }
    driver.fail(on_cuda ? "cuGraphLaunch" : "hipGraphLaunch", 1, 700);
    flux_on_error(test_silent, NULL);
    CHECK(!vary(&got, test_device, true) && strstr(flux_error(), "the device is lost") != NULL);
    flux_on_error(NULL, NULL);
    flux_clear();
}
TEST(each_call_about_graphs_may_fail) {
    SOFT_ONLY();
    CHECK(child("graph_faults", "SOFTGPU_QUIET=1", NULL) == 0);
}

/* A driver without these calls, a trace, and the user's word: kernels are launched one by one. */
static void no_replay(void) {
    static varied v;
    char why[320];
    REQUIRE(flux__driver_of(test_device.backend)->open(why, sizeof why));
    if (getenv("OLD")) flux__cu_graphs = flux__roc_graphs = false;
    CHECK(flux_eval(flux_ones(1)) != NULL);
    training t;
    REQUIRE(training_start(&t, test_device) && steps(&t));
    CHECK(the_gpu()->counters.graph_launches == 0 && the_gpu()->counters.launches > 10);
    if (getenv("FLUX_TRACE")) {
        CHECK(vary(&v, test_device, true) && v.graphs == 0);
        flux_shutdown();
        FILE *f = fopen(getenv("FLUX_TRACE"), "r");
        char line[1000];
        int products = 0;
        while (f && fgets(line, sizeof line, f)) products += strstr(line, "\"kernel\"") && strstr(line, "product ");
        if (f) fclose(f);
        CHECK(products >= STEPS * 4 + VARIED_STEPS * 6);
        flux_scope_open();
    }
}
TEST(without_replay) {
    SOFT_ONLY();
    char set[700], file[640];
    snprintf(file, sizeof file, "%s/flux-gpu-trace-%d.json", test_temp(), (int)getpid());
    snprintf(set, sizeof set, "FLUX_TRACE=%s", file);
    CHECK(child("no_replay", "OLD=1", NULL) == 0);
    CHECK(child("no_replay", "FLUX_REPLAY=0", NULL) == 0);
    CHECK(child("no_replay", set, NULL) == 0);
    remove(file);
}

/* ---------------- messages that a program hears */

static int notes;
static char note[1100];
static void hear(flux_level level, const char *id, const char *text, void *user) {
    (void)level, (void)id, (void)user;
    notes++;
    snprintf(note, sizeof note, "%s", text);
}
static flux_tensor *kept_by_handler;
static char handled[400];
static void curious(const char *text, void *user) {        /* a handler that uses the library */
    (void)user;
    snprintf(handled, sizeof handled, "%s", text);
    flux_mem_stats(test_device);
    flux_device_name(test_device);
    flux_functional(flux_device_backend(test_device));
    FLUX_SCOPE { flux_read(flux_copy(kept_by_handler), (float[4]){ 0 }, 16); }
}
TEST(an_error_handler_may_use_the_device) {
    SOFT_ONLY();
    kept_by_handler = there(flux_ones(4));
    flux_on_error(curious, NULL);
    for (int i = 0; i < 2; i++) {
        handled[0] = 0;
        flux_mem_trim(test_device);
        driver.reset();
        driver.fail(on_cuda ? "cuMemAlloc_v2" : "hipMalloc", 1, i ? 2 : 1);
        driver.fail(on_cuda ? "cuMemAlloc_v2" : "hipMalloc", 2, i ? 2 : 1);
        CHECK(there(flux_ones(99, 1 + i)) == NULL && *handled);
        driver.reset();
        flux_clear();
    }
    flux_on_error(NULL, NULL);
}

/* ---------------- no GPU, in all ways */

/* With $WANT in the reason: nothing works but the CPU, which does. */
static void none(void) {
    const char *backend = getenv("BACKEND"), *want = getenv("WANT");
    flux_on_log(hear, NULL);
    CHECK(!flux_functional(backend) && flux_device_count(backend) == 0);
    const char *why = flux_functional_reason(backend);
    if (!CHECK(strstr(why, want) != NULL)) fprintf(stderr, "    the reason: \"%s\"\n", why);
    CHECK(!flux_functional_with(backend, "all") && !flux_failed());
    flux_tensor *x = flux_ones(3);
    flux_layer *m = small_model();
    CHECK(flux_gpu(x) == x && flux_gpu(m) == m && flux_gpu(x) == x);
    CHECK(notes == 1 && strstr(note, want) != NULL);
    flux_device d = flux_get_device();
    CHECK(d.backend == FLUX__CPU_BACKEND && flux_get_devices(backend, &d, 1) == 0);
    CHECK_ERROR(flux_get_device(.backend = backend), want);
    CHECK(trains());
    flux_on_log(NULL, NULL);
}
/* As many devices as $WANT says. */
static void some(void) {
    const char *backend = getenv("BACKEND");
    CHECK(flux_functional(backend) && flux_device_count(backend) == atoi(getenv("WANT")));
    CHECK(flux_device_of(flux_gpu(flux_ones(3))).backend == (strcmp(backend, "CUDA") ? FLUX__AMDGPU_BACKEND : FLUX__CUDA_BACKEND));
    CHECK(!flux_failed());
}
static char backend_is[40], other_is[60];
static void name_backends(void) {
    snprintf(backend_is, sizeof backend_is, "BACKEND=%s", flux_device_backend(test_device));
    snprintf(other_is, sizeof other_is, "%s=/nonexistent/lib.so", on_cuda ? "FLUX_HIP_LIBRARY" : "FLUX_CUDA_LIBRARY");
}
#define NONE(want, ...) CHECK(child("none", backend_is, other_is, "FLUX_TEST_DEVICE", "SOFTGPU_QUIET=1", "WANT=" want, __VA_ARGS__, NULL) == 0)
#define SOME(want, ...) CHECK(child("some", backend_is, other_is, "FLUX_TEST_DEVICE", "WANT=" want, __VA_ARGS__, NULL) == 0)

TEST(without_a_gpu_the_reason_is_told) {
    char set[5000];
    SOFT_ONLY();
    name_backends();
    const char *soft = getenv("SOFTGPU");
    char nothing_kept[600];
    snprintf(nothing_kept, sizeof nothing_kept, "FLUX_CACHE_DIR=%s/flux-gpu-empty", test_temp());
    if (on_cuda) {
        NONE("no NVIDIA driver: FLUX_CUDA_LIBRARY: /nonexistent/libcuda.so.1", "FLUX_CUDA_LIBRARY=/nonexistent/libcuda.so.1");
        NONE("no NVIDIA driver: FLUX_CUDA_LIBRARY: ./tests/test.h", "FLUX_CUDA_LIBRARY=./tests/test.h");
        NONE("no NVRTC: FLUX_NVRTC: ./tests", "FLUX_NVRTC=./tests", nothing_kept);
        snprintf(set, sizeof set, "FLUX_CUDA_LIBRARY=%s/libnvrtc.so.13", soft);
        NONE("the NVIDIA driver is too old: it has no cuInit", set);
        NONE("did not start", "SOFTGPU_FAIL=cuInit:1=999,cuInit:2=999");
        NONE("no device", "SOFTGPU_FAIL=cuDeviceGetCount:1=1,cuDeviceGetCount:2=1");
        NONE("device 0", "SOFTGPU_FAIL=cuDeviceGetName:1=1,cuDeviceGetName:2=1");
        NONE("no NVRTC: FLUX_NVRTC: /nonexistent/libnvrtc.so", "FLUX_NVRTC=/nonexistent/libnvrtc.so", nothing_kept);
        snprintf(set, sizeof set, "FLUX_NVRTC=%s/libcuda.so.1", soft);
        NONE("NVRTC is too old: it has no nvrtcVersion", set, nothing_kept);
        NONE("CUDA_VISIBLE_DEVICES is \"-1\"", "CUDA_VISIBLE_DEVICES=-1");
        NONE("CUDA_VISIBLE_DEVICES is \"\"", "CUDA_VISIBLE_DEVICES=");
        NONE("CUDA_VISIBLE_DEVICES is \"junk\"", "CUDA_VISIBLE_DEVICES=junk");
    } else {
        NONE("no HIP runtime: FLUX_HIP_LIBRARY: /nonexistent/libamdhip64.so", "FLUX_HIP_LIBRARY=/nonexistent/libamdhip64.so");
        NONE("no HIP runtime: FLUX_HIP_LIBRARY: ./tests", "FLUX_HIP_LIBRARY=./tests");
        snprintf(set, sizeof set, "FLUX_HIP_LIBRARY=%s/libhiprtc.so.6", soft);
        NONE("the HIP runtime is too old: it has no hipInit", set);
        NONE("did not start", "SOFTGPU_FAIL=hipInit:1=999,hipInit:2=999");
        NONE("no device", "SOFTGPU_FAIL=hipGetDeviceCount:1=1,hipGetDeviceCount:2=1");
        NONE("no hiprtc: FLUX_HIPRTC: /nonexistent/libhiprtc.so", "FLUX_HIPRTC=/nonexistent/libhiprtc.so", nothing_kept);
        NONE("no hiprtc: FLUX_HIPRTC: ./tests/test.h", "FLUX_HIPRTC=./tests/test.h", nothing_kept);
        NONE("HIP_VISIBLE_DEVICES is \"-1\"", "HIP_VISIBLE_DEVICES=-1");
        NONE("HIP_VISIBLE_DEVICES is \"\"", "HIP_VISIBLE_DEVICES=");
        NONE("HIP_VISIBLE_DEVICES is \"junk\"", "HIP_VISIBLE_DEVICES=junk");
    }
    NONE("SOFTGPU_DEVICES", "SOFTGPU_DEVICES=0", "WANT=did not start");
    rmdir(strchr(nothing_kept, '=') + 1);
}

TEST(visible_devices) {
    SOFT_ONLY();
    name_backends();
    const char *all = on_cuda ? "CUDA_VISIBLE_DEVICES=0,1" : "HIP_VISIBLE_DEVICES=0,1", *last = on_cuda ? "CUDA_VISIBLE_DEVICES=2,0" : "HIP_VISIBLE_DEVICES=2,0",
               *bad = on_cuda ? "CUDA_VISIBLE_DEVICES=1,9,0" : "HIP_VISIBLE_DEVICES=1,9,0";
    SOME("2", all, "SOFTGPU_DEVICES=3");
    SOME("2", last, "SOFTGPU_DEVICES=3");
    SOME("1", bad, "SOFTGPU_DEVICES=3");
    SOME("1", all, "SOFTGPU_DEVICES=1");
}

static void another(void) {               /* a preference for what is not here: a warning, and the GPU that is */
    const char *backend = getenv("BACKEND");
    flux_on_log(hear, NULL);
    flux_device d = flux_device_of(flux_gpu(flux_ones(3)));
    CHECK(notes == 1 && strstr(note, getenv("FLUX_GPU_BACKEND")) && strcmp(flux_device_backend(d), backend) == 0);
    flux_on_log(NULL, NULL);
}
static void cpu_preferred(void) {
    flux_on_log(hear, NULL);
    flux_tensor *x = flux_ones(3);
    CHECK(flux_gpu(x) == x && notes == 0);
    flux_on_log(NULL, NULL);
}
TEST(preferences) {
    SOFT_ONLY();
    name_backends();
    CHECK(child("another", backend_is, other_is, "FLUX_TEST_DEVICE", on_cuda ? "FLUX_GPU_BACKEND=AMDGPU" : "FLUX_GPU_BACKEND=CUDA", NULL) == 0);
    CHECK(child("another", backend_is, other_is, "FLUX_TEST_DEVICE", "FLUX_GPU_BACKEND=Metal", NULL) == 0);
    CHECK(child("cpu_preferred", "FLUX_TEST_DEVICE", "FLUX_GPU_BACKEND=CPU", NULL) == 0);
}

/* ---------------- a device that is lost */

static void lost(void) {
    flux_layer *m = flux_to(test_device, small_model());
    flux_device cpu = { 0, 0 };
    flux_tensor *here, *x = there(flux_ones(64)), *y;
    flux_default_device(cpu);
    here = flux_eval(flux_ones(3));
    flux_default_device(test_device);
    FLUX_SCOPE {                          /* its memory given back behind its back: the kernel meets an illegal address */
        void *bad = flux__base(x)->buf->ptr, *before;
        flux_synchronise_device(test_device);
        flux__gpu *g = flux__gpu_enter(test_device.backend, test_device.id, &before);
        g->driver->release(bad);
        flux__gpu_leave(g, before);
        y = flux_add(x, 1.0);
        CHECK_ERROR((flux_eval(y), flux_synchronise_device(test_device)), "the device is lost to this process");
        CHECK_ERROR(y = flux_data(y) ? y : NULL, "was lost");
        CHECK(y == NULL);
        CHECK_ERROR(flux_eval(flux_mul(x, 2.0)), "was lost");
        CHECK_ERROR(flux_eval(flux_to(test_device, here)), "was lost");
        CHECK_ERROR(flux_item(flux_sum(flux_call(m, flux_to(test_device, flux_ones(6, 2))))), "was lost");
        CHECK_ERROR(flux_synchronise_device(test_device), "was lost");
        CHECK_ERROR(flux_save(m, getenv("FLUX_TEST_FILE")), "was lost");
        CHECK(access(getenv("FLUX_TEST_FILE"), F_OK) != 0);
    }
    flux_default_device(cpu);
    CHECK_NEAR(flux_item(flux_sum(flux_add(here, 1.0))), 6, 0);
    flux_mem_trim(test_device);
    CHECK(!flux_failed());
    test_device = cpu;
    CHECK(trains());
}
TEST(a_lost_device_is_told_and_left_alone) {
    SOFT_ONLY();
    CHECK(run_with_file("lost", "A=1"));
}
static void lost_by_code(void) {          /* codes of a sticky error, as a later call meets it */
    training t;
    REQUIRE(training_start(&t, test_device) && training_step(&t) == 0);
    flux_on_error(test_silent, NULL);
    driver.fail(on_cuda ? "cuLaunchKernel" : "hipModuleLaunchKernel", 1, atoi(getenv("CODE")));
    CHECK(training_step(&t) != 0 && strstr(flux_error(), "the device is lost") != NULL);
    flux_clear();
    CHECK(training_step(&t) != 0 && strstr(flux_error(), "was lost") != NULL);
    flux_clear();
    flux_on_error(NULL, NULL);
}
TEST(a_launch_that_loses_the_device) {
    SOFT_ONLY();
    static const int codes[] = { 700, 719, 709, 4, 226, 721 };         /* the last two are CUDA's alone */
    for (int i = 0; i < (on_cuda ? 6 : 4); i++) {
        char set[20];
        snprintf(set, sizeof set, "CODE=%d", codes[i]);
        CHECK(child("lost_by_code", "SOFTGPU_QUIET=1", set, NULL) == 0);
    }
}

/* ---------------- several devices */

static int device_list(flux_device *out) { return flux_get_devices(flux_device_backend(test_device), out, 8); }
static bool same_model(flux_layer *a, flux_layer *b) {
    float wa[WEIGHTS], wb[WEIGHTS];
    return weights(a, wa) && weights(b, wb) && !memcmp(wa, wb, sizeof wa);
}

/* A child of a process that uses a device may not, and is told so; the CPU is its own, it ends well, and the parent goes on. */
static void forked(void) {
    flux_tensor *here, *x = there(flux_ones(64));
    flux_device cpu = { 0, 0 };
    training t;
    REQUIRE(x && training_start(&t, test_device) && steps(&t));
    driver.reset();
    pid_t pid = fork();
    if (pid == 0) {
        CHECK_ERROR(flux_item(flux_sum(x)), "forked after the device had been opened");
        CHECK_ERROR(training_step(&t), "forked after the device had been opened");
        flux_default_device(cpu);
        here = flux_rand(300, 300);
        CHECK(flux_item(flux_sum(flux_matmul(here, here))) > 0);
        flux_shutdown();
        CHECK(calls("cuCtxPushCurrent_v2", "hipGetDevice") == 0 && calls("cuDevicePrimaryCtxRelease_v2", "hipStreamDestroy") == 0);
        exit(test_bad != 0);
    }
    CHECK(end_child(pid) == 0);
    CHECK(flux_item(flux_sum(x)) == 64 && steps(&t));
}
TEST(a_forked_process_leaves_the_device_alone) {
    SOFT_ONLY();
    CHECK(child("forked", "A=1", NULL) == 0);
}

TEST(a_model_goes_from_device_to_device) {
    flux_device d[8], cpu = { 0, 0 };
    ON_A_GPU();
    if (device_list(d) < 2) SKIP("needs two devices");
    flux_layer *m = flux_to(cpu, small_model()), *on0 = flux_to(d[0], m), *on1 = flux_to(d[1], on0), *back = flux_cpu(on1);
    REQUIRE(on0 && on1 && back);
    CHECK(flux_device_equal(flux_device_of(on0), d[0]) && flux_device_equal(flux_device_of(on1), d[1]) && flux_device_of(back).backend == 0);
    CHECK(same_model(m, on0) && same_model(m, on1) && same_model(m, back) && same_model(m, flux_to(d[0], on1)));
    flux_tensor *x = flux_randn(6, 4), *y0 = flux_call(on0, flux_to(d[0], x)), *y1 = flux_call(on1, flux_to(d[1], x));
    REQUIRE(flux_eval(y0) && flux_eval(y1));
    CHECK(flux_device_equal(flux_device_of(y0), d[0]) && flux_device_equal(flux_device_of(y1), d[1]));
    float a[12], b[12];
    CHECK(flux_read(y0, a, sizeof a) == 0 && flux_read(y1, b, sizeof b) == 0 && !memcmp(a, b, sizeof a));
    char name0[112], name1[112];
    snprintf(name0, sizeof name0, "%s", flux_device_name(d[0]));
    snprintf(name1, sizeof name1, "%s", flux_device_name(d[1]));
    CHECK_ERROR(flux_add(y0, y1), name0);
    CHECK_ERROR(flux_add(y0, y1), name1);
    CHECK_ERROR(flux_call(on0, flux_to(d[1], x)), name1);
    flux_tensor *big = flux_to(d[0], flux_randn(300, 1000)), *there1 = flux_to(d[1], big);
    REQUIRE(flux_eval(there1));
    CHECK(!memcmp(flux_data(big), flux_data(there1), 1200000));
}

/* Many copies there and back, with work in between: order is kept by events alone. */
TEST(work_waits_for_the_other_device) {
    flux_device d[8];
    ON_A_GPU();
    if (device_list(d) < 2) SKIP("needs two devices");
    flux_tensor *x = flux_to(d[0], flux_zeros(5000));
    for (int i = 0; i < 10; i++) {
        x = flux_eval(flux_to(d[(i + 1) % 2], flux_add(x, 1.0)));
        REQUIRE(x);
    }
    CHECK_NEAR(flux_item(flux_mean(x)), 10, 0);
}

TEST(tensors_print_wherever_they_lie) {
    flux_device d[8];
    ON_A_GPU();
    int n = device_list(d);
    flux_tensor *x = flux_randn(3, 2);
    flux_layer *m = small_model();
    char want[2000], got[2000], model_want[2000], model_got[2000];
    flux_device cpu = { 0, 0 };
    flux_tensor_text(flux_to(cpu, x), want, sizeof want);
    flux_layer_text(flux_to(cpu, m), model_want, sizeof model_want);
    for (int i = 0; i < n; i++) {
        CHECK(flux_tensor_text(flux_to(d[i], x), got, sizeof got) > 0);
        const char *numbers = strchr(got, '\n'), *same = strchr(want, '\n');
        REQUIRE(numbers && same);
        CHECK_STR(numbers, same);
        flux_layer_text(flux_to(d[i], m), model_got, sizeof model_got);
        CHECK_STR(model_got, model_want);
    }
}

static void both(void) {                  /* CUDA and HIP in one process */
    flux_device cuda = { FLUX__CUDA_BACKEND, 0 }, hip = { FLUX__AMDGPU_BACKEND, 0 };
    REQUIRE(flux_functional("CUDA") && flux_functional("AMDGPU"));
    flux_layer *m = small_model(), *a = flux_to(cuda, m), *b = flux_to(hip, a), *c = flux_to(cuda, b);
    CHECK(a && b && c && same_model(m, a) && same_model(m, b) && same_model(m, c) && same_model(m, flux_cpu(b)));
    CHECK(flux_device_equal(flux_device_of(b), hip));
    CHECK_ERROR(flux_add(flux_to(cuda, flux_rand(2)), flux_to(hip, flux_rand(2))), "AMDGPU device 0");
    test_device = cuda;
    CHECK(trains());
    test_device = hip;
    CHECK(trains());
}
TEST(cuda_and_hip_together) {
    SOFT_ONLY();
    CHECK(child("both", "FLUX_TEST_DEVICE", NULL) == 0);
}

/* ---------------- the application's own context */

static int (*get_context)(void **), (*push_context)(void *), (*pop_context)(void **), (*retain_context)(void **, int), (*get_hip)(int *), (*set_hip)(int);
static void *current_context(void) {
    void *c = NULL;
    int id = -1;
    if (on_cuda) return get_context(&c) == 0 ? c : (void *)(intptr_t)-1;
    return get_hip(&id) == 0 ? (void *)(intptr_t)(id + 1) : NULL;
}
static void check_context(const void *want, const char *what) {
    if (current_context() == want) return;
    test_fail(__FILE__, __LINE__, what);
}
static void nothing_changes_it(const void *want, flux_device d, flux_device other) {
    flux_device cpu = { 0, 0 };
#define KEEPS(call) do { call; check_context(want, #call); } while (0)
    FLUX_SCOPE {
        flux_tensor *x = NULL, *y = NULL;
        training t;
        KEEPS(flux_functional("CUDA"); flux_functional("AMDGPU"));
        KEEPS(flux_device_name(d));
        KEEPS(x = flux_eval(flux_to(d, flux_to(cpu, flux_rand(4, 4)))));
        KEEPS(y = flux_eval(flux_matmul(x, x)));
        KEEPS(flux_item(flux_sum(y)));
        KEEPS(flux_eval(flux_to(other, y)));
        KEEPS(flux_cpu(y); flux_data(flux_cpu(y)));
        KEEPS(training_start(&t, d));
        KEEPS(training_step(&t));
        KEEPS(training_step(&t));
        KEEPS(flux_synchronise_device(d));
        KEEPS(flux_mem_stats(d); flux_mem_trim(d));
        KEEPS(flux_tensor_text(y, (char[2000]){ 0 }, 2000));
        CHECK(!flux_failed());
        KEEPS(flux_add(x, flux_to(other, x)); flux_clear());
    }
    KEEPS(flux_mem_trim(d));
    KEEPS(flux_shutdown());
}
static void context(void) {
    flux_device d[8];
    int n = device_list(d);
    bool found = on_cuda ? find(driver_library, "cuCtxGetCurrent", &get_context) && find(driver_library, "cuCtxPushCurrent_v2", &push_context) &&
                           find(driver_library, "cuCtxPopCurrent_v2", &pop_context) && find(driver_library, "cuDevicePrimaryCtxRetain", &retain_context)
                         : find(driver_library, "hipGetDevice", &get_hip) && find(driver_library, "hipSetDevice", &set_hip);
    REQUIRE(found);
    flux_on_error(test_silent, NULL);
    nothing_changes_it(current_context(), d[0], d[n - 1]);
    for (int i = 0; i < n; i++) {
        void *c = NULL;
        if (on_cuda) REQUIRE(retain_context(&c, i) == 0 && push_context(c) == 0);
        else REQUIRE(set_hip(i) == 0);
        if (on_cuda) CHECK(current_context() == c);
        nothing_changes_it(current_context(), d[0], d[n - 1]);
        if (on_cuda) pop_context(&c);
    }
}
TEST(the_applications_context_stays) {
    SOFT_ONLY();
    CHECK(child("context", NULL) == 0);
}

/* Asking what there is makes no context: it would take memory on every device. */
static void asking(void) {
    flux_device d[8];
    flux_functional(getenv("BACKEND"));
    int n = flux_get_devices(getenv("BACKEND"), d, 8);
    for (int i = 0; i < n; i++) flux_device_name(d[i]);
    test_device = d[0];
    find_soft();
    CHECK(n > 0 && driver.calls("cuDevicePrimaryCtxRetain") == 0 && driver.calls("hipMalloc") == 0 && driver.live("streams") == 0);
    CHECK(flux_eval(flux_gpu(flux_ones(3))) && driver.live("streams") == 1);
}
/* Memory and a stream of the program's: what it queues there is in order with our work, without a wait between. Borrowed memory is
   given back when the work on it is done, which something on the way has to wait for. */
static int given_back;
static void count_given_back(void *user) { given_back += *(int *)user; }
TEST(streams_and_memory_of_the_program) {
    ON_A_GPU();
    const flux__driver *d = flux__driver_of(test_device.backend);
    void *own = flux_stream(test_device), *stream = NULL, *before, *memory = NULL;
    int one = 1;
    float v[64], w[64];
    for (int i = 0; i < 64; i++) v[i] = (float)i;
    REQUIRE(own == the_gpu()->stream && own != NULL);
    REQUIRE(d->enter(test_device.id, &before) == 0 && d->stream(&stream) == 0 && d->alloc(&memory, sizeof v) == 0);
    d->leave(before);
    CHECK(flux_use_stream(test_device, stream) == 0 && flux_stream(test_device) == stream);
    given_back = 0;
    FLUX_SCOPE {
        flux_tensor *y = NULL;
        REQUIRE(d->enter(test_device.id, &before) == 0);
        CHECK(d->up(memory, v, sizeof v, stream) == 0);
        d->leave(before);
        FLUX_SCOPE {
            flux_tensor *x = flux_borrow_on(test_device, memory, FLUX_F32, FLUX_SHAPE(64), count_given_back, &one);
            FLUX_NOGRAD y = flux_keep(flux_add(flux_mul(x, 2), 1));
            flux_eval(y);
            CHECK(given_back == 0);
        }
        const void *result = flux_pointer(y);
        REQUIRE(result != NULL && d->enter(test_device.id, &before) == 0);
        CHECK(d->down(w, result, sizeof w, stream) == 0 && d->stream_wait(stream) == 0);
        d->leave(before);
        for (int i = 0; i < 64; i++) CHECK(w[i] == 2 * v[i] + 1);
    }
    CHECK(given_back == 1);
    CHECK(flux_use_stream(test_device, NULL) == 0 && flux_stream(test_device) == own);
    REQUIRE(d->enter(test_device.id, &before) == 0);
    d->stream_free(stream);
    d->release(memory);
    d->leave(before);
    CHECK_NEAR(flux_item(flux_sum(flux_ones(3))), 3, 0);
}

TEST(asking_opens_no_device) {
    SOFT_ONLY();
    name_backends();
    CHECK(child("asking", backend_is, other_is, "FLUX_TEST_DEVICE", NULL) == 0);
}

/* ---------------- memory */

TEST(memory_statistics_and_limit) {
    ON_A_GPU();
    flux_mem_trim(test_device);
    flux_mem before = flux_mem_stats(test_device), now;
    FLUX_SCOPE {
        REQUIRE(there(flux_zeros(1024, 256)));
        now = flux_mem_stats(test_device);
        CHECK(now.live >= before.live + (1 << 20) && now.reserved >= now.live && now.peak >= now.live);
    }
    now = flux_mem_stats(test_device);
    CHECK(now.live == before.live && now.reserved > before.reserved);
    long held = is_soft ? driver.live("bytes") : 0;
    flux_mem_trim(test_device);
    CHECK(flux_mem_stats(test_device).reserved == before.reserved);
    if (is_soft) CHECK(driver.live("bytes") <= held - (1 << 20));
    flux_mem_limit(test_device, before.reserved + (3 << 20));
    flux_tensor *two = there(flux_zeros(1024, 512));
    CHECK(two != NULL);
    char want[60];
    snprintf(want, sizeof want, "%s device %d", flux_device_backend(test_device), test_device.id);
    CHECK_ERROR(there(flux_add(there(flux_ones(1024, 512)), 1.0)), "under the limit of flux_mem_limit");
    CHECK_ERROR(there(flux_zeros(1024, 1024)), want);
    CHECK_ERROR(there(flux_zeros(1024, 1024)), "4194304 bytes asked for (4.00 MiB)");
    CHECK_ERROR(there(flux_zeros(1024, 1024)), "f32 1024x512 (2.00 MiB)");
    CHECK(there(flux_zeros(100)) != NULL);
    flux_mem_limit(test_device, 0);
    CHECK(there(flux_zeros(1024, 1024)) != NULL);
}

static void little(void) {                /* 12 MiB in all */
    flux_device d[8];
    CHECK(device_list(d) > 0);
    FLUX_SCOPE {
        flux_tensor *a = there(flux_ones(1024, 1024)), *b = there(flux_ones(1024, 1024));
        REQUIRE(a && b);
        CHECK_ERROR(there(flux_zeros(1024, 2048)), "8388608 bytes asked for (8.00 MiB)");
        CHECK_ERROR(there(flux_zeros(1024, 2048)), "of 12.00 MiB are free there");
        CHECK_ERROR(there(flux_zeros(1024, 2048)), "2 x f32 1024x1024 (4.00 MiB)");
        CHECK_ERROR(there(flux_zeros(1024, 2048)), flux_device_name(test_device));
        flux_on_error(test_silent, NULL);
        CHECK(there(flux_zeros(1024, 2048)) == NULL);
        flux_clear();
        flux_on_error(NULL, NULL);
        CHECK_NEAR(flux_item(flux_mean(a)), 1, 0);
    }
    CHECK(there(flux_zeros(1024, 2048)) != NULL);      /* what the pool holds makes room */
    CHECK(trains());
}
TEST(the_driver_is_out_of_memory) {
    SOFT_ONLY();
    CHECK(child("little", "SOFTGPU_MEMORY=12582912", NULL) == 0);
}
/* A convolution's windows are many times the image; it makes no copy of them, whether or not FLUX_EAGER computes each step. And its
   gradient and the gradient's are right with it. */
static flux_tensor *convolved(flux_tensor *x, void *user) {
    flux_conv_opts o = *(flux_conv_opts *)user;
    if (o.x) o.weight = x;
    else o.x = x;
    return flux_sum(flux_square(flux_conv_with(o)));
}
static flux_tensor *convolved_slope(flux_tensor *x, void *user) {         /* by the other operand */
    flux_conv_opts o = *(flux_conv_opts *)user;
    flux_tensor *other = o.x ? o.x : o.weight;
    return flux_sum(flux_square(flux_grad(flux_gradient(convolved(x, user), other), other)));
}
static void convolution(void) {
    flux_device cpu = { 0, 0 };
    flux_default_device(cpu);
    for (int i = 0; i < 8; i++)
        FLUX_SCOPE {
            flux_conv_opts o = { 0 };
            flux_tensor *image = flux_rand_with(FLUX_SHAPE(5, 6, 2, 2), FLUX_F64), *weight = flux_rand_with(FLUX_SHAPE(3, 2, i & 1 ? 1 : 2, 4), FLUX_F64);
            o.groups = i & 1 ? 2 : 1, o.pad = FLUX_SHAPE(i & 2 ? 1 : 0), o.stride = FLUX_SHAPE(i & 4 ? 2 : 1);
            o.weight = weight;
            CHECK(flux_gradcheck(convolved, &o, image, 0) < 1e-6 && flux_gradcheck(convolved_slope, &o, image, 0) < 1e-5);
            o.x = image, o.weight = NULL;
            CHECK(flux_gradcheck(convolved, &o, weight, 0) < 1e-6 && flux_gradcheck(convolved_slope, &o, weight, 0) < 1e-5);
        }
    flux_default_device(test_device);
    flux_tensor *x = there(flux_rand(32, 32, 8, 4)), *w = there(flux_rand(5, 5, 8, 8)), *y;
    for (int i = 0; i < 3; i++)
        FLUX_SCOPE {
            int64_t before = flux_mem_stats(test_device).peak;
            y = i == 0 ? flux_conv(x, w) : i == 1 ? flux_crosscor(x, w, .pad = FLUX_SHAPE(2)) : flux_conv_transpose(x, w);
            flux_grads *g = flux_gradient(flux_sum(flux_square(y)), x, w);
            CHECK(g && flux_eval(flux_grad(g, x)) && flux_eval(flux_grad(g, w)));
            CHECK(flux_mem_stats(test_device).peak - before < 1 << 20);        /* the windows take 2.5 MB */
        }
}
TEST(a_convolution_stores_no_windows) {
    ON_A_GPU();
    CHECK(child("convolution", "FLUX_EAGER=1", NULL) == 0);
    CHECK(child("convolution", "FLUX_EAGER", NULL) == 0);
}

TEST(host_memory_has_the_same_error) {
    flux_device cpu = { 0, 0 };
    ON_A_GPU();
    flux_mem_trim(cpu);
    flux_mem_limit(cpu, flux_mem_stats(cpu).reserved + 100000);
    CHECK_ERROR(flux_eval(flux_to(cpu, flux_zeros(1024, 1024))), "4194304 bytes asked for (4.00 MiB)");
    flux_mem_limit(cpu, 0);
}

/* ---------------- compile errors */

TEST(compile_errors_are_readable) {
    ON_A_GPU();
    REQUIRE(there(flux_ones(2)));
    static const char source[] = "#define PRELUDE\n"
        "\nextern \"C\" __global__ void __launch_bounds__(256) kfirst(float *p) {\n    p[0] = 1;\n}\n"
        "\nextern \"C\" __global__ void __launch_bounds__(256) ksecond(float *p) {\n    p[0] = nothing;\n}\n";
    static const char *const logs[] = { "flux.cu(3): warning #177-D: unused\nflux.cu(8): error: identifier \"nothing\" is undefined\n",
        "/input/flux.hip:3:5: warning: (unused)\n/input/flux.hip:8:12: error: use of undeclared identifier 'nothing'\n" };
    for (int i = 0; i < 2; i++) {
        CHECK_ERROR(flux__compile_failed(the_gpu(), source, logs[i]), "in ksecond, line 8:     p[0] = nothing;");
        CHECK_ERROR(flux__compile_failed(the_gpu(), source, logs[i]), "nothing");
    }
    CHECK_ERROR(flux__compile_failed(the_gpu(), source, "out of memory (code 1)"), "out of memory (code 1)");
    CHECK_ERROR(flux__compile_failed(the_gpu(), source, "flux.cu(999): error: what"), "what");
    CHECK_ERROR(flux__compile_failed(the_gpu(), source, ""), "did not compile for");
    char *log = NULL;
    void *image = NULL, *before;
    size_t bytes = 0;
    char why[200];
    flux__gpu *g = flux__gpu_enter(test_device.backend, test_device.id, &before);
    REQUIRE(g);
    CHECK(g->driver->compiler(why, sizeof why) && g->driver->compile(source, g->info.arch, &log, &image, &bytes) != 0);
    flux__gpu_leave(g, before);
    REQUIRE(log);
    CHECK_ERROR(flux__compile_failed(g, source, log), "in ksecond, line 8:     p[0] = nothing;");
    FLUX_FREE(log);
    if (image) FLUX_FREE(image);
}

/* ---------------- the same numbers, and bad indices */

TEST(random_numbers_are_the_cpus) {
    flux_device cpu = { 0, 0 };
    static const flux_dtype dtypes[] = { FLUX_F32, FLUX_F64 };
    ON_A_GPU();
    flux_shape s = { 2, { 37, 29 } };
    for (int i = 0; i < 4; i++) {
        flux_tensor *x[2];
        for (int k = 0; k < 2; k++) {
            flux_default_device(k ? test_device : cpu);
            flux_seed(99);
            x[k] = i < 2 ? flux_rand_with(s, dtypes[i % 2]) : flux_randn_with(s, dtypes[i % 2]);
        }
        flux_default_device(test_device);
        const void *a = flux_data(x[0]), *b = flux_data(x[1]);
        REQUIRE(a && b && flux_device_of(x[1]).backend);
        if (i < 3) CHECK(!memcmp(a, b, 37 * 29 * (i % 2 ? 8 : 4)));
        else CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(there(flux_cpu(x[1])), there(x[0]))))), 0, 1e-14);     /* by log and cos, which a chip has of its own */
    }
}

TEST(bad_indices_are_told_at_the_next_look) {
    ON_A_GPU();
    flux_tensor *x = there(flux_rand(5, 3)), *good = there(flux_from(((int64_t[]){ 0, 4 }), 2)), *bad = there(flux_from(((int64_t[]){ 1, 7 }), 2));
    flux_tensor *y = flux_eval(flux_gather(x, 0, bad));
    CHECK(y && !flux_failed());           /* nobody has looked */
    CHECK_ERROR(flux_data(y), "gather: index 7 (number 1) is not within dim 0 of size 5");
    CHECK(flux_data(flux_gather(x, 0, good)) != NULL);
    CHECK(flux_eval(flux_gather(x, 0, bad)) != NULL);
    CHECK_ERROR(flux_synchronise_device(test_device), "gather: index 7");
    flux_synchronise_device(test_device);
    CHECK(!flux_failed());
    flux_tensor *z = flux_scatter_add(x, 0, bad, there(flux_rand(2, 3)));
    CHECK_ERROR(flux_data(z), "scatter_add: index 7");
    CHECK(flux_data(flux_add(x, 1.0)) != NULL);
}

/* Where a look at all indices for each element would be too much, they are sorted first: the same sums, in the same order. */
TEST(a_scatter_over_many_rows) {
    ON_A_GPU();
    flux_device cpu = { 0, 0 };
    /* more than 512 are sorted in pieces, which are merged by eights: the last two are merged twice and three times */
    static const int64_t rows[] = { 4000, 37, 1, 2500, 900, 3000 }, many[] = { 700, 2048, 3001, 5, 9001, 33000 };
    for (int i = 0; i < 6; i++)
        for (int two = 0; two < 2; two++)
            FLUX_SCOPE {
                int64_t n = many[i], wide = i == 3 ? 300 : i == 0 ? 3 : i > 3 ? 2 : 11;
                int64_t *ids = (int64_t *)malloc((size_t)n * sizeof *ids);
                for (int64_t q = 0; q < n; q++) ids[q] = q % 3 == 0 ? rows[i] / 2 : (q * 7919 + 13) % rows[i];     /* one row gets a third */
                flux_default_device(cpu);
                flux_seed((uint64_t)(i + 1));
                flux_tensor *x = two ? flux_randn(rows[i], wide) : flux_randn(wide, rows[i]), *index = flux_eval(flux_from(ids, n));
                flux_tensor *src = two ? flux_randn(n, wide) : flux_randn(wide, n);
                const float *want = (const float *)flux_data(flux_scatter_add(x, !two, index, src));
                flux_default_device(test_device);
                const float *got = (const float *)flux_data(flux_scatter_add(flux_to(test_device, x), !two, flux_to(test_device, index), flux_to(test_device, src)));
                REQUIRE(want && got);
                CHECK(!memcmp(want, got, (size_t)(rows[i] * wide) * 4));
                ids[n / 2] = rows[i] + 4;
                char says[120];
                snprintf(says, sizeof says, "scatter_add: index %lld (number %lld) is not within", (long long)rows[i] + 4, (long long)n / 2);
                index = flux_eval(flux_from(ids, n));
                CHECK_ERROR(flux_data(flux_scatter_add(flux_to(test_device, x), !two, flux_to(test_device, index), flux_to(test_device, src))), says);
                free(ids);
            }
}

/* The gradient of a convolution by its weight is one product over positions and samples, whose inner dim is split: against sums
   in doubles. */
TEST(a_convolution_by_its_weight) {
    ON_A_GPU();
    /* side, channels, out, samples, stride, dilation, padding; the second to last has channels that don't lie side by side */
    static const int cases[][7] = { { 14, 8, 16, 7, 1, 1, 1 }, { 11, 16, 8, 9, 2, 1, 1 }, { 12, 8, 8, 5, 1, 2, 0 }, { 13, 24, 40, 4, 3, 2, 2 }, { 9, 8, 6, 5, 1, 1, 1 }, { 40, 64, 72, 3, 1, 1, 1 } };
    for (int i = 0; i < 6; i++)
        for (int half = 0; half < 2; half++) FLUX_SCOPE {
            const int side = cases[i][0], in = cases[i][1], out = cases[i][2], samples = cases[i][3], s = cases[i][4], d = cases[i][5], pad = cases[i][6];
            const int wide = (side + 2 * pad - 2 * d - 1) / s + 1;
            const flux_dtype t = half ? FLUX_BF16 : FLUX_F32;
            flux_seed((uint64_t)i + 9);
            flux_tensor *x = flux_eval(flux_to_dtype(flux_randn(side, side, in, samples), t)), *w = flux_eval(flux_to_dtype(flux_randn(3, 3, in, out), t)), *g = flux_eval(flux_to_dtype(flux_randn(wide, wide, out, samples), t));
            flux_tensor *y = flux_crosscor(x, w, .stride = { 1, { s } }, .pad = { 1, { pad } }, .dilation = { 1, { d } });
            REQUIRE(y && y->dim[0] == wide);
            flux_tensor *by = flux_grad(flux_gradient(flux_sum(flux_mul(flux_to_dtype(y, FLUX_F32), flux_to_dtype(g, FLUX_F32))), w), w);
            const float *got = (const float *)flux_data(flux_cpu(flux_to_dtype(by, FLUX_F32))), *xs = (const float *)flux_data(flux_cpu(flux_to_dtype(x, FLUX_F32))),
                        *gs = (const float *)flux_data(flux_cpu(flux_to_dtype(g, FLUX_F32)));
            REQUIRE(got && xs && gs);
            int bad = 0;
            for (int o = 0; o < out; o++)
                for (int e = (o * 7) % 5; e < 9 * in; e += 5) {
                    const int kx = e % 3, ky = e / 3 % 3, c = e / 9;
                    double sum = 0, size = 0;
                    for (int n = 0; n < samples; n++)
                        for (int v = 0; v < wide; v++)
                            for (int u = 0; u < wide; u++) {
                                const int px = u * s + kx * d - pad, py = v * s + ky * d - pad;
                                if (px < 0 || px >= side || py < 0 || py >= side) continue;
                                const double a = xs[px + side * (py + side * (c + in * n))], b = gs[u + wide * (v + wide * (o + out * n))];
                                sum += a * b, size += fabs(a * b);
                            }
                    bad += !(fabs(got[e + 9 * in * o] - sum) <= 1e-6 * size + (half ? fabs(sum) / 256 : 0));
                }
            if (!CHECK(bad == 0)) fprintf(stderr, "    case %d, %s: %d elements\n", i, half ? "bf16" : "f32", bad);
        }
}

/* Memory that is not pinned goes through slots, which several threads fill and empty: sizes about a slot's, more than there are
   slots, and two threads that copy at once. */
static int copied_right;
static void copy_there_and_back(void *of) {
    static const int64_t sizes[] = { 1, 131072, 131073, 1 << 20, (1 << 20) + 1, (5 << 20) + 77777, 13 << 20 };
    for (int i = 0; i < 7; i++) FLUX_SCOPE {
        unsigned char *p = (unsigned char *)malloc((size_t)sizes[i]), *q = (unsigned char *)malloc((size_t)sizes[i]);
        for (int64_t k = 0; k < sizes[i]; k++) p[k] = (unsigned char)((k + *(int *)of) * 2654435761u >> 13);
        flux_tensor *x = flux_eval(flux_to(test_device, flux_from(p, sizes[i])));
        flux_read(x, q, (size_t)sizes[i]);
        flux__atomic_add32(&copied_right, !memcmp(p, q, (size_t)sizes[i]));
        free(p), free(q);
    }
}
TEST(copies_by_several_threads) {
    ON_A_GPU();
    int of[2] = { 3, 50 };
    flux__os_thread other;
    flux_threads(4);
    copied_right = 0;
    REQUIRE(flux__thread_start(&other, copy_there_and_back, &of[1]));
    copy_there_and_back(&of[0]);
    flux__thread_join(&other);
    CHECK(copied_right == 14);
    flux_threads(0);
}

/* What is picked side by side goes by 16 bytes, or by as many as fit: all dtypes, widths that fit none, some and all, a start
   that does not, a source that is broadcast. The CPU's numbers, to the bit. */
TEST(picking_by_vectors) {
    ON_A_GPU();
    static const flux_dtype types[] = { FLUX_F32, FLUX_F64, FLUX_F16, FLUX_BF16, FLUX_I32, FLUX_I64, FLUX_U8, FLUX_BOOL };
    static const int64_t wide[] = { 7, 6, 12, 16, 48 };
    for (size_t d = 0; d < sizeof types / sizeof *types; d++)
        for (int i = 0; i < 5; i++)
            for (int start = 0; start < 2; start++) FLUX_SCOPE {
                const int64_t n = 1300, rows = 900, w = wide[i];
                const void *got[2][4] = { { NULL } };
                size_t bytes[4] = { 0 };
                int64_t ids[1300];
                for (int64_t q = 0; q < n; q++) ids[q] = q % 3 == 0 ? rows / 2 : (q * 7919 + 13) % rows;
                for (int on = 0; on < 2; on++) {
                    flux_device at = on ? test_device : (flux_device){ 0, 0 };
                    flux_default_device((flux_device){ 0, 0 });
                    flux_seed(5);
                    flux_tensor *x = flux_eval(flux_mul(flux_sub(flux_rand(w + start, rows), 0.3), 9.0));
                    flux_tensor *src = flux_eval(flux_mul(flux_sub(flux_rand(w + start, n), 0.3), 9.0));
                    flux_tensor *index = flux_eval(flux_from(ids, n)), *two = flux_eval(flux_reshape(flux_from(ids, n), 13, 100));
                    flux_default_device(at);
                    x = flux_slice(flux_eval(flux_to_dtype(flux_to(at, x), types[d])), 0, start, start + w);
                    src = flux_slice(flux_eval(flux_to_dtype(flux_to(at, src), types[d])), 0, start, start + w);
                    index = flux_to(at, index), two = flux_to(at, two);
                    flux_tensor *all = flux_slice(src, 1, 5, 6);
                    flux_tensor *y[4] = { flux_gather(x, 1, index), flux_gather(x, 1, two), NULL, NULL };
                    if (types[d] != FLUX_BOOL)
                        y[2] = flux_scatter_add(x, 1, index, src),
                        y[3] = flux_scatter_add(x, 1, index, flux_broadcast_to_with(all, flux_shape_of(src)));
                    for (int k = 0; k < 4 && y[k]; k++) got[on][k] = flux_data(y[k]), bytes[k] = (size_t)flux_len(y[k]) * flux_dtype_size(types[d]);
                }
                for (int k = 0; k < 4; k++)
                    if (bytes[k] && !CHECK(got[0][k] && got[1][k] && !memcmp(got[0][k], got[1][k], bytes[k])))
                        fprintf(stderr, "    dtype %d, %d wide from %d, result %d\n", (int)types[d], (int)w, start, k);
            }
    flux_default_device(test_device);
}

/* What takes more blocks than a launch has goes on in turns. Here a launch has five. */
TEST(turns_where_there_are_more_blocks_than_a_launch_has) {
    ON_A_GPU();
    flux_device cpu = { 0, 0 };
    float *got[2][5];
    static const size_t n[5] = { 3000, 300, 2, 190 * 180, 3000 };
    CHECK(flux__gpu_blocks((int64_t)1 << 50) == 5 && flux__gpu_blocks(3) == 3);
    for (int on = 0; on < 2; on++)
        FLUX_SCOPE {
            flux_default_device(cpu);
            flux_seed(4);
            flux_tensor *x = flux_randn(300, 3000), *a = flux_randn(190, 4), *b = flux_randn(4, 180);
            flux_default_device(on ? test_device : cpu);
            if (on) x = flux_to(test_device, x), a = flux_to(test_device, a), b = flux_to(test_device, b);
            flux_tensor *y[5] = { flux_sum(x, 0), flux_max(x, 1), flux_sum(flux_reshape(x, 2, -1), 1), flux_matmul(a, b),
                                  flux_sum(flux_exp(x), 0) };
            for (int i = 0; i < 5; i++) {
                const float *from = (const float *)flux_data(y[i]);
                REQUIRE(from && (got[on][i] = (float *)malloc(n[i] * 4)) != NULL);
                memcpy(got[on][i], from, n[i] * 4);
            }
        }
    flux_default_device(test_device);
    for (int i = 0; i < 5; i++) {
        int bad = 0;
        for (size_t q = 0; q < n[i]; q++) bad += !(fabsf(got[0][i][q] - got[1][i][q]) <= 2e-5f * (1 + fabsf(got[0][i][q])));
        if (!CHECK(bad == 0)) fprintf(stderr, "    result %d: %d elements\n", i, bad);
        free(got[0][i]), free(got[1][i]);
    }
}

/* Operands that are read across go by tiles in shared memory: tiles that stand over, strides of both signs, several
   operands of several sizes, coordinates besides those of the tile. The CPU's numbers, to the bit. */
static flux_tensor *read_across(int i, flux_tensor *x) {
    static const int perms[][5] = { { 1, 0, 2, 3, 4 }, { 2, 1, 0, 3, 4 }, { 4, 3, 2, 1, 0 }, { 1, 2, 0, 4, 3 }, { 0, 2, 1, 3, 4 } };
    flux_tensor *t = flux_flip(flux_slice(x, 1, 1, x->dim[1]), 1);
    if (i < 5) return flux_copy(flux_permute_with(x, (flux_shape){ 5, { perms[i][0], perms[i][1], perms[i][2], perms[i][3], perms[i][4] } }));
    if (i == 5) return flux_copy(flux_permute(t, 1, 0, 2, 3, 4));
    if (i == 6) return flux_add(flux_permute(x, 1, 0, 2, 3, 4), flux_full_with((flux_shape){ 1, { x->dim[1] } }, 1.0, flux_dtype_of(x)));
    t = flux_slice(flux_slice(flux_slice(x, 2, 0, 1), 3, 0, 1), 4, 0, 1);         /* a matrix, and what lies across of it twice */
    t = flux_reshape(t, x->dim[0], x->dim[1]);
    const int64_t n = x->dim[0] < x->dim[1] ? x->dim[0] : x->dim[1];
    t = flux_slice(flux_slice(t, 0, 0, n), 1, 0, n);
    return flux_add(flux_add(t, flux_transpose(t)), flux_to_dtype(flux_gt(flux_transpose(t), 1), flux_dtype_of(x)));
}
TEST(what_is_read_across_goes_by_tiles) {
    static const flux_shape shapes[] = { { 5, { 70, 65, 1, 1, 1 } }, { 5, { 33, 16, 3, 2, 2 } }, { 5, { 128, 64, 2, 1, 1 } }, { 5, { 17, 5, 40, 1, 3 } },
                                         { 5, { 0, 40, 2, 1, 1 } }, { 5, { 3, 100, 2, 1, 1 } } };
    static const flux_dtype types[] = { FLUX_F32, FLUX_F64, FLUX_F16, FLUX_BF16, FLUX_I32, FLUX_I64, FLUX_U8, FLUX_BOOL };
    ON_A_GPU();
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t d = 0; d < sizeof types / sizeof *types; d++)
            for (int i = 0; i < 8; i++)
                FLUX_SCOPE {
                    const bool some = types[d] == FLUX_F32 || s < 2 || i == 0;
                    if (!some || (s == 4 && i == 7)) continue;
                    flux_seed(s + 3);
                    flux_default_device((flux_device){ 0, 0 });
                    flux_tensor *x = flux_mul(flux_rand_with(shapes[s], FLUX_F32), types[d] == FLUX_BOOL ? 1.9 : 99.0);
                    flux_tensor *y = flux_eval(read_across(i, flux_eval(flux_to_dtype(x, types[d]))));
                    flux_default_device(test_device);
                    flux_tensor *z = flux_eval(read_across(i, flux_eval(flux_to_dtype(flux_to(test_device, x), types[d]))));
                    REQUIRE(y && z && flux_len(y) == flux_len(z));
                    const size_t n = (size_t)flux_len(y) * (size_t)flux_dtype_size(flux_dtype_of(y));
                    char *a = (char *)malloc(n + 1), *b = (char *)malloc(n + 1);
                    REQUIRE(a && b && flux_read(y, a, n) == 0 && flux_read(z, b, n) == 0);
                    if (!CHECK(!memcmp(a, b, n))) fprintf(stderr, "    shape %d, dtype %d, way %d\n", (int)s, (int)types[d], i);
                    free(a), free(b);
                }
}

/* Padding, and gradients of slices, steps, flips and windows that meet: the CPU's numbers, to the bit. */
static flux_tensor *spread(int i, flux_tensor *x) {
    flux_tensor *y = NULL;
    if (i == 0) return flux_pad_by(x, 7, (flux_shape){ 3, { 1, 0, 3 } }, (flux_shape){ 3, { 2, 5, 0 } });
    if (i == 1) return flux_pad_by(flux_transpose(flux_reshape(x, x->dim[0], flux_len(x) / x->dim[0])), -1, (flux_shape){ 2, { 0, 40 } }, (flux_shape){ 2, { 0, 1 } });
    if (i == 2) y = flux_flip(flux_slice(flux_slice(x, 0, 1, x->dim[0] - 2), 1, 1, 2), 0, 2);
    if (i == 3) y = flux_reshape(flux_slice(x, 2, 1, 2), -1);
    if (i == 4) y = flux_meanpool(x, FLUX_SHAPE(3, 2), .stride = FLUX_SHAPE(2, 1));
    if (i == 5) y = flux_meanpool(x, FLUX_SHAPE(2, 2));
    return flux_grad(flux_gradient(flux_sum(i < 4 ? flux_mul(y, y) : y), x), x);      /* how a mean is rounded is another matter */
}
TEST(padding_and_what_slices_leave) {
    static const flux_dtype types[] = { FLUX_F32, FLUX_F64, FLUX_F16, FLUX_U8 };
    ON_A_GPU();
    for (int d = 0; d < 4; d++)
        for (int i = 0; i < (types[d] == FLUX_U8 ? 2 : 6); i++)
            FLUX_SCOPE {
                flux_seed(3);
                flux_default_device((flux_device){ 0, 0 });
                flux_tensor *x = flux_mul(flux_rand(19, 4, 5, 3), 50.0), *y = flux_eval(spread(i, flux_eval(flux_to_dtype(x, types[d]))));
                flux_default_device(test_device);
                flux_tensor *z = flux_eval(spread(i, flux_eval(flux_to_dtype(flux_to(test_device, x), types[d]))));
                REQUIRE(y && z && flux_len(y) == flux_len(z));
                const size_t n = (size_t)flux_len(y) * flux_dtype_size(flux_dtype_of(y));
                char *a = (char *)malloc(n), *b = (char *)malloc(n);
                REQUIRE(a && b && flux_read(y, a, n) == 0 && flux_read(z, b, n) == 0);
                if (!CHECK(!memcmp(a, b, n))) fprintf(stderr, "    dtype %d, way %d\n", (int)types[d], i);
                free(a), free(b);
            }
}

/* ---------------- compiling ahead */

static int64_t programs(void) { return the_gpu()->counters.programs_compiled + the_gpu()->counters.programs_read; }
static flux_layer *deep_model(void) {
    return flux_chain(flux_dense(5, 11, flux_relu), flux_batchnorm(11), flux_dropout(0.5), flux_dense(11, 9, flux_tanh), flux_dense(9, 7, flux_sigmoid),
                      flux_dense(7, 4));
}
/* How many kernels a step with so many observations needs that were not known. */
static int kernels(void) {
    int n = 0;
    for (int i = 0; i < 256; i++)
        for (const flux__gpu_fn *f = the_gpu()->known[i]; f; f = f->next) n++;
    return n;
}
static int kernels_of_a_step(flux_layer *m, int64_t observations) {
    int before = 0, rc = -1;
    FLUX_SCOPE {
        flux_tensor *x = there(flux_randn(5, observations)), *y = there(flux_softmax(flux_randn(4, observations)));
        flux_state *opt = flux_setup(flux_descent(0.1), m);
        before = kernels();
        rc = flux_update(opt, m, flux_gradient(flux_logitcrossentropy(flux_call(m, x), y), m));
    }
    return rc == 0 ? kernels() - before : -1;
}
/* A gradient whose registers once did not fit: tests/check_rtc.sh, which gets what is compiled here, says if they spill. */
TEST(attention_of_a_transformer_is_compiled) {
    ON_A_GPU();
    flux_layer *m = flux_to(test_device, flux_multiheadattention(1024, .nheads = 16));
    int64_t known = programs();
    CHECK(m && flux_prewarm(m, 1024, 1024, 8) == 0 && programs() > known);
}
TEST(prewarm_compiles_and_runs_nothing) {
    ON_A_GPU();
    flux_device cpu = { 0, 0 };
    float before[8], after[8], state[2][11];
    flux_layer *m = flux_to(test_device, deep_model());
    REQUIRE(m && flux_read(flux_copy(flux_param(m, "layers.4.bias")), before, 28) == 0);
    CHECK(flux_read(flux_copy(flux_param(m, "layers.1.mean")), state[0], sizeof state[0]) == 0);
    flux_seed(5);
    CHECK(flux_prewarm(m, 5, 3) == 0);    /* the weights are there now */
    int64_t launches = the_gpu()->counters.launches, known = programs();
    REQUIRE(flux_prewarm(m, 5, 6) == 0);
    CHECK(the_gpu()->counters.launches == launches && programs() > known);
    CHECK(flux_training(m) && flux_read(flux_copy(flux_param(m, "layers.1.mean")), state[1], sizeof state[1]) == 0 && !memcmp(state[0], state[1], sizeof state[0]));
    CHECK(flux_read(flux_copy(flux_param(m, "layers.4.bias")), after, 28) == 0 && !memcmp(before, after, 28));
    float drawn = (float)flux_item(flux_to(cpu, flux_rand(1)));
    flux_seed(5);
    CHECK((float)flux_item(flux_to(cpu, flux_rand(1))) == drawn);
    flux_tensor *x = there(flux_randn(5, 6));
    known = programs();
    FLUX_NOGRAD { CHECK(flux_eval(flux_call(m, x)) != NULL); }
    CHECK(programs() == known);
    int without = kernels_of_a_step(m, 7), with = kernels_of_a_step(m, 6);
    CHECK(with >= 0 && with < without);
    known = programs();
    CHECK(flux_prewarm(m, 5, 6) == 0 && programs() == known);
    FLUX_NOGRAD { CHECK(flux_prewarm(m, 5, 9) == 0); }
    CHECK(flux_prewarm(flux_to(cpu, m), 5, 6) == 0);
    CHECK_ERROR(flux_prewarm(m, 4, 6), "expects dim 0 of size 5");
    CHECK_ERROR(flux_prewarm((flux_layer *)NULL, 5, 6), "prewarm: argument model is NULL");
}

static void prewarmed(void) {             /* many programs: named alike for any number of threads */
    flux_seed(1);
    flux_layer *m = flux_to(test_device, deep_model());
    CHECK(m && flux_prewarm(m, 5, 6) == 0);
    flux__gpu_counters *c = &the_gpu()->counters;
    if (!strcmp(getenv("WANT"), "compiled")) CHECK(c->programs_compiled >= 3 && c->programs_read == 0);
    else CHECK(c->programs_compiled == 0 && c->programs_read >= 3);
}
static bool new_cache(void);
static void drop_cache(void);
static char cache_is[120];
/* A kernel's text says nothing of what lay in memory before: the same product is not compiled twice. */
static flux_tensor *turned(flux_tensor *w, int64_t left) {       /* w', as if its node had been another's before */
    flux_tensor *t = flux_transpose(w);
    for (int d = 2; d < FLUX_MAX_DIMS; d++) t->stride[d] = left;
    return t;
}
TEST(the_same_product_has_the_same_text) {
    ON_A_GPU();
    flux__gpu *g = the_gpu();
    flux_tensor *w = there(flux_rand(4, 4)), *x = there(flux_rand(4, 4, 3)), *y[2];
    CHECK(flux_eval(flux_matmul(turned(w, 0), x)) && flux_eval(flux_add(w, 1.0)));
    int64_t n = g->counters.programs_compiled + g->counters.programs_read;
    y[0] = flux_matmul(turned(w, (int64_t)1 << 40), x), y[1] = flux_add(w, 1.0);
    CHECK(flux_eval_all(2, y) == 0 && g->counters.programs_compiled + g->counters.programs_read == n);
}

TEST(threads_compile_the_same_programs) {
    SOFT_ONLY();
    REQUIRE(new_cache());
    CHECK(child("prewarmed", cache_is, "WANT=compiled", "FLUX_NUM_THREADS=4", NULL) == 0);
    CHECK(child("prewarmed", cache_is, "WANT=read", "FLUX_NUM_THREADS=1", NULL) == 0);
    drop_cache();
}

/* ---------------- loaders, threads */

TEST(a_loader_copies_ahead) {
    ON_A_GPU();
    flux_device cpu = { 0, 0 };
    enum { N = 103, F = 700 };
    float *numbers = (float *)malloc(sizeof(float) * N * F);
    REQUIRE(numbers);
    for (int i = 0; i < N * F; i++) numbers[i] = (float)i;
    flux_default_device(cpu);
    flux_tensor *x = flux_from(numbers, F, N), *y = flux_arange(0, N, 1);
    flux_loader *l = flux_to(test_device, flux_dataloader(x, y, .batchsize = 10));
    flux_default_device(test_device);
    REQUIRE(l);
    for (int epoch = 0; epoch < 3; epoch++) {
        int64_t at = 0;
        flux_each(b, l) {
            CHECK(flux_device_equal(flux_device_of(b.x), test_device));
            int64_t n = flux_dim(b.x, 1);
            const float *px = (const float *)flux_data(b.x), *py = (const float *)flux_data(b.y);
            REQUIRE(px && py);
            for (int64_t i = 0; i < n; i++) CHECK((int64_t)py[i] == at + i);
            CHECK(!memcmp(px, numbers + at * F, (size_t)(n * F) * 4));
            at += n;
        }
        CHECK(at == N);
    }
    free(numbers);
}

/* While the device works on a batch the next one travels: the stream of kernels does not wait for it until it is used. */
TEST(copies_run_beside_the_work) {
    ON_A_GPU();
    flux_device cpu = { 0, 0 };
    enum { N = 96, F = 300 };
    flux_default_device(cpu);
    flux_seed(4);
    flux_tensor *x = flux_eval(flux_randn(F, N)), *y = flux_eval(flux_randn(2, N)), *w[2];
    flux_loader *near_by = flux_dataloader(x, y, .batchsize = 8, .shuffle = true, .seed = 5), *l = flux_to(test_device, near_by);
    flux_default_device(test_device);
    REQUIRE(l);
    flux__gpu *g = the_gpu();
    for (int far = 0; far < 2; far++) {
        flux_layer *m = flux_chain(flux_dense(F, 2));
        flux_seed(9);
        m = flux_to(test_device, flux_chain(flux_dense(F, 16, flux_tanh), flux_dense(16, 2)));
        flux_state *opt = flux_setup(flux_descent(0.01), m);
        for (int epoch = 0; epoch < 2; epoch++) {
            int64_t ahead = g->counters.ahead, replays = g->counters.graph_launches, n = 0;
            flux_each(b, far ? l : near_by) {
                int64_t waits = g->counters.waits;
                flux_tensor *bx = far ? b.x : flux_to(test_device, b.x), *by = far ? b.y : flux_to(test_device, b.y);
                CHECK(flux_update(opt, m, flux_gradient(flux_mse(flux_call(m, bx), by), m)) == 0);
                n++;
                if (!far) continue;
                CHECK(g->comes - g->came == (n < 12 ? 2 : 0) && g->counters.waits == waits);
                if (n == 7) flux_synchronise_device(test_device);
            }
            CHECK(n == 12 && (!far || g->counters.ahead - ahead == 2 * 11));
            CHECK(!far || epoch == 0 || g->counters.graph_launches - replays == 12);
        }
        w[far] = flux_copy(flux_param(m, "layers.0.weight"));
        REQUIRE(flux_eval(w[far]));
    }
    CHECK(flux_data(w[0]) && flux_data(w[1]) && !memcmp(flux_data(w[0]), flux_data(w[1]), 16 * F * 4));
}

/* Whoever makes a batch, workers, a transform or a function, it leaves from pinned memory, and the next one beside the work. */
static flux_batch doubled(flux_batch b, void *user) {
    (void)user;
    b.x = flux_mul(b.x, 2);
    return b;
}
static flux_tensor *twice(flux_tensor *x) { return flux_mul(x, 2); }
static int64_t how_many(void *user) { (void)user; return 40; }
static int constant(void *user, int64_t i, int n, flux_tensor **out) {
    (void)user, (void)n;
    out[0] = flux_full((double)i, 500);
    return 0;
}

static flux_loader *loader_of_kind(int kind, flux_tensor *x, flux_dataset *set) {
    switch (kind) {
    case 0: return flux_dataloader(x, .batchsize = 4);
    case 1: return flux_dataloader(x, .batchsize = 4, .transform = doubled);
    case 2: return flux_mapobs(twice, flux_dataloader(x, .batchsize = 4));
    case 3: return flux_dataloader(.data = set, .batchsize = 4);
    case 4: return flux_dataloader(flux_to_dtype(x, FLUX_F64), .batchsize = 4);       /* becomes f32 on the way */
    case 5: return flux_dataloader(x, .batchsize = 4, .workers = 2);
    case 6: return flux_dataloader(x, .batchsize = 4, .workers = 2, .transform = doubled);
    default: return flux_dataloader(.data = set, .batchsize = 4, .workers = 2);
    }
}

TEST(every_batch_leaves_from_pinned_memory) {
    SOFT_ONLY();
    flux_device cpu = { 0, 0 };
    flux_dataset set = { NULL, how_many, constant, 1 };
    flux__gpu *g = the_gpu();
    for (int kind = 0; kind < 8; kind++)
        FLUX_SCOPE {
            flux_default_device(cpu);
            flux_tensor *x = flux_eval(flux_mul(flux_ones(500, 40), flux_reshape(flux_arange(0, 40, 1), 1, 40)));
            flux_loader *l = flux_to(test_device, loader_of_kind(kind, x, &set));
            bool two = kind == 1 || kind == 2 || kind == 6;
            flux_synchronise_device(test_device);
            REQUIRE(l);
            driver.reset();
            int64_t ahead = g->counters.ahead, up = g->counters.uploads;
            int n = 0;
            flux_each(b, l) {
                CHECK(flux_device_equal(flux_device_of(b.x), test_device) && flux_dtype_of(b.x) == FLUX_F32);
                CHECK_NEAR(flux_item(flux_mean(b.x)), (4 * n + 1.5) * (two ? 2 : 1), 1e-4);
                if (kind >= 5) usleep(30000);              /* until the workers have made the batch behind the next */
                n++;
            }
            CHECK(n == 10 && g->counters.uploads - up == 10 && driver.calls("pageable") == 0);
            CHECK(kind >= 5 ? g->counters.ahead - ahead >= 5 : g->counters.ahead - ahead == 9);
            flux_default_device(test_device);
        }
}

/* Numbers made where the host is go where they are needed, also to what reads them as a whole; so do those of a gradient. */
TEST(numbers_are_everywhere) {
    ON_A_GPU();
    flux_device cpu = { 0, 0 };
    double sums[2][8];
    flux_default_device(cpu);
    for (int far = 0; far < 2; far++)
        FLUX_SCOPE {
            flux_device d = far ? test_device : cpu;
            flux_tensor *x = flux_to(d, flux_reshape(flux_arange(0, 16, 1), 4, 4)), *at = flux_to(d, flux_to_dtype(flux_arange(0, 3, 1), FLUX_I64));
            flux_tensor *w = flux_eval(flux_mul(x, 2));
            flux_grads *g = flux_gradient(flux_sum(flux_square(flux_gather(w, 1, at))), w);
            flux_tensor *z[] = { flux_matmul(x, flux_full(2, 4, 4)), flux_matmul(flux_full(2, 4, 4), x), flux_cat(0, x, flux_full(3, 2, 4)), flux_cat(0, flux_full(3, 2, 4), x),
                                 flux_gather(flux_full(5, 4, 4), 1, at), flux_scatter_add(flux_zeros(4, 4), 1, at, flux_slice(x, 1, 0, 3)), flux_grad(g, w),
                                 flux_matmul(x, flux_eval(flux_full(2, 4, 4))) };
            for (int i = 0; i < 8; i++) {
                REQUIRE(z[i] && flux_device_equal(flux_device_of(z[i]), d));
                sums[far][i] = flux_item(flux_sum(flux_mul(z[i], flux_add(flux_reshape(flux_to(d, flux_arange(0, (double)flux_len(z[i]), 1)), flux_dim(z[i], 0), -1), 1))));
            }
        }
    flux_default_device(test_device);
    for (int i = 0; i < 8; i++) CHECK(sums[0][i] > 0 && sums[0][i] == sums[1][i]);
}

/* The same with every operation that takes more than one operand, x being 4 x 4 x 3 x 2 and n a number of a shape of its own:
   whether the number has been computed before, is computed later or never, and its gradient comes back to where it lies. */
typedef struct with_number { flux_tensor *(*f)(flux_tensor *x, flux_tensor *n); flux_shape s; } with_number;
#define W(name, expression) static flux_tensor *w_##name(flux_tensor *x, flux_tensor *n) { return expression; }
W(mul, flux_mul(x, n))
W(mul_view, flux_mul(x, flux_reshape(flux_transpose(n), 4, 4)))
W(mul_slice, flux_mul(x, flux_slice(n, 0, 1, 5)))
W(mul_f64, flux_mul(flux_to_dtype(x, FLUX_F64), n))
W(mul_f16, flux_mul(flux_to_dtype(x, FLUX_F16), flux_broadcast_to(n, 4, 4)))
W(where, flux_where(flux_gt(x, 0.5), x, n))
W(matmul, flux_matmul(x, n))
W(matmul_view, flux_matmul(flux_transpose(n), x))
W(matmul_f16, flux_matmul(flux_to_dtype(x, FLUX_F16), n))
W(cat, flux_cat(1, flux_reshape(n, 4, 2, 3, 2), x))
W(stack, flux_stack(2, x, n))
W(gather, flux_gather(n, 0, flux_to_dtype(flux_gt(x, 0.5), FLUX_I32)))
W(scatter, flux_scatter_add(flux_transpose(n), 0, flux_to_dtype(flux_gt(flux_reshape(x, -1), 0.5), FLUX_I32), flux_reshape(x, -1, 1)))
W(scatter_src, flux_scatter_add(flux_reshape(x, 48, 2), 0, flux_to_dtype(flux_gt(flux_slice(flux_reshape(x, -1), 0, 0, 5), 0.5), FLUX_I64), n))
W(conv, flux_conv(x, n))
W(conv_of, flux_conv(n, flux_slice(x, 0, 0, 3), .pad = FLUX_SHAPE(1)))
W(crosscor, flux_crosscor(x, n, .stride = FLUX_SHAPE(2), .pad = FLUX_SHAPE(1)))
W(conv_transpose, flux_conv_transpose(x, n, .stride = FLUX_SHAPE(2)))
W(attention_q, flux_nth(flux_dot_product_attention(n, flux_reshape(x, 8, 6, 2), flux_reshape(x, 8, 6, 2)), 0))
W(attention_v, flux_nth(flux_dot_product_attention(flux_reshape(x, 8, 6, 2), flux_reshape(x, 8, 6, 2), n, .nheads = 2), 0))
W(attention_bias, flux_nth(flux_dot_product_attention(flux_reshape(x, 8, 6, 2), flux_reshape(x, 8, 6, 2), flux_reshape(x, 8, 6, 2), .bias = n), 0))
W(loss, flux_logitbinarycrossentropy(x, n))
W(loss_of, flux_mse(n, x))
W(two_numbers, flux_where(flux_full_with(FLUX_SHAPE(4, 4), 1, FLUX_BOOL), flux_mul(x, n), flux_zeros(4, 4)))
static const with_number with_numbers[] = {
    { w_mul, { 2, { 4, 4 } } }, { w_mul_view, { 2, { 8, 2 } } }, { w_mul_slice, { 2, { 6, 4 } } }, { w_mul_f64, { 1, { 4 } } },
    { w_mul_f16, { 0, { 0 } } }, { w_where, { 2, { 1, 4 } } },
    { w_matmul, { 2, { 4, 5 } } }, { w_matmul_view, { 2, { 4, 5 } } }, { w_matmul_f16, { 3, { 4, 5, 3 } } }, { w_cat, { 1, { 48 } } }, { w_stack, { 4, { 4, 4, 3, 2 } } },
    { w_gather, { 2, { 2, 3 } } }, { w_scatter, { 2, { 1, 2 } } }, { w_scatter_src, { 2, { 5, 2 } } }, { w_conv, { 4, { 3, 3, 3, 4 } } }, { w_conv_of, { 4, { 6, 6, 3, 1 } } },
    { w_crosscor, { 4, { 3, 2, 3, 4 } } }, { w_conv_transpose, { 4, { 3, 3, 2, 3 } } }, { w_attention_q, { 3, { 8, 5, 2 } } }, { w_attention_v, { 3, { 8, 6, 2 } } },
    { w_attention_bias, { 2, { 6, 6 } } }, { w_loss, { 4, { 4, 4, 3, 2 } } }, { w_loss_of, { 4, { 4, 4, 3, 2 } } }, { w_two_numbers, { 2, { 4, 4 } } }
};

/* Of row i with x on a device: the sum of squares of the result, and of the number's gradient. */
static void use_number(int i, flux_device d, int when, double *out) {
    flux_device cpu = { 0, 0 };
    flux_seed(4);
    flux_tensor *x = flux_to(d, flux_rand(4, 4, 3, 2)), *n = flux_full_with(with_numbers[i].s, 0.5, FLUX_F32);
    if (when == 1) flux_eval(n);
    flux_tensor *y = with_numbers[i].f(x, n), *loss = flux_sum(flux_square(y)), *by;
    if (when == 2) flux_eval(n);
    flux_grads *g = flux_gradient(loss, n);
    by = g ? flux_grad(g, n) : NULL;
    if (!CHECK(y && by && flux_device_equal(flux_device_of(y), d) && flux_device_equal(flux_device_of(by), cpu)) || !CHECK(flux_dtype_of(by) == FLUX_F32)) {
        fprintf(stderr, "    row %d, computed %s\n", i, when == 0 ? "never" : when == 1 ? "before" : "later");
        return;
    }
    CHECK(flux_ndim(by) == flux_ndim(n) && flux_len(by) == flux_len(n));
    out[0] = flux_item(loss), out[1] = flux_item(flux_sum(flux_square(flux_add(by, 1))));
}

TEST(numbers_take_part_in_everything) {
    ON_A_GPU();
    flux_device cpu = { 0, 0 };
    flux_default_device(cpu);
    for (int i = 0; i < (int)(sizeof with_numbers / sizeof *with_numbers); i++)
        for (int when = 0; when < 3; when++)
            FLUX_SCOPE {
                double want[2] = { NAN, NAN }, got[2] = { NAN, NAN };
                use_number(i, cpu, when, want);
                use_number(i, test_device, when, got);
                for (int k = 0; k < 2; k++) CHECK_NEAR(got[k], want[k], i == 4 || i == 8 ? 2e-2 : 1e-4);
            }
    flux_default_device(test_device);
}

/* What is no number is refused, whichever operand it is. */
TEST(a_mask_on_another_device_is_refused) {
    ON_A_GPU();
    flux_device cpu = { 0, 0 };
    flux_tensor *q = flux_rand(8, 6, 2), *bias = flux_to(cpu, flux_rand(6, 6)), *mask = flux_eval(flux_gt(bias, 0.5));
    CHECK_ERROR(flux_dot_product_attention(q, q, q, .mask = mask), "two devices");
    CHECK_ERROR(flux_dot_product_attention(q, q, q, .bias = bias), "two devices");
    CHECK_ERROR(flux_dot_product_attention(flux_cpu(q), q, q), "two devices");
    CHECK_ERROR(flux_dot_product_attention_scores(q, flux_cpu(q)), "two devices");
}

/* Batches are picked into pinned memory, whatever an observation's size; one that is too large for a slot goes by way of the host. */
TEST(observations_of_any_size_travel) {
    ON_A_GPU();
    flux_device cpu = { 0, 0 };
    static const int64_t sizes[] = { 1, 3, 262144, 262145, 500000 };
    for (int i = 0; i < 5; i++)
        FLUX_SCOPE {
            int64_t f = sizes[i], n = i < 2 ? 1000003 : 7, at = 0, batch = i < 2 ? 700001 : 4;
            flux_default_device(cpu);
            flux_tensor *x = flux_eval(flux_reshape(flux_to_dtype(flux_arange(0, (double)(f * n), 1), FLUX_F32), f, n));
            flux_loader *l = flux_dataloader(x, .batchsize = (int)batch, .shuffle = i % 2, .seed = 2), *far = flux_to(test_device, l);
            const float *all = (const float *)flux_data(x);
            flux_default_device(test_device);
            REQUIRE(far && all);
            float *got = (float *)malloc((size_t)(f * n) * 4);
            flux_each(b, far) {
                const float *p = (const float *)flux_data(b.x);
                REQUIRE(p);
                memcpy(got + at * f, p, (size_t)(b.size * f) * 4);
                at += b.size;
            }
            CHECK(at == n);
            bool same = true;
            at = 0;
            flux_default_device(cpu);
            flux_each(b, l) {
                const float *p = (const float *)flux_data(b.x);
                same = same && p && !memcmp(got + at * f, p, (size_t)(b.size * f) * 4);
                at += b.size;
            }
            CHECK(same && (i % 2 || !memcmp(got, all, (size_t)(f * n) * 4)));
            flux_default_device(test_device);
            free(got);
        }
}

/* What nobody came to use leaves memory that others get, and so does what is still travelling: kernels, copies from the host
   and copies within the device all wait for it. */
TEST(memory_of_a_copy_under_way_is_not_mixed_up) {
    ON_A_GPU();
    flux_device cpu = { 0, 0 };
    enum { F = 500, B = 10 };
    flux_default_device(cpu);
    flux_tensor *x = flux_eval(flux_full(7, F, B * 4)), *ones = flux_eval(flux_ones(F, B)), *parts[FLUX__COMING + 3];
    flux_loader *l = flux_to(test_device, flux_dataloader(x, .batchsize = B));
    for (int i = 0; i < FLUX__COMING + 3; i++) parts[i] = flux_eval(flux_full(i, 4, 12));
    flux_loader *many = flux_to(test_device, flux_dataloader(flux_tuple_with(FLUX__COMING + 3, parts), .batchsize = 4));
    flux_default_device(test_device);
    flux_mem_trim(test_device);
    REQUIRE(l && many);
    for (int how = 0; how < 6; how++)
        FLUX_SCOPE {
            flux_each(b, l) break;        /* the second batch is on its way, and its memory is the pool's */
            flux_tensor *z = NULL, *sum = NULL;
            if (how == 0) z = flux_eval(flux_full(3, F, B));
            if (how == 1) z = flux_eval(flux_to(test_device, ones));
            if (how == 2) z = flux_eval(flux_to(test_device, flux_eval(flux_to(test_device, ones))));
            if (how == 3) flux_mem_trim(test_device);
            if (how == 4) sum = flux_eval(flux_sum(flux_add(flux_matmul(flux_full(1, B, F), flux_full(1, F, B)), 0.5)));
            if (how == 5)                 /* more than it keeps count of */
                flux_each(b, many)
                    for (int k = 0; k < b.count; k++) CHECK_NEAR(flux_item(flux_mean(b.item[k])), k, 0);
            flux_synchronise_device(test_device);
            if (z) CHECK_NEAR(flux_item(flux_mean(z)), how ? 1 : 3, 0);
            if (sum) CHECK_NEAR(flux_item(sum), B * B * (F + 0.5), 1);
        }
    flux_each(b, l) CHECK_NEAR(flux_item(flux_mean(b.x)), 7, 0);
    CHECK(flux_error()[0] == 0);
}

/* Two epochs of a loader, each of which may fail once. */
static int batches(void) {
    flux_device cpu = { 0, 0 };
    enum { N = 20, F = 70000 };           /* several slots a batch */
    int failed = 0;
    flux_scope_open();
    flux_default_device(cpu);
    flux_tensor *x = flux_eval(flux_mul(flux_ones(F, N), flux_reshape(flux_arange(0, N, 1), 1, N)));      /* by column */
    flux_default_device(test_device);
    for (int tries = 0, done = 0; tries < 4 && done < 2; tries++) {
        flux_loader *l = x ? flux_to(test_device, flux_dataloader(x, .batchsize = 5)) : NULL;
        int64_t n = 0;
        bool good = l != NULL;
        if (good)
            flux_each(b, l) {
                flux_tensor *some = flux_slice(flux_reshape(b.x, 100, F / 100, 5), 0, 0, 1), *mean = flux_mean(flux_reshape(some, F / 100, 5), 0);
                for (int i = 0; i < 5 && !flux_failed(); i++) {
                    double v = flux_at(mean, 0, i);
                    CHECK(flux_failed() || fabs(v - (double)(n + i)) < 1e-3);
                }
                n += 5;
            }
        if (!flux_failed()) {
            CHECK(n == N);
            done++;
            continue;
        }
        failed++;
        CHECK(told());
        CHECK(failed < 3);                /* a second in a row, when opening the device fails twice */
    }
    flux_scope_close();
    return failed;
}
static void batch_faults(void) { driver_faults(batches); }
TEST(each_driver_call_of_a_loader_may_fail) {
    SOFT_ONLY();
    CHECK(run_with_file("batch_faults", "A=1"));
}

/* ---------------- a download waits without holding anybody up */

typedef struct user { flux__os_thread thread; flux_device device; bool good; char error[400]; } user;

static int others_left;                   /* threads that have to get something done meanwhile */
static flux__thread *who_waits;
static bool has_waited;                   /* that thread's */
static int (*real_wait)(void *);
static void let_others_go(void) {
    double start = flux__now();
    flux__atomic_store32(&others_left, -flux__atomic_load32(&others_left));
    while (flux__atomic_load32(&others_left) < 0 && flux__now() - start < 20) flux__thread_yield();
    has_waited = true;
}
static int slow_wait(void *event) {       /* the driver's, in which the first thread stays until the others are done */
    if (flux__self() == who_waits && !has_waited) let_others_go();
    return real_wait(event);
}
static void in_the_meantime(void *arg) {
    user *u = (user *)arg;
    training t;
    float w[WEIGHTS];
    while (flux__atomic_load32(&others_left) > 0) flux__thread_yield();
    FLUX_SCOPE {
        flux_seed(7);                     /* as training_start, but for the default device, which is everybody's */
        t.model = flux_to(u->device, small_model());
        t.x = flux_eval(flux_to(u->device, flux_randn(6, 5)));
        t.y = flux_eval(flux_to(u->device, flux_softmax(flux_randn(3, 5))));
        t.opt = flux_setup(flux_adam(0.05), t.model);
        u->good = t.opt && steps(&t) && weights(t.model, w) && near(w, expected_weights(), WEIGHTS, 1e-4);
        u->good = u->good && flux_eval(flux_full(2, 333, 777)) != NULL;      /* new memory, and a kernel to compile */
        flux_synchronise_device(u->device);
    }
    snprintf(u->error, sizeof u->error, "%s", flux_error());
    flux__atomic_add32(&others_left, 1);
}
static void slow_down(int (**call)(void *), const flux_device *d) {
    static user u[2];
    bool trims = call == &flux__cu.StreamSynchronize || call == &flux__roc.StreamSynchronize;
    flux_tensor *x = flux_eval(flux_ones(1000));
    REQUIRE(x && expected_weights());
    real_wait = *call;
    *call = slow_wait;
    who_waits = flux__self();
    has_waited = false;
    flux__atomic_store32(&others_left, 2);
    for (int i = 0; i < 2; i++) {
        u[i].device = d[i];
        REQUIRE(flux__thread_start(&u[i].thread, in_the_meantime, &u[i]));
    }
    if (trims) flux_mem_trim(test_device);
    else CHECK_NEAR(flux_item(flux_sum(x)), 1000, 0);
    CHECK(flux__atomic_load32(&others_left) == 0 && has_waited);       /* before it got its number */
    for (int i = 0; i < 2; i++) flux__thread_join(&u[i].thread);
    for (int i = 0; i < 2; i++)
        if (!CHECK(u[i].good)) fprintf(stderr, "    %s\n", u[i].error);
    *call = real_wait;
}
static void meantime(void) {
    flux_device d[8], cpu = { 0, 0 };
    int n = device_list(d);
    d[1] = d[n > 1];                      /* the same one, and another if there is one */
    flux_default_device(test_device);
    slow_down(on_cuda ? &flux__cu.EventSynchronize : &flux__roc.EventSynchronize, d);
    d[0] = n > 1 ? d[1] : cpu, d[1] = cpu;         /* memory that is given back concerns the others no more */
    flux_default_device(cpu);
    slow_down(on_cuda ? &flux__cu.StreamSynchronize : &flux__roc.StreamSynchronize, d);
}
TEST(a_download_that_waits_holds_nobody_up) {
    SOFT_ONLY();
    CHECK(child("meantime", "A=1", NULL) == 0);
}

/* While a kernel is compiled for a device, others use it, if theirs are there. */
static int (*real_nvrtc)(void *, int, const char *const *);
static int (*real_hiprtc)(void *, int, const char **);
static int slow_nvrtc(void *program, int n, const char *const *options) {
    if (!has_waited) let_others_go();
    return real_nvrtc(program, n, options);
}
static int slow_hiprtc(void *program, int n, const char **options) {
    if (!has_waited) let_others_go();
    return real_hiprtc(program, n, options);
}
static double three_thousand(void) { return flux_item(flux_sum(flux_mul(flux_eval(flux_ones(1000)), 3))); }
static void with_what_is_there(void *arg) {
    user *u = (user *)arg;
    while (flux__atomic_load32(&others_left) > 0) flux__thread_yield();
    FLUX_SCOPE { u->good = three_thousand() == 3000; }
    snprintf(u->error, sizeof u->error, "%s", flux_error());
    flux__atomic_add32(&others_left, 1);
}
static void compiling(void) {
    static user u[2];
    CHECK(three_thousand() == 3000);
    real_nvrtc = flux__nvrtc.CompileProgram, real_hiprtc = flux__hiprtc.CompileProgram;
    flux__nvrtc.CompileProgram = slow_nvrtc, flux__hiprtc.CompileProgram = slow_hiprtc;
    flux__atomic_store32(&others_left, 2);
    for (int i = 0; i < 2; i++) REQUIRE(flux__thread_start(&u[i].thread, with_what_is_there, &u[i]));
    CHECK_NEAR(flux_item(flux_mean(flux_full(2, 77, 33))), 2, 0);
    CHECK(has_waited && flux__atomic_load32(&others_left) == 0);       /* before it was compiled */
    CHECK(compiler.calls("setrlimit") == 0);                           /* by NVRTC, which would raise the process's limit */
    for (int i = 0; i < 2; i++) flux__thread_join(&u[i].thread);
    for (int i = 0; i < 2; i++)
        if (!CHECK(u[i].good)) fprintf(stderr, "    %s\n", u[i].error);
    flux__nvrtc.CompileProgram = real_nvrtc, flux__hiprtc.CompileProgram = real_hiprtc;
}
TEST(compiling_holds_nobody_up) {
    SOFT_ONLY();
    REQUIRE(new_cache());
    CHECK(child("compiling", cache_is, NULL) == 0);
    drop_cache();
}

static void use(void *arg) {
    user *u = (user *)arg;
    training t;
    float w[WEIGHTS], first[WEIGHTS];
    u->good = true;
    for (int i = 0; i < 4 && u->good; i++)
        FLUX_SCOPE {
            flux_seed(3);
            t.model = flux_to(u->device, small_model());
            t.x = flux_eval(flux_to(u->device, flux_randn(6, 5)));
            t.y = flux_eval(flux_to(u->device, flux_softmax(flux_randn(3, 5))));
            t.opt = flux_setup(flux_adam(0.05), t.model);
            for (int step = 0; step < 10 && u->good; step++) u->good = training_step(&t) == 0;
            u->good = u->good && weights(t.model, w);
            if (i == 0) memcpy(first, w, sizeof w);
            u->good = u->good && !memcmp(first, w, sizeof w);
        }
    snprintf(u->error, sizeof u->error, "%s", flux_error());
}
TEST(threads_train_on_one_device) {
    static user u[5];
    flux_device d[8];
    ON_A_GPU();
    int n = device_list(d);
    int64_t replayed = the_gpu()->counters.graph_launches;
    for (int i = 0; i < 5; i++) {
        u[i].device = i < 3 ? test_device : d[i % n];
        REQUIRE(flux__thread_start(&u[i].thread, use, &u[i]));
    }
    for (int i = 0; i < 5; i++) flux__thread_join(&u[i].thread);
    for (int i = 0; i < 5; i++)
        if (!CHECK(u[i].good)) fprintf(stderr, "    %s\n", u[i].error);
    CHECK(the_gpu()->counters.graph_launches >= replayed + 3 * (4 * 10 - 2));
}

/* ---------------- the cache on disk */

static bool maps(const char *part) {      /* is such a library in this process? */
    char line[4096];
    bool found = false;
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && fgets(line, sizeof line, f)) found = found || strstr(line, part) != NULL;
    if (f) fclose(f);
    return found;
}
/* $WANT: compiled, read (the compiler is not even opened), opened (but has compiled nothing), or any; $NOTES: how many messages */
static void cached(void) {
    const char *want = getenv("WANT"), *count = getenv("NOTES");
    if (getenv("FULL")) disk_room = atol(getenv("FULL"));
    CHECK(trains());
    flux_on_log(NULL, NULL);
    flux__gpu_counters *c = &the_gpu()->counters;
    if (!strcmp(want, "compiled")) CHECK(c->programs_compiled > 0 && c->programs_read == 0);
    if (!strcmp(want, "some")) CHECK(c->programs_compiled > 0 && c->programs_read > 0);
    if (!strcmp(want, "opened")) CHECK(c->programs_compiled == 0 && c->programs_read > 0 && maps(on_cuda ? "libnvrtc" : "libhiprtc"));
    if (!strcmp(want, "read")) CHECK(c->programs_compiled == 0 && c->programs_read > 0 && !maps(on_cuda ? "libnvrtc" : "libhiprtc"));
    if (!CHECK(notes == (count ? atoi(count) : 0))) fprintf(stderr, "    %d messages: %s\n", notes, note);
    CHECK(!flux_failed());
}
static char cache[78];
static int entries(char (*names)[200], int max, const char *part) {
    int n = 0;
    DIR *dir = opendir(cache);
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;)
        if (e->d_name[0] != '.' && strlen(e->d_name) > 40 && (!part || strstr(e->d_name, part)) && n < max) snprintf(names[n++], 200, "%s/%.120s", cache, e->d_name);
    if (dir) closedir(dir);
    return n;
}
static bool new_cache(void) {
    snprintf(cache, sizeof cache, "%s/flux-gpu-cache-XXXXXX", test_temp());
    bool made = mkdtemp(cache) != NULL;
    snprintf(cache_is, sizeof cache_is, "FLUX_CACHE_DIR=%s", cache);
    return made;
}
static void drop_cache(void) {
    char path[400];
    DIR *dir = opendir(cache);
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;)
        if (e->d_name[0] != '.') snprintf(path, sizeof path, "%s/%.200s", cache, e->d_name), remove(path);
    if (dir) closedir(dir);
    rmdir(cache);
}
#define CACHED(want, ...) CHECK(child("cached", cache_is, "WANT=" want, __VA_ARGS__, NULL) == 0)

TEST(a_second_process_compiles_nothing) {
    SOFT_ONLY();
    REQUIRE(new_cache());
    CACHED("compiled", "A=1");
    CACHED("read", "A=1");
    CACHED("read", on_cuda ? "FLUX_NVRTC=/nonexistent" : "FLUX_HIPRTC=/nonexistent");
    drop_cache();
}

static void flip(FILE *f, long at) {
    fseek(f, at, SEEK_SET);
    int c = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(~c & 0xff, f);
}
static void damage(const char *path, int how) {
    struct stat s;
    if (stat(path, &s) != 0) return;
    FILE *f = fopen(path, "r+b");
    if (!f) return;
    switch (how) {
    case 0: CHECK(ftruncate(fileno(f), 0) == 0); break;
    case 1: CHECK(ftruncate(fileno(f), 20) == 0); break;
    case 2: CHECK(ftruncate(fileno(f), s.st_size - 1) == 0); break;
    case 3: flip(f, 0); break;            /* the magic */
    case 4: flip(f, 12); break;           /* the key */
    case 5: flip(f, 46); break;           /* the size */
    case 6: flip(f, (long)s.st_size - 5); break;
    default: fseek(f, 0, SEEK_END), fputc(1, f);
    }
    fclose(f);
}
TEST(damaged_entries_are_made_anew) {
    static char names[64][200];
    SOFT_ONLY();
    REQUIRE(new_cache());
    CACHED("compiled", "A=1");
    int n = entries(names, 64, NULL);
    CHECK(n > 0);
    for (int how = 0; how < 8; how++) {
        for (int i = 0; i < n; i++) damage(names[i], how);
        CACHED("compiled", "A=1");
        CACHED("read", "A=1");
    }
    if (n > 1) {
        damage(names[0], 2);
        CACHED("some", "A=1");
    }
    drop_cache();
}

/* What the driver will not load although the checksum is right, as after a change of drivers. */
TEST(an_entry_that_the_driver_refuses_is_made_anew) {
    SOFT_ONLY();
    REQUIRE(new_cache());
    CACHED("compiled", "A=1");
    CACHED("some", on_cuda ? "SOFTGPU_FAIL=cuModuleLoadData:1=200" : "SOFTGPU_FAIL=hipModuleLoadData:1=200");
    CACHED("read", "A=1");
    drop_cache();
}

/* The cache knows the device, so that it counts as functional, but not this kernel; and there is no compiler. */
static void uncompiled(void) {
    CHECK(flux_functional(flux_device_backend(test_device)));
    flux_tensor *x = there(flux_from(((float[]){ 1, 2 }), 2));
    CHECK(x != NULL);
    CHECK_ERROR(flux_eval(flux_add(x, 1.0)), on_cuda ? "device 0: kernels can't be compiled: no NVRTC" : "device 0: kernels can't be compiled: no hiprtc");
    CHECK_NEAR(flux_item(flux_sum(flux_cpu(x))), 3, 0);
}
TEST(a_kernel_without_a_compiler) {
    static char names[64][200];
    SOFT_ONLY();
    REQUIRE(new_cache());
    CACHED("compiled", "A=1");
    int n = entries(names, 64, NULL);
    for (int i = 0; i < n; i++) remove(names[i]);
    CHECK(n > 0 && child("uncompiled", cache_is, "FLUX_NVRTC=/nonexistent", "FLUX_HIPRTC=/nonexistent", NULL) == 0);
    name_backends();                      /* from now on it is known */
    NONE("/nonexistent", cache_is, "FLUX_NVRTC=/nonexistent", "FLUX_HIPRTC=/nonexistent");
    drop_cache();
}

static bool copy_file(const char *from, const char *to) {
    char part[4096];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    bool good = in && out;
    for (size_t n; good && (n = fread(part, 1, sizeof part, in)) > 0;) good = fwrite(part, 1, n, out) == n;
    if (in) fclose(in);
    return out && fclose(out) == 0 && good;
}
/* What the cache knows of its compiler holds until the compiler's file changes or goes. */
TEST(a_compiler_that_changes_or_goes) {
    char path[200], set[300];
    SOFT_ONLY();
    const char *variable = on_cuda ? "FLUX_NVRTC" : "FLUX_HIPRTC";
    REQUIRE(new_cache());
    name_backends();
    snprintf(path, sizeof path, "%s/%s", cache, on_cuda ? "libnvrtc.so.13" : "libhiprtc.so.6");
    snprintf(set, sizeof set, "%s=%s", variable, path);
    REQUIRE(copy_file(getenv(variable), path));
    CACHED("compiled", set);
    CACHED("read", set);
    struct timeval when[2] = { { 1000000000, 0 }, { 1000000000, 0 } };
    CHECK(utimes(path, when) == 0);
    CACHED("opened", set);
    CACHED("read", set);
    when[1].tv_sec++;
    CHECK(utimes(path, when) == 0);
    CACHED("compiled", set, "SOFTGPU_COMPILER_VERSION=12.1");
    CACHED("read", set, "SOFTGPU_COMPILER_VERSION=12.1");
    CHECK(remove(path) == 0);
    if (on_cuda) NONE("NVRTC: ", cache_is, set);
    else NONE("hiprtc: ", cache_is, set);
    drop_cache();
}

TEST(two_processes_fill_the_cache_at_once) {
    static char names[64][200];
    SOFT_ONLY();
    REQUIRE(new_cache());
    pid_t p[3];
    for (int i = 0; i < 3; i++) p[i] = child_beside("cached", cache_is, "WANT=any", NULL);
    for (int i = 0; i < 3; i++) CHECK(p[i] > 0 && end_child(p[i]) == 0);
    CACHED("read", "A=1");
    int n = entries(names, 64, NULL);
    for (int i = 0; i < n; i++) CHECK(strrchr(names[i], '.') == NULL);
    DIR *dir = opendir(cache);                                             /* nothing aside is left */
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;) CHECK(strstr(e->d_name, ".tmp") == NULL);
    if (dir) closedir(dir);
    drop_cache();
}

TEST(no_cache_is_no_obstacle) {
    char set[400];
    SOFT_ONLY();
    REQUIRE(new_cache());
    CHECK(chmod(cache, 0777) == 0);
    CACHED("compiled", "NOTES=1");
    CHECK(chmod(cache, 0755) == 0);
    CACHED("compiled", "NOTES=0");
    snprintf(set, sizeof set, "%s/file", cache);
    FILE *f = fopen(set, "w");
    REQUIRE(f);
    fclose(f);
    snprintf(set, sizeof set, "FLUX_CACHE_DIR=%s/file", cache);
    CACHED("compiled", "NOTES=1", set);
    snprintf(set, sizeof set, "FLUX_CACHE_DIR=%s/file/deeper", cache);
    CACHED("compiled", "NOTES=1", set);
    CACHED("compiled", "NOTES=1", "FLUX_CACHE_DIR=/proc/self/fdinfo");      /* where nobody can write, not even root */
    CACHED("compiled", "NOTES=1", "FLUX_CACHE_DIR", "XDG_CACHE_HOME", "HOME");
    drop_cache();
}

/* Who may write to a folder above the cache may put another cache in its place; /tmp, where only owners may, is fine. */
TEST(folders_above_the_cache) {
    char above[300], set[400], path[400];
    SOFT_ONLY();
    REQUIRE(new_cache());
    snprintf(above, sizeof above, "%s/above", cache);
    snprintf(set, sizeof set, "FLUX_CACHE_DIR=%s/below", above);
    REQUIRE(mkdir(above, 0755) == 0);
    static const struct { mode_t mode; const char *notes; } modes[] = { { 0777, "NOTES=1" }, { 02775, "NOTES=1" }, { 01777, "NOTES=0" }, { 0755, "NOTES=0" } };
    for (int i = geteuid() == 0 ? 0 : 2; i < 4; i++) {
        CHECK(chmod(above, modes[i].mode) == 0);
        CACHED("any", modes[i].notes, set);
    }
    snprintf(path, sizeof path, "rm -rf '%s'", above);
    CHECK(system(path) == 0);
    snprintf(set, sizeof set, "XDG_CACHE_HOME=%s", cache);                   /* a relative path is passed over, with a word */
    CACHED("compiled", "FLUX_CACHE_DIR=build/here", set, "NOTES=1");
    CACHED("read", "FLUX_CACHE_DIR=build/here", set, "NOTES=1");
    CHECK(access("build/here", F_OK) != 0);
    CACHED("compiled", "FLUX_CACHE_DIR", "XDG_CACHE_HOME=build/here", "HOME=..", "NOTES=1");
    snprintf(path, sizeof path, "rm -rf '%s/flux'", cache);
    CHECK(system(path) == 0);
    drop_cache();
}

/* What a process that was killed has left aside goes when another writes its first entry. */
TEST(a_kill_leaves_nothing_for_good) {
    static char names[64][200];
    char path[400];
    SOFT_ONLY();
    REQUIRE(new_cache());
    CACHED("compiled", "A=1");
    int n = entries(names, 64, NULL);
    REQUIRE(n > 0);
    snprintf(path, sizeof path, "%s/.flux-kernel-1-1.tmp", cache);
    FILE *f = fopen(path, "w");
    REQUIRE(f);
    fclose(f);
    CACHED("read", "A=1");
    CHECK(access(path, F_OK) == 0);
    CHECK(remove(names[0]) == 0);
    CACHED("any", "A=1");
    CHECK(access(path, F_OK) != 0 && access(names[0], F_OK) == 0);
    drop_cache();
}

TEST(a_full_disk_leaves_no_half_entry) {
    static char names[64][200];
    SOFT_ONLY();
    REQUIRE(new_cache());
    static const char *const full[] = { "FULL=0", "FULL=30", "FULL=500", "FULL=20000" };
    for (int i = 0; i < 4; i++) {
        CACHED("any", full[i], "NOTES=1");
        int n = entries(names, 64, NULL);
        for (int k = 0; k < n; k++) {
            struct stat s;
            CHECK(stat(names[k], &s) == 0 && s.st_size > (off_t)sizeof(flux__cache_head) && strstr(names[k], ".tmp") == NULL);
        }
        CHECK(i == 3 || n == 0);
    }
    CACHED("any", "A=1");
    CACHED("read", "A=1");
    drop_cache();
}

/* ---------------- the program */

/* ---------------- libraries by their versions */

static char libraries[70];               /* a folder of copies of the software GPU's, by other names */
static bool library_copy(const char *as, const char *of) {
    char to[400], from[600], piece[4096];
    snprintf(to, sizeof to, "%s/%s", libraries, as);
    snprintf(from, sizeof from, "%s/%s", getenv("SOFTGPU"), of);
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    size_t n = 0;
    while (in && out && (n = fread(piece, 1, sizeof piece, in)) > 0)
        if (fwrite(piece, 1, n, out) != n) break;
    if (in) fclose(in);
    return in && out && fclose(out) == 0 && n == 0;
}
static bool libraries_of(const char *names, const char *of) {      /* separated by spaces */
    char one[80];
    snprintf(libraries, sizeof libraries, "%s/flux-gpu-libraries-%d", test_temp(), (int)getpid());
    bool ok = mkdir(libraries, 0700) == 0 || errno == EEXIST;
    for (int at = 0, n; ok && sscanf(names + at, "%79s%n", one, &n) == 1; at += n) ok = library_copy(one, of);
    return ok;
}
static void libraries_gone(void) {
    snprintf(cache, sizeof cache, "%s", libraries);
    drop_cache();
    CHECK(access(libraries, F_OK) != 0);
}

/* A kernel is compiled by $WANT and runs. */
static void compiler_is(void) {
    CHECK(flux_item(flux_sum(flux_mul(flux_eval(flux_ones(50)), 3))) == 150);
    if (!CHECK(strcmp(flux__nvrtc_version, getenv("WANT")) == 0)) fprintf(stderr, "    it is %s\n", flux__nvrtc_version);
}
#define COMPILER(want, ...)                                                                                       \
    do {                                                                                                          \
        REQUIRE(new_cache());                                                                                     \
        CHECK(child("compiler_is", found, cache_is, "FLUX_NVRTC", "WANT=" want, __VA_ARGS__, NULL) == 0);         \
        drop_cache();                                                                                             \
    } while (0)

TEST(the_compiler_is_the_newest_that_the_driver_takes) {
    SOFT_ONLY();
    if (!on_cuda) SKIP("hiprtc comes with its driver");
    char found[340], set[340];
    name_backends();
    REQUIRE(libraries_of("libnvrtc.so.11.2 libnvrtc.so.12 libnvrtc.so.13", "libnvrtc.so.13"));
    snprintf(found, sizeof found, "LD_LIBRARY_PATH=%s", libraries);
    snprintf(set, sizeof set, "FLUX_NVRTC=%s/libnvrtc.so.12", libraries);
    COMPILER("NVRTC 13.0", "SOFTGPU_DRIVER_VERSION=13000");
    COMPILER("NVRTC 13.0", "SOFTGPU_DRIVER_VERSION=15020");
    COMPILER("NVRTC 12.9", "SOFTGPU_DRIVER_VERSION=12040");
    COMPILER("NVRTC 11.2", "SOFTGPU_DRIVER_VERSION=11080");
    COMPILER("NVRTC 12.9", "SOFTGPU_DRIVER_VERSION=13000", set);
    REQUIRE(new_cache());
    NONE("NVRTC 12.9 is here, but the NVIDIA driver is of CUDA 11.8", set, cache_is, "SOFTGPU_DRIVER_VERSION=11080");
    NONE("NVRTC 13.0 is here, but the NVIDIA driver is of CUDA 10.2", "FLUX_NVRTC", found, cache_is, "SOFTGPU_DRIVER_VERSION=10020");
    NONE("did not start", "SOFTGPU_FAIL=cuDriverGetVersion:1=999,cuDriverGetVersion:2=999");
    drop_cache();
    libraries_gone();
}

/* What another compiler made and this driver does not take is made anew. */
TEST(programs_kept_for_another_driver_are_made_anew) {
    SOFT_ONLY();
    if (!on_cuda) SKIP("hiprtc comes with its driver");
    char found[340];
    REQUIRE(new_cache());
    REQUIRE(libraries_of("libnvrtc.so.12 libnvrtc.so.13", "libnvrtc.so.13"));
    snprintf(found, sizeof found, "LD_LIBRARY_PATH=%s", libraries);
    CHECK(child("compiler_is", found, cache_is, "FLUX_NVRTC", "WANT=NVRTC 13.0", "SOFTGPU_DRIVER_VERSION=13000", NULL) == 0);
    CHECK(child("compiler_is", found, cache_is, "FLUX_NVRTC", "WANT=NVRTC 12.9", "SOFTGPU_DRIVER_VERSION=12040", NULL) == 0);
    drop_cache();
    libraries_gone();
}

static void components(void) {
    char names[200], one[40];
    snprintf(names, sizeof names, "%s", getenv("WANT"));
    for (int at = 0, n; sscanf(names + at, "%39s%n", one, &n) == 1; at += n)
        if (!CHECK(flux_functional_with(getenv("BACKEND"), one))) fprintf(stderr, "    %s\n", one);
}
TEST(libraries_that_carry_their_version_are_found) {
    SOFT_ONLY();
    char found[340];
    name_backends();
    REQUIRE(libraries_of(on_cuda ? "libcublas.so.12 libcudnn.so.9 libnccl.so.2"
                                 : "librocblas.so.5 librocsolver.so.0 librocsparse.so.1 librocrand.so.1 librocfft.so.0 libhiptensor.so.0 libMIOpen.so.1 librccl.so.1",
                         on_cuda ? "libcuda.so.1" : "libamdhip64.so.6"));
    snprintf(found, sizeof found, "LD_LIBRARY_PATH=%s", libraries);
    CHECK(child("components", backend_is, found,
                on_cuda ? "WANT=cuBLAS cuDNN NCCL" : "WANT=rocblas rocsolver rocsparse rocrand rocfft hiptensor MIOpen RCCL NCCL", NULL) == 0);
    libraries_gone();
}

/* An error that the driver has no words for is told by its number, which two threads may do at once. */
TEST(numbers_of_errors_are_each_caller_s_own) {
    SOFT_ONLY();
    char a[FLUX__GPU_NUMBER], b[FLUX__GPU_NUMBER];
    const flux__driver *d = flux__driver_of(test_device.backend);
    const char *first = d->error(31001, a), *second = d->error(31002, b);
    CHECK(strstr(first, on_cuda ? "31001" : "unknown") && strstr(second, on_cuda ? "31002" : "unknown"));
}

static const struct { const char *name; void (*run)(void); } children[] = {
    { "half_way", half_way }, { "batch_faults", batch_faults }, { "meantime", meantime }, { "graph_faults", graph_faults }, { "no_replay", no_replay },
    { "faults", faults }, { "trip_faults", trip_faults }, { "compiler_faults", compiler_faults }, { "none", none }, { "some", some }, { "another", another },
    { "cpu_preferred", cpu_preferred }, { "lost", lost }, { "lost_by_code", lost_by_code }, { "both", both }, { "context", context },
    { "asking", asking }, { "little", little }, { "cached", cached }, { "uncompiled", uncompiled }, { "prewarmed", prewarmed },
    { "compiling", compiling }, { "convolution", convolution }, { "forked", forked },
    { "compiler_is", compiler_is }, { "components", components },
};
static int run_child(const char *name) {
    bool cache = strcmp(name, "cached") == 0;      /* hears all, and opens no compiler to ask for counts */
    if (cache || !strcmp(name, "compiler_faults")) flux_on_log(hear, NULL);
    test_go_to_device();
    on_cuda = test_device.backend == FLUX__CUDA_BACKEND;
    if (test_device.backend && !cache) find_soft();
    for (size_t i = 0; i < sizeof children / sizeof *children; i++) {
        if (strcmp(children[i].name, name)) continue;
        flux_scope_open();
        children[i].run();
        if (flux_failed()) test_fail(__FILE__, __LINE__, flux_error());
        flux_clear();
        if (strcmp(name, "context") && !strstr(name, "faults")) flux_scope_close();     /* flux_shutdown closed it */
        if (!test_checks) test_fail(__FILE__, __LINE__, "nothing was checked");
        return test_bad != 0;
    }
    return 3;
}
#define main run_tests
static int run_tests(int argc, char **argv);
TEST_MAIN()
#undef main
int main(int argc, char **argv) {
    flux__test_gpu_blocks(5);             /* so that more are done in turns */
    return argc == 3 && !strcmp(argv[1], "child") ? run_child(argv[2]) : run_tests(argc, argv);
}
#else
TEST(gpu) { SKIP("not built with the GPU layer (or not on Linux)"); }
TEST_MAIN()
#endif
