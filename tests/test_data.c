/* One-hot labels, loaders, flux_each, progress. */
#include "test.h"
#include <errno.h>
#ifndef _WIN32
#include <fcntl.h>
#include <unistd.h>
extern int posix_openpt(int flags);                              /* ISO C mode hides these */
extern int grantpt(int fd);
extern int unlockpt(int fd);
extern char *ptsname(int fd);
extern int usleep(unsigned us);
#endif

/* 2 x n: observation i is (10 i, 10 i + 1); and its number. */
static flux_tensor *pairs(int n) {
    float a[400];
    for (int i = 0; i < n; i++) a[2 * i] = (float)(10 * i), a[2 * i + 1] = (float)(10 * i + 1);
    return flux_from(a, 2, n);
}
static flux_tensor *numbers(int n) {
    int32_t a[4000];
    for (int i = 0; i < n; i++) a[i] = i;
    return flux_from(a, n);
}
static double at(flux_tensor *x, int64_t i) {
    flux_tensor *d = flux_to_dtype(x, FLUX_F64);
    const double *p = (const double *)flux_data(d);
    return p && i < flux_len(x) ? p[i] : NAN;
}

/* One epoch's observation numbers, of a loader over numbers(n). */
static int epoch_of(flux_loader *l, int *out, int room) {
    int n = 0;
    flux_each (b, l) {
        const int32_t *p = (const int32_t *)flux_data(b.x);
        for (int64_t i = 0; p && i < flux_len(b.x) && n < room; i++) out[n++] = p[i];
    }
    return n;
}
static bool is_permutation(const int *a, int n) {
    char seen[4000] = { 0 };
    for (int i = 0; i < n; i++)
        if (a[i] < 0 || a[i] >= n || seen[a[i]]++) return false;
    return true;
}

static char logged[2000];
static void keep_log(flux_level level, const char *id, const char *message, void *user) {
    (void)level, (void)user;
    size_t n = strlen(logged);
    snprintf(logged + n, sizeof logged - n, "[%s] %s\n", id, message);
}

/* ---- one-hot */

TEST(onehot_is_one_at_the_label) {
    uint8_t u[] = { 2, 0, 1, 2 };
    int32_t v[] = { 2, 0, 1, 2 };
    int64_t w[] = { 2, 0, 1, 2 };
    const double want[] = { 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 1 };
    flux_tensor *y = flux_onehot(flux_from(u, 4), 3);
    CHECK(flux_ndim(y) == 2 && flux_dim(y, 0) == 3 && flux_dim(y, 1) == 4 && flux_dtype_of(y) == FLUX_BOOL);
    CHECK_DATA(y, want, 0);
    CHECK_DATA(flux_onehot(flux_from(v, 4), 3), want, 0);
    CHECK_DATA(flux_onehot(flux_from(w, 4), 3), want, 0);
    flux_tensor *m = flux_onehot(flux_from(v, 2, 2), 3);         /* a matrix of labels: 3 x 2 x 2, the same order */
    CHECK(flux_ndim(m) == 3 && flux_dim(m, 1) == 2 && flux_dim(m, 2) == 2);
    CHECK_DATA(m, want, 0);
    const double one[] = { 0, 0, 1, 0 };
    flux_tensor *s = flux_onehot(flux_select(flux_from(v, 4), 0, 3), 4);
    CHECK(flux_ndim(s) == 1);
    CHECK_DATA(s, one, 0);
}

TEST(onehot_of_bytes_with_many_classes) {
    uint8_t u[] = { 4, 255 };
    flux_tensor *y = flux_to_dtype(flux_onehot(flux_from(u, 2), 300), FLUX_F32);
    CHECK_NEAR(flux_item(flux_sum(y)), 2, 0);                    /* not at 260 too */
    CHECK_NEAR(flux_at(y, 4, 0), 1, 0);
    CHECK_NEAR(flux_at(y, 255, 1), 1, 0);
}

TEST(onehot_says_which_label_is_wrong) {
    int32_t v[] = { 0, 1, 2, 10, 99, -1 }, w[] = { 0, 1, -7, 1 };
    CHECK_ERROR(flux_onehot(flux_from(v, 6), 10), "onehot: label 10 at (3) is not one of 0 to 9");
    CHECK_ERROR(flux_onehot(flux_from(w, 2, 2), 10), "label -7 at (0, 1) is not one of 0 to 9");
    CHECK_ERROR(flux_onehot(flux_from(v, 1), 0), "0 classes");
    CHECK_ERROR(flux_onehot(flux_from(v, 1), -3), "-3 classes");
    CHECK_ERROR(flux_onehot(flux_ones(3), 10), "labels are f32, not integers");
    CHECK_ERROR(flux_onehot(NULL, 10), "onehot: argument labels is NULL");
    CHECK_ERROR(flux_onehot(flux_from(v, 1, 1, 1, 1, 1, 1, 1, 1), 2), "8 dimensions");
}

TEST(onecold_is_the_first_largest) {
    float a[] = { 1, 3, 2, 5, 5, 0, -1, -2, -1 };                /* columns 132, 550, -1-2-1 */
    const double want[] = { 1, 0, 0 };
    flux_tensor *y = flux_onecold(flux_from(a, 3, 3));
    CHECK(flux_dtype_of(y) == FLUX_I64 && flux_ndim(y) == 1);
    CHECK_DATA(y, want, 0);
    int32_t v[] = { 4, 0, 3, 3, 1, 2 };
    const double same[] = { 4, 0, 3, 3, 1, 2 };
    flux_tensor *back = flux_onecold(flux_onehot(flux_from(v, 2, 3), 5));
    CHECK(flux_ndim(back) == 2 && flux_dim(back, 0) == 2 && flux_dim(back, 1) == 3);
    CHECK_DATA(back, same, 0);
    flux_tensor *one = flux_onecold(flux_from(a, 3));
    CHECK(flux_ndim(one) == 0);
    CHECK_NEAR(flux_item(one), 1, 0);
    CHECK_ERROR(flux_onecold(flux_scalar(3)), "onecold: y has no dimension");
    CHECK_ERROR(flux_onecold(flux_zeros(0, 3)), "onecold: y has no classes");
    CHECK_ERROR(flux_onecold(NULL), "onecold: argument y is NULL");
}

/* ---- batches of arrays */

TEST(batches_in_order) {
    flux_loader *l = flux_dataloader(pairs(10), numbers(10), .batchsize = 3);
    int batches = 0, seen = 0;
    CHECK(flux_length(l) == 4);
    flux_each (b, l) {
        int n = batches < 3 ? 3 : 1;
        CHECK(b.count == 2 && b.index == batches && b.size == n && b.item[0] == b.x && b.item[1] == b.y);
        CHECK(flux_ndim(b.x) == 2 && flux_dim(b.x, 0) == 2 && flux_dim(b.x, 1) == n && flux_dtype_of(b.x) == FLUX_F32);
        CHECK(flux_ndim(b.y) == 1 && flux_dim(b.y, 0) == n && flux_dtype_of(b.y) == FLUX_I32);
        for (int i = 0; i < n; i++, seen++) {
            CHECK_NEAR(flux_at(b.x, 0, i), 10 * seen, 0);
            CHECK_NEAR(flux_at(b.x, 1, i), 10 * seen + 1, 0);
            CHECK_NEAR(at(b.y, i), seen, 0);
        }
        batches++;
    }
    CHECK(batches == 4 && seen == 10);
}

