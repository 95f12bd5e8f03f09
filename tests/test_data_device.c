/* Loaders whose batches go to a device: a back end is played by host memory, which counts what it holds. */
#define FLUX_IMPLEMENTATION
#include "test.h"

static int held, uploads;                 /* pieces of device memory now, and copies to it */

static bool yes(char *why, size_t n) { (void)why, (void)n; return true; }
static int two(void) { return 2; }
static void name(int id, char *out, size_t n) { snprintf(out, n, "Card %d", id); }
static bool component(const char *c, bool *known) { (void)c; *known = false; return false; }
static void *take(int id, size_t bytes) { (void)id; held++; return malloc(bytes); }
static void give(int id, void *p, size_t bytes) { (void)id, (void)bytes; held--; free(p); }
static int move(int id, void *to, const void *from, size_t bytes) { (void)id; memcpy(to, from, bytes); return 0; }
static int up(int id, void *to, const void *from, size_t bytes) { uploads++; return move(id, to, from, bytes); }
static int across(int to, void *dst, int from, const void *src, size_t bytes) { (void)from; return move(to, dst, src, bytes); }
static int wait(int id) { (void)id; return 0; }

static flux_device card(void) {
    static flux__backend table;
    flux_device d = { FLUX__CUDA_BACKEND, 1 };
    table = *flux__backend_of(FLUX__CPU_BACKEND);
    table.available = table.functional = yes;
    table.count = two, table.device_name = name, table.component = component, table.alloc = take, table.free = give;
    table.upload = up, table.download = move, table.copy = across, table.wait = wait;
    flux__backend_set(FLUX__CUDA_BACKEND, &table);
    held = uploads = 0;
    return d;
}
static void no_card(void) {
    flux_device d = { FLUX__CUDA_BACKEND, 0 };
    for (d.id = 0; d.id < 2; d.id++) {
        CHECK(flux_mem_stats(d).live == 0);
        flux_mem_trim(d);
    }
    CHECK(held == 0);
    flux__backend_set(FLUX__CUDA_BACKEND, NULL);
}

static flux_tensor *numbers(int n) { return flux_to_dtype(flux_arange(0, n, 1), FLUX_I32); }
static double first_of(flux_tensor *x) { return flux_at(flux_cpu(x), 0); }

TEST(batches_travel_one_ahead) {
    flux_device d = card();
    FLUX_SCOPE {
        for (int workers = 0; workers <= 2; workers++) {
            flux_loader *l = flux_to(d, flux_dataloader(numbers(50), .batchsize = 10, .workers = workers));
            int64_t next = 0, top = 0, size = 64;
            uploads = 0;
            flux_each (b, l) {
                CHECK(flux_device_equal(flux_device_of(b.x), d) && flux_dtype_of(b.x) == FLUX_I32);
                CHECK(workers || uploads == (next < 4 ? next + 2 : 5));      /* the next one is there, or on its way */
                CHECK_NEAR(first_of(b.x), 10 * next, 0);
                if (flux_mem_stats(d).live > top) top = flux_mem_stats(d).live;
                next++;
            }
            CHECK(next == 5 && top <= 2 * size);
            char text[200];
            flux_print_ascii(true);
            flux_loader_text(l, text, sizeof text);
            CHECK(strstr(text, "device=CUDA(1))"));
        }
    }
    no_card();
}

static flux_batch to_f64(flux_batch b, void *user) {
    (void)user;
    b.x = flux_mul(flux_to_dtype(b.x, FLUX_F64), flux_rand_with(flux_shape_of(b.x), FLUX_F64));
    return b;
}

