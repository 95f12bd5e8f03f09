/* Threads: the same numbers for any number of them, several users' threads at once, errors that stay with their thread. */
#include "test.h"
#ifndef _WIN32
#include <errno.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

/* A bit of everything that the CPU shares out between threads: products in all orders, sums along each side and over
   all, softmax, a convolution, gradients and an update. out: the bytes of what comes out. */
enum { BYTES = 1 << 22 };
typedef struct outcome { unsigned char bytes[BYTES]; size_t n; bool failed; } outcome;

static void keep(outcome *o, flux_tensor *x) {
    const void *data = flux_data(x);
    size_t n = (size_t)flux_len(x) * 4;
    if (!data || o->n + n > BYTES) {
        o->failed = true;
        return;
    }
    memcpy(o->bytes + o->n, data, n);
    o->n += n;
}

static void products(outcome *o) {
    FLUX_SCOPE {
        flux_tensor *a = flux_randn(150, 330), *b = flux_randn(330, 120), *c = flux_randn(150, 330), *d = flux_randn(1200, 8);
        keep(o, flux_matmul(a, b));
        keep(o, flux_matmul(flux_transpose(b), flux_transpose(c)));
        keep(o, flux_tanh(flux_add(flux_matmul(flux_transpose(a), c), 0.5)));
        keep(o, flux_matmul(flux_transpose(d), d));
    }
}

static void sums(outcome *o) {
    FLUX_SCOPE {
        flux_tensor *x = flux_randn(700, 301), *y = flux_exp(flux_mul(x, 0.1));
        keep(o, flux_sum(y));
        keep(o, flux_sum(y, 0));
        keep(o, flux_sum(y, 1));
        keep(o, flux_max(x, 1));
        keep(o, flux_sum(flux_softmax(x), 1));
        flux_tensor *few = flux_randn(3, 40002), *wide = flux_randn(300, 401);    /* in parts, of which each phase needs the one before */
        keep(o, flux_var(few));
        keep(o, flux_var(few, 1));
        keep(o, flux_argmax(few, 1));
        keep(o, flux_softmax(few, 1));
        keep(o, flux_logsumexp(wide, 1));
        keep(o, flux_max(flux_reshape(few, 9, -1), 0));
    }
}

static void convolution(outcome *o) {
    FLUX_SCOPE {
        flux_tensor *x = flux_randn(20, 20, 3, 16), *w = flux_randn(3, 3, 3, 8);
        flux_tensor *loss = flux_mean(flux_square(flux_relu(flux_conv(x, w))));
        flux_grads *g = flux_gradient(loss, x, w);
        keep(o, loss);
        keep(o, flux_grad(g, x));
        keep(o, flux_grad(g, w));
    }
}

static void training(outcome *o) {
    FLUX_SCOPE {
        flux_layer *m = flux_chain(flux_dense(100, 130, flux_tanh), flux_dense(130, 60, flux_relu), flux_dense(60, 5));
        flux_state *s = flux_setup(flux_adam(0.01), m);
        flux_tensor *x = flux_randn(100, 64), *y = flux_rand(5, 64);
        for (int i = 0; i < 5; i++) FLUX_SCOPE {
            flux_tensor *loss = flux_mse(flux_call(m, x), y);
            flux_update(s, m, flux_gradient(loss, m));
            keep(o, loss);
        }
        keep(o, flux_destructure(m));
    }
}

static void everything(outcome *o, uint64_t seed) {
    o->n = 0;
    o->failed = false;
    flux_seed(seed);
    products(o);
    sums(o);
    convolution(o);
    training(o);
    if (flux_failed()) o->failed = true;
}

TEST(same_numbers_for_any_number_of_threads) {
    static outcome one, more;
    flux_threads(1);
    everything(&one, 7);
    REQUIRE(!one.failed && one.n > 100000);
    for (int threads = 2; threads <= (test_device.backend ? 2 : 4); threads++) {      /* a device's numbers come from no thread of ours */
        flux_threads(threads);
        everything(&more, 7);
        CHECK(!more.failed && more.n == one.n && !memcmp(one.bytes, more.bytes, one.n));
    }
    everything(&more, 8);                 /* the comparison can fail */
    CHECK(more.n == one.n && memcmp(one.bytes, more.bytes, one.n));
    flux_threads(0);
}