TEST(batchsizes) {
    int got[20];
    logged[0] = 0;
    flux_on_log(keep_log, NULL);
    flux_silence(NULL);
    CHECK(flux_length(flux_dataloader(numbers(10))) == 10);      /* 1 is the default */
    CHECK(flux_length(flux_dataloader(numbers(10), .batchsize = 5)) == 2);
    CHECK(flux_length(flux_dataloader(numbers(10), .batchsize = 3, .partial = FLUX_OFF)) == 3);
    CHECK(epoch_of(flux_dataloader(numbers(10), .batchsize = 3, .partial = FLUX_OFF), got, 20) == 9);
    CHECK_STR(logged, "");
    flux_loader *l = flux_dataloader(numbers(10), .batchsize = 64);
    CHECK(flux_length(l) == 1 && flux_first(l).size == 10);
    CHECK(strstr(logged, "[data.batchsize]") && strstr(logged, "only 10 observations: batchsize 64 becomes 10"));
    size_t once = strlen(logged);
    CHECK(flux_length(flux_dataloader(numbers(10), .batchsize = 64, .partial = FLUX_OFF)) == 1);
    CHECK(strlen(logged) == once);
    flux_on_log(NULL, NULL);
    flux_loader *all = flux_dataloader(pairs(4), .batchsize = 4);
    const double whole[] = { 0, 1, 10, 11, 20, 21, 30, 31 };
    CHECK_DATA(flux_first(all).x, whole, 0);
}

TEST(single_observations) {
    flux_loader *l = flux_dataloader(pairs(3), numbers(3), .batchsize = -1);
    int i = 0;
    CHECK(flux_length(l) == 3);
    flux_each (b, l) {
        CHECK(flux_ndim(b.x) == 1 && flux_dim(b.x, 0) == 2 && flux_ndim(b.y) == 0 && b.size == 1);
        CHECK_NEAR(at(b.x, 1), 10 * i + 1, 0);
        CHECK_NEAR(flux_item(b.y), i, 0);
        i++;
    }
    CHECK(i == 3);
}

TEST(every_dtype_and_row_size) {
    for (int t = 0; t < FLUX_NUM_DTYPES; t++)
        for (int rows = 1; rows <= 3; rows++) {
            flux_tensor *x = flux_to_dtype(flux_reshape(flux_arange(0, rows * 7, 1), rows, 7), (flux_dtype)t);
            if (t == FLUX_BOOL) x = flux_gt(flux_reshape(flux_arange(0, rows * 7, 1), rows, 7), 3);
            flux_loader *l = flux_dataloader(x, numbers(7), .batchsize = 2, .shuffle = true, .seed = 5);
            flux_each (b, l) {
                CHECK(flux_dtype_of(b.x) == (flux_dtype)t);
                for (int64_t i = 0; i < b.size * rows; i++) {
                    double v = at(b.y, i / rows) * rows + (double)(i % rows);
                    CHECK_NEAR(at(b.x, i), t == FLUX_BOOL ? v > 3 : v, 0);
                }
            }
        }
}

TEST(a_view_and_a_lazy_array_are_sources_too) {
    float rows[4][2] = { { 0, 1 }, { 10, 11 }, { 20, 21 }, { 30, 31 } };   /* 4 x 2, so its transpose is 2 x 4 */
    flux_tensor *t = flux_transpose(flux_from_rows(&rows[0][0], 4, 2));
    const double want[] = { 1, 2, 21, 22, 41, 42 };
    flux_loader *l = flux_dataloader(flux_add(flux_mul(flux_slice(t, 1, 0, 4), 2), flux_from(((float[]){ 1, 0 }), 2)), .batchsize = 3);
    CHECK_DATA(flux_first(l).x, want, 0);
    int i = 0;
    flux_each (b, flux_dataloader(flux_slice_step(t, 1, 1, 4, 2), .batchsize = 1)) {
        CHECK_NEAR(flux_at(b.x, 0, 0), i ? 30 : 10, 0);
        i++;
    }
    CHECK(i == 2);
}

TEST(many_arrays) {
    flux_tensor *a = numbers(6), *many[20];
    for (int i = 0; i < 20; i++) many[i] = flux_add(a, i);
    flux_batch b = flux_first(flux_dataloader(a, many[1], many[2], many[3], many[4], many[5], many[6], many[7], .batchsize = 2));
    CHECK(b.count == 8);
    for (int i = 0; i < b.count; i++) CHECK_NEAR(at(b.item[i], 1), 1 + i, 0);
    b = flux_first(flux_dataloader(flux_tuple_with(20, many), .batchsize = 2));   /* more of them as a tuple */
    CHECK(b.count == 20);
    for (int i = 0; i < b.count; i++) CHECK_NEAR(at(b.item[i], 1), 1 + i, 0);
    flux_batch one = flux_first(flux_dataloader(a, .batchsize = 2));
    CHECK(one.count == 1 && one.y == NULL && one.x);
    flux_batch twice = flux_first(flux_dataloader(a, a, .batchsize = 2));
    CHECK_NEAR(at(twice.y, 1), 1, 0);
}

TEST(loader_errors) {
    CHECK_ERROR(flux_dataloader(pairs(10), numbers(9)), "array 0 has 10 observations, array 1 has 9");
    CHECK_ERROR(flux_dataloader(NULL), "dataloader: argument x is NULL");
    CHECK_ERROR(flux_dataloader(numbers(3), NULL, numbers(3)), "array 1 is NULL");
    CHECK_ERROR(flux_dataloader(flux_scalar(1)), "array 0 has no dimension of observations");
    CHECK_ERROR(flux_dataloader(numbers(3), .workers = -1), "-1 workers");
    CHECK_ERROR(flux_dataloader(numbers(3), .rank = 2, .ranks = 2), "rank 2 of 2 does not exist");
    CHECK_ERROR(flux_dataloader(numbers(3), .rank = 1), "rank 1 of 1 does not exist");
    CHECK_ERROR(flux_dataloader(numbers(3), .rank = 0, .ranks = 4), "3 observations can't be shared by 4 ranks");
    CHECK_ERROR(flux_dataloader(numbers(300), .batchsize = 256, .collate = FLUX_COLLATE_NONE), "255 observations at most, not 256");
    CHECK_ERROR((flux_length)(NULL), "length: argument l is NULL");
    CHECK_ERROR(flux_mapobs(flux_sin, NULL), "mapobs: argument l is NULL");
    CHECK_ERROR(flux_mapobs(NULL, flux_dataloader(numbers(3))), "mapobs: argument f is NULL");
    CHECK_ERROR(flux_first(NULL), "first: argument l is NULL");
    flux_loader *none = NULL;
    int n = 0;
    test_before_error(__FILE__, __LINE__);
    flux_each (b, none) n++;
    test_error("each: argument loader is NULL", __FILE__, __LINE__, "each of NULL");
    CHECK(n == 0);
}

TEST(an_empty_data_set) {
    flux_tensor *x = flux_slice(pairs(3), 1, 1, 1);
    flux_loader *l = flux_dataloader(x, .batchsize = 4, .shuffle = true);
    int n = 0;
    CHECK(flux_length(l) == 0);
    flux_each (b, l) n++;
    CHECK(n == 0);
    CHECK_ERROR(flux_first(l), "first: the loader has no batches");
    char text[200];
    flux_loader_text(l, text, sizeof text);
    CHECK(!strncmp(text, "0-element DataLoader(", 21));
}

/* ---- order */

TEST(shuffle_reorders_every_epoch) {
    int a[100], b[100], same = 0;
    flux_seed(1);
    flux_loader *l = flux_dataloader(numbers(100), .batchsize = 7, .shuffle = true);
    REQUIRE(epoch_of(l, a, 100) == 100 && epoch_of(l, b, 100) == 100);
    CHECK(is_permutation(a, 100) && is_permutation(b, 100));
    for (int i = 0; i < 100; i++) same += a[i] == b[i];
    CHECK(same < 20);
    same = 0;
    for (int i = 0; i < 100; i++) same += a[i] == i;
    CHECK(same < 20);
}

