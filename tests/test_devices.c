/* Devices: the registry, choosing, the preferences file, and moves. Back ends that are not there are played by fakes
   whose memory is host memory, so that every road through the choice can be walked on any machine. */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include <sys/stat.h>
#include <unistd.h>
#define FLUX_IMPLEMENTATION
#include "test.h"

/* ------------------------------------------------------------------ what is said, collected */

typedef struct said { flux_level level; char id[40], text[1024]; } said;
static said said_at[64];
static int said_n;

static void on_log(flux_level level, const char *id, const char *message, void *user) {
    (void)user;
    if (said_n == 64) return;
    said_at[said_n].level = level;
    snprintf(said_at[said_n].id, sizeof said_at->id, "%s", id);
    snprintf(said_at[said_n++].text, sizeof said_at->text, "%s", message);
}
static void listen(void) {                 /* from here on, with the once-only ones fresh */
    said_n = 0;
    flux_silence(NULL);
    flux_on_log(on_log, NULL);
}
/* The ids said since, in order: "device.preferred device.chosen". */
static const char *ids_said(void) {
    static char ids[1024];
    ids[0] = 0;
    for (int i = 0; i < said_n; i++) {
        if (i) strcat(ids, " ");
        strcat(ids, said_at[i].id);
    }
    return ids;
}
static const said *said_id(const char *id) {
    static const said none = { FLUX_LOG_DEBUG, "", "" };
    for (int i = 0; i < said_n; i++)
        if (strcmp(said_at[i].id, id) == 0) return &said_at[i];
    return &none;
}
static bool says(const char *id, const char *part) { return strstr(said_id(id)->text, part) != NULL; }

/* ------------------------------------------------------------------ back ends that are not there */

/* Under sanitizers all tests are linked to one implementation, which has GPUs; tests/one.sh names no driver for it. */
#ifdef FLUX_CUDA
enum { GPUS_BUILT = 1 };
#  define ABSENT "no NVIDIA driver: FLUX_CUDA_LIBRARY: none"
#else
enum { GPUS_BUILT = 0 };
#  define ABSENT "not part of this build"
#endif

static struct fake {
    bool available, functional;
    int count, asked, allocated, waited, last;
} cuda, amd;                                /* last: the device that was used last */

#define FAKE(f, model)                                                                                         \
    static bool f##_available(char *why, size_t n) { snprintf(why, n, "no driver library of " #f); return f.available; } \
    static bool f##_functional(char *why, size_t n) { f.asked++; snprintf(why, n, "init of " #f " says 100"); return f.functional; } \
    static int f##_count(void) { return f.count; }                                                             \
    static void f##_name(int id, char *out, size_t n) { snprintf(out, n, model " %c", 'A' + id); }             \
    static bool f##_component(const char *name, bool *known) {                                                 \
        *known = !strcmp(name, "driver") || !strcmp(name, "MIOpen");                                           \
        return !strcmp(name, "driver");                                                                        \
    }                                                                                                          \
    static void *f##_alloc(int id, size_t bytes) { f.allocated++; f.last = id; return malloc(bytes); }         \
    static void f##_free(int id, void *p, size_t bytes) { (void)bytes; f.allocated--; f.last = id; free(p); }  \
    static int f##_move(int id, void *to, const void *from, size_t bytes) { f.last = id; memcpy(to, from, bytes); return 0; } \
    static int f##_copy(int to, void *dst, int from, const void *src, size_t bytes) { (void)from; return f##_move(to, dst, src, bytes); } \
    static int f##_wait(int id) { f.waited++; f.last = id; return id == 1 ? -1 : 0; }
FAKE(cuda, "Card")
FAKE(amd, "Radeon")

static flux__backend made_up(int which) {
    flux__backend b = *flux__backend_of(FLUX__CPU_BACKEND);
#define FILL(f) b.available = f##_available; b.functional = f##_functional; b.count = f##_count; b.device_name = f##_name; \
    b.component = f##_component; b.alloc = f##_alloc; b.free = f##_free; b.upload = f##_move; b.download = f##_move;   \
    b.copy = f##_copy; b.wait = f##_wait
    if (which == FLUX__CUDA_BACKEND) { FILL(cuda); }
    else { FILL(amd); }
    return b;
}
/* Puts a fake in: how far it gets (0: no driver, 1: driver but not working, 2: works) and its devices. */
static void fake(int which, int stage, int count) {
    static flux__backend tables[FLUX__BACKENDS];
    struct fake *f = which == FLUX__CUDA_BACKEND ? &cuda : &amd;
    tables[which] = made_up(which);
    f->available = stage > 0;
    f->functional = stage > 1;
    f->count = count;
    f->asked = f->waited = 0;
    f->last = -1;
    flux__backend_set(which, &tables[which]);
}
static void real(void) {
    for (int b = FLUX__CUDA_BACKEND; b <= FLUX__AMDGPU_BACKEND; b++) {
        for (int id = 0; id < FLUX__MAX_IDS; id++) {
            flux_device d = { b, id };
            flux_mem_trim(d);
        }
        flux__backend_set(b, NULL);
    }
}

/* ------------------------------------------------------------------ a folder to be in */

static char home[1024], folder[100];

static void put(const char *path, const char *text) {
    FILE *f = fopen(path, "wb");
    if (f) {
        fwrite(text, 1, strlen(text), f);
        fclose(f);
    }
}
static const char *get(const char *path) {
    static char text[4096];
    FILE *f = fopen(path, "rb");
    if (!f) return "(no file)";
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    return text;
}
static void forget(void) { flux__pref.known = false; }
static void fresh(void) {                   /* an empty folder, nothing preferred, real back ends */
    if (!home[0] && !getcwd(home, sizeof home)) abort();
    unsetenv("FLUX_GPU_BACKEND");
    unsetenv("FLUX_PREFERENCES");
    unsetenv("CUDA_VISIBLE_DEVICES");
    snprintf(folder, sizeof folder, "%s/flux-devices-XXXXXX", test_temp());
    if (!mkdtemp(folder) || chdir(folder) != 0) abort();
    real();
    forget();
    listen();
    flux_scope_open();                      /* what lies on a fake must go before it does */
}
static void done(void) {
    static const char *const left[] = { "LocalPreferences.toml", "x.toml", "a/b/c", "a/b/.git", "a/b", "a/LocalPreferences.toml", "a", ".git" };
    flux_scope_close();
    if (chdir(folder) != 0) abort();
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) remove(left[i]);
    if (chdir(home) != 0) abort();
    CHECK(rmdir(folder) == 0);              /* and nothing else was left there */
    unsetenv("FLUX_GPU_BACKEND");
    unsetenv("FLUX_PREFERENCES");
    unsetenv("CUDA_VISIBLE_DEVICES");
    real();
    forget();
    flux_on_log(NULL, NULL);
}

/* ------------------------------------------------------------------ names and facts */

TEST(supported_devices) {
    const char *const *names = flux_supported_devices();
    CHECK_STR(names[0], "CUDA");
    CHECK_STR(names[1], "AMDGPU");
    CHECK_STR(names[2], "Metal");
    CHECK_STR(names[3], "CPU");
    CHECK(names[4] == NULL);
    for (int i = 0; names[i]; i++) (void)flux_functional(names[i]);
    CHECK(!flux_failed());                  /* never an error for these */
}

TEST(functional_without_a_gpu) {
    fresh();
    CHECK(flux_functional("CPU"));
    CHECK(!flux_functional("CUDA") && !flux_functional("AMDGPU") && !flux_functional("Metal"));
    CHECK_STR(flux_functional_reason("CPU"), "functional");
    CHECK(strstr(flux_functional_reason("CUDA"), ABSENT) != NULL);
    CHECK(flux_device_count("CPU") == 1 && flux_device_count("CUDA") == 0 && flux_device_count("Metal") == 0);
    CHECK(!flux_functional_with("AMDGPU", "MIOpen") && !flux_functional_with("CUDA", "NCCL"));
    CHECK(flux_functional_with("CPU", "all"));
    CHECK(!flux_failed());
    CHECK_ERROR(flux_functional("Cuda"), "\"Cuda\"; there are CUDA, AMDGPU, Metal and CPU");
    CHECK_ERROR(flux_functional(NULL), "backend is NULL");
    CHECK_ERROR(flux_functional_reason("x"), "\"x\"");
    CHECK_ERROR(flux_device_count("") == 0, "\"\"");
    CHECK_ERROR(flux_functional_with("CUDA", "MIOpen"), "CUDA has no component \"MIOpen\"");
    CHECK_ERROR(flux_functional_with("AMDGPU", "miopen"), "AMDGPU has no component \"miopen\"");
    CHECK_ERROR(flux_functional_with("CUDA", NULL), "component is NULL");
    CHECK_ERROR(flux_functional_with("nope", "driver"), "\"nope\"");
    done();
}