TEST(transforms_come_before_the_move_and_are_the_same_everywhere) {
    flux_device d = card();
    FLUX_SCOPE {
        flux_tensor *x = numbers(40);
        double a[40], b[40];
        for (int workers = 0; workers <= 3; workers += 3) {
            flux_loader *l = flux_dataloader(x, .batchsize = 8, .shuffle = true, .seed = 3, .transform = to_f64, .workers = workers);
            flux_loader *far = flux_cuiterator(l);
            int n = 0, m = 0;
            flux_each (p, l)
                for (int64_t i = 0; i < p.size; i++) a[n++] = flux_at(p.x, i);
            flux_each (p, far) {
                CHECK(flux_dtype_of(p.x) == FLUX_F64);
                for (int64_t i = 0; i < p.size; i++) b[m++] = flux_at(flux_cpu(p.x), i);
            }
            CHECK(n == 40 && m == 40 && !memcmp(a, b, sizeof a));
            flux_each (p, flux_gpu(l)) CHECK(flux_dtype_of(p.x) == FLUX_F32);
            flux_each (p, flux_mapobs(flux_gpu, l)) CHECK(flux_device_of(p.x).backend == FLUX__CUDA_BACKEND && flux_dtype_of(p.x) == FLUX_F32);
        }
        flux_loader *loose = flux_to(d, flux_dataloader(x, .batchsize = 3, .collate = FLUX_COLLATE_NONE));
        CHECK(flux_num_items(flux_first(loose).x) == 3 && flux_device_equal(flux_device_of(flux_nth(flux_first(loose).x, 2)), d));
    }
    no_card();
}

static int64_t length(void *user) { (void)user; return 30; }
static int get(void *user, int64_t i, int n, flux_tensor **out) {
    (void)n;
    out[0] = flux_full(i, 2);
    return i == *(int *)user ? 9 : 0;
}

TEST(an_error_ahead_waits_for_its_turn) {
    flux_device d = card();
    FLUX_SCOPE {
        int bad = 17;
        flux_dataset set = { &bad, length, get, 1 };
        for (int workers = 0; workers <= 2; workers++) {
            flux_loader *l = flux_to(d, flux_dataloader(.data = &set, .batchsize = 4, .workers = workers));
            int n = 0;
            test_before_error(__FILE__, __LINE__);
            flux_each (b, l) {
                CHECK(!flux_failed());                           /* not while the batches before it are used */
                CHECK_NEAR(flux_at(flux_cpu(b.x), 1, 3), 4 * n + 3, 0);
                n++;
            }
            test_error("gave 9 for observation 17", __FILE__, __LINE__, "each");
            CHECK(n == 4);
            n = 0;
            flux_on_error(test_silent, NULL);
            flux_each (b, l)
                if (++n == 2) break;
            flux_on_error(NULL, NULL);
            CHECK(!flux_failed());
        }
    }
    no_card();
}

TEST(data_on_the_device_stay_there) {
    flux_device d = card();
    FLUX_SCOPE {
        flux_tensor *x = flux_eval(flux_to(d, flux_reshape(flux_arange(0, 40, 1), 2, 20)));
        flux_loader *l = flux_dataloader(x, .batchsize = 8, .workers = 2), *s = flux_dataloader(x, .batchsize = -1);
        int n = 0;
        flux_each (b, l) {
            CHECK(flux_device_equal(flux_device_of(b.x), d) && flux_dim(b.x, 1) == (n < 2 ? 8 : 4));
            CHECK_NEAR(flux_at(flux_cpu(b.x), 1, 0), 16 * n + 1, 0);
            n++;
        }
        CHECK(n == 3);
        flux_batch one = flux_first(s);
        CHECK(flux_ndim(one.x) == 1 && flux_device_equal(flux_device_of(one.x), d));
        flux_each (b, flux_cpu(l)) CHECK(flux_device_of(b.x).backend == FLUX__CPU_BACKEND);
    }
    no_card();
}

TEST(breaking_off_leaves_nothing_on_the_device) {
    flux_device d = card();
    FLUX_SCOPE {
        flux_loader *l = flux_to(d, flux_dataloader(numbers(100), .batchsize = 5, .shuffle = true, .workers = 3));
        for (int stop = 0; stop < 8; stop++) {
            flux_each (b, l)
                if (b.index == stop) break;
            CHECK(flux_mem_stats(d).live == 0);
        }
    }
    no_card();
}

TEST_MAIN()