TEST(shuffle_keeps_observations_together) {
    flux_loader *l = flux_dataloader(pairs(50), numbers(50), .batchsize = 8, .shuffle = true);
    flux_each (b, l)
        for (int64_t i = 0; i < b.size; i++) CHECK_NEAR(flux_at(b.x, 1, i), 10 * at(b.y, i) + 1, 0);
}

TEST(shuffle_is_fair) {
    int count[5][5] = { { 0 } }, got[5];
    flux_loader *l = flux_dataloader(numbers(5), .batchsize = 5, .shuffle = true, .seed = 9);
    for (int e = 0; e < 4000; e++) {
        epoch_of(l, got, 5);
        for (int i = 0; i < 5; i++) count[i][got[i]]++;
    }
    double chi = 0;
    for (int i = 0; i < 25; i++) chi += (count[i / 5][i % 5] - 800.0) * (count[i / 5][i % 5] - 800.0) / 800;
    CHECK(chi < 50 && chi > 2);                                  /* 16 degrees of freedom */
}

TEST(the_same_seed_gives_the_same_order) {
    int a[64], b[64], c[64];
    epoch_of(flux_dataloader(numbers(64), .batchsize = 5, .shuffle = true, .seed = 3), a, 64);
    flux_seed(77);
    epoch_of(flux_dataloader(numbers(64), .batchsize = 9, .shuffle = true, .seed = 3), b, 64);
    epoch_of(flux_dataloader(numbers(64), .batchsize = 5, .shuffle = true, .seed = 4), c, 64);
    CHECK(!memcmp(a, b, sizeof a) && memcmp(a, c, sizeof a));
    flux_seed(5);
    epoch_of(flux_dataloader(numbers(64), .shuffle = true), a, 64);
    flux_seed(5);
    epoch_of(flux_dataloader(numbers(64), .shuffle = true), b, 64);
    epoch_of(flux_dataloader(numbers(64), .shuffle = true), c, 64);
    CHECK(!memcmp(a, b, sizeof a) && memcmp(a, c, sizeof a));
}

static flux_batch add_noise(flux_batch b, void *user) {
    (void)user;
    b.y = flux_rand_with(flux_shape_of(b.x), FLUX_F32);
    return b;
}

/* All of two epochs' x and noise, as one array. */
static int record(int workers, double *out) {
    int n = 0;
    flux_seed(11);
    flux_loader *l = flux_dataloader(numbers(103), .batchsize = 10, .shuffle = true, .transform = add_noise, .workers = workers);
    for (int e = 0; e < 2; e++)
        flux_each (b, l)
            for (int64_t i = 0; i < b.size; i++) out[n++] = at(b.x, i), out[n++] = at(b.y, i);
    out[n++] = flux_item(flux_rand(1));                          /* the caller's own stream is where it would be */
    return n;
}

TEST(any_number_of_workers_gives_the_same) {
    double a[500], b[500];
    int n = record(0, a), workers[] = { 1, 2, 5, 40 };
    REQUIRE(n == 413);
    CHECK(a[1] != a[3] && a[207] != a[1]);                       /* noise is new every time */
    for (int k = 0; k < 4; k++) {
        CHECK(record(workers[k], b) == n);
        CHECK(!memcmp(a, b, (size_t)n * sizeof *a));
    }
}

/* ---- shares */

TEST(shares_are_disjoint_and_level) {
    for (int n = 1; n <= 23; n++)
        for (int ranks = 1; ranks <= 5 && ranks <= n; ranks++)
            for (int size = 1; size <= 6; size++)
                for (int how = 0; how < 4; how++) {
                    const int partial = how % 2;                 /* shuffled as one, or each share */
                    const uint64_t seed = how < 2 ? FLUX__NO_SEED : 7;
                    int seen[23] = { 0 }, least = 1000, most = 0, batches = -1, total = 0;
                    flux_tensor *x = numbers(n);
                    flux_silence("data.batchsize");
                    for (int r = 0; r < ranks; r++) FLUX_SCOPE {
                        flux_loader *l = flux_dataloader(x, .batchsize = size, .shuffle = true, .partial = partial ? FLUX_ON : FLUX_OFF,
                                                         .seed = seed, .rank = r, .ranks = ranks);
                        int got[64], m = epoch_of(l, got, 64), own = 0, mine[23] = { 0 };
                        CHECK(batches < 0 || flux_length(l) == batches);
                        batches = (int)flux_length(l);
                        for (int i = 0; i < m; i++) own += !mine[got[i]]++;
                        for (int i = 0; i < n; i++) seen[i] += mine[i] > 0;
                        CHECK(m - own <= (size == 1));           /* an observation comes twice only where batches have one */
                        least = own < least ? own : least, most = own > most ? own : most, total += own;
                    }
                    for (int i = 0; i < n; i++) CHECK(seen[i] <= 1 && (!partial || seen[i] == 1));
                    CHECK(most - least <= 1 && (!partial || total == n));
                }
    flux_silence(NULL);
}

/* Batch i of all ranks together is batch i of one process with all their observations, shuffled or not. */
/* An order of more observations than bytes can be counted is an error, in each way that an order is made. */
static int64_t endless(void *user) { return (void)user, ((int64_t)1 << 62) + 2; }      /* half of them are 8 bytes modulo 2^64 */
static int nothing_there(void *user, int64_t i, int n, flux_tensor **out) { return (void)user, (void)i, (void)n, (void)out, -1; }
TEST(orders_too_long_for_memory) {
    const flux_dataset set = { NULL, endless, nothing_there, 1 };
    flux_loader *l = flux_dataloader(.data = &set, .ranks = 2), *shuffled = flux_dataloader(.data = &set, .ranks = 2, .shuffle = true);
    REQUIRE(l && shuffled);
    CHECK_ERROR(flux_first(l).x, "out of memory");
    flux_loader *all[2] = { l, shuffled };
    for (int i = 0; i < 2; i++) {
        flux_each (b, all[i]) CHECK(b.x == NULL);
        CHECK(flux_failed() != 0);
        flux_clear();
    }
}

TEST(ranks_share_the_batches_of_one) {
    flux_silence("data.batchsize");
    for (int n = 6; n <= 40; n += 17)
        for (int ranks = 2; ranks <= 4; ranks++)
            for (int shuffle = 0; shuffle < 2; shuffle++) FLUX_SCOPE {
                flux_tensor *x = numbers(n);
                flux_loader *one = flux_dataloader(x, .batchsize = 2 * ranks, .shuffle = shuffle != 0, .seed = 5);
                double sum[2][40] = { { 0 } };
                for (int epoch = 0; epoch < 2; epoch++)
                    flux_each (b, one) sum[0][epoch * 20 + b.index] = flux_item(flux_sum(b.x));
                for (int r = 0; r < ranks; r++) {
                    flux_loader *l = flux_dataloader(x, .batchsize = 2, .shuffle = shuffle != 0, .seed = 5, .rank = r, .ranks = ranks);
                    CHECK(flux_length(l) == flux_length(one));
                    for (int epoch = 0; epoch < 2; epoch++)
                        flux_each (b, l) sum[1][epoch * 20 + b.index] += flux_item(flux_sum(b.x));
                }
                const bool whole = n % (2 * ranks) == 0 || n % (2 * ranks) >= ranks;   /* else observations come one batch later */
                for (int i = 0; i < 40; i++)
                    CHECK(!whole || sum[0][i] == sum[1][i]);
            }
    flux_silence(NULL);
}

