/* A value's bits do not depend on when it is computed or by whom: lazily, with anything looked at before, at once
   (FLUX_EAGER), on any number of threads, and on processors with AVX2 or AVX-512. Random graphs say so, each built from a
   number that a failure names: FLUX_BITS_SEED=number FLUX_BITS_GRAPHS=1 builds it again. */
#define FLUX_IMPLEMENTATION
#include "test.h"

/* ------------------------------------------------------------------ random graphs */

static uint64_t dice_state;
static uint64_t dice_word(void) {         /* splitmix64 */
    uint64_t z = dice_state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}
static int dice(int n) { return (int)(dice_word() % (uint64_t)n); }

enum { MOST = 40, LEAVES = 4 };
typedef struct graph { flux_tensor *x[MOST], *leaf[LEAVES]; int n; bool odd; } graph;   /* odd: numbers that are infinite or none */

static int64_t random_size(int64_t room) {
    static const int64_t sizes[] = { 1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 31, 33, 40, 64, 65, 100, 130, 257, 300, 1024, 1030, 2100, 5000, 70000, 140000 };
    int n = (int)(sizeof sizes / sizeof *sizes);
    while (n > 1 && sizes[n - 1] > room) n--;
    return sizes[dice(n)];
}
static flux_shape random_shape(int64_t room) {
    flux_shape s = { 0, { 0 } };
    for (s.ndim = 0; s.ndim < 1 + dice(4); s.ndim++) {
        s.dim[s.ndim] = random_size(room);
        room /= s.dim[s.ndim];
    }
    return s;
}
static flux_dtype random_dtype(void) {
    static const flux_dtype often[] = { FLUX_F32, FLUX_F32, FLUX_F32, FLUX_F32, FLUX_F64, FLUX_F16, FLUX_BF16, FLUX_I32, FLUX_U8 };
    return often[dice(9)];
}
/* The same numbers for the same state of the dice, in memory of the tensor's own. */
static flux_tensor *random_leaf(flux_shape s, flux_dtype t) {
    int64_t n = 1;
    float *data, by = dice(4) ? 1.0f : 100.0f;
    for (int d = 0; d < s.ndim; d++) n *= s.dim[d];
    data = (float *)malloc((size_t)n * sizeof *data);
    for (int64_t i = 0; i < n; i++) data[i] = by * ((float)(int)(dice_word() >> 40) / 8388608.0f - 1.0f);
    flux_tensor *x = flux_to_dtype(flux_from_data(data, FLUX_F32, s), t);
    free(data);
    return flux_eval(x);
}
static flux_tensor *any(const graph *g) { return g->x[g->n - 1 - (dice(2) ? dice(g->n < 3 ? g->n : 3) : dice(g->n))]; }
static bool is_float(const flux_tensor *x) { flux_dtype t = flux_dtype_of(x); return t <= FLUX_BF16; }
static bool fits(const flux_tensor *a, const flux_tensor *b) {        /* do they broadcast to something not too large? */
    int64_t n = 1;
    for (int d = 0; d < FLUX_MAX_DIMS; d++) {
        int64_t p = flux_dim(a, d), q = flux_dim(b, d);
        if (p != q && p != 1 && q != 1) return false;
        n *= p > q ? p : q;
    }
    return n <= 300000;
}
static flux_reduce_opts over(flux_tensor *x, int *n) {       /* some of its dims, or all */
    flux_reduce_opts o;
    int *d[8] = { &o.d0, &o.d1, &o.d2, &o.d3, &o.d4, &o.d5, &o.d6, &o.d7 };
    memset(&o, 0, sizeof o);
    o.x = x, *n = 0;
    if (dice(8) == 0) return o;
    for (int i = 0; i < flux_ndim(x); i++)
        if (dice(2)) *d[(*n)++] = i;
    if (*n == 0 && flux_ndim(x) > 0) *d[(*n)++] = dice(flux_ndim(x));
    return o;
}
static flux_tensor *small(flux_tensor *x) { return flux_tanh(x); }
static flux_tensor *random_unary(flux_tensor *x) {
    if (!is_float(x)) x = flux_to_dtype(x, FLUX_F32);
    switch (dice(22)) {
    case 0: return flux_exp(small(x));
    case 1: return flux_log(flux_add(flux_abs(x), 0.1));
    case 2: return flux_tanh(x);
    case 3: return flux_sigmoid(x);
    case 4: return flux_sqrt(flux_add(flux_abs(x), 1e-3));
    case 5: return flux_square(x);
    case 6: return flux_relu(x);
    case 7: return flux_neg(x);
    case 8: return flux_erf(x);
    case 9: return flux_sin(x);
    case 10: return flux_gelu(x);
    case 11: return flux_softplus(x);
    case 12: return flux_mul(x, 0.3);
    case 13: return flux_add(x, 1.7);
    case 14: return flux_rsqrt(flux_add(flux_square(x), 1e-3));
    case 15: return flux_clamp(x, -0.5, 0.75);
    case 16: return flux_swish(x);
    case 17: return flux_cos(x);
    case 18: return flux_pow(flux_add(flux_abs(x), 0.2), 0.7);
    case 19: return flux_log1p(flux_abs(x));
    case 20: return flux_expm1(small(x));
    default: return flux_round(flux_mul(x, 4.0));
    }
}
static flux_tensor *random_binary(flux_tensor *a, flux_tensor *b) {
    if (!is_float(a) && !is_float(b)) return flux_add(a, b);
    switch (dice(8)) {
    case 0: return flux_sub(a, b);
    case 1: return flux_mul(a, b);
    case 2: return flux_div(a, flux_add(flux_abs(b), 1.0));
    case 3: return flux_max2(a, b);
    case 4: return flux_min2(a, b);
    case 5: return flux_where(flux_gt(a, b), a, flux_neg(b));
    case 6: return flux_add(flux_mul(a, 2.0), b);
    default: return flux_add(a, b);
    }
}
static flux_tensor *random_reduction(flux_tensor *x) {
    int n, which = dice(12);
    flux_reduce_opts o = over(x, &n);
    switch (which) {
    case 0: return flux_max_over(n, o);
    case 1: return flux_min_over(n, o);
    case 2: return flux_prod_over(n, (o.x = flux_add(flux_mul(small(x), 0.01), 1.0), o));
    case 3: return flux_var_over(n, o);
    case 4: return flux_norm_over(n, o);
    case 5: return flux_logsumexp_over(n, o);
    case 6: case 7: return flux_softmax_over(n, o);
    case 8: return flux_logsoftmax_over(n, o);
    case 9: return flux_mean_over(n, o);
    default: return flux_sum_over(n, o);
    }
}
static flux_tensor *random_view(flux_tensor *x) {
    int nd = flux_ndim(x), d = nd ? dice(nd) : 0;
    flux_shape s = flux_shape_of(x);
    if (nd == 0) return x;
    switch (dice(6)) {
    case 0: return nd > 1 ? flux_transpose(x) : flux_unsqueeze(x, 0);
    case 1: return s.dim[d] > 2 ? flux_slice(x, d, 1, s.dim[d] - (dice(2) ? 1 : 0)) : x;
    case 2: return flux_flip_dims(x, FLUX_SHAPE(d));
    case 3: return flux_reshape(x, -1);
    case 4: return s.dim[d] > 3 ? flux_slice_step(x, d, 0, s.dim[d], 2) : flux_squeeze(x);
    default:
        for (int i = 0; i < nd; i++) s.dim[i] = nd - 1 - i;
        return flux_permute_to(x, s);
    }
}
static flux_tensor *random_product(const graph *g, flux_tensor *x) {
    if (flux_ndim(x) < 1 || !is_float(x)) return NULL;
    flux_tensor *a = flux_ndim(x) > 2 ? flux_reshape(x, flux_dim(x, 0), -1) : x;
    int64_t m = flux_dim(a, 0), k = flux_dim(a, 1), n = random_size(40);
    if (m * k > 70000 || m * n > 100000) return NULL;
    (void)g;
    flux_tensor *b = random_leaf(FLUX_SHAPE(k, n), flux_dtype_of(x)), *y = NULL;
    if (flux_ndim(a) < 2) a = flux_reshape(a, m, 1);
    y = flux_mul(flux_matmul(a, b), 0.1);
    switch (dice(4)) {
    case 0: return flux_relu(flux_add(y, random_leaf(FLUX_SHAPE(m), flux_dtype_of(x))));
    case 1: return flux_tanh(y);
    case 2: return flux_matmul(flux_transpose(a), flux_matmul(a, b));
    default: return y;
    }
}
static flux_tensor *random_layer(flux_tensor *x) {
    int64_t n = flux_len(x);
    if (!is_float(x) || n > 100000) return NULL;
    switch (dice(5)) {
    case 0: return flux_ndim(x) ? flux_normalise(x, FLUX_SHAPE(0), 1e-5) : NULL;
    case 1: return flux_ndim(x) == 2 ? flux_cat(1, x, flux_mul(x, 2.0)) : NULL;
    case 2: return flux_dim(x, 0) > 1 ? flux_glu(flux_slice(x, 0, 0, flux_dim(x, 0) / 2 * 2), 0) : NULL;
    case 3: case 4: {
        int64_t w = 1;
        while ((w + 1) * (w + 1) <= n && w < 30) w++;
        flux_tensor *image = w >= 6 ? flux_reshape(flux_slice(flux_reshape(x, -1), 0, 0, n / (w * w) * w * w), w, w, 1, -1) : NULL;
        if (!image) return NULL;
        if (dice(3) == 0) return flux_maxpool(image, FLUX_SHAPE(2, 2));
        if (dice(2)) return flux_meanpool(image, FLUX_SHAPE(3, 3));
        return flux_conv(image, random_leaf(FLUX_SHAPE(3, 3, 1, 5), flux_dtype_of(x)), .pad = FLUX_SHAPE(1));
    }
    default: return NULL;
    }
}
static flux_tensor *random_node(const graph *g) {
    flux_tensor *x = any(g), *y = any(g);
    switch (dice(14)) {
    case 0: case 1: case 2: return random_unary(x);
    case 3: case 4: return fits(x, y) ? random_binary(x, y) : NULL;
    case 5: case 6: case 7: return is_float(x) ? random_reduction(x) : flux_sum(x, 0);
    case 8: return random_view(x);
    case 9: return random_product(g, x);
    case 10: return random_layer(x);
    case 11: return flux_to_dtype(x, random_dtype());
    case 12: {
        static const double numbers[] = { 0.1, 300, 2, -1.7, 1e-3 };
        flux_tensor *c = flux_full_shape(flux_shape_of(x), numbers[dice(5)], random_dtype());
        return dice(2) ? flux_add(x, c) : flux_mul(c, x);
    }
    default: {                            /* the whole less its mean, or something like it: what is chained */
        flux_tensor *r = is_float(x) ? random_reduction(x) : NULL;
        return r && fits(x, r) ? random_binary(x, r) : r;
    }
    }
}
/* From 0 to 1: how often a node is looked at as soon as it is there. */
static void build(graph *g, uint64_t seed, double look, uint64_t look_seed) {
    const int steps = 3 + (int)(seed % 12);
    uint64_t looks = look_seed * UINT64_C(0xD1342543DE82EF95) + 1;
    dice_state = seed * UINT64_C(0x2545F4914F6CDD1D) + 99;
    g->n = 0;
    flux_seed(seed);
    const int64_t room = dice(6) ? dice(3) ? 400 : 6000 : 200000;
    flux_shape s = random_shape(room);
    for (int i = 0; i < LEAVES; i++) {
        flux_shape part = s;
        for (int d = 0; i && d < part.ndim; d++)
            if (dice(3) == 0) part.dim[d] = 1;
        if (i == 3) part = random_shape(room);
        g->x[g->n++] = g->leaf[i] = random_leaf(part, i == 0 ? FLUX_F32 : random_dtype());
    }
    for (int i = 0; i < steps && g->n < MOST - 4; i++) {
        flux_tensor *x = random_node(g);
        if (!x) continue;
        if (flux_len(x) == 0 || flux_len(x) > 400000) continue;
        g->x[g->n++] = x;
        looks = looks * UINT64_C(6364136223846793005) + 1442695040888963407u;
        if ((double)(looks >> 33) < look * 2147483648.0) flux_eval(x);
    }
    if (dice(2)) {                        /* gradients, of a number that all of the last depends on */
        flux_tensor *last = g->x[g->n - 1];
        flux_tensor *loss = is_float(last) ? flux_sum(flux_mul(small(last), flux_full_shape(flux_shape_of(last), 0.5, flux_dtype_of(last)))) : NULL;
        flux_grads *grads = loss ? flux_gradient(loss, g->leaf[0], g->leaf[1]) : NULL;
        flux_tensor *a = grads ? flux_grad(grads, g->leaf[0]) : NULL, *b = grads ? flux_grad(grads, g->leaf[1]) : NULL;
        if (a) g->x[g->n++] = a;
        if (b) g->x[g->n++] = b;
    }
}