TEST(functional_is_asked_once_with_its_reason) {
    fresh();
    fake(FLUX__CUDA_BACKEND, 1, 3);
    CHECK(!flux_functional("CUDA") && !flux_functional("CUDA"));
    CHECK_STR(flux_functional_reason("CUDA"), "init of cuda says 100");
    CHECK(cuda.asked == 1);
    CHECK(flux_device_count("CUDA") == 0);
    fake(FLUX__CUDA_BACKEND, 0, 3);         /* another back end: asked anew, and no further than its driver */
    CHECK_STR(flux_functional_reason("CUDA"), "no driver library of cuda");
    CHECK(cuda.asked == 0);
    fake(FLUX__CUDA_BACKEND, 2, 3);
    CHECK(flux_functional("CUDA") && flux_device_count("CUDA") == 3);
    CHECK(flux_functional_with("CUDA", "driver") && !flux_functional_with("CUDA", "MIOpen"));
    fake(FLUX__CUDA_BACKEND, 2, 0);
    CHECK(!flux_functional("CUDA"));
    CHECK_STR(flux_functional_reason("CUDA"), "no device");
    done();
}

TEST(reason_names_what_hides_devices) {
    static const char *const values[] = { "-1", "", "0,1", "junk\n\033[1m" };
    for (int i = 0; i < 4; i++) {
        fresh();
        setenv("CUDA_VISIBLE_DEVICES", values[i], 1);
        fake(FLUX__CUDA_BACKEND, 2, 0);
        CHECK(!flux_functional("CUDA"));
        CHECK(strstr(flux_functional_reason("CUDA"), "no device; CUDA_VISIBLE_DEVICES is \"") != NULL);
        CHECK(i == 3 || strstr(flux_functional_reason("CUDA"), values[i]) != NULL);
        CHECK(strchr(flux_functional_reason("CUDA"), '\n') == NULL && strchr(flux_functional_reason("CUDA"), '\033') == NULL);
        fake(FLUX__CUDA_BACKEND, 2, 2);     /* where it works, the variable is no reason */
        CHECK_STR(flux_functional_reason("CUDA"), "functional");
        fake(FLUX__AMDGPU_BACKEND, 1, 0);
        CHECK(strstr(flux_functional_reason("AMDGPU"), "CUDA_VISIBLE_DEVICES") != NULL);
        flux__backend_set(FLUX__AMDGPU_BACKEND, NULL);
        if (!GPUS_BUILT) CHECK_STR(flux_functional_reason("AMDGPU"), ABSENT);         /* nor is it where there is nothing to hide */
        done();
    }
}

static void ask(void *user) { *(bool *)user = flux_functional("CUDA") && flux_device_count("CUDA") == 2; }

TEST(threads_ask_once_together) {
    enum { N = 8 };
    flux__os_thread thread[N];
    bool started[N], good[N];
    fresh();
    fake(FLUX__CUDA_BACKEND, 2, 2);
    for (int i = 0; i < N; i++) started[i] = flux__thread_start(&thread[i], ask, &good[i]);
    for (int i = 0; i < N; i++) {
        if (started[i]) flux__thread_join(&thread[i]);
        CHECK(!started[i] || good[i]);
    }
    CHECK(flux_functional("CUDA") && cuda.asked == 1);
    done();
}

TEST(devices_have_names_and_numbers) {
    flux_device d[4] = { { 9, 9 }, { 9, 9 }, { 9, 9 }, { 9, 9 } }, cpu = { 0, 0 }, cpu7 = { 0, 7 }, none = { -1, 0 };
    fresh();
    fake(FLUX__CUDA_BACKEND, 2, 3);
    CHECK(flux_get_devices("CUDA", d, 2) == 3);
    CHECK(d[0].id == 0 && d[1].id == 1 && d[2].backend == 9);       /* no more than asked for */
    CHECK(flux_get_devices("CUDA", NULL, 0) == 3);
    CHECK(flux_get_devices("Metal", d, 4) == 0);
    CHECK_STR(flux_device_name(d[0]), "CUDA device 0: Card A");
    CHECK_STR(flux_device_name(d[1]), "CUDA device 1: Card B");
    CHECK(flux_device_name(d[1]) == flux_device_name(d[1]));        /* two names in one printf */
    CHECK_STR(flux_device_backend(d[1]), "CUDA");
    CHECK(flux_device_id(d[1]) == 1);
    CHECK_STR(flux_device_name(cpu), "CPU");
    CHECK_STR(flux_device_backend(cpu), "CPU");
    CHECK_STR(flux_device_name(none), "no device");
    CHECK_STR(flux_device_backend(none), "none");
    CHECK(flux_device_equal(cpu, cpu7) && flux_device_equal(d[1], d[1]) && !flux_device_equal(d[0], d[1]) && !flux_device_equal(cpu, d[0]));
    CHECK(flux_get_devices("CPU", d, 4) == 1 && flux_device_equal(d[0], cpu));
    CHECK_ERROR(flux_get_devices("gpu", d, 4) == 0, "\"gpu\"");
    flux_device gone = { FLUX__CUDA_BACKEND, 5 };
    CHECK_STR(flux_device_name(gone), "CUDA");
    done();
}

TEST(synchronise) {
    flux_device d0 = { FLUX__CUDA_BACKEND, 0 }, d1 = { FLUX__CUDA_BACKEND, 1 }, cpu = { 0, 0 }, none = { -1, 0 };
    fresh();
    flux_synchronise_device(cpu);
    CHECK(!flux_failed());
    CHECK_ERROR(flux_synchronise_device(d0), "can't be used");
    fake(FLUX__CUDA_BACKEND, 2, 2);
    flux_synchronise_device(d0);
    CHECK(cuda.waited == 1 && cuda.last == 0 && !flux_failed());
    CHECK_ERROR(flux_synchronise_device(d1), "work on CUDA device 1: Card B has failed");
    CHECK_ERROR(flux_synchronise_device(none), "device {-1, 0} can't be used");
    done();
}

/* ------------------------------------------------------------------ choosing */

static flux_device named(const char *backend, int id) {
    flux_get_device_opts o;
    memset(&o, 0, sizeof o);
    o.backend = backend;
    o.id = id;
    return flux_get_device_with(o);
}
static flux_device best(bool verbose) {
    flux_get_device_opts o;
    memset(&o, 0, sizeof o);
    o.verbose = verbose;
    return flux_get_device_with(o);
}

TEST(device_by_name) {
    fresh();
    CHECK(flux_device_equal(named("CPU", 0), named("CPU", 7)) && named("CPU", -3).backend == 0);
    CHECK_ERROR(named("CUDA", 0), "back end CUDA is unavailable: " ABSENT);
    CHECK_ERROR(named("Metal", 0), "back end Metal is unavailable");
    CHECK_ERROR(named("foo", 0), "unknown back end \"foo\"; there are CUDA, AMDGPU, Metal and CPU");
    CHECK_ERROR(named("", 0), "unknown back end \"\"");
    flux_on_error(test_silent, NULL);
    CHECK(named("foo", 0).backend == -1);
    CHECK(named("CUDA", 0).backend == -1);
    flux_clear();
    flux_on_error(NULL, NULL);
    CHECK(named(NULL, 0).backend == FLUX__CPU_BACKEND && !flux_failed());
    fake(FLUX__CUDA_BACKEND, 1, 2);
    CHECK_ERROR(named("CUDA", 0), "back end CUDA does not work here: init of cuda says 100");
    fake(FLUX__CUDA_BACKEND, 2, 2);
    CHECK(named("CUDA", 1).backend == FLUX__CUDA_BACKEND && named("CUDA", 1).id == 1);
    CHECK_ERROR(named("CUDA", 2), "CUDA has no device 2: there are 2, from 0 to 1");
    CHECK_ERROR(named("CUDA", -1), "CUDA has no device -1");
    CHECK_ERROR(named(NULL, 2), "CUDA has no device 2");            /* the chosen back end's */
    fake(FLUX__CUDA_BACKEND, 2, 1);
    CHECK_ERROR(named("CUDA", 1), "there is 1, from 0 to 0");
    CHECK(cuda.last == -1 && cuda.waited == 0);                     /* nothing on any device was touched */
    said_n = 0;
    fake(FLUX__AMDGPU_BACKEND, 2, 1);
    CHECK(named("AMD", 0).backend == FLUX__AMDGPU_BACKEND && named("AMD", 0).id == 0);
    CHECK_STR(ids_said(), "device.amd");                            /* once */
    done();
}