/* That ranks can't share evenly is said once, by the first. */
static int notes_heard;
static char note_heard[300];
static void hear_note(flux_level level, const char *id, const char *message, void *user) {
    (void)user, (void)id;
    notes_heard += level == FLUX_LOG_WARN;
    snprintf(note_heard, sizeof note_heard, "%s", message);
}
TEST(uneven_shares_are_said_by_the_first_rank) {
    flux_on_log(hear_note, NULL);
    CHECK(flux_dataloader(numbers(9), .rank = 0, .ranks = 3, .even = FLUX_EVEN_DROP) && flux_dataloader(numbers(10), .rank = 0, .ranks = 3) && notes_heard == 0);
    CHECK(flux_dataloader(numbers(10), .rank = 1, .ranks = 3, .even = FLUX_EVEN_DROP) && notes_heard == 0);
    CHECK(flux_dataloader(numbers(10), .rank = 0, .ranks = 3, .even = FLUX_EVEN_DROP) && notes_heard == 1);
    CHECK_STR(note_heard, "dataloader: 3 ranks can't share 10 observations evenly: left out in each epoch: 1");
    CHECK(flux_dataloader(numbers(10), .rank = 0, .ranks = 3, .even = FLUX_EVEN_REPEAT) && notes_heard == 1);
    flux_on_log(NULL, NULL);
}

/* With .even every rank has as many observations in each batch; what is dropped or comes twice is less than a rank's worth. */
TEST(even_shares) {
    flux_silence("data.batchsize");
    flux_silence("data.even");
    for (int n = 1; n <= 23; n++)
        for (int ranks = 2; ranks <= 7 && ranks <= n; ranks++)
            for (int how = 0; how < 12; how++) {
                const flux_even even = how % 2 ? FLUX_EVEN_DROP : FLUX_EVEN_REPEAT;
                const int size = how / 2 % 3 + 1, over = n % ranks;
                int seen[23] = { 0 }, sizes[64] = { 0 }, kept = 0, twice = 0;
                for (int r = 0; r < ranks; r++) FLUX_SCOPE {
                    flux_loader *l = flux_dataloader(numbers(n), .batchsize = size, .shuffle = how >= 6, .seed = 7, .rank = r,
                                                     .ranks = ranks, .even = even);
                    flux_each (b, l) {
                        CHECK(r == 0 || b.size == sizes[b.index]);
                        sizes[b.index] = (int)b.size;
                        for (int i = 0; i < b.size; i++) seen[(int)at(b.x, i)]++;
                    }
                }
                for (int i = 0; i < n; i++) kept += seen[i] > 0, twice += seen[i] == 2;
                CHECK(kept == (even == FLUX_EVEN_DROP ? n - over : n));
                CHECK(twice == (even == FLUX_EVEN_DROP || !over ? 0 : ranks - over));
            }
    flux_silence(NULL);
    CHECK_ERROR(flux_dataloader(numbers(3), .even = (flux_even)3), ".even is 3");
    CHECK_ERROR(flux_dataloader(numbers(3), .ranks = 4, .even = FLUX_EVEN_REPEAT), "3 observations can't be shared by 4 ranks");
}

/* ---- other forms of batches */

TEST(uncollated_batches_are_tuples) {
    flux_loader *l = flux_dataloader(pairs(5), .batchsize = 2, .collate = FLUX_COLLATE_NONE, .shuffle = true, .seed = 2);
    int n = 0;
    double sum = 0;
    flux_each (b, l) {
        CHECK(flux_num_items(b.x) == (n < 2 ? 2 : 1) && b.size == flux_num_items(b.x));
        for (int i = 0; i < flux_num_items(b.x); i++) {
            CHECK(flux_ndim(flux_nth(b.x, i)) == 1 && flux_dim(flux_nth(b.x, i), 0) == 2);
            sum += at(flux_nth(b.x, i), 0);
        }
        n++;
    }
    CHECK(n == 3);
    CHECK_NEAR(sum, 100, 0);
    flux_each (b, flux_mapobs(flux_square, flux_dataloader(pairs(4), .batchsize = 2, .collate = FLUX_COLLATE_NONE, .workers = 1)))
        CHECK_NEAR(at(flux_nth(b.x, 1), 0), b.index ? 900 : 100, 0);
    flux_batch stacked = flux_first(flux_dataloader(pairs(4), .batchsize = 2, .collate = FLUX_COLLATE_BATCH));
    const double want[] = { 0, 1, 10, 11 };
    CHECK(flux_ndim(stacked.x) == 2);
    CHECK_DATA(stacked.x, want, 0);
}

static flux_batch twice_x(flux_batch b, void *user) {
    b.x = flux_mul(b.x, *(double *)user);
    return b;
}
static flux_batch drop_y(flux_batch b, void *user) {
    (void)user;
    b.y = NULL;
    return b;
}
static flux_tensor *three[3];
static flux_batch three_items(flux_batch b, void *user) {
    (void)user;
    for (int i = 0; i < 3; i++) three[i] = flux_add(b.x, i);
    b.item = three;
    b.count = 3;
    b.x = three[0];
    return b;
}
static flux_tensor *hundred[100];
static flux_batch hundred_items(flux_batch b, void *user) {
    (void)user;
    for (int i = 0; i < 100; i++) hundred[i] = flux_add(b.x, i);
    b.item = hundred;
    b.count = 100;
    b.x = hundred[0];
    return b;
}
static flux_batch no_x(flux_batch b, void *user) {
    (void)user;
    b.x = NULL;
    return b;
}
static flux_batch wrong_x(flux_batch b, void *user) {
    (void)user;
    b.x = flux_matmul(b.x, flux_ones(77, 3));
    return b;
}

TEST(transforms) {
    double two = 2;
    flux_batch b = flux_first(flux_dataloader(pairs(4), numbers(4), .batchsize = 2, .transform = twice_x, .user = &two));
    CHECK_NEAR(at(b.x, 3), 22, 0);
    CHECK_NEAR(at(b.item[0], 3), 22, 0);
    CHECK_NEAR(at(b.y, 1), 1, 0);
    b = flux_first(flux_dataloader(numbers(4), .batchsize = 2, .transform = add_noise));
    CHECK(b.count == 2 && b.item[1] == b.y && b.y);
    b = flux_first(flux_dataloader(pairs(4), numbers(4), .transform = drop_y));
    CHECK(b.count == 1 && !b.y);
    b = flux_first(flux_dataloader(numbers(4), .batchsize = 2, .transform = three_items));
    CHECK(b.count == 3);
    CHECK_NEAR(at(b.item[2], 1), 3, 0);
    b = flux_first(flux_dataloader(numbers(4), .batchsize = 2, .transform = hundred_items));
    REQUIRE(b.count == 100);
    for (int i = 0; i < 100; i++) CHECK(at(b.item[i], 1) == i + 1);
    CHECK_ERROR(flux_first(flux_dataloader(numbers(4), .transform = no_x)), "the transform gave no array for batch 0");
    CHECK_ERROR(flux_first(flux_dataloader(pairs(4), .transform = wrong_x)), "matmul");
}

static flux_tensor *nothing(flux_tensor *x) { (void)x; return NULL; }

static int calls_of_none;
static flux_tensor *none_of(flux_tensor *x) {
    (void)x, calls_of_none++;
    return NULL;
}

TEST(mapobs_stops_at_the_first_that_fails) {
    flux_loader *l = flux_mapobs(none_of, flux_dataloader(numbers(6), numbers(6), .batchsize = 3));
    test_before_error(__FILE__, __LINE__);
    flux_each (b, l) CHECK(false);
    test_error("mapobs: the function gave NULL for array 0", __FILE__, __LINE__, "each of none");
    CHECK(calls_of_none == 1);
}