/* ------------------------------------------------------------------ what is compared */

typedef struct bits { char *data[MOST]; size_t size[MOST]; int n; } bits;
static void forget(bits *b) {
    for (int i = 0; i < b->n; i++) free(b->data[i]);
    b->n = 0;
}
/* What the last nodes are, together or one by one; and of those that this seed chooses. */
static void look_at(bits *out, graph *g, uint64_t seed) {
    flux_tensor *want[MOST];
    out->n = 0;
    dice_state = seed + 5;
    for (int i = LEAVES; i < g->n; i++)
        if (i >= g->n - 3 || dice(4) == 0) want[out->n++] = g->x[i];
    if (dice(2)) flux_eval_all(out->n, want);
    for (int i = 0; i < out->n; i++) {
        out->size[i] = (size_t)flux_len(want[i]) * flux_dtype_size(flux_dtype_of(want[i]));
        out->data[i] = (char *)malloc(out->size[i] + 1);
        CHECK(flux_read(want[i], out->data[i], out->size[i]) == 0);
    }
}
static bool is_nan_at(const char *p, flux_dtype t, size_t i) {
    uint16_t h;
    float f;
    double d;
    switch (t) {
    case FLUX_F32: memcpy(&f, p + 4 * i, 4); return f != f;
    case FLUX_F64: memcpy(&d, p + 8 * i, 8); return d != d;
    case FLUX_F16: memcpy(&h, p + 2 * i, 2); return (h & 0x7fff) > 0x7c00;
    case FLUX_BF16: memcpy(&h, p + 2 * i, 2); return (h & 0x7fff) > 0x7f80;
    default: return false;
    }
}
/* NaN is NaN, whatever its bits. */
static int64_t first_other(const char *a, const char *b, size_t bytes, flux_dtype t) {
    const size_t size = flux_dtype_size(t);
    for (size_t i = 0; i < bytes / size; i++)
        if (memcmp(a + i * size, b + i * size, size) && !(is_nan_at(a, t, i) && is_nan_at(b, t, i))) return (int64_t)i;
    return -1;
}
static double value_at(const char *p, flux_dtype t, int64_t i) {
    double d = 0;
    char one[8];
    memcpy(one, p + (size_t)i * flux_dtype_size(t), flux_dtype_size(t));
    flux__load(FLUX__F64C, &d, (int)t, one, 1, 1);
    return d;
}
typedef struct way { const char *name; double look; bool eager; int threads, simd; } way;
static void set_way(const way *w, int simd) {
    flux__atomic_store32(&flux__eager_known, w->eager ? 2 : 1);
    if (w->simd >= 0 && flux__simd() != (w->simd < simd ? w->simd : simd)) {      /* what is planned is so for an instruction set */
        flux__thread *self = flux__self();
        if (self && self->plans) flux__plans_free(self->plans), self->plans = NULL;
        flux__atomic_store32(&flux__simd_known, (w->simd < simd ? w->simd : simd) + 1);
    }
    flux_threads(w->threads);
}
static bool same_bits(graph *g, const bits *a, const bits *b, uint64_t seed, const way *w) {
    bool same = a->n == b->n;
    int at = 0;
    dice_state = seed + 5;
    for (int i = LEAVES; same && i < g->n; i++) {
        if (!(i >= g->n - 3 || dice(4) == 0)) continue;
        flux_dtype t = flux_dtype_of(g->x[i]);
        int64_t other = a->size[at] == b->size[at] ? first_other(a->data[at], b->data[at], a->size[at], t) : 0;
        if (other >= 0) {
            char text[256];
            snprintf(text, sizeof text, "graph %llu, %s: node %d of %d (%s, op %s), element %lld is %.17g, was %.17g", (unsigned long long)seed, w->name, i,
                     g->n, flux_dtype_name(t), flux__op_names[g->x[i]->op], (long long)other, value_at(b->data[at], t, other), value_at(a->data[at], t, other));
            test_fail(__FILE__, __LINE__, text);
            for (int k = 0; k < g->n && getenv("FLUX_BITS_SHOW"); k++) {
                const flux_tensor *x = g->x[k];
                flux__text shape = flux__describe(x);
                fprintf(stderr, "    %d: %s %s of", k, flux__op_names[x->op], shape.s);
                for (int j = 0; j < x->nin; j++) {
                    int from = 0;
                    while (from < g->n && g->x[from] != x->in[j]) from++;
                    if (from < g->n) fprintf(stderr, " %d", from);
                    else fprintf(stderr, " (%s)", flux__op_names[x->in[j]->op]);
                }
                fprintf(stderr, "\n");
            }
            return false;
        }
        at++;
    }
    return same;
}