/* The message classes: A device.preference, B device.preferred, C device.unavailable, D device.not_functional, E device.chosen. */
TEST(device_by_preference) {
    static const struct { const char *preference; int cuda, amd; bool verbose; int result; const char *ids; } rows[] = {
        { "CUDA",   2, 0, true,  FLUX__CUDA_BACKEND,   "device.preferred" },
        { "CUDA",   2, 2, false, FLUX__CUDA_BACKEND,   "" },
        { "AMDGPU", 2, 2, true,  FLUX__AMDGPU_BACKEND, "device.preferred" },
        { "CPU",    2, 0, true,  FLUX__CPU_BACKEND,    "device.preferred" },
        { "CUDA",   0, 0, true,  FLUX__CPU_BACKEND,    "device.preferred device.unavailable device.chosen" },
        { "CUDA",   0, 0, false, FLUX__CPU_BACKEND,    "device.unavailable" },
        { "AMDGPU", 2, 0, true,  FLUX__CUDA_BACKEND,   "device.preferred device.unavailable device.chosen" },
        { "CUDA",   1, 2, true,  FLUX__AMDGPU_BACKEND, "device.preferred device.not_functional device.chosen" },
        { "CUDA",   1, 0, false, FLUX__CPU_BACKEND,    "device.not_functional" },
        { "Metal",  2, 0, false, FLUX__CUDA_BACKEND,   "device.unavailable" },
        { "AMD",    2, 2, false, FLUX__AMDGPU_BACKEND, "device.amd" },
        { NULL,     2, 2, true,  FLUX__CUDA_BACKEND,   "device.chosen" },
        { NULL,     0, 2, true,  FLUX__AMDGPU_BACKEND, "device.chosen" },
        { NULL,     0, 0, true,  FLUX__CPU_BACKEND,    "device.chosen" },
        { NULL,     0, 0, false, FLUX__CPU_BACKEND,    "" },
        { "oneAPI", 2, 0, true,  FLUX__CUDA_BACKEND,   "device.preference device.chosen" },
        { "oneAPI", 0, 0, false, FLUX__CPU_BACKEND,    "device.preference" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int way = 0; way < 2; way++) {                         /* by the file, and by the environment */
            fresh();
            char text[100];
            snprintf(text, sizeof text, "[Flux]\ngpu_backend = \"%s\"\n", rows[i].preference);
            if (rows[i].preference && way == 0) put("LocalPreferences.toml", text);
            if (rows[i].preference && way == 1) setenv("FLUX_GPU_BACKEND", rows[i].preference, 1);
            fake(FLUX__CUDA_BACKEND, rows[i].cuda, 2);
            fake(FLUX__AMDGPU_BACKEND, rows[i].amd, 1);
            flux_device d = best(rows[i].verbose);
            CHECK(d.backend == rows[i].result && d.id == 0);
            CHECK_STR(ids_said(), rows[i].ids);
            CHECK(!flux_failed());
            done();
        }
}

TEST(messages_of_choosing_say_why) {
    fresh();
    setenv("FLUX_GPU_BACKEND", "CUDA", 1);
    fake(FLUX__CUDA_BACKEND, 1, 1);
    best(true);
    best(true);
    CHECK(says("device.preferred", "CUDA") && said_id("device.preferred")->level == FLUX_LOG_INFO);
    CHECK(says("device.not_functional", "CUDA") && says("device.not_functional", "init of cuda says 100"));
    CHECK(said_id("device.not_functional")->level == FLUX_LOG_WARN);
    CHECK(says("device.chosen", "using CPU: CUDA: init of cuda says 100; AMDGPU"));
    CHECK(says("device.chosen", GPUS_BUILT ? "Metal: not part of this build" : "; AMDGPU, Metal: not part of this build"));
    CHECK(said_n == 6);                                             /* each time anew ... */
    listen();
    setenv("FLUX_GPU_BACKEND", "what", 1);
    best(false);
    best(false);
    CHECK_STR(ids_said(), "device.preference");                     /* ... but for this one */
    CHECK(says("device.preference", "\"what\"") && said_id("device.preference")->level == FLUX_LOG_WARN);
    setenv("FLUX_GPU_BACKEND", "CUDA", 1);
    fake(FLUX__CUDA_BACKEND, 0, 1);
    listen();
    best(false);
    CHECK(says("device.unavailable", "CUDA") && says("device.unavailable", "no driver library of cuda"));
    CHECK(said_id("device.unavailable")->level == FLUX_LOG_WARN);
    done();
}

/* ------------------------------------------------------------------ the preferences file */

TEST(preference_is_made_read_and_forgotten) {
    fresh();
    CHECK_STR(flux_gpu_backend(), "CUDA");
    CHECK(!flux_gpu_backend_is_set());
    CHECK(flux_gpu_backend_set("AMDGPU") == 0);
    CHECK_STR(get("LocalPreferences.toml"), "[Flux]\ngpu_backend = \"AMDGPU\"\n");
    CHECK_STR(flux_gpu_backend(), "AMDGPU");                        /* at once */
    CHECK(flux_gpu_backend_is_set());
    forget();
    CHECK_STR(flux_gpu_backend(), "AMDGPU");                        /* and in a later run */
    struct stat before, after;
    CHECK(stat("LocalPreferences.toml", &before) == 0);
    listen();
    CHECK(flux_gpu_backend_set("AMDGPU") == 0);
    CHECK_STR(ids_said(), "preference.same");
    CHECK(stat("LocalPreferences.toml", &after) == 0 && before.st_ino == after.st_ino && before.st_mtime == after.st_mtime);
    CHECK_ERROR(flux_gpu_backend_set("Vulkan"), "unknown back end \"Vulkan\"; there are CUDA, AMDGPU, Metal and CPU");
    CHECK_STR(get("LocalPreferences.toml"), "[Flux]\ngpu_backend = \"AMDGPU\"\n");
    CHECK(flux_gpu_backend_set("CPU") == 0 && flux_gpu_backend_set("Metal") == 0 && flux_gpu_backend_set("CUDA") == 0);
    CHECK_STR(get("LocalPreferences.toml"), "[Flux]\ngpu_backend = \"CUDA\"\n");
    CHECK(flux_gpu_backend_is_set());
    CHECK(flux_gpu_backend_set("") == 0);
    CHECK_STR(get("LocalPreferences.toml"), "[Flux]\n");
    CHECK(!flux_gpu_backend_is_set());
    CHECK(flux_gpu_backend_set(NULL) == 0);                         /* nothing there: fine */
    CHECK(flux_gpu_backend_set("CPU") == 0);
    CHECK_STR(get("LocalPreferences.toml"), "[Flux]\ngpu_backend = \"CPU\"\n");
    done();
}

/* What the environment says comes first, and hides neither the file nor where it is from who writes it. */
TEST(a_preference_is_written_beside_the_environments) {
    fresh();
    setenv("FLUX_GPU_BACKEND", "Metal", 1);
    setenv("FLUX_PREFERENCES", "other.toml", 1);
    CHECK(flux_gpu_backend_set("AMDGPU") == 0);
    CHECK_STR(flux_gpu_backend(), "Metal");
    CHECK_STR(get("other.toml"), "[Flux]\ngpu_backend = \"AMDGPU\"\n");
    CHECK_STR(get("LocalPreferences.toml"), "(no file)");
    unsetenv("FLUX_GPU_BACKEND");
    CHECK_STR(flux_gpu_backend(), "AMDGPU");
    remove("other.toml");
    unsetenv("FLUX_PREFERENCES");
    done();
}

TEST(nothing_to_forget_makes_no_file) {
    fresh();
    CHECK(flux_gpu_backend_set(NULL) == 0);
    CHECK_STR(get("LocalPreferences.toml"), "(no file)");
    CHECK_STR(ids_said(), "preference.same");
    done();
}

/* What stands in the file, what it says, and what becomes of it on setting AMDGPU and on forgetting (NULL: refused). */
static const struct { const char *text, *reads, *set, *unset; } files[] = {
    { "", NULL, "[Flux]\ngpu_backend = \"AMDGPU\"\n", "" },
    { "# mine\n[Other]\nx = 1", NULL, "# mine\n[Other]\nx = 1\n\n[Flux]\ngpu_backend = \"AMDGPU\"\n", "# mine\n[Other]\nx = 1" },
    { "[Flux]\ngpu_backend = \"CPU\"\n", "CPU", "[Flux]\ngpu_backend = \"AMDGPU\"\n", "[Flux]\n" },
    { "[Flux]\r\n# keep\r\ngpu_backend='CPU' # why\r\nz = 2\r\n", "CPU", "[Flux]\r\n# keep\r\ngpu_backend=\"AMDGPU\" # why\r\nz = 2\r\n",
      "[Flux]\r\n# keep\r\nz = 2\r\n" },
    { "[B]\r\ny = 1\r\n", NULL, "[B]\r\ny = 1\r\n\r\n[Flux]\r\ngpu_backend = \"AMDGPU\"\r\n", "[B]\r\ny = 1\r\n" },
    { "[Flux] # ours\nother = true\n[Z]\ngpu_backend = \"x\"\n", NULL,
      "[Flux] # ours\ngpu_backend = \"AMDGPU\"\nother = true\n[Z]\ngpu_backend = \"x\"\n", "[Flux] # ours\nother = true\n[Z]\ngpu_backend = \"x\"\n" },
    { "[Flux]", NULL, "[Flux]\ngpu_backend = \"AMDGPU\"\n", "[Flux]" },
    { "[Flux]\ngpu_backend = \"CUDA\"", "CUDA", "[Flux]\ngpu_backend = \"AMDGPU\"", "[Flux]\n" },
    { "gpu_backend = \"CUDA\"\n", NULL, "gpu_backend = \"CUDA\"\n\n[Flux]\ngpu_backend = \"AMDGPU\"\n", "gpu_backend = \"CUDA\"\n" },
    { "[ \"Flux\" ]\n  \"gpu_backend\"  =  \"\\u0043UDA\"\n", "CUDA", "[ \"Flux\" ]\n  \"gpu_backend\"  =  \"AMDGPU\"\n", "[ \"Flux\" ]\n" },
    { "Flux.gpu_backend = \"Metal\"\nb = 1\n", "Metal", "Flux.gpu_backend = \"AMDGPU\"\nb = 1\n", "b = 1\n" },
    { "Flux.x = [1,\n2]\nb = 1\n", NULL, "Flux.x = [1,\n2]\nFlux.gpu_backend = \"AMDGPU\"\nb = 1\n", "Flux.x = [1,\n2]\nb = 1\n" },
    { "Flux = { gpu_backend = \"CPU\", a = 1 }\n", "CPU", "Flux = { gpu_backend = \"AMDGPU\", a = 1 }\n", NULL },
    { "Flux = { a = 1 }\n", NULL, NULL, "Flux = { a = 1 }\n" },
    { "[[Flux]]\ngpu_backend = \"CPU\"\n", NULL, NULL, "[[Flux]]\ngpu_backend = \"CPU\"\n" },
    { "[Flux.sub]\ngpu_backend = \"CPU\"\n", NULL, "[Flux.sub]\ngpu_backend = \"CPU\"\n\n[Flux]\ngpu_backend = \"AMDGPU\"\n",
      "[Flux.sub]\ngpu_backend = \"CPU\"\n" },
    { "[A.Flux]\ngpu_backend = \"CPU\"\n", NULL, "[A.Flux]\ngpu_backend = \"CPU\"\n\n[Flux]\ngpu_backend = \"AMDGPU\"\n",
      "[A.Flux]\ngpu_backend = \"CPU\"\n" },
    { "s = \"\"\"\n[Flux]\ngpu_backend = \"CPU\"\n\"\"\"\n", NULL,
      "s = \"\"\"\n[Flux]\ngpu_backend = \"CPU\"\n\"\"\"\n\n[Flux]\ngpu_backend = \"AMDGPU\"\n", "s = \"\"\"\n[Flux]\ngpu_backend = \"CPU\"\n\"\"\"\n" },
    { "#[Flux]\n#gpu_backend = \"CPU\"\n", NULL, "#[Flux]\n#gpu_backend = \"CPU\"\n\n[Flux]\ngpu_backend = \"AMDGPU\"\n",
      "#[Flux]\n#gpu_backend = \"CPU\"\n" },
    { "[MLDataDevices]\ngpu_backend = \"CPU\"\n", "CPU", "[MLDataDevices]\ngpu_backend = \"CPU\"\n\n[Flux]\ngpu_backend = \"AMDGPU\"\n",
      "[MLDataDevices]\ngpu_backend = \"CPU\"\n" },
    { "[MLDataDevices]\ngpu_backend = \"CPU\"\n[Flux]\ngpu_backend = \"CUDA\"\n", "CUDA",
      "[MLDataDevices]\ngpu_backend = \"CPU\"\n[Flux]\ngpu_backend = \"AMDGPU\"\n", "[MLDataDevices]\ngpu_backend = \"CPU\"\n[Flux]\n" },
    { "[Flux]\ngpu_backend = \"\"\"CU\\\n \t\n  DA\"\"\"\n", "CUDA", "[Flux]\ngpu_backend = \"AMDGPU\"\n", "[Flux]\n" },
    { "[Flux]\ngpu_backend = \"\"\n", NULL, "[Flux]\ngpu_backend = \"AMDGPU\"\n", "[Flux]\n" },
    { "\xEF\xBB\xBF[Flux]\ngpu_backend = \"CPU\"\n", "CPU", "\xEF\xBB\xBF[Flux]\ngpu_backend = \"AMDGPU\"\n", "\xEF\xBB\xBF[Flux]\n" },
    { "t = 1979-05-27 07:32:00.5\nd = [ { q = 'a' }, { q = \"b\" } ] # x\nf = -1.5e-3\n[a.\"b c\".'d']\nk = inf\n", NULL,
      "t = 1979-05-27 07:32:00.5\nd = [ { q = 'a' }, { q = \"b\" } ] # x\nf = -1.5e-3\n[a.\"b c\".'d']\nk = inf\n\n[Flux]\ngpu_backend = \"AMDGPU\"\n",
      "t = 1979-05-27 07:32:00.5\nd = [ { q = 'a' }, { q = \"b\" } ] # x\nf = -1.5e-3\n[a.\"b c\".'d']\nk = inf\n" },
};

TEST(preference_in_foreign_files) {
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        for (int k = 0; k < 2; k++) {
            const char *want = k == 0 ? files[i].set : files[i].unset;
            fresh();
            put("LocalPreferences.toml", files[i].text);
            CHECK(flux_gpu_backend_is_set() == (files[i].reads != NULL));
            CHECK_STR(flux_gpu_backend(), files[i].reads ? files[i].reads : "CUDA");
            CHECK_STR(ids_said(), "");
            if (want) CHECK(flux_gpu_backend_set(k == 0 ? "AMDGPU" : NULL) == 0);
            else CHECK_ERROR(flux_gpu_backend_set(k == 0 ? "AMDGPU" : NULL), "line 1: Flux is no plain table");
            CHECK_STR(get("LocalPreferences.toml"), want ? want : files[i].text);
            if (want && k == 0) CHECK_STR(flux_gpu_backend(), "AMDGPU");
            done();
        }
}

/* The line named is the one where the table stands that leaves no room. */
TEST(a_preference_that_cannot_be_set_names_the_line) {
    static const struct { const char *text; int line; } fixed[] = {
        { "a = 1\n\n[[Flux]]\nx = 2\n", 3 }, { "# one\n# two\nFlux = { a = 1 }\n", 3 },
        { "[x]\n[[Flux]]\ngpu_backend = \"CPU\"\n[[Flux]]\n", 4 },
    };
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        char line[60];
        snprintf(line, sizeof line, "line %d: Flux is no plain table", fixed[i].line);
        fresh();
        put("LocalPreferences.toml", fixed[i].text);
        CHECK_ERROR(flux_gpu_backend_set("CPU"), line);
        CHECK_STR(get("LocalPreferences.toml"), fixed[i].text);
        done();
    }
}