#define SAME(a, b) CHECK(flux_item(flux_all(flux_eq(a, b))) == 1)
/* Of what is larger than a thread's part, one is a part: rows that are gathered, added, padded and
   copied in another order, images that are convolved channel by channel and interpolated. */
TEST(what_is_larger_than_a_part) {
    if (test_device.backend) SKIP("about the CPU's threads");
    flux_threads(2);
    for (int64_t n = 20000; n < 50000; n += 20000) FLUX_SCOPE {
        const int64_t wide = n / 100;
        flux_tensor *x = flux_eval(flux_floor(flux_mul(flux_rand(n, 3), 9))), *z = flux_zeros(n, 3);
        flux_tensor *i = flux_from(((int32_t[]){ 2, 0, 2 }), 3), *a[3];
        for (int k = 0; k < 3; k++) a[k] = flux_slice(x, 1, k, k + 1);
        SAME(flux_gather(x, 1, i), flux_cat(1, a[2], a[0], a[2]));
        SAME(flux_scatter_add(z, 1, i, x), flux_cat(1, a[1], flux_zeros(n, 1), flux_add(a[0], a[2])));
        SAME(flux_slice(flux_pad(x, 7, 1, 2, 1, 0), 0, 0, 1), flux_full(7, 1, 4));
        SAME(flux_slice(flux_slice(flux_pad(x, 7, 1, 2, 1, 0), 0, 1, n + 1), 1, 1, 4), x);
        flux_tensor *turned = flux_copy(flux_permute(flux_reshape(x, 2, n / 2, 3), 1, 0, 2));
        SAME(flux_permute(turned, 1, 0, 2), flux_reshape(x, 2, n / 2, 3));
        flux_tensor *image = flux_reshape(x, wide, 100, 3, 1), *w = flux_eval(flux_randint(0, 5, 3, 3, 1, 3));
        w = flux_eval(flux_to_dtype(w, FLUX_F32));
        SAME(flux_conv(image, w, .groups = 3), flux_to_dtype(flux_conv(flux_to_dtype(image, FLUX_F64),
             flux_to_dtype(w, FLUX_F64), .groups = 3), FLUX_F32));
        flux_tensor *larger = flux_call(flux_upsample(FLUX_BILINEAR, .size = FLUX_SHAPE(2 * wide - 1, 199)), image);
        SAME(flux_slice_step(flux_slice_step(larger, 0, 0, 2 * wide - 1, 2), 1, 0, 199, 2), image);
    }
    flux_threads(0);
}

/* Half formats: each thread makes its own f32, or words, of what its part reads; as sums of products and as tiles, in all orders, of
   odd lengths and from odd places on. What is on the other side of a part's edge would show. */