static void compare_ways(const way *ways, int n, uint64_t first, int graphs) {
    const int simd = flux__simd();
    const char *seed_text = getenv("FLUX_BITS_SEED"), *many = getenv("FLUX_BITS_GRAPHS");
    if (seed_text) first = strtoull(seed_text, NULL, 10);
    if (many) graphs = atoi(many);
    for (int i = 0, bad = 0; i < graphs && bad < 5; i++) {
        const uint64_t seed = first + (uint64_t)i;
        bits was, now;
        graph g;
        FLUX_SCOPE {
            set_way(&ways[0], simd);
            build(&g, seed, 0, 0);
            look_at(&was, &g, seed);
        }
        for (int w = 1; w < n; w++) FLUX_SCOPE {
            set_way(&ways[w], simd);
            build(&g, seed, ways[w].look, seed + (uint64_t)w);
            look_at(&now, &g, seed);
            const bool good = same_bits(&g, &was, &now, seed, &ways[w]);
            CHECK(good);
            bad += !good;
            forget(&now);
        }
        forget(&was);
        if (flux_failed()) {
            fprintf(stderr, "graph %llu: %s\n", (unsigned long long)seed, flux_error());
            flux_clear();
        }
    }
    const way last = { "", 0, false, 0, simd };
    set_way(&last, simd);
}