/* The change that takes the line away puts nothing in its place, whatever was in its memory before. */
TEST(a_preference_taken_away_leaves_nothing) {
    static const char text[] = "[Flux]\n  gpu_backend = \"CPU\"\nx = 1\n";
    flux__toml t;
    flux__edit e;
    memset(&e, 0xa5, sizeof e);
    CHECK(flux__toml_read(&t, text, sizeof text - 1, "Flux", "gpu_backend"));
    CHECK(flux__prefs_edit(&t, NULL, &e) && e.a == 7 && e.b == 29 && e.put[0] == '\0');
}

TEST(malformed_files_are_left_alone) {
    static const struct { const char *text; int line; } bad[] = {
        { "[Flux\ngpu_backend = \"CPU\"\n", 1 }, { "[Flux]\ngpu_backend = CPU\n", 2 }, { "[Flux]\ngpu_backend = \"CPU\n", 2 },
        { "[Flux]\n\n\ngpu_backend\n", 4 }, { "[Flux]\ngpu_backend = \n", 2 }, { "[Flux]\ngpu_backend = \"CPU\" x\n", 2 },
        { "[Flux]\ngpu_backend = \"CPU\"\ngpu_backend = \"CUDA\"\n", 3 }, { "[Flux]\na=1\n[Flux]\n", 3 }, { "x = [1, 2\n[Flux]\n", 2 },
        { "x = 1\ny = \"\"\"abc\n\n", 2 }, { "x = \"\\q\"\n", 1 }, { "= 1\n", 1 }, { "a = {b = 1\n}\n", 1 }, { "a = 'x\n'\n", 1 },
        { "[[a]\n", 1 }, { "[]\n", 1 }, { "a.\nb = 1\n", 1 }, { "\x01\n", 1 }, { "Flux.a = 1\n[Flux]\n", 2 }, { "x = \"\\u00\"\n", 1 },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char line[40];
        snprintf(line, sizeof line, "LocalPreferences.toml, line %d: ", bad[i].line);
        fresh();
        put("LocalPreferences.toml", bad[i].text);
        CHECK(!flux_gpu_backend_is_set());
        CHECK_STR(flux_gpu_backend(), "CUDA");
        best(false);
        CHECK_STR(ids_said(), "preferences");                       /* one warning, however often it is asked */
        CHECK(says("preferences", line) && said_id("preferences")->level == FLUX_LOG_WARN);
        CHECK_ERROR(flux_gpu_backend_set("CPU"), line);
        CHECK_ERROR(flux_gpu_backend_set(NULL), line);
        CHECK_STR(get("LocalPreferences.toml"), bad[i].text);
        done();
    }
}