static void half_products(outcome *o, flux_dtype type) {
    static const int64_t mnk[][3] = { { 196, 64, 64 }, { 64, 200, 128 }, { 72, 16, 3001 }, { 12, 900, 48 }, { 1300, 24, 18 }, { 131, 257, 77 },
                                     { 2000, 5, 100 }, { 2000, 5, 100 }, { 65, 20, 352 },     /* parts alone would be made otherwise than the whole */
                                     { 33000, 2, 4 }, { 33000, 2, 4 } };                      /* lines longer than a thread's part */
    o->n = 0, o->failed = false;
    flux_seed(7);
    for (size_t i = 0; i < sizeof mnk / sizeof *mnk; i++)
        for (int order = 0; order < 4; order++) FLUX_SCOPE {
            int64_t m = mnk[i][0], n = mnk[i][1], k = mnk[i][2], odd = i % 2;
            flux_tensor *a = order & 1 ? flux_randn(k + odd, m) : flux_randn(m, k + odd), *b = order & 2 ? flux_randn(n, k + odd) : flux_randn(k + odd, n);
            a = flux_slice(flux_to_dtype(a, type), order & 1 ? 0 : 1, odd, k + odd), b = flux_slice(flux_to_dtype(b, type), order & 2 ? 1 : 0, odd, k + odd);
            a = order & 1 ? flux_transpose(a) : a, b = order & 2 ? flux_transpose(b) : b;
            flux_tensor *c = flux_matmul(a, b), *want = flux_matmul(flux_to_dtype(a, FLUX_F32), flux_to_dtype(b, FLUX_F32));
            flux_tensor *apart = flux_div(flux_abs(flux_sub(flux_to_dtype(c, FLUX_F32), want)), flux_add(flux_abs(want), 1));
            CHECK(flux_item(flux_max(apart)) < (type == FLUX_F16 ? 1e-3 : 8e-3));
            keep(o, flux_to_dtype(flux_relu(flux_add(c, flux_full(0.5, m, 1))), FLUX_F32));
        }
    if (flux_failed()) o->failed = true;
}
TEST(half_products_in_parts) {
    static outcome one, more;
    if (test_device.backend) SKIP("about the CPU's threads");
    for (int i = 0; i < 2; i++) {
        flux_dtype type = i ? FLUX_BF16 : FLUX_F16;
        flux_threads(1);
        half_products(&one, type);
        REQUIRE(!one.failed && one.n > 100000);
        for (int threads = 2; threads <= 5; threads++) {
            flux_threads(threads);
            half_products(&more, type);
            CHECK(!more.failed && more.n == one.n && !memcmp(one.bytes, more.bytes, one.n));
        }
    }
    flux_threads(0);
}

/* Large enough for several threads; the last dims may be single ones, an operand turned, or without the dim. */
static void join(int dim, int64_t n0, int64_t n1, int64_t n2) {
    flux_shape s = FLUX_SHAPE(n0, n1, n2);
    flux_tensor *x = flux_eval(flux_randn(n0, n1, n2)), *y = flux_eval(flux_randn(n2, n1, n0));
    flux_tensor *parts[3] = { x, flux_permute(y, 2, 1, 0), flux_neg(x) }, *all = flux_cat_with(dim, 3, parts);
    const float *got = (const float *)flux_data(all), *of_x = (const float *)flux_data(x), *of_y = (const float *)flux_data(y);
    int64_t at[3], wrong = 0, len = s.dim[dim];
    s.dim[dim] *= 3;
    REQUIRE(got && of_x && of_y);
    for (at[2] = 0; at[2] < s.dim[2]; at[2]++)
        for (at[1] = 0; at[1] < s.dim[1]; at[1]++)
            for (at[0] = 0; at[0] < s.dim[0]; at[0]++) {
                int64_t from[3] = { at[0], at[1], at[2] }, which = at[dim] / len;
                from[dim] %= len;
                const float straight = of_x[(from[2] * n1 + from[1]) * n0 + from[0]], turned = of_y[(from[0] * n1 + from[1]) * n2 + from[2]];
                wrong += *got++ != (which == 0 ? straight : which == 1 ? turned : -straight);
            }
    CHECK(wrong == 0);
}
TEST(joined_by_several_threads) {
    for (int threads = 1; threads <= 3; threads += 2) {
        flux_threads(threads);
        for (int dim = 0; dim < 3; dim++) {
            FLUX_SCOPE join(dim, 70, 50, 13);
            FLUX_SCOPE join(dim, 170, 230, 1);
            FLUX_SCOPE join(dim, 30000, 1, 1);
            FLUX_SCOPE join(dim, 3, 1, 20000);
        }
        FLUX_SCOPE {
            flux_tensor *x = flux_randn(40000), *y = flux_cat(1, x, flux_mul(x, 2), x);
            CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_sum(y, 1), flux_mul(x, 4))))) < 1e-5);
        }
    }
    flux_threads(0);
}

TEST(threads_is_not_negative) {
    CHECK_ERROR(flux_threads(-2), "threads: -2 threads are not possible");
}

#ifndef FLUX_NO_THREADS
typedef struct user { void *thread; uint64_t seed; outcome got; char error[200]; } user;
static user users[4];
static void run_user(void *arg) {
    user *u = (user *)arg;
    for (int i = getenv("EMULATED") ? 1 : 0; i < 2; i++) everything(&u->got, u->seed);
}