TEST(mapobs) {
    int32_t labels[] = { 1, 2, 3, 4 };
    flux_loader *base = flux_dataloader(pairs(4), flux_from(labels, 4), .batchsize = 2);
    flux_loader *l = flux_mapobs(flux_neg, flux_mapobs(flux_square, base));
    const double x[] = { 0, -1, -100, -121 }, y[] = { -1, -4 };
    CHECK_DATA(flux_first(l).x, x, 0);
    CHECK_DATA(flux_first(l).y, y, 0);
    CHECK_NEAR(at(flux_first(base).x, 3), 11, 0);                /* the one underneath is as it was */
    CHECK_ERROR(flux_first(flux_mapobs(nothing, base)), "mapobs: the function gave NULL for array 0");
    flux_loader *cpu = flux_cpu(l);
    CHECK_DATA(flux_first(cpu).x, x, 0);
    CHECK_DATA(flux_first(flux_mapobs(flux_cpu, l)).x, x, 0);
    CHECK(flux_device_of(l).backend == test_device.backend);
}

/* ---- data sets of the user's */

typedef struct my_data { int64_t n, bad; int how; const int *here; int64_t elsewhere; } my_data;      /* here: &errno, by thread */
static int64_t my_length(void *user) { return ((my_data *)user)->n; }
static int my_get(void *user, int64_t i, int n, flux_tensor **out) {
    my_data *d = (my_data *)user;
    float v[] = { (float)i, (float)(i * i) };
    if (d->here) d->elsewhere += d->here != &errno;
    if (i == d->bad && d->how == 1) return 7;
    if (i == d->bad && d->how == 2) return flux_add(flux_ones(2), flux_ones(3)) == NULL;
    out[0] = flux_from(v, i == d->bad && d->how == 4 ? 1 : 2);
    if (i == d->bad && d->how == 3) return 0;
    if (n > 1) out[1] = flux_mul(flux_from(v, 1), 2);            /* not computed yet */
    return 0;
}

TEST(a_data_set_of_ones_own) {
    my_data d = { 23, -1, 0, NULL, 0 };
    flux_dataset set = { &d, my_length, my_get, 2 };
    for (int workers = 0; workers <= 3; workers++) {
        flux_loader *l = flux_dataloader(.data = &set, .batchsize = 5, .workers = workers);
        int64_t next = 0;
        CHECK(flux_length(l) == 5);
        d.here = workers < 2 ? &errno : NULL, d.elsewhere = 0;
        flux_each (b, l) {
            CHECK(flux_ndim(b.x) == 2 && flux_dim(b.x, 0) == 2 && flux_dim(b.x, 1) == (next < 20 ? 5 : 3));
            CHECK(flux_ndim(b.y) == 2 && flux_dim(b.y, 0) == 1);
            for (int64_t i = 0; i < b.size; i++, next++) {
                CHECK_NEAR(flux_at(b.x, 0, i), next, 0);
                CHECK_NEAR(flux_at(b.x, 1, i), next * next, 0);
                CHECK_NEAR(flux_at(b.y, 0, i), 2 * next, 0);
            }
        }
        CHECK(next == 23 && d.elsewhere == (workers == 1 ? 23 : 0));
    }
    for (d.n = 0; d.n <= 1; d.n++) {                           /* none is a number of them, too */
        int64_t batches = 0;
        flux_each (b, flux_dataloader(.data = &set)) batches++;
        CHECK(batches == d.n && !flux_failed());
    }
    d.n = (int64_t)1 << 32;
    flux_loader *long_one = flux_dataloader(.data = &set, .batchsize = 5, .shuffle = true);
    int turns = 0;
    flux_each (b, long_one) turns++;
    CHECK(turns == 0);
    CHECK_STR(flux_error(), "dataloader: 4294967296 observations to shuffle; 4294967295 are possible");
    flux_clear();
    d.n = 23;
    flux_batch one = flux_first(flux_dataloader(.data = &set, .batchsize = -1));
    CHECK(flux_ndim(one.x) == 1);
    one = flux_first(flux_dataloader(.data = &set, .batchsize = 4, .collate = FLUX_COLLATE_NONE));
    CHECK(flux_num_items(one.x) == 4);
}

TEST(a_data_sets_errors_reach_the_loop) {
    static const char *const say[] = { "", "the data set's get gave 7 for observation 13", "add", "left array 1 of observation 13 NULL",
                                       "another shape or dtype" };
    my_data d = { 23, 13, 0, NULL, 0 };
    flux_dataset set = { &d, my_length, my_get, 2 };
    for (int workers = 0; workers <= 3; workers += 3)
        for (d.how = 1; d.how <= 4; d.how++) {
            flux_loader *l = flux_dataloader(.data = &set, .batchsize = 5, .workers = workers);
            int n = 0;
            test_before_error(__FILE__, __LINE__);
            flux_each (b, l) {
                CHECK(!flux_failed() && b.index == n);           /* what comes before the error is handed out without one */
                n++;
            }
            test_error(say[d.how], __FILE__, __LINE__, "each of a failing data set");
            CHECK(n == 2);
        }
    set.arrays = 0;
    CHECK_ERROR(flux_dataloader(.data = &set), "the data set's .arrays is 0");
    set.arrays = 2;
    d.n = -4;
    CHECK_ERROR(flux_dataloader(.data = &set), "the data set's length is -4");
    CHECK_ERROR(flux_dataloader(numbers(3), .data = &set), "both arrays and .data");
    set.get = NULL;
    CHECK_ERROR(flux_dataloader(.data = &set), "no get function");
}

static int large_get(void *user, int64_t i, int n, flux_tensor **out) {
    (void)user, (void)n;
    out[0] = flux_add(flux_mul(flux_ones(500000), (double)i), 0.5);
    return 0;
}

/* Observations that are not computed yet, and memory for the batch but for none of them. */
TEST(lazy_observations_when_memory_runs_out) {
    ONLY_ON_CPU();
    my_data d = { 2, -1, 0, NULL, 0 };
    flux_dataset set = { &d, my_length, large_get, 1 };
    const flux_device cpu = { 0, 0 };
    int batches = 0;
    flux_mem_trim(cpu);
    flux_mem_limit(cpu, flux_mem_stats(cpu).live + 4600000);
    test_before_error(__FILE__, __LINE__);
    flux_each (b, flux_dataloader(.data = &set, .batchsize = 2)) batches++;
    test_error("under the limit of flux_mem_limit", __FILE__, __LINE__, "each of lazy ones");
    flux_mem_limit(cpu, 0);
    CHECK(batches == 0);
    flux_each (b, flux_dataloader(.data = &set, .batchsize = 2)) {
        CHECK_NEAR(flux_at(b.x, 499999, 0), 0.5, 0);
        CHECK_NEAR(flux_at(b.x, 499999, 1), 1.5, 0);
    }
}

/* An array without elements is computed, too: where one allocation fails, there is a loader, or an error. */
TEST(lazy_arrays_of_nothing_when_memory_runs_out) {
    ONLY_ON_CPU();
    const flux_device cpu = { 0, 0 };
    bool refused = true;
    int failed = 0;
    flux_on_error(test_silent, NULL);
    for (long k = 0; refused && k < 1000; k++) {
        flux_scope_open();
        flux_tensor *x = flux_exp(flux_zeros(0, 5));
        flux_mem_trim(cpu);
        flux__test_memory_once(k);
        flux_loader *l = flux_dataloader(x);
        refused = flux__test_refused() > 0;
        flux__test_memory(-1);
        CHECK((l != NULL) == !flux_failed());
        failed += !l;
        flux_clear();
        flux_scope_close();
    }
    flux_on_error(NULL, NULL);
    CHECK(!refused && failed > 5);
}

/* ---- the loop */