/* What a text of TOML is, or what is wrong with it and where. */
TEST(what_toml_says) {
    static const struct { const char *value, *text; } strings[] = {
        { "\"C\\u0050\\U00000055\"", "CPU" }, { "\"\\u007e\\u007F\\u0080\\u00e9\\u1234\"", "~\x7f???" }, { "\"\\u00aF\\U0010FFFf\"", "??" },
        { "\"\\b\\t\\n\\f\\r\\e\\\"\\\\\"", "\b\t\n\f\r\033\"\\" }, { "'\\u0041'", "\\u0041" }, { "'a\"b'", "a\"b" }, { "\"a'b\"", "a'b" }, { "''", "" }, { "\"\"", "" },
        { "'''\nA'B''C'''", "A'B''C" }, { "\"\"\"\r\nA\"\"\"", "A" }, { "\"\"\"\n\nA\n\"\"\"", "\nA\n" }, { "\"\"\"\"A\"\"\"\"", "\"A\"" }, { "\"\"\"\"\"A\"\"\"\"\"", "\"\"A\"\"" },
        { "\"\"\"A\\\n \t\r\n  B\"\"\"", "AB" }, { "\"\"\"A\\  \n\"\"\"", "A" }, { "'''A\\\nB'''", "A\\\nB" },
        { "\"123456789012345678901234567890123456789012345678901234567890123\"", "123456789012345678901234567890123456789012345678901234567890123" },
        { "\"1234567890123456789012345678901234567890123456789012345678901234\"", "123456789012345678901234567890123456789012345678901234567890123" },
    };
    static const char *const values[] = { "1", "+1", "-1.5", "1e-5", "0xfF", "1_000", "true", "false", "inf", "+inf", "-nan", "1979-05-27", "07:32:00", "1979-05-27 07:32:00.5", "1979-05-27T07:32:00+01:00",
        "[]", "[ ]", "[1]", "[1,]", "[ 1 , 2 ]", "[1, # one\n 2\n]", "[[1], ['a', \"b\"]]", "{}", "{ }", "{a = 1}", "{ a = 1, b.c = 'x' }", "[{a = [1]}, {}]", "1 # one", "1 \t" };
    static const struct { const char *text; int at; const char *wrong; } bad[] = {
        { "x = yes\n", 4, "a value that is a word should stand in quotes" }, { "x = tru\n", 4, "a value that is a word should stand in quotes" }, { "x = truer\n", 4, "a value that is a word should stand in quotes" },
        { "x = -x\n", 4, "a value that is a word should stand in quotes" }, { "x = \n", 4, "a value is missing" }, { "x = +\n", 4, "a value is missing" }, { "x = ,\n", 4, "a value is missing" },
        { "x = 1 x\n", 6, "more text where the line should end" }, { "[a] x\n", 4, "more text where the line should end" }, { "x = 'a' 'b'\n", 8, "more text where the line should end" },
        { "x = 1\r2\n", 5, "more text where the line should end" }, { "x 1\n", 2, "= is missing after a key" }, { "x.y\n", 3, "= is missing after a key" }, { "x = {a}\n", 6, "= is missing after a key" },
        { "= 1\n", 0, "a key or [table] should stand there" }, { "x. = 1\n", 3, "a key or [table] should stand there" }, { ".x = 1\n", 0, "a key or [table] should stand there" }, { "[]\n", 1, "a key or [table] should stand there" },
        { "[a.]\n", 3, "a key or [table] should stand there" }, { "x = {,}\n", 5, "a key or [table] should stand there" }, { "x = {\na = 1}\n", 5, "a key or [table] should stand there" },
        { "x = ['a' 2]\n", 9, "a list should go on with , or end with ]" }, { "x = [1\n", 7, "a list should go on with , or end with ]" },
        { "x = {a = 'b' c = 1}\n", 13, "a table in braces should go on with , or end with }" }, { "x = {a = 1\n}\n", 10, "a table in braces should go on with , or end with }" },
        { "x = \"\\q\"\n", 6, "an unknown escape in a string" }, { "x = \"\\u12g4\"\n", 9, "an unknown escape in a string" }, { "x = \"\\U0000004\"\n", 14, "an unknown escape in a string" },
        { "x = 'a\n", 4, "a string without its closing quote" }, { "x = \"a\n\"\n", 4, "a string without its closing quote" }, { "y = 1\nx = '''a''\n", 10, "a string without its closing quote" }, { "'x = 1\n", 0, "a string without its closing quote" },
        { "[a\n", 2, "] is missing after a table's name" }, { "[[a]\n", 3, "] is missing after a table's name" }, { "[a b]\n", 3, "] is missing after a table's name" },
        { "[T]\nk = 1\nk = 2\n", 14, "the same key for the second time" }, { "T.k = 1\nT.k = 2\n", 14, "the same key for the second time" }, { "[T]\n[U]\n[T]\n", 8, "the same table for the second time" },
        { "T.a = 1\n[T]\n", 8, "the same table for the second time" }, { "a = 1\x01\n", 5, "a control character" }, { "\x1f", 0, "a control character" },
    };
    flux__toml t;
    char text[300];
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        snprintf(text, sizeof text, "[T]\nk = %s # and so on\nz = 1\n", strings[i].value);
        CHECK(flux__toml_read(&t, text, strlen(text), "T", "k") && t.is_string && t.value == 8 && t.value_end == 8 + strlen(strings[i].value));
        CHECK_STR(t.text, strings[i].text);
    }
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        snprintf(text, sizeof text, "x = %s\n[T]\nk = 'found'", values[i]);
        if (!CHECK(flux__toml_read(&t, text, strlen(text), "T", "k"))) fprintf(stderr, "    %s: %s\n", values[i], t.wrong);
        CHECK_STR(t.text, "found");
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(!flux__toml_read(&t, bad[i].text, strlen(bad[i].text), "T", "k"));
        CHECK_STR(t.wrong, bad[i].wrong);
        if (!CHECK((int)t.at == bad[i].at)) fprintf(stderr, "    %s at %d, not %d\n", bad[i].text, (int)t.at, bad[i].at);
    }
    for (int deep = FLUX__TOML_DEPTH - 1; deep <= FLUX__TOML_DEPTH + 2; deep++) {
        memset(text, '[', sizeof text), memcpy(text, "x = ", 4), memset(text + 4 + deep, ']', (size_t)deep);
        CHECK(flux__toml_read(&t, text, 4 + 2 * (size_t)deep, "T", "k") == (deep <= FLUX__TOML_DEPTH + 1));
    }
}

TEST(preference_of_another_type) {
    fresh();
    put("LocalPreferences.toml", "[Flux]\ngpu_backend = [\"CPU\"]\n");
    CHECK(!flux_gpu_backend_is_set());
    CHECK(says("preferences", "line 2: gpu_backend should be a string"));
    CHECK(flux_gpu_backend_set("CPU") == 0);
    CHECK_STR(get("LocalPreferences.toml"), "[Flux]\ngpu_backend = \"CPU\"\n");
    done();
    fresh();
    put("LocalPreferences.toml", "[Flux]\ngpu_backend = \"Cuda\"\n");       /* a name that is none can be read back */
    CHECK_STR(flux_gpu_backend(), "Cuda");
    CHECK(flux_gpu_backend_is_set() && best(false).backend == FLUX__CPU_BACKEND);
    CHECK_STR(ids_said(), "device.preference");
    done();
}

TEST(deep_nesting_is_refused_not_crashed) {
    enum { DEEP = 100000 };
    char *text = (char *)malloc(DEEP + 16);
    fresh();
    REQUIRE(text != NULL);
    memcpy(text, "x = ", 4);
    for (int k = 0; k < 2; k++) {
        memset(text + 4, '[', DEEP);
        for (int i = 4; k == 1 && i + 3 < DEEP; i += 3) memcpy(text + i, "{a=", 3);
        text[DEEP] = 0;
        put("LocalPreferences.toml", text);
        forget();
        listen();
        CHECK(!flux_gpu_backend_is_set());
        CHECK(says("preferences", "line 1: nested too deep"));
    }
    free(text);
    done();
}