TEST(several_users_at_once) {
    static outcome want;
    for (int i = 0; i < 4; i++) {
        users[i].seed = (uint64_t)i + 1;
        REQUIRE((users[i].thread = flux__test_thread(run_user, &users[i])) != NULL);
    }
    for (int i = 0; i < 4; i++) flux__test_join(users[i].thread);
    for (int i = 0; i < 4; i++) {
        everything(&want, users[i].seed);
        CHECK(!users[i].got.failed && users[i].got.n == want.n && !memcmp(want.bytes, users[i].got.bytes, want.n));
    }
}

static void make_error(void *arg) {
    user *u = (user *)arg;
    if (u->seed % 2) flux_matmul(flux_ones(2, 3), flux_ones(4, 5));
    flux_item(flux_sum(flux_ones(1000)));
    snprintf(u->error, sizeof u->error, "%s", flux_error());
}

TEST(errors_stay_with_their_thread) {
    flux_on_error(test_silent, NULL);
    for (int i = 0; i < 4; i++) {
        users[i].seed = (uint64_t)i;
        REQUIRE((users[i].thread = flux__test_thread(make_error, &users[i])) != NULL);
    }
    for (int i = 0; i < 4; i++) flux__test_join(users[i].thread);
    flux_on_error(NULL, NULL);
    CHECK(!flux_failed());
    for (int i = 0; i < 4; i++) CHECK(i % 2 ? strstr(users[i].error, "inner sizes") != NULL : users[i].error[0] == 0);
}

static void leave_open(void *arg) {       /* nothing freed by hand: the thread's end does it */
    (void)arg;
    flux_scope_open();
    flux_item(flux_sum(flux_add(flux_ones(100, 100), 1.0)));
    flux_scope_open();
    flux_randn(10, 10);
}

/* A thread begins with its own scope, which nobody can close, and no other. */
static int refusals;
static void count_refusals(const char *message, void *user) { (void)user, refusals += !strcmp(message, "scope_close: no scope is open"); }
static void close_scopes(void *arg) {
    (void)arg;
    flux_scope_close();
    flux_clear();                         /* so that the same sentence is said again */
    flux_scope_open();
    flux_scope_close();
    flux_scope_close();
    flux_clear();
}
TEST(a_thread_has_no_scope_to_close) {
    flux_on_error(count_refusals, NULL);
    void *thread = flux__test_thread(close_scopes, NULL);
    if (thread) flux__test_join(thread);
    flux_on_error(NULL, NULL);
    CHECK(thread && refusals == 2);
}

TEST(a_thread_that_ends_leaves_nothing) {
    flux_device cpu = { 0, 0 };
    flux_mem before = flux_mem_stats(cpu);
    for (int i = 0; i < 4; i++) REQUIRE((users[i].thread = flux__test_thread(leave_open, &users[i])) != NULL);
    for (int i = 0; i < 4; i++) flux__test_join(users[i].thread);
    CHECK(flux_mem_stats(cpu).live == before.live);
}

#ifndef _WIN32
/* A thread for whose state there is no memory: what needs none is done, all else gives nothing and says so on stderr, as there is
   no place for an error's words; with memory again the thread tells what had failed, once. */