TEST(a_value_does_not_change_by_being_looked_at) {
    static const way ways[] = {
        { "lazily", 0, false, 1, -1 }, { "half of it looked at", 0.5, false, 1, -1 }, { "most looked at, 3 threads", 0.9, false, 3, -1 },
        { "at once", 0, true, 1, -1 }, { "2 threads", 0.2, false, 2, -1 }, { "5 threads", 0, false, 5, -1 } };
    compare_ways(ways, 6, 1, test_left_out(1, 2) ? 25 : test_device.backend ? 100 : 400);
}

/* Steps of a model with a bit of everything: its parameters and losses after them. */
static flux_rule any_rule(int i) {
    switch (i) {
    case 0: return flux_descent(0.05);
    case 1: return flux_momentum(0.02);
    case 2: return flux_adam(0.01);
    case 3: return flux_rmsprop(0.01);
    case 4: return flux_adamw(0.01);
    default: return flux_optimiser_chain(flux_clipnorm(0.5), flux_adam(0.02));
    }
}
static void train(int rule, double look, float *out, int64_t most, int64_t *n) {
    flux_seed(7);
    flux_layer *m = flux_chain(flux_dense(33, 40, flux_gelu), flux_layernorm(FLUX_SHAPE(40)), flux_dense(40, 17, flux_tanh), flux_batchnorm(17, flux_relu), flux_dense(17, 5));
    flux_state *opt = flux_setup(any_rule(rule), m);
    flux_tensor *x = flux_eval(flux_randn(33, 50)), *y = flux_eval(flux_softmax(flux_randn(5, 50)));
    flux_trainmode(m, true);
    *n = 0;
    for (int step = 0; step < 6; step++) FLUX_SCOPE {
        dice_state = (uint64_t)step;
        flux_tensor *p = flux_call(m, x);
        if (dice(100) < look * 100) flux_eval(p);
        flux_tensor *loss = flux_logitcrossentropy(p, y);
        if (dice(100) < look * 100) flux_item(loss);
        flux_grads *g = flux_gradient(loss, m);
        if (dice(100) < look * 100) flux_eval(flux_grad_param(g, m, "layers.0.weight"));
        if (dice(100) < look * 100) flux_eval(flux_grad(g, flux_weight(flux_child(m, 2))));
        CHECK(flux_update(opt, m, g) == 0);
        out[(*n)++] = (float)flux_item(loss);
    }
    flux_testmode(m, true);
    flux_tensor *all = flux_call(m, x), *w = flux_param(m, "layers.0.weight");
    flux_read(all, out + *n, 5 * 50 * sizeof *out), *n += 5 * 50;
    if (w) flux_read(w, out + *n, 33 * 40 * sizeof *out), *n += 33 * 40;
    CHECK(*n <= most);
}
TEST(training_is_the_same_to_the_last_bit) {
    static const way ways[] = { { "lazily", 0, false, 1, -1 }, { "looked at", 0.6, false, 2, -1 }, { "at once", 0, true, 1, -1 }, { "AVX2", 0.3, false, 3, 1 } };
    static float was[3000], now[3000];
    const int simd = flux__simd();
    for (int rule = 0; rule < 6; rule++) {
        int64_t n = 0, more = 0;
        for (int w = 0; w < (simd >= 2 ? 4 : 3); w++) FLUX_SCOPE {
            set_way(&ways[w], simd);
            train(rule, ways[w].look, w ? now : was, 3000, w ? &more : &n);
            if (w && !CHECK(n == more && first_other((char *)was, (char *)now, (size_t)n * 4, FLUX_F32) < 0)) fprintf(stderr, "    rule %d, %s\n", rule, ways[w].name);
        }
        const way last = { "", 0, false, 0, simd };
        set_way(&last, simd);
    }
}