TEST(preferences_that_cannot_be_read_or_written) {
    fresh();
    setenv("FLUX_PREFERENCES", "nowhere/x.toml", 1);
    CHECK(!flux_gpu_backend_is_set());
    CHECK_ERROR(flux_gpu_backend_set("CPU"), "nowhere/x.toml");
    CHECK_STR(ids_said(), "");
    char longer[3000];                                              /* a path that is cut short is another one */
    memset(longer, 'x', sizeof longer);
    for (int i = 0; i < 2990; i += 2) memcpy(longer + i, "./", 2);
    longer[2999] = 0;
    setenv("FLUX_PREFERENCES", longer, 1);
    listen();
    CHECK(!flux_gpu_backend_is_set() && says("preferences", "FLUX_PREFERENCES is longer than 1023 bytes"));
    CHECK_ERROR(flux_gpu_backend_set("CPU"), "gpu_backend_set: FLUX_PREFERENCES is longer than 1023 bytes");
    put("p.toml", "[Flux]\ngpu_backend = \"AMDGPU\"\n");             /* 1023 bytes are a path, and are none of 1024 */
    strcpy(longer + 1023 - strlen("/p.toml"), "/p.toml");
    setenv("FLUX_PREFERENCES", longer, 1);
    CHECK_STR(flux_gpu_backend(), "AMDGPU");
    strcat(longer, "x");
    setenv("FLUX_PREFERENCES", longer, 1);
    listen();
    CHECK(!flux_gpu_backend_is_set() && says("preferences", "FLUX_PREFERENCES is longer than 1023 bytes"));
    remove("p.toml");
    listen();
    setenv("FLUX_PREFERENCES", ".", 1);                             /* a folder */
    CHECK(!flux_gpu_backend_is_set());
    CHECK(says("preferences", ". can't be read ("));
    CHECK_ERROR(flux_gpu_backend_set("CPU"), "gpu_backend_set: . can't be read: ");
    unsetenv("FLUX_PREFERENCES");
    FILE *big = fopen("LocalPreferences.toml", "wb");
    REQUIRE(big != NULL);
    for (int i = 0; i < 70000; i++) fputs("# sixteen bytes.\n", big);
    fclose(big);
    listen();
    CHECK(!flux_gpu_backend_is_set() && says("preferences", "longer than 1 MiB"));
    CHECK_ERROR(flux_gpu_backend_set("CPU"), "longer than 1 MiB");
    remove("LocalPreferences.toml");
    if (geteuid() != 0) {                                           /* root may write anywhere */
        chmod(".", 0500);
        forget();
        CHECK_ERROR(flux_gpu_backend_set("CPU"), "LocalPreferences.toml");
        chmod(".", 0700);
    }
    CHECK_STR(get("LocalPreferences.toml"), "(no file)");
    done();
}

TEST(preferences_where_they_are_looked_for) {
    fresh();
    CHECK(mkdir("a", 0700) == 0 && mkdir("a/b", 0700) == 0 && mkdir("a/b/c", 0700) == 0);
    put("a/LocalPreferences.toml", "[Flux]\ngpu_backend = \"CPU\"\n");
    CHECK(chdir("a/b/c") == 0);
    CHECK_STR(flux_gpu_backend(), "CPU");                           /* from the nearest folder above */
    CHECK(flux_gpu_backend_set("Metal") == 0);
    CHECK_STR(get("../../LocalPreferences.toml"), "[Flux]\ngpu_backend = \"Metal\"\n");
    CHECK(mkdir("../.git", 0700) == 0);                             /* a project ends there */
    forget();
    CHECK(!flux_gpu_backend_is_set());
    CHECK(chdir("..") == 0);
    forget();
    CHECK(!flux_gpu_backend_is_set());
    CHECK(chdir("..") == 0);
    put("x.toml", "[Flux]\ngpu_backend = \"AMDGPU\"\n");
    setenv("FLUX_PREFERENCES", "x.toml", 1);
    CHECK_STR(flux_gpu_backend(), "AMDGPU");                        /* without having to forget: another path */
    put("x.toml", "[Flux]\ngpu_backend = \"CPU\"\n");
    CHECK_STR(flux_gpu_backend(), "AMDGPU");                        /* a file is read once, */
    unsetenv("FLUX_PREFERENCES");
    CHECK_STR(flux_gpu_backend(), "Metal");
    remove("LocalPreferences.toml");
    CHECK_STR(flux_gpu_backend(), "Metal");
    setenv("FLUX_PREFERENCES", "x.toml", 1);
    CHECK_STR(flux_gpu_backend(), "CPU");                           /* and again after another was */
    unsetenv("FLUX_PREFERENCES");
    CHECK(!flux_gpu_backend_is_set());
    remove("x.toml");
    done();
}

TEST(environment_overrides_the_file) {
    fresh();
    put("LocalPreferences.toml", "[Flux]\ngpu_backend = \"AMDGPU\"\n");
    setenv("FLUX_GPU_BACKEND", "CPU", 1);
    CHECK_STR(flux_gpu_backend(), "CPU");
    CHECK(flux_gpu_backend_set("CUDA") == 0);                       /* kept for later, and said to have no effect now */
    CHECK(says("preference.set", "FLUX_GPU_BACKEND in the environment overrides it"));
    CHECK_STR(get("LocalPreferences.toml"), "[Flux]\ngpu_backend = \"CUDA\"\n");
    CHECK_STR(flux_gpu_backend(), "CPU");
    setenv("FLUX_GPU_BACKEND", "", 1);                              /* empty is unset */
    CHECK_STR(flux_gpu_backend(), "CUDA");
    CHECK(flux_gpu_backend_set("AMD") == 0);                        /* the old name */
    CHECK_STR(flux_gpu_backend(), "AMDGPU");
    CHECK_STR(get("LocalPreferences.toml"), "[Flux]\ngpu_backend = \"AMDGPU\"\n");
    done();
}

/* Texts made from good ones by chance: whatever is read can be changed, and then says what was asked for. */
TEST(random_texts_stay_whole) {
    unsigned long r = 12345;
    int read = 0, changed = 0;
    for (int round = 0; round < 20000; round++) {
        char text[600], out[800];
        size_t n = strlen(files[(size_t)round % (sizeof files / sizeof *files)].text);
        memcpy(text, files[(size_t)round % (sizeof files / sizeof *files)].text, n);
        for (int k = 0; k <= round % 3 && n > 0; k++) {
            r = (r * 1103515245UL + 12345UL) & 0x7fffffffUL;
            text[(r >> 8) % n] = "[]{}=\"'#\\\n\r .,aF1-"[(r >> 4) % 18];
        }
        flux__toml t;
        flux__edit e;
        if (!flux__toml_read(&t, text, n, "Flux", "gpu_backend")) continue;
        read++;
        if (!flux__prefs_edit(&t, "AMDGPU", &e)) continue;
        size_t m = e.a + strlen(e.put) + n - e.b;
        memcpy(out, text, e.a);
        memcpy(out + e.a, e.put, strlen(e.put));
        memcpy(out + e.a + strlen(e.put), text + e.b, n - e.b);
        if (!flux__toml_read(&t, out, m, "Flux", "gpu_backend") || strcmp(t.text, "AMDGPU") != 0) {
            fprintf(stderr, "from:\n%.*s\nto:\n%.*s\n", (int)n, text, (int)m, out);
            CHECK(false);
            return;
        }
        changed++;
    }
    CHECK(read > 3000 && changed > 3000);
}

/* ------------------------------------------------------------------ moves */

static flux_device at(int backend, int id) {
    flux_device d;
    d.backend = backend;
    d.id = id;
    return d;
}
static bool on(const flux_tensor *x, int backend, int id) { return flux_device_equal(flux_device_of_tensor(x), at(backend, id)); }
static bool same_numbers(flux_tensor *a, flux_tensor *b) {
    size_t n = (size_t)flux_len(a) * flux_dtype_size(flux_dtype_of(a));
    const void *p = flux_data(a), *q = flux_data(b);
    return p && q && flux_dtype_of(a) == flux_dtype_of(b) && flux_len(a) == flux_len(b) && memcmp(p, q, n) == 0;
}

TEST(gpu_without_a_gpu_gives_its_argument_and_one_note) {
    fresh();
    flux_tensor *x = flux_rand(10);
    flux_layer *m = flux_dense(10, 5);
    flux_state *s = flux_setup(flux_adam(0.1), m);
    flux_loader *l = flux_dataloader(x);
    for (int i = 0; i < 10; i++) {
        CHECK(flux_gpu(x) == x && flux_gpu(m) == m && flux_gpu(s) == s && flux_gpu(l) == l);
        CHECK(flux_cpu(x) == x && flux_cpu(m) == m && flux_cpu(s) == s && flux_cpu(l) == l);
    }
    CHECK(flux_num_params(m) == 55);
    CHECK_STR(ids_said(), "gpu.none");
    CHECK(says("gpu.none", GPUS_BUILT ? "gpu: all stays on the CPU: CUDA: " ABSENT : "gpu: all stays on the CPU: compiled without -DFLUX_CUDA and -DFLUX_HIP") && said_id("gpu.none")->level == FLUX_LOG_INFO);
    listen();
    for (int i = 0; i < 3; i++) CHECK(flux_cu(x) == x && flux_cu(m) == m && flux_roc(s) == s && flux_roc(l) == l);
    CHECK_STR(ids_said(), "cu.none roc.none");
    CHECK(said_id("cu.none")->level == FLUX_LOG_WARN && says("roc.none", "AMDGPU"));
    done();
}

TEST(gpu_says_why) {
    fresh();
    flux_tensor *x = flux_rand(3);
    fake(FLUX__CUDA_BACKEND, 1, 1);
    fake(FLUX__AMDGPU_BACKEND, 0, 1);
    setenv("FLUX_GPU_BACKEND", "CUDA", 1);
    CHECK(flux_gpu(x) == x && flux_gpu(x) == x);
    CHECK_STR(ids_said(), "gpu.none");
    CHECK(says("gpu.none", "gpu: all stays on the CPU: CUDA: init of cuda says 100; AMDGPU: no driver library of amd"));
    flux_silence("gpu.none");
    said_n = 0;
    CHECK(flux_gpu(x) == x);
    CHECK_STR(ids_said(), "");
    listen();
    fake(FLUX__AMDGPU_BACKEND, 2, 1);       /* another one works: used, with a warning */
    CHECK(on(flux_gpu(x), FLUX__AMDGPU_BACKEND, 0) && on(flux_gpu(x), FLUX__AMDGPU_BACKEND, 0));
    CHECK_STR(ids_said(), "gpu.other");
    CHECK(says("gpu.other", "CUDA") && says("gpu.other", "AMDGPU") && says("gpu.other", "says 100"));
    done();
}