typedef struct bare { flux_tensor *x, *state; flux_layer *m; char said[100], later[100]; int blocks; bool kept, none, again; } bare;
static void without_a_state(void *arg) {
    bare *b = (bare *)arg;
    flux__test_memory(0);
    snprintf(b->said, sizeof b->said, "%s", flux_error());
    flux_clear(), flux_seed(3), flux_scope_open(), flux_scope_close();
    FLUX_SCOPE b->blocks++;
    FLUX_NOGRAD b->blocks++;
    b->kept = flux_failed() && flux_keep_object(b->x) == b->x && flux_carry_object(NULL, b->x) == b->x && flux_data(b->x) && flux_at(b->x, 1) == 2;
    b->none = !flux_rand(2) && !flux_random_state() && flux_set_random_state(b->state) == -1 && !flux_nth(b->x, 9) && !flux_training(b->m) &&
              !flux_call(b->m, b->x) && !flux_gradient(b->x, b->x) && !flux_dataloader(b->x) && flux_save_layer(b->m, "/dev/null") == -1;
    flux__test_memory(-1);
    b->again = flux_failed();
    snprintf(b->later, sizeof b->later, "%s", flux_error());
    flux_clear();
    b->again = b->again && !flux_failed() && flux_item(flux_sum(flux_add(b->x, 1))) == 5;
}
extern int fileno(FILE *f);
TEST(a_thread_without_memory_for_its_state) {
    ONLY_ON_CPU();
    bare b = { flux_eval(flux_from(((float[]){ 1, 2 }), 2)), flux_random_state(), flux_dense(2, 1), "", "", 0, false, false, false };
    flux_trainmode(b.m, true);
    FILE *file = tmpfile();
    char heard[2000] = "";
    REQUIRE(file != NULL);
    fflush(stderr);
    const int real = dup(2);
    dup2(fileno(file), 2);
    void *thread = flux__test_thread(without_a_state, &b);
    if (thread) flux__test_join(thread);
    dup2(real, 2), close(real);
    rewind(file);
    heard[fread(heard, 1, sizeof heard - 1, file)] = 0;
    fclose(file);
    CHECK(thread && b.kept && b.none && b.again && b.blocks == 2);
    CHECK_STR(b.said, "out of memory");
    CHECK(!strncmp(heard, "flux: out of memory\nflux: out of memory\n", 40));
    CHECK(!strncmp(b.later, "out of memory: ", 15) && strstr(b.later, " bytes for a thread's state"));
}
#endif

#if !defined(_WIN32) && !defined(__SANITIZE_THREAD__)      /* that one forbids a forked child to start threads */
/* A forked child has one thread, whatever the others were at, and computes. It ends by exit, which hung too. */
static int child_end(pid_t pid) {
    int status = -1;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    return status;
}
#define FORKS() do {                                                                                 \
        if (test_device.backend) SKIP("test_gpu forks with a device");                               \
        if (getenv("EMULATED")) SKIP("qemu's user mode ends a forked child of several threads");     \
    } while (0)
/* For a test whose other threads may be in the middle of an allocation when it forks. */
#ifdef __SANITIZE_ADDRESS__
#  define FORKS_AMID_ALLOCATIONS() \
    SKIP("the address sanitizer's allocator keeps locks that other threads held at the fork")
#else
#  define FORKS_AMID_ALLOCATIONS() ((void)0)
#endif
static void child_exit(void) {
#ifdef __SANITIZE_ADDRESS__
    flux_shutdown();
    _exit(0);                             /* what other threads held is a leak to who looks for leaks at exit */
#else
    exit(0);
#endif
}
#define IN_CHILD(condition) do { if (!(condition)) fprintf(stderr, "%s:%d: in the child: %s\n", __FILE__, __LINE__, #condition), _exit(1); } while (0)
static pid_t fork_timed(void) {           /* a child that hangs is ended by its alarm; it has no worker and no job */
#ifdef __SANITIZE_ADDRESS__               /* a thread that is being started has locks of the sanitizer's */
    while (!flux__test_workers_asleep()) sched_yield();
#endif
    fflush(stdout), fflush(stderr);
    pid_t pid = fork();
    if (pid == 0) alarm(60);
    if (pid == 0) IN_CHILD(flux__test_workers_rest());
    return pid;
}

static flux_tensor *product(void) {
    flux_seed(3);
    flux_tensor *a = flux_randn(300, 300), *y = flux_sum(flux_tanh(flux_matmul(a, flux_transpose(a))), 0);
    return flux_eval(y);
}
static bool same_product(const outcome *want) {
    static outcome got;
    got.n = 0, got.failed = false;
    FLUX_SCOPE keep(&got, product());
    return !got.failed && got.n == want->n && !memcmp(got.bytes, want->bytes, got.n);
}