/* Processors with AVX2 and those with AVX-512 give the same bits. */
TEST(instruction_sets_agree) {
    static const way ways[] = { { "as it is", 0, false, 2, 2 }, { "with AVX2", 0, false, 2, 1 } };
    ONLY_ON_CPU();
    if (flux__simd() < 2) SKIP("needs AVX-512");
    compare_ways(ways, 2, 100000, 200);
}

/* ------------------------------------------------------------------ long sums */

/* n numbers in all, in a tensor of n / rows rows that has memory for one: long sums without much memory. */
static flux_tensor *tall(flux_tensor *row, int64_t times) { return flux_broadcast_to(row, flux_dim(row, 0), times); }
static double sum_of(flux_tensor *x) {
    const float *p = flux_floats(x);
    double sum = 0;
    for (int64_t i = 0; i < flux_len(x); i++) sum += (double)p[i];
    return sum;
}
static void check_sums(flux_tensor *row, int64_t times) {
    const double sum = sum_of(row), first = (double)flux_floats(row)[0], n = (double)flux_len(row);
    flux_tensor *x = tall(row, times), *turned = flux_transpose(x);
    CHECK_NEAR(flux_item(flux_sum(x)) / (double)times / sum, 1, 1e-6);
    CHECK_NEAR(flux_item(flux_mean(turned)) * n / sum, 1, 1e-6);
    CHECK_NEAR(flux_at(flux_sum(x, 1), 0, 0) / (double)times / first, 1, 1e-6);
    CHECK_NEAR(flux_at(flux_sum(turned, 0), 0, 0) / (double)times / first, 1, 1e-6);
    CHECK_NEAR(flux_at(flux_sum(turned, 1), 5, 0) / sum, 1, 1e-6);
    CHECK_NEAR(flux_item(flux_norm(x)), sqrt(flux_item(flux_sum(flux_square(flux_to_dtype(row, FLUX_F64)))) * (double)times), 1e-6);
}
TEST(long_sums_do_not_drift) {
    check_sums(flux_eval(flux_full(0.1, 1000)), 30000);
    check_sums(flux_eval(flux_rand(1000)), 30000);
    check_sums(flux_eval(flux_rand(37)), 100000);
    check_sums(flux_eval(flux_full(0.1, 3)), 1000001);
    check_sums(flux_eval(flux_add(flux_rand(20011), 1.0)), 50);
    check_sums(flux_eval(flux_full(0.1, 100000)), 100);
}