TEST(cpu_as_the_preference_is_silent) {
    fresh();
    fake(FLUX__CUDA_BACKEND, 2, 1);
    flux_tensor *x = flux_rand(3), *far = flux_gpu(x);
    CHECK(on(far, FLUX__CUDA_BACKEND, 0));
    setenv("FLUX_GPU_BACKEND", "CPU", 1);
    CHECK(flux_gpu(x) == x);
    CHECK(on(flux_gpu(far), FLUX__CPU_BACKEND, 0));                 /* exactly like flux_cpu */
    CHECK_STR(ids_said(), "");
    done();
}

TEST(dtypes_on_their_way) {
    static const flux_dtype kept[] = { FLUX_F32, FLUX_F16, FLUX_BF16, FLUX_I32, FLUX_I64, FLUX_U8, FLUX_BOOL };
    fresh();
    fake(FLUX__CUDA_BACKEND, 2, 2);
    flux_tensor *x = flux_from(((double[]){ 0, 1, 1, 0.1 }), 2, 2);
    flux_tensor *y = flux_gpu(x);
    CHECK(flux_dtype_of(y) == FLUX_F32 && on(y, FLUX__CUDA_BACKEND, 0));
    CHECK(flux_dtype_of(flux_cpu(y)) == FLUX_F32);                  /* the way back widens nothing */
    CHECK(flux_at(flux_cpu(y), 1, 1) == (double)0.1f);
    CHECK(flux_dtype_of(flux_cu(x)) == FLUX_F32 && flux_dtype_of(flux_to(at(FLUX__CUDA_BACKEND, 1), x)) == FLUX_F32);
    CHECK(flux_dtype_of(x) == FLUX_F64 && on(x, FLUX__CPU_BACKEND, 0));
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        flux_tensor *k = flux_to_dtype(x, kept[i]), *there = flux_gpu(k);
        CHECK(flux_dtype_of(there) == kept[i] && on(there, FLUX__CUDA_BACKEND, 0) && there != k);
        CHECK(flux_gpu(there) == there && flux_cu(there) == there && flux_to(at(FLUX__CUDA_BACKEND, 0), there) == there);
        CHECK(same_numbers(flux_cpu(there), k));
    }
    flux_tensor *wide = flux__move(x, at(FLUX__CUDA_BACKEND, 1));   /* float64 may be there, if put there as it is */
    CHECK(flux_dtype_of(wide) == FLUX_F64 && flux_dtype_of(flux_to(at(FLUX__CUDA_BACKEND, 0), wide)) == FLUX_F64);
    CHECK(flux_dtype_of(flux_to(at(FLUX__CPU_BACKEND, 0), wide)) == FLUX_F64);
    done();
}

TEST(tensors_between_devices) {
    fresh();
    fake(FLUX__CUDA_BACKEND, 2, 2);
    fake(FLUX__AMDGPU_BACKEND, 2, 1);
    flux_tensor *x = flux_randn(5, 7), *view = flux_transpose(x);
    flux_tensor *d0 = flux_to(at(FLUX__CUDA_BACKEND, 0), x), *d1 = flux_to(at(FLUX__CUDA_BACKEND, 1), d0);
    flux_tensor *other = flux_to(at(FLUX__AMDGPU_BACKEND, 0), d1);
    CHECK(on(d0, FLUX__CUDA_BACKEND, 0) && on(d1, FLUX__CUDA_BACKEND, 1) && on(other, FLUX__AMDGPU_BACKEND, 0));
    CHECK(same_numbers(flux_cpu(other), x) && same_numbers(d1, x) && same_numbers(x, d0));
    CHECK(flux_gpu(d1) == d1);                                      /* on a GPU of that back end: it stays */
    CHECK(flux_to(at(FLUX__CUDA_BACKEND, 0), d1) != d1);
    CHECK(on(flux_gpu(other), FLUX__CUDA_BACKEND, 0));
    CHECK(same_numbers(flux_cpu(flux_gpu(view)), flux_copy(view)));
    CHECK(flux_to(at(FLUX__CPU_BACKEND, 3), x) == x);               /* the CPU has no numbers */
    flux_tensor *pair = flux_tuple(x, d0), *there = flux_gpu(pair);
    CHECK(flux_num_items(there) == 2 && on(flux_nth(there, 0), FLUX__CUDA_BACKEND, 0) && flux_nth(there, 1) == d0);
    CHECK(flux_gpu(there) == there && on(there, FLUX__CUDA_BACKEND, 0));
    CHECK_ERROR(flux_device_of(pair), "tensor 0 is on CPU, tensor 1 on CUDA device 0: Card A");
    CHECK(same_numbers(flux_nth(flux_cpu(there), 0), x));
    done();
}

TEST(moves_to_nowhere) {
    fresh();
    flux_tensor *x = flux_rand(2), *none = NULL;
    flux_layer *no_layer = NULL;
    CHECK_ERROR(flux_to(at(FLUX__CUDA_BACKEND, 0), x), "to: CUDA can't be used: " ABSENT);
    fake(FLUX__CUDA_BACKEND, 2, 2);
    CHECK_ERROR(flux_to(at(FLUX__CUDA_BACKEND, 2), x), "CUDA has no device 2: ids go from 0 to 1");
    CHECK_ERROR(flux_to(at(FLUX__CUDA_BACKEND, -1), x), "no device -1");
    CHECK_ERROR(flux_to(at(17, 0), x), "no device {17, 0}");
    CHECK_ERROR(flux_to(named("foo", 0), x), "unknown back end \"foo\"");     /* said once, by the call that failed */
    CHECK_ERROR(flux_gpu(none), "gpu: argument x is NULL");
    CHECK_ERROR(flux_cpu(no_layer), "cpu: argument x is NULL");
    CHECK_ERROR(flux_to(at(0, 0), none), "to: argument x is NULL");
    CHECK_ERROR(flux_device_of(none), "device_of: argument x is NULL");
    flux_on_error(test_silent, NULL);
    flux_functional("nonsense");
    CHECK(flux_gpu(none) == NULL && strstr(flux_error(), "nonsense") != NULL);  /* NULL in, NULL out: no second message */
    CHECK(flux_device_of(none).backend == -1);
    flux_clear();
    flux_on_error(NULL, NULL);
    done();
}

TEST(gradients_come_back) {
    fresh();
    fake(FLUX__CUDA_BACKEND, 2, 2);
    flux_tensor *x = flux_from(((double[]){ 1, 2, 3 }), 3);
    flux_tensor *y = flux_cpu(flux_to(at(FLUX__CUDA_BACKEND, 1), flux_gpu(x)));
    flux_grads *g = flux_gradient(flux_sum(flux_mul(y, y)), x);
    const double want[] = { 2, 4, 6 };
    CHECK_DATA(flux_grad(g, x), want, 1e-6);
    CHECK(on(flux_grad(g, x), FLUX__CPU_BACKEND, 0) && flux_dtype_of(flux_grad(g, x)) == FLUX_F64);
    done();
}

TEST(models_between_devices) {
    fresh();
    fake(FLUX__CUDA_BACKEND, 2, 2);
    flux_layer *tied = flux_dense(3, 3), *m = flux_chain(tied, flux_tanh, tied, flux_dense(3, 2));
    flux_layer *d0 = flux_to(at(FLUX__CUDA_BACKEND, 0), m), *d1 = flux_to(at(FLUX__CUDA_BACKEND, 1), d0), *back = flux_cpu(d1);
    CHECK(d0 != m && d1 != d0);
    CHECK(flux_device_equal(flux_device_of(d0), at(FLUX__CUDA_BACKEND, 0)) && flux_device_equal(flux_device_of(d1), at(FLUX__CUDA_BACKEND, 1)));
    CHECK(flux_device_equal(flux_device_of(m), at(FLUX__CPU_BACKEND, 0)));       /* the model itself is where it was */
    CHECK(flux_num_params(back) == flux_num_params(m) && flux_num_params(d1) == 20);
    CHECK(flux_weight(flux_child(d1, 0)) == flux_weight(flux_child(d1, 2)));
    CHECK(same_numbers(flux_param(back, "layers.0.weight"), flux_param(m, "layers.0.weight")));
    CHECK(same_numbers(flux_param(back, "layers.3.bias"), flux_param(m, "layers.3.bias")));
    CHECK(flux_gpu(d1) == d1 && flux_to(at(FLUX__CUDA_BACKEND, 1), d1) == d1 && flux_cpu(back) == back);
    CHECK_STR(flux_device_name(flux_device_of(flux_weight(d1))), "CUDA device 1: Card B");
    char here[600], there[600];
    flux_layer_text(m, here, sizeof here);
    flux_layer_text(d1, there, sizeof there);
    CHECK_STR(there, here);                 /* printed alike, wherever it is */
    flux_layer *f64 = flux_gpu(flux_f64(m));
    CHECK(flux_dtype_of(flux_weight(f64)) == FLUX_F32);
    flux_layer *mapped = flux_fmap(flux_cu, m);
    CHECK(flux_device_equal(flux_device_of(mapped), at(FLUX__CUDA_BACKEND, 0)));
    flux_layer *mixed = flux_chain(tied, flux_gpu(flux_dense(3, 3)));
    CHECK_ERROR(flux_device_of(mixed), "layers.0.weight is on CPU, layers.1.weight on CUDA device 0: Card A");
    CHECK(flux_device_equal(flux_device_of(flux_gpu(mixed)), at(FLUX__CUDA_BACKEND, 0)));
    flux_layer *empty = flux_chain(flux_tanh, flux_relu);
    CHECK(flux_gpu(empty) == empty && flux_device_equal(flux_device_of(empty), at(FLUX__CPU_BACKEND, 0)));
    done();
}