TEST(a_child_starts_without_workers) {
    static outcome want;
    FORKS();
    flux_threads(4);
    want.n = 0;
    FLUX_SCOPE keep(&want, product());
    REQUIRE(!want.failed && want.n);
    for (int way = 0; way < 4; way++) {
        pid_t pid = fork_timed();
        if (pid == 0) {
            if (way == 1) flux_threads(3);
            if (way == 2) flux_shutdown();
            if (way > 0) IN_CHILD(same_product(&want));
            if (way == 3) {               /* a child's child, when workers are there again */
                pid_t inner = fork_timed();
                if (inner == 0) {
                    IN_CHILD(same_product(&want));
                    child_exit();
                }
                IN_CHILD(child_end(inner) == 0 && same_product(&want));
            }
            child_exit();
        }
        CHECK(child_end(pid) == 0);
        CHECK(same_product(&want));
    }
    flux_threads(0);
}

static outcome fork_want;
enum { FORK_SHARED = 40 };
static flux_tensor *fork_shared[FORK_SHARED];          /* pending: a fork finds some half computed by another thread */
static int fork_done, fork_bad, fork_going;             /* of several threads */
static int fork_count(int *n, int more) { return __atomic_add_fetch(n, more, __ATOMIC_SEQ_CST); }
static void compute_on(void *arg) {
    (void)arg;
    for (int k = 0; !fork_count(&fork_done, 0); k++) FLUX_SCOPE {
        flux_eval(fork_shared[k % FORK_SHARED]);
        product();
        for (int i = 0; i < 50; i++) flux_eval(flux_add(flux_ones(40 + i), 1.0));
    }
}
static void fork_often(void *arg) {
    (void)arg;
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork_timed();
        if (pid == 0) {
            IN_CHILD(same_product(&fork_want));
            for (int k = 0; k < 3; k++) IN_CHILD(flux_at(fork_shared[(2 * i + k) % FORK_SHARED], 5, 7) == 1);
            child_exit();
        }
        if (child_end(pid) != 0) fork_count(&fork_bad, 1);
    }
    fork_count(&fork_going, -1);
}

TEST(any_thread_may_fork_while_others_compute) {
    FORKS();
    FORKS_AMID_ALLOCATIONS();
    flux_threads(3);
    fork_want.n = 0;
    FLUX_SCOPE keep(&fork_want, product());
    REQUIRE(!fork_want.failed && fork_want.n);
    for (int k = 0; k < FORK_SHARED; k++) {
        fork_shared[k] = flux_ones(64, 64);
        for (int i = 0; i < 100; i++) fork_shared[k] = flux_mul(flux_matmul(fork_shared[k], flux_ones(64, 64)), 1 / 64.0);
    }
    fork_going = 2;
    for (int i = 0; i < 4; i++) REQUIRE((users[i].thread = flux__test_thread(i < 2 ? compute_on : fork_often, NULL)) != NULL);
    while (fork_count(&fork_going, 0)) sched_yield();
    fork_count(&fork_done, 1);
    for (int i = 0; i < 4; i++) flux__test_join(users[i].thread);
    CHECK(fork_bad == 0);
    CHECK(same_product(&fork_want));
    flux_threads(0);
}

/* An epoch that had workers goes on in a child, which makes the batches that are left; so it does in the parent. */
TEST(a_child_goes_on_with_an_epoch) {
    FORKS();
    FORKS_AMID_ALLOCATIONS();
    float at[40];
    for (int i = 0; i < 40; i++) at[i] = (float)(i * i);
    for (int way = 0; way < 3; way++) {
        flux_loader *l = flux_dataloader(flux_from(at, 1, 40), .batchsize = 2, .workers = 3, .shuffle = true);
        double sum = 0, want = 0;
        pid_t pid = -1;
        int n = 0;
        for (int i = 0; i < 40; i++) want += at[i];
        flux_each (b, l) {
            if (n++ == 4) pid = fork_timed();
            if (pid == 0 && way == 1) child_exit();
            if (pid == 0 && way == 2) break;
            sum += flux_item(flux_sum(b.x));
        }
        if (pid == 0) {
            IN_CHILD(way == 2 || sum == want);
            child_exit();
        }
        CHECK(sum == want && child_end(pid) == 0);
    }
}
#endif
#endif
TEST_MAIN()