TEST(a_mean_of_ones_is_one) {
    flux_tensor *ones = flux_eval(flux_ones(20000000, 1));
    const int64_t less = test_device.backend ? 40 : 1;       /* a kernel of its own for each length */
    for (int64_t n = 1; n <= 20000000; n += n < 300 ? less : n < 20000 ? 97 * less : n / 3) FLUX_SCOPE {
        flux_tensor *x = flux_slice(ones, 0, 0, n), *y = n < 20000 ? flux_eval(flux_ones(3, n)) : NULL;
        CHECK(flux_item(flux_mean(x)) == 1);
        if (y) CHECK(flux_at(flux_mean(y, 1), 2, 0) == 1);
        if (n < 3000) CHECK(flux_item(flux_mean(flux_to_dtype(x, FLUX_F64))) == 1);
    }
}

TEST(a_constant_has_no_variance) {
    static const double numbers[] = { 0.1, 1.99999, -3.3e-5, 12345.678, 1e8 / 3, 0.3 };
    static const int64_t lengths[] = { 1, 2, 3, 7, 10, 33, 100, 999, 1024, 1500, 4097, 100003, 3000001 };
    static const flux_dtype types[] = { FLUX_F32, FLUX_F64, FLUX_F16, FLUX_BF16 };
    for (int i = 0; i < 6; i++)
        for (int l = 0; l < 13; l++)
            for (int t = 0; t < (test_device.backend && (i || l % 3) ? 0 : 4); t++) FLUX_SCOPE {
                const int64_t n = lengths[l];
                flux_tensor *x = flux_eval(flux_full_shape(FLUX_SHAPE(n), numbers[i] > 60000 && t == 2 ? 777 : numbers[i], types[t]));
                CHECK(flux_item(flux_var(x)) == 0);
                if (n < 5000) CHECK(flux_at(flux_var(flux_eval(flux_broadcast_to(flux_reshape(x, 1, n), 5, n)), 1), 4, 0) == 0);
            }
    flux_tensor *x = flux_add(flux_to_dtype(flux_randn(1000), FLUX_F64), 3), *v = flux_var(x);
    CHECK_NEAR(flux_item(v), flux_item(flux_mean(flux_square(flux_sub(x, flux_mean(x))))), 1e-13);
    CHECK_NEAR(flux_item(flux_var(flux_to_dtype(x, FLUX_F32))), flux_item(v), 1e-6);
}

TEST_MAIN()