/* What is drawn beside an operand that is elsewhere is as if it were here. */
static flux_tensor *drawn(int which, flux_tensor *x) {
    flux_seed(7);
    switch (which) {
    case 0: return flux_bernoulli(x);
    case 1: return flux_categorical(x);
    case 2: return flux_rrelu(flux_neg(x));
    default: break;
    }
    flux_layer *m = which == 3 ? flux_dropout(0.5) : flux_alphadropout(0.5);
    flux_trainmode(m, true);
    return flux_call(m, x);
}
TEST(draws_beside_an_operand_elsewhere) {
    fresh();
    fake(FLUX__CUDA_BACKEND, 2, 2);
    for (int which = 0; which < 5; which++) {
        flux_tensor *x = flux_eval(flux_rand(4, 9)), *far = drawn(which, flux_to(at(FLUX__CUDA_BACKEND, 1), x)), *home = drawn(which, x);
        if (!CHECK(far && on(far, FLUX__CUDA_BACKEND, 1) && same_numbers(flux_cpu(far), home))) fprintf(stderr, "    draw %d\n", which);
    }
    done();
}

TEST(loaders_and_their_batches) {
    fresh();
    fake(FLUX__CUDA_BACKEND, 2, 2);
    flux_tensor *x = flux_to_dtype(flux_rand(3, 10), FLUX_F64), *y = flux_to_dtype(flux_arange(0, 10, 1), FLUX_I32);
    flux_loader *l = flux_dataloader(x, y, .batchsize = 4), *g = flux_gpu(l), *keeps = flux_cuiterator(l);
    CHECK(g != l && flux_gpu(g) == g && flux_cu(g) == g && flux_length(g) == 3);
    CHECK(flux_device_equal(flux_device_of(l), at(0, 0)) && flux_device_equal(flux_device_of(g), at(FLUX__CUDA_BACKEND, 0)));
    int batches = 0;
    flux_each (b, g) {
        CHECK(on(b.x, FLUX__CUDA_BACKEND, 0) && on(b.y, FLUX__CUDA_BACKEND, 0));
        CHECK(flux_dtype_of(b.x) == FLUX_F32 && flux_dtype_of(b.y) == FLUX_I32);
        CHECK(flux_dim(b.x, 1) == (batches == 2 ? 2 : 4));
        CHECK(same_numbers(flux_cpu(b.x), flux_copy(flux_to_dtype(flux_slice(x, 1, 4 * b.index, 4 * b.index + b.size), FLUX_F32))));
        batches++;
    }
    CHECK(batches == 3);
    flux_each (b, keeps) CHECK(on(b.x, FLUX__CUDA_BACKEND, 0) && flux_dtype_of(b.x) == FLUX_F64);
    flux_loader *h = flux_cpu(g);
    flux_each (b, h) CHECK(on(b.x, FLUX__CPU_BACKEND, 0));
    flux_loader *whole = flux_dataloader(flux_gpu(x), flux_gpu(y), .batchsize = 4);      /* the data are there already */
    CHECK(flux_gpu(whole) == whole && flux_device_equal(flux_device_of(whole), at(FLUX__CUDA_BACKEND, 0)));
    done();
}

static void step(flux_state *s, flux_layer *m, flux_tensor *x, flux_tensor *y) {
    flux_tensor *loss = flux_mse(flux_call(m, x), flux_to_dtype(y, flux_dtype_of(flux_weight(m))));
    CHECK(flux_update(s, m, flux_gradient(loss, m)) == 0);
}

TEST(states_move_with_their_models) {
    fresh();
    fake(FLUX__CUDA_BACKEND, 2, 2);
    for (int wide = 0; wide < 2; wide++) {
        flux_layer *m = wide ? flux_f64(flux_dense(2, 3)) : flux_dense(2, 3), *twin = flux_copy_layer(m);
        flux_state *s = flux_setup(flux_adam(0.1), m), *s2 = flux_setup(flux_adam(0.1), twin);
        flux_tensor *x = flux_rand(2, 4), *y = flux_rand(3, 4);
        step(s, m, x, y);
        step(s2, twin, x, y);
        flux_state *far = flux_gpu(s), *back = flux_cpu(far);
        flux_layer *far_m = flux_gpu(m), *back_m = flux_cpu(far_m);
        CHECK(far != s && back != far && flux_gpu(far) == far && flux_cpu(back) == back);
        CHECK(flux_device_equal(flux_device_of(far), at(FLUX__CUDA_BACKEND, 0)) && flux_device_equal(flux_device_of(back), at(0, 0)));
        CHECK(flux_device_equal(flux_device_of(s), at(0, 0)));
        CHECK_ERROR(flux_update(far, back_m, flux_gradient(flux_mse(flux_call(back_m, x), y), back_m)), "its optimiser state on CUDA device 0");
        step(back, back_m, x, y);           /* as if there had been no journey */
        step(s2, twin, x, y);
        if (wide) CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_weight(back_m), flux_weight(twin))))) < 1e-6);
        else CHECK(same_numbers(flux_weight(back_m), flux_weight(twin)) && same_numbers(flux_bias(back_m), flux_bias(twin)));
        step(s, m, x, y);                   /* and the one that stayed at home goes on, too */
        CHECK(same_numbers(flux_weight(m), flux_weight(twin)));
    }
    flux_layer *plain = flux_dense(2, 2);
    flux_state *none = flux_setup(flux_descent(0.1), plain);        /* it holds no tensors */
    CHECK(flux_gpu(none) == none && flux_device_equal(flux_device_of(none), at(0, 0)));
    done();
}

/* A state of rules with counts, a scaled loss and master copies is after its journey what it was, to the byte of its file;
   so is one that has been loaded, before a step has taken what was loaded. */
static flux_rule counting(void) { return flux_mixed_precision(flux_optimiser_chain(flux_momentum(0.1), flux_clipnorm(2), flux_adam(0.01), flux_momentum(1))); }
TEST(all_of_a_state_moves) {
    fresh();
    fake(FLUX__CUDA_BACKEND, 2, 2);
    flux_layer *m = flux_f16(flux_chain(flux_dense(2, 3), flux_dense(3, 1)));
    flux_state *s = flux_setup(counting(), m), *loaded = flux_setup(counting(), m);
    flux_tensor *x = flux_to_dtype(flux_rand(2, 4), FLUX_F16);
    for (int i = 0; i < 12; i++) {              /* the first are skipped, until the scale is low enough */
        flux_tensor *loss = flux_sum(flux_square(flux_call(m, x)));
        CHECK(flux_update(s, m, flux_gradient(flux_scaled_loss(s, loss), m)) == 0);
    }
    flux_adjust(s, 0.003);
    CHECK(flux_save(s, "moved.state") == 0 && flux_load(loaded, "moved.state") == 0);
    flux_state *back = flux_cpu(flux_gpu(s)), *each[3];
    each[0] = s, each[1] = back, each[2] = flux_cpu(flux_gpu(loaded));
    char text[3][1000], file[3][8000];
    size_t bytes[3] = { 0, 0, 0 };
    for (int i = 0; i < 3; i++) {
        CHECK(flux_save(each[i], "moved.state") == 0);
        FILE *f = fopen("moved.state", "rb");
        if (f) bytes[i] = fread(file[i], 1, sizeof file[i], f), fclose(f);
        flux_state_text(each[i], text[i], sizeof text[i]);
    }
    remove("moved.state");
    CHECK_STR(text[1], text[0]);
    CHECK_STR(text[2], text[0]);
    CHECK(back != s && each[2] != loaded && strstr(text[0], "MixedPrecision") && flux_skipped(s) > 0 && flux_skipped(s) < 12 && flux_skipped(back) == flux_skipped(s) && flux_loss_scale(back) == flux_loss_scale(s));
    CHECK(bytes[0] > 500 && bytes[0] == bytes[1] && bytes[0] < sizeof file[0] && !memcmp(file[0], file[1], bytes[0]));
    CHECK(bytes[2] == bytes[0] && !memcmp(file[0], file[2], bytes[0]));
    done();
}

TEST_MAIN()