TEST(loops_can_be_left) {
    flux_device cpu = { 0, 0 };
    flux_tensor *x = numbers(1000);
    flux_loader *plain = flux_dataloader(x, .batchsize = 10, .shuffle = true), *busy = flux_dataloader(x, .batchsize = 10, .workers = 3);
    flux_loader *both[] = { plain, busy };
    int64_t live = flux_mem_stats(cpu).live;
    for (int k = 0; k < 2; k++)
        for (int stop = 0; stop < 20; stop++) {
            int n = 0;
            flux_each (b, both[k]) {
                if (n == stop) break;
                if (n % 2) { n++; continue; }
                n++;
            }
            CHECK(n == stop);
        }
    CHECK(flux_mem_stats(cpu).live == live);
    int all = 0;
    flux_each (b, busy) all++;
    CHECK(all == 100);
}

static double first_sum(flux_loader *l, int64_t which) {
    flux_each (b, l)
        if (b.index == which) return flux_item(flux_sum(b.x));
    return -1;
}

TEST(loops_can_be_returned_from) {
    flux_loader *l = flux_dataloader(numbers(100), .batchsize = 10, .workers = 2);
    CHECK_NEAR(first_sum(l, 3), 345, 0);
    CHECK_NEAR(first_sum(l, 9), 945, 0);
    CHECK_NEAR(first_sum(l, 10), -1, 0);
}

TEST(loops_nest) {
    flux_loader *l = flux_dataloader(numbers(30), .batchsize = 5, .shuffle = true, .seed = 1, .workers = 2);
    int outer = 0, inner = 0, got[30], n = 0;
    flux_each (a, l) {
        for (int64_t i = 0; i < a.size; i++) got[n++] = (int)at(a.x, i);
        flux_each (b, l) {
            inner++;
            if (outer == 3) break;
        }
        CHECK_NEAR(at(a.x, 0), got[n - 5], 0);
        outer++;
    }
    CHECK(outer == 6 && inner == 5 * 6 + 1 && is_permutation(got, 30));
}

TEST(values_of_an_iteration_go_with_it_unless_kept) {
    flux_device cpu = { 0, 0 };
    flux_loader *l = flux_dataloader(flux_ones(1000, 50), .batchsize = 10);
    int64_t most = 0, live = flux_mem_stats(cpu).live;
    flux_tensor *kept = NULL, *held = NULL, *sum = NULL;
    flux_each (b, l) {
        flux_eval(flux_mul(b.x, 2));
        int64_t now = flux_mem_stats(cpu).live - live;
        if (now > most) most = now;
        if (b.index == 1) kept = flux_keep(b.x);
        if (b.index == 2) held = (flux_tensor *)flux_retain(b.x);
        if (b.index == 3) sum = flux_keep(flux_sum(b.x));
    }
    CHECK(most < 5 * 10 * 1000 * 4 + 10000);
    CHECK_NEAR(flux_item(flux_sum(kept)), 10000, 0);
    CHECK_NEAR(flux_item(flux_sum(held)), 10000, 0);
    CHECK_NEAR(flux_item(sum), 10000, 0);
    flux_release(held);
}

/* All observations in their order are the array itself, where a copy of a large one would take as much again. */
TEST(a_batch_of_all_is_the_array) {
    ONLY_ON_CPU();
    flux_tensor *x = flux_eval(flux_rand(3, 30));
    const void *const whole = flux_data(x);
    const flux_batch all = flux_first(flux_dataloader(x, .batchsize = 30)), most = flux_first(flux_dataloader(x, .batchsize = 29)),
                     mixed = flux_first(flux_dataloader(flux_tuple(x, flux_rand(2, 30)), .batchsize = 64));
    CHECK(flux_data(all.x) == whole && flux_data(mixed.x) == whole && flux_data(most.x) != whole);
    flux_each (b, flux_dataloader(x, .batchsize = 30, .shuffle = true)) CHECK(flux_data(b.x) != whole);
}

TEST(no_batch_follows_an_error) {
    flux_loader *l = flux_dataloader(numbers(30), .batchsize = 5, .workers = 1);
    int n = 0;
    test_before_error(__FILE__, __LINE__);
    flux_each (b, l) {
        n++;
        if (n == 2) flux_add(flux_ones(2), flux_ones(3));
    }
    CHECK(n == 2);
    flux_each (b, l) n++;                                        /* nor does an epoch */
    CHECK(n == 2);
    test_error("add", __FILE__, __LINE__, "an error in the loop");
}

/* Whichever allocation fails in an epoch that a worker makes, or all from that one on: all batches come, or an error says
   why they don't. The first ones of the worker are those of its own state. */
TEST(a_worker_when_memory_runs_out) {
    ONLY_ON_CPU();
    flux_loader *l = flux_dataloader(numbers(8), .batchsize = 2, .workers = 1);
    int spoilt = 0;
    flux_on_error(test_silent, NULL);
    for (long k = 0; k < 100; k++) {
        int n = 0;
        if (k % 2) flux__test_memory_once(k / 2);
        else flux__test_memory(k / 2);
        flux_each (b, l) n += b.x && flux_len(b.x) == 2;
        flux__test_memory(-1);
        CHECK(flux_failed() ? n < 4 && *flux_error() : n == 4);
        spoilt += n < 4;
        flux_clear();
    }
    CHECK(spoilt > 0);
    flux_on_error(NULL, NULL);
}

/* A loader that is made of another one begins its epochs anew, however many of the other's have passed. */
TEST(a_loader_made_of_another_counts_its_own_epochs) {
    int first[64], second[64], of_fresh[64], of_used[64];
    flux_loader *l = flux_dataloader(numbers(64), .shuffle = true, .seed = 5);
    flux_loader *early = flux_mapobs(flux_identity, l);
    REQUIRE(epoch_of(l, first, 64) == 64 && epoch_of(l, second, 64) == 64 && memcmp(first, second, sizeof first) != 0);
    flux_loader *late = flux_mapobs(flux_identity, l);
    REQUIRE(epoch_of(early, of_fresh, 64) == 64 && epoch_of(late, of_used, 64) == 64);
    CHECK(memcmp(first, of_fresh, sizeof first) == 0);
    CHECK(memcmp(first, of_used, sizeof first) == 0);
    REQUIRE(epoch_of(late, of_used, 64) == 64);
    CHECK(memcmp(second, of_used, sizeof second) == 0);
}

TEST(a_loader_outlives_the_scope_of_its_arrays) {
    flux_loader *l = NULL;
    FLUX_SCOPE l = flux_keep(flux_dataloader(flux_mul(pairs(6), 2), .batchsize = 4, .shuffle = true, .workers = 2));
    double sum = 0;
    flux_each (b, l) sum += flux_item(flux_sum(b.x));
    CHECK_NEAR(sum, 2 * (2 * 150 + 6), 0);
}

TEST(first_is_in_order_and_draws_nothing) {
    flux_loader *l = flux_dataloader(numbers(30), .batchsize = 4, .shuffle = true);
    const double want[] = { 0, 1, 2, 3 };
    flux_seed(6);
    double next = flux_item(flux_rand(1));
    flux_seed(6);
    flux_batch b = flux_first(l);
    CHECK_DATA(b.x, want, 0);
    CHECK(b.index == 0 && b.size == 4);
    CHECK_NEAR(flux_item(flux_rand(1)), next, 0);
}

/* ---- splitting, shuffling, text */

TEST(splitobs) {
    flux_tensor *a, *b;
    const double first[] = { 0, 1, 10, 11, 20, 21 }, second[] = { 30, 31, 40, 41 };
    CHECK(flux_splitobs(0.6, pairs(5), &a, &b) == 0);
    CHECK_DATA(a, first, 0);
    CHECK_DATA(b, second, 0);
    CHECK(flux_splitobs(1, pairs(5), &a, &b) == 0 && flux_dim(a, 1) == 5 && flux_dim(b, 1) == 0);
    CHECK(flux_splitobs(0.5, numbers(5), &a, NULL) == 0 && flux_dim(a, 0) == 2);
    a = b = NULL;
    CHECK_ERROR(flux_splitobs(1.5, pairs(5), &a, &b), "splitobs: the part 1.5 is not between 0 and 1");
    CHECK_ERROR(flux_splitobs(NAN, pairs(5), &a, &b), "is not between 0 and 1");
    CHECK_ERROR(flux_splitobs(0.5, NULL, &a, &b), "splitobs: argument x is NULL");
    CHECK_ERROR(flux_splitobs(0.5, flux_scalar(1), &a, &b), "no dimension of observations");
    CHECK(!a && !b);
}

TEST(shuffleobs) {
    int got[60];
    flux_tensor *x = flux_shuffleobs(numbers(60), 4), *y = flux_shuffleobs(pairs(60), 4), *z = flux_shuffleobs(numbers(60), 5);
    for (int i = 0; i < 60; i++) got[i] = (int)at(x, i);
    CHECK(is_permutation(got, 60));
    int moved = 0, differ = 0;
    for (int i = 0; i < 60; i++) {
        CHECK_NEAR(flux_at(y, 0, i), 10 * got[i], 0);
        moved += got[i] != i;
        differ += got[i] != (int)at(z, i);
    }
    CHECK(moved > 40 && differ > 40);
    CHECK_ERROR(flux_shuffleobs(NULL, 1), "shuffleobs: argument x is NULL");
    /* observations that are only repeated: the memory for their order is asked for before it is made */
    const flux_device cpu = { 0, 0 };
    flux_tensor *repeated = flux_broadcast_to(flux_eval(flux_ones(3, 1)), 3, (int64_t)1 << 31);
    flux_mem_limit(cpu, flux_mem_stats(cpu).live + (1 << 20));
    CHECK_ERROR(flux_shuffleobs(repeated, 1), "memory");
    flux_mem_limit(cpu, 0);
    CHECK_ERROR(flux_shuffleobs(flux_broadcast_to(flux_eval(flux_ones(1)), (int64_t)1 << 32), 1), "shuffleobs: 4294967296 observations");
}

/* How often each observation is in a part, whose labels are the second member, and have stayed with them. */
static void count_picked(flux_tensor *both, const int *label, int *times, int *of_class) {
    flux_tensor *x = flux_nth(both, 0), *y = flux_nth(both, 1);
    memset(times, 0, 30 * sizeof *times);
    memset(of_class, 0, 5 * sizeof *of_class);
    CHECK(flux_dim(x, 1) == flux_len(y));
    for (int64_t i = 0; i < flux_len(y); i++) {
        const int k = (int)flux_at(x, 0, i) / 10;
        REQUIRE(k >= 0 && k < 30 && at(y, i) == label[k]);
        times[k]++, of_class[label[k]]++;
    }
}

/* Classes of 11, 1, 0, 13 and 5 observations, in any order. */
TEST(as_many_of_each_class) {
    int label[30], times[30], of_class[5];
    const int size[5] = { 11, 1, 0, 13, 5 };
    for (int i = 0, c = 0, k = 0; i < 30; i++, k++) {
        while (k == size[c]) c++, k = 0;
        label[i * 7 % 30] = c;
    }
    flux_tensor *y = flux_from(label, 30), *both = flux_tuple(pairs(30), y), *hot = flux_onehot(y, 5);
    int orders = 0;
    for (uint64_t seed = 1; seed < 6; seed++) FLUX_SCOPE {
        flux_tensor *over = flux_oversample(both, y, seed), *under = flux_undersample(both, y, seed);
        count_picked(over, label, times, of_class);
        for (int c = 0; c < 5; c++) CHECK(of_class[c] == (size[c] ? 13 : 0));
        for (int i = 0; i < 30; i++) CHECK(times[i] == 13 / size[label[i]] || times[i] == (13 + size[label[i]] - 1) / size[label[i]]);
        count_picked(under, label, times, of_class);
        for (int c = 0; c < 5; c++) CHECK(of_class[c] == (size[c] ? 1 : 0));
        orders += at(flux_nth(under, 1), 0) != label[0];
        CHECK(flux_item(flux_sum(flux_ne(flux_nth(over, 0), flux_nth(flux_oversample(both, hot, seed), 0)))) == 0);
    }
    CHECK(orders > 0);
}

TEST(text) {
    ONLY_ON_CPU();
    char text[300];
    uint8_t y[10] = { 0 };
    flux_print_ascii(false);
    flux_loader *l = flux_dataloader(pairs(10), flux_gt(flux_from(y, 10), 0), .batchsize = 3, .shuffle = true);
    CHECK(flux_loader_text(l, text, sizeof text) == strlen(text));
    CHECK_STR(text, "4-element DataLoader(2\303\22710 f32, 10 bool, batchsize=3, shuffle=true)\n  with first element:\n  2\303\2273 f32, 3 bool");
    char small[10];
    CHECK(flux_loader_text(l, small, sizeof small) == strlen(text));
    CHECK_STR(small, "4-element");
    my_data d = { 23, -1, 0, NULL, 0 };
    flux_dataset set = { &d, my_length, my_get, 2 };
    flux_print_ascii(true);
    flux_loader_text(flux_dataloader(.data = &set, .batchsize = 5, .partial = FLUX_OFF, .workers = 2), text, sizeof text);
    CHECK_STR(text, "4-element DataLoader(23 observations, batchsize=5, partial=false, workers=2)\n  with first element:\n  2x5 f32, 1x5 f32");
    flux_loader_text(flux_dataloader(numbers(10), .batchsize = 2, .rank = 1, .ranks = 2, .collate = FLUX_COLLATE_NONE), text, sizeof text);
    CHECK_STR(text, "3-element DataLoader(10 i32, batchsize=2, collate=none, rank=1, ranks=2)\n  with first element:\n  2-element tuple of scalar i32");
    flux_silence("data.even");
    flux_loader_text(flux_dataloader(numbers(9), .ranks = 2, .even = FLUX_EVEN_DROP), text, sizeof text);
    CHECK_STR(text, "4-element DataLoader(9 i32, batchsize=1, rank=0, ranks=2, even=drop)\n  with first element:\n  1 i32");
    flux_loader_text(flux_dataloader(numbers(9), .ranks = 2, .even = FLUX_EVEN_REPEAT), text, sizeof text);
    CHECK_STR(text, "5-element DataLoader(9 i32, batchsize=1, rank=0, ranks=2, even=repeat)\n  with first element:\n  1 i32");
    flux_loader_text(flux_dataloader(numbers(10), .batchsize = -1), text, sizeof text);
    CHECK_STR(text, "10-element DataLoader(10 i32, batchsize=-1)\n  with first element:\n  scalar i32");
    d.bad = 0, d.how = 1;
    flux_print_ascii(false);
    CHECK_ERROR(flux_loader_text(flux_dataloader(.data = &set), text, sizeof text), "gave 7 for observation 0");
    CHECK_ERROR(flux_loader_text(NULL, text, sizeof text), "loader_text: argument l is NULL");
}

/* ---- progress */

#ifndef _WIN32
static int saved_stderr;
static void swap_stderr(int fd) {
    fflush(stderr);
    saved_stderr = dup(2);
    dup2(fd, 2);
}
static void restore_stderr(void) {
    fflush(stderr);
    dup2(saved_stderr, 2);
    close(saved_stderr);
}

static void train_some(flux_loader *l, const char *label, int stop, bool slow) {
    int n = 0;
    flux_each (b, l, .progress = label) {
        if (n++ == stop) break;
        flux_tensor *loss = flux_mean(flux_to_dtype(b.x, FLUX_F32));
        flux_progress("loss", loss);
        flux_progress_number("rate", 0.25);
        if (slow) usleep(60000);
    }
}

TEST(progress_leaves_one_line_in_a_file) {
    char text[2000] = "";
    FILE *f = tmpfile();
    extern int fileno(FILE *);
    REQUIRE(f);
    flux_loader *l = flux_dataloader(numbers(30), .batchsize = 4);
    swap_stderr(fileno(f));
    train_some(l, "epoch 1", -1, false);
    train_some(l, "epoch 2", 3, false);
    flux_progress_number("nobody", 1);                           /* no bar: nothing happens */
    flux_each (b, l) flux_progress_number("nobody", 1);          /* none was asked for */
    restore_stderr();
    rewind(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = 0;
    fclose(f);
    char *second = strchr(text, '\n');
    REQUIRE(second);
    *second++ = 0;
    CHECK(!strncmp(text, "epoch 1: 8 batches, 30 samples in ", 34));
    CHECK(strstr(text, " samples/s, loss 28.5, rate 0.25"));
    CHECK(!strchr(text, '\r'));
    CHECK(!strncmp(second, "epoch 2: 4 of 8 batches, 16 samples in ", 39) || !strncmp(second, "epoch 2: 3 of 8 batches, 12 samples in ", 39));
    CHECK(strstr(second, "loss 9.5, rate"));
    CHECK(strchr(second, '\n') == second + strlen(second) - 1);  /* one line each */
}

/* Percent, bar and rate of a line follow from "3/10": batches of 4 that take at least 60 ms each. */
static bool line_is_true(const char *line) {
    int percent = -1, done = -1, full = 0, all = 0;
    double rate = -1;
    char bar[100] = "";
    if (sscanf(line, "epoch %d%% %99[#.] %d/10 %lf samples/s", &percent, bar, &done, &rate) != 4) return false;
    for (const char *p = bar; *p; p++) full += *p == '#', all++;
    return percent == 10 * done && full == all * done / 10 && rate > 0.5 && rate < 4 / 0.06 + 1;
}

TEST(progress_redraws_on_a_terminal) {
    char text[8000];
    size_t n = 0;
    int master = posix_openpt(O_RDWR | O_NOCTTY), slave = -1;
    if (master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0) slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    if (slave < 0) SKIP("no pseudo-terminal here");
    flux_loader *l = flux_dataloader(numbers(40), .batchsize = 4);
    swap_stderr(slave);
    train_some(l, "epoch", -1, true);
    flux_each (b, flux_dataloader(numbers(3)), .progress = "outer")
        train_some(l, "inner", -1, false);
    restore_stderr();
    if (write(slave, "\nend of it\n", 11) != 11) SKIP("the pseudo-terminal does not take text");
    while (n < sizeof text - 1 && !(n > 9 && strstr(text, "end of it"))) {
        ssize_t got = read(master, text + n, sizeof text - 1 - n);
        if (got <= 0) break;
        n += (size_t)got;
        text[n] = 0;
    }
    close(slave);
    close(master);
    text[n] = 0;
    int draws = 0, lines = 0;
    for (size_t i = 0; i < n; i++) draws += text[i] == '\r' && text[i + 1] == 'e', lines += text[i] == '\n';
    CHECK(draws >= 4 && draws <= 10);                            /* 0.6 s, at most ten a second, and the last */
    CHECK(lines == 4);                                           /* the first bar's, the outer's, and two of ours */
    CHECK(strstr(text, "\repoch 100% ##") && strstr(text, "10/10") && strstr(text, "samples/s"));
    CHECK(strstr(text, "eta 0:0") && strstr(text, "loss 37.5") && strstr(text, "rate 0.25"));
    CHECK(strstr(text, "\rinner 100%") && strstr(text, "\router 100%"));
    for (char *p = strtok(text, "\r\n"); p; p = strtok(NULL, "\r\n")) CHECK(strlen(p) < 80 && (strncmp(p, "epoch", 5) || line_is_true(p)));
}


extern int setenv(const char *name, const char *value, int over);
extern int unsetenv(const char *name);
static const char *drawn(const char *label, int columns) {
    static char text[8000];
    size_t n = 0;
    char width[20];
    const char *was = getenv("COLUMNS");
    int master = posix_openpt(O_RDWR | O_NOCTTY), slave = -1;
    if (master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0) slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    if (slave < 0) return NULL;
    snprintf(width, sizeof width, "%d", columns);                /* the pseudo-terminal has no size of its own */
    setenv("COLUMNS", width, 1);
    swap_stderr(slave);
    train_some(flux_dataloader(numbers(40), .batchsize = 4), label, -1, false);
    restore_stderr();
    if (was) setenv("COLUMNS", was, 1);
    else unsetenv("COLUMNS");
    bool whole = write(slave, "\nend of it\n", 11) == 11;
    while (whole && n < sizeof text - 1 && !(n > 9 && strstr(text, "end of it"))) {
        ssize_t got = read(master, text + n, sizeof text - 1 - n);
        if (got <= 0) break;
        n += (size_t)got;
        text[n] = 0;
    }
    close(slave);
    close(master);
    text[n] = 0;
    char *last = strstr(text, "\r\n");                            /* of the bar's lines the last */
    if (last) *last = 0;
    last = strrchr(text, '\r');
    return last ? last + 1 : text;
}
static size_t characters(const char *text) {
    size_t n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xC0) != 0x80;
    return n;
}

/* However long a label is and however narrow the terminal, the loss is there. */
TEST(progress_with_a_long_label) {
    const char *labels[] = { "the second part of the training of the larger model, with another learning rate",
                             "\xc3\xa9poque \xc3\xa9poque \xc3\xa9poque \xc3\xa9poque \xc3\xa9poque \xc3\xa9poque \xc3\xa9poque \xc3\xa9poque \xc3\xa9poque", "short", "" };
    const int widths[] = { 40, 60, 80, 200 };
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4; k++) {
            const char *line = drawn(labels[i], widths[k]);
            if (!line) SKIP("no pseudo-terminal here");
            CHECK(strstr(line, "100% ") && strstr(line, "loss 37.5") && strstr(line, "rate 0.25") && strstr(line, "10/10"));
            if (!CHECK(characters(line) < (size_t)widths[k])) fprintf(stderr, "    %s\n", line);
            if (k >= 2) CHECK(strstr(line, "samples/s") && strncmp(line, labels[i], strlen(labels[i]) < 12 ? strlen(labels[i]) : 12) == 0);
            for (const char *p = line; *p; p++)                  /* no half of a character */
                if ((unsigned char)*p >= 0xC0) CHECK(((unsigned char)p[1] & 0xC0) == 0x80);
        }
}

TEST(progress_errors) {
    CHECK_ERROR(flux_progress("loss", flux_ones(3)), "progress: loss has 3 elements, not one");
    CHECK_ERROR(flux_progress("loss", NULL), "progress: argument value is NULL");
}
#endif

/* Weights count in a share of a rank's own, too: without a seed that all ranks have, each draws for itself. */
TEST(weights_in_a_share_without_a_seed) {
    float v[32], w[32];
    for (int i = 0; i < 32; i++) v[i] = (float)i, w[i] = i % 2 ? 0 : 1;
    for (int rank = 0; rank < 2; rank++) {
        flux_loader *l = flux_dataloader(flux_from(v, 32), .batchsize = 4, .shuffle = true, .weights = flux_from(w, 32), .rank = rank, .ranks = 2);
        double seen = 0, odd = 0;
        flux_each (b, l) seen += (double)flux_len(b.x), odd += flux_item(flux_sum(flux_mod(b.x, 2)));
        CHECK(seen == 16 && odd == 0);
    }
}

TEST_MAIN()
