/* A value's bits do not depend on when it is computed or by whom: lazily, with anything looked at before, at once
   (FLUX_EAGER), on any number of threads, and on processors with AVX2 or AVX-512. Random graphs say so, each built from a
   number that a failure names: FLUX_BITS_SEED=number FLUX_BITS_GRAPHS=1 builds it again, FLUX_BITS_SHOW=1 prints it. */
#define _DEFAULT_SOURCE
#define FLUX_IMPLEMENTATION
#include "graphs.h"
#if defined(__unix__) || defined(__APPLE__)
#  include <sys/mman.h>
#  include <unistd.h>
#endif

/* ------------------------------------------------------------------ random graphs */

/* A graph of graphs.h, built, with gradients behind its steps. */
enum { MOST = GRAPH_MOST + 3, LEAVES = 4 };
typedef struct built { graph g; flux_tensor *x[MOST]; int n; } built;

/* The loss, and of every third graph besides a sum by which a step has a gradient from several sides, and in which something detached
   stands before what it is detached from. */
static flux_tensor *loss_of(const built *b, uint64_t seed, double look) {
    flux_tensor *loss = b->x[b->g.loss], *x = b->x[LEAVES + (int)(seed / 3 % (uint64_t)(b->g.n - LEAVES))];
    if (seed % 3 || !flux__dtypes[flux_dtype_of(x)].real) return loss;
    flux_tensor *y = flux_sin(x);
    if (look > 0.4) flux_eval(y);
    return flux_add(loss, flux_sum(flux_mul(flux_detach(y), flux_mul(flux_tanh(x), flux_mul(flux_sigmoid(x), y)))));
}
/* look: from 0 to 1, how often a node is looked at as soon as it is there. */
static bool build(built *b, uint64_t seed, double look, uint64_t look_seed) {
    graph *g = &b->g;
    graph_random(g, seed, false);
    flux_seed(seed);
    b->n = 0;
    if (!graph_build(g, b->x, look, look_seed)) return false;
    b->n = g->n;
    if (g->loss < 0) return true;
    flux_tensor *first = b->x[g->target[0]], *last = b->x[g->target[g->targets - 1]];
    flux_grads *grads = flux_gradient(loss_of(b, seed, look), first, last);
    flux_tensor *one = flux_grad(grads, first), *two = flux_grad(grads, last);
    if (one) b->x[b->n++] = one;
    if (two) b->x[b->n++] = two;
    if (!one || seed % 2) return grads != NULL;
    if (look > 0.5) flux_eval(one);
    flux_grads *again = flux_gradient(flux_sum(flux_mul(one, flux_randn_with(flux_shape_of(one), FLUX_F32))), first);
    flux_tensor *second = flux_grad(again, first);
    if (second) b->x[b->n++] = second;
    return again != NULL;
}

/* ------------------------------------------------------------------ what is compared */

typedef struct bits { char *data[MOST]; size_t size[MOST]; int n; } bits;
static void forget(bits *b) {
    for (int i = 0; i < b->n; i++) free(b->data[i]);
    b->n = 0;
}
/* What the last nodes are, together or one by one; and of those that this seed chooses. */
static void look_at(bits *out, built *g, uint64_t seed) {
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
typedef struct way { const char *name; double look; bool eager; int threads, simd, part; } way;
static void set_way(const way *w, int simd) {
    flux__atomic_store32(&flux__eager_known, w->eager ? 2 : 1);
    flux__part_nodes = w->part ? w->part : 4096;
    if (w->simd >= 0 && flux__simd() != (w->simd < simd ? w->simd : simd)) {      /* what is planned is so for an instruction set */
        flux__thread *self = flux__self();
        if (self && self->plans) flux__plans_free(self->plans), self->plans = NULL;
        flux__atomic_store32(&flux__simd_known, (w->simd < simd ? w->simd : simd) + 1);
    }
    flux_threads(w->threads);
}
static bool same_bits(built *g, const bits *a, const bits *b, uint64_t seed, const way *w) {
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
            if (getenv("FLUX_BITS_SHOW")) graph_print(stderr, &g->g);
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
        built g;
        FLUX_SCOPE {
            set_way(&ways[0], simd);
            CHECK(build(&g, seed, 0, 0));
            look_at(&was, &g, seed);
        }
        for (int w = 1; w < n; w++) FLUX_SCOPE {
            set_way(&ways[w], simd);
            CHECK(build(&g, seed, ways[w].look, seed + (uint64_t)w));
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
    const way last = { "", 0, false, 0, simd, 0 };
    set_way(&last, simd);
}

TEST(a_value_does_not_change_by_being_looked_at) {
    static const way ways[] = {
        { "lazily", 0, false, 1, -1, 0 }, { "half of it looked at", 0.5, false, 1, -1, 0 }, { "most looked at, 3 threads", 0.9, false, 3, -1, 0 },
        { "at once", 0, true, 1, -1, 0 }, { "2 threads", 0.2, false, 2, -1, 0 }, { "5 threads", 0, false, 5, -1, 0 }, { "in parts", 0, false, 1, -1, 5 } };
    compare_ways(ways, 7, 1, test_left_out(1, 2) ? 10 : test_device.backend ? 100 : 400);
}

/* Second gradients in half formats, where a value that was widened and stored is widened anew as one is that was not. */
TEST(second_gradients_of_half_formats_know_no_look) {
    const bool eager = flux__eager();
    for (int of = 0; of < 24; of++) FLUX_SCOPE {
        const flux_dtype t = of % 2 ? FLUX_F16 : FLUX_BF16;
        flux_tensor *x = flux_eval(flux_to_dtype(flux_randn(64), t)), *e = flux_eval(flux_to_dtype(flux_randn(1, 2), t)), *want = NULL;
        flux_tensor *by = flux_eval(flux_randn(1, 64, 2)), *one = flux_eval(flux_randn(64)), *two = flux_eval(flux_randn(1, 2));
        for (int way = 0; way < 3; way++) {
            flux__atomic_store32(&flux__eager_known, way == 2 ? 2 : 1);
            flux_tensor *z = flux_einsum("a,bc->bac", x, e);
            switch (of / 2 % 6) {
            case 0: z = flux_gelu(z); break;
            case 1: z = flux_mish(z); break;
            case 2: z = flux_logitbinarycrossentropy(z, flux_to_dtype(flux_gt(by, 0), t), .agg = FLUX_NONE); break;
            case 3: z = flux_mul(flux_softplus(z), flux_tanh(z)); break;
            case 4: z = flux_div(z, flux_norm(z)); break;
            default: z = flux_swish(z); break;
            }
            if (way == 1) flux_eval(z);
            flux_grads *g = flux_gradient(flux_sum(flux_mul(z, by)), x, e);
            flux_tensor *again = flux_add(flux_sum(flux_mul(flux_grad(g, x), one)), flux_sum(flux_mul(flux_grad(g, e), two)));
            flux_tensor *got = flux_eval(flux_grad(flux_gradient(again, x), x));
            if (way == 0) want = got;
            else CHECK(got && want && first_other((const char *)flux_data(want), (const char *)flux_data(got), 128, t) < 0);
        }
    }
    flux__atomic_store32(&flux__eager_known, eager ? 2 : 1);
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
    static const way ways[] = { { "lazily", 0, false, 1, -1, 0 }, { "looked at", 0.6, false, 2, -1, 0 }, { "at once", 0, true, 1, -1, 0 }, { "AVX2", 0.3, false, 3, 1, 0 } };
    static float was[3000], now[3000];
    const int simd = flux__simd();
    for (int rule = 0; rule < 6; rule++) {
        int64_t n = 0, more = 0;
        for (int w = 0; w < (simd >= 2 ? 4 : 3); w++) FLUX_SCOPE {
            set_way(&ways[w], simd);
            train(rule, ways[w].look, w ? now : was, 3000, w ? &more : &n);
            if (w && !CHECK(n == more && first_other((char *)was, (char *)now, (size_t)n * 4, FLUX_F32) < 0)) fprintf(stderr, "    rule %d, %s\n", rule, ways[w].name);
        }
        const way last = { "", 0, false, 0, simd, 0 };
        set_way(&last, simd);
    }
}

/* ------------------------------------------------------------------ convolutions with fewer multiplications */

/* A convolution of 3 x 3 that cpu/winograd.h takes, and its gradients, behind them another operation; the image and the
   kernel are as they come, or views of the same numbers in another order, and what is between may be looked at. */
typedef struct small_conv { int64_t wide, high, in, out, batch, pad; bool flip; } small_conv;
static flux_tensor *turned(flux_tensor *x) { return flux_permute(flux_eval(flux_copy(flux_permute(x, 2, 0, 3, 1))), 1, 3, 0, 2); }
static flux_tensor *swapped(flux_tensor *x) { return flux_permute(flux_eval(flux_copy(flux_permute(x, 0, 2, 1, 3))), 0, 2, 1, 3); }
static int64_t conv_bits(const small_conv *c, bool views, float *to) {
    flux_seed(5);
    flux_tensor *x = flux_eval(flux_randn(c->wide, c->high, c->in, c->batch)), *w = flux_eval(flux_randn(3, 3, c->in, c->out));
    if (views) x = turned(x), w = c->flip ? swapped(w) : turned(w);
    flux_tensor *y = c->flip ? flux_conv(x, w, .pad = FLUX_SHAPE(c->pad)) : flux_crosscor(x, w, .pad = FLUX_SHAPE(c->pad));
    flux_grads *all = flux_gradient(flux_sum(flux_square(y)), x, w);
    flux_tensor *part[] = { flux_add(y, 1), flux_grad(all, x), flux_sub(flux_grad(all, w), 1) };
    int64_t n = 0;
    for (int i = 0; i < 3; n += flux_len(part[i++])) CHECK(flux_read(part[i], to + n, (size_t)flux_len(part[i]) * 4) == 0);
    return n;
}
TEST(a_convolution_is_the_same_to_the_last_bit) {
    static const way ways[] = { { "lazily", 0, false, 1, -1, 0 }, { "at once", 0, true, 1, -1, 0 }, { "2 threads", 0, false, 2, -1, 0 },
        { "5 threads", 0, false, 5, -1, 0 }, { "in parts", 0, false, 2, -1, 1 }, { "AVX2", 0, false, 3, 1, 0 } };
    static const small_conv all[] = { { 30, 17, 18, 70, 1, 1, true }, { 13, 10, 20, 16, 3, 1, false }, { 27, 9, 16, 33, 2, 0, true },
        { 20, 8, 300, 16, 2, 1, false }, { 270, 6, 16, 40, 1, 1, true }, { 6, 7, 34, 17, 16, 1, false } };
    static float was[200000], now[200000];
    const int simd = flux__simd();
    for (int i = 0; i < (int)(sizeof all / sizeof *all); i++)
        for (int w = 0; w < (simd >= 2 ? 6 : 5); w++) {
            if (test_device.backend && ways[w].threads > 1 && !ways[w].part) continue;      /* those of the processor */
            for (int views = 0; views < 2; views++) FLUX_SCOPE {
                int64_t n;
                set_way(&ways[w], simd);
                n = conv_bits(&all[i], views, w || views ? now : was);
                if ((w || views) && !CHECK(first_other((char *)was, (char *)now, (size_t)n * 4, FLUX_F32) < 0))
                    fprintf(stderr, "    convolution %d, %s%s\n", i, ways[w].name, views ? ", views" : "");
            }
        }
    const way last = { "", 0, false, 0, simd, 0 };
    set_way(&last, simd);
}

/* Its errors beside the plain product's, which computes images that are too narrow for it. */
TEST(a_convolution_with_fewer_multiplications_is_as_exact) {
    static const int64_t channels[] = { 16, 64, 128, 256, 512 };
    for (int i = 0; i < 5; i++) FLUX_SCOPE {
        flux_seed(9);
        flux_tensor *x = flux_eval(flux_relu(flux_randn(22, 18, channels[i], 1))), *w = flux_eval(flux_randn(3, 3, channels[i], 16)), *part[4];
        flux_tensor *exact = flux_conv(flux_to_dtype(x, FLUX_F64), flux_to_dtype(w, FLUX_F64)), *y = flux_conv(x, w);
        for (int64_t k = 0; k < 4; k++) part[k] = flux_conv(flux_slice(x, 0, 5 * k, 5 * k + 7), w);
        flux_tensor *plain = flux_cat(0, part[0], part[1], part[2], part[3]);
        double error = flux_item(flux_mean(flux_square(flux_sub(flux_to_dtype(y, FLUX_F64), exact)))), other = flux_item(flux_mean(flux_square(flux_sub(flux_to_dtype(plain, FLUX_F64), exact))));
        CHECK(error > 0 && error < 4 * other);
        error = flux_item(flux_max(flux_abs(flux_sub(flux_to_dtype(y, FLUX_F64), exact)))), other = flux_item(flux_max(flux_abs(flux_sub(flux_to_dtype(plain, FLUX_F64), exact))));
        CHECK(error < 2 * other);
    }
}

/* The gradient by the weight of flux_conv with a gradient g of its result. */
static flux_tensor *slope_of_weight(flux_tensor *x, flux_tensor *g) {
    flux_tensor *w = flux_eval(flux_to_dtype(flux_zeros(3, 3, flux_dim(x, 2), flux_dim(g, 2)), x->dtype));
    return flux_grad(flux_gradient(flux_sum(flux_mul(flux_conv(x, w, .pad = FLUX_SHAPE(1)), g)), w), w);
}
/* The gradients' errors beside the plain product's, which computes those of less than 16 columns. */
TEST(a_weights_gradient_with_fewer_multiplications_is_as_exact) {
    ONLY_ON_CPU();
    static const struct { int64_t wide, high, channels, samples; } all[] = { { 23, 17, 64, 2 }, { 56, 56, 32, 1 }, { 8, 8, 128, 16 }, { 260, 5, 16, 3 } };
    for (int i = 0; i < (int)(sizeof all / sizeof *all); i++) FLUX_SCOPE {
        flux_seed(9);
        flux_tensor *x = flux_eval(flux_relu(flux_randn(all[i].wide, all[i].high, all[i].channels, all[i].samples)));
        flux_tensor *g = flux_eval(flux_randn(all[i].wide, all[i].high, 16, all[i].samples));
        flux_tensor *exact = slope_of_weight(flux_to_dtype(x, FLUX_F64), flux_to_dtype(g, FLUX_F64)), *y = slope_of_weight(x, g);
        flux_tensor *plain = flux_cat(3, slope_of_weight(x, flux_slice(g, 2, 0, 8)), slope_of_weight(x, flux_slice(g, 2, 8, 16)));
        flux_tensor *error = flux_abs(flux_sub(flux_to_dtype(y, FLUX_F64), exact)), *other = flux_abs(flux_sub(flux_to_dtype(plain, FLUX_F64), exact));
        const double mean = flux_item(flux_mean(flux_square(error))), means = flux_item(flux_mean(flux_square(other)));
        if (!CHECK(mean > 0 && (mean != means || flux__simd() < 1) && mean < 4 * means && flux_item(flux_max(error)) < 2 * flux_item(flux_max(other))))
            fprintf(stderr, "    gradient %d: errors %g and %g of the plain product's\n", i, sqrt(mean / means), flux_item(flux_max(error)) / flux_item(flux_max(other)));
    }
}

/* ------------------------------------------------------------------ half formats beside float32 */

/* A pooling of x, or with g its gradient. With `held`, its result is looked at before, so that kernels that might run together do not;
   else nothing between is kept. */
typedef struct pool_case { flux_shape window, stride, pad; bool mean, held; } pool_case;
static flux_tensor *pooled(const pool_case *c, flux_tensor *x, flux_tensor *g) {
    flux_tensor *y = c->mean ? flux_meanpool(x, c->window, .stride = c->stride, .pad = c->pad) : flux_maxpool(x, c->window, .stride = c->stride, .pad = c->pad);
    if (c->held) flux_eval(y);
    if (g) y = flux_grad(flux_gradient(flux_sum(flux_mul(y, g)), x), x);
    FLUX_NOGRAD flux_eval(y);
    return y;
}
static int64_t any(int64_t lo, int64_t hi) { return lo + (int64_t)flux_item(flux_mul(flux_rand(1), hi - lo + 0.999)); }
/* Pools of half formats are those of float32, rounded once, and so is a maximum's gradient; a mean's is rounded before windows that
   overlap are added: of any windows, strides and paddings, held or not, of views or not, with numbers that are often equal. */
TEST(pools_of_half_formats_are_those_of_float32) {
    ONLY_ON_CPU();
    flux_seed(21);
    for (int i = 0; i < 240; i++) FLUX_SCOPE {
        const flux_dtype type = i % 2 ? FLUX_F16 : FLUX_BF16;
        const int nd = 1 + (int)any(0, 2);
        pool_case c;
        flux_shape s;
        memset((void *)&c, 0, sizeof c), memset((void *)&s, 0, sizeof s);
        c.mean = any(0, 1) > 0, c.held = any(0, 1) > 0;
        c.window.ndim = c.stride.ndim = nd, c.pad.ndim = 2 * nd, s.ndim = nd + 2;
        for (int d = 0; d < nd; d++) {
            c.window.dim[d] = any(1, 4), c.stride.dim[d] = any(1, 3);
            for (int k = 0; k < 2; k++) c.pad.dim[2 * d + k] = any(0, c.window.dim[d] - 1) * any(0, 1);
            s.dim[d] = c.window.dim[d] + any(0, nd == 1 ? 300 : nd == 2 ? 90 : 9);
        }
        s.dim[nd] = any(1, 5), s.dim[nd + 1] = any(1, 3);
        flux_tensor *x = flux_eval(flux_to_dtype(flux_floor(flux_mul(flux_randn_with(s, FLUX_F32), i % 3 ? 100 : 2)), type));
        if (any(0, 3) == 0) x = flux_transpose(flux_eval(flux_copy(flux_transpose(x))));
        flux_tensor *wide = flux_eval(flux_to_dtype(x, FLUX_F32)), *y = flux_eval(pooled(&c, wide, NULL)), *part[4];
        flux_tensor *g = flux_eval(flux_to_dtype(flux_randn_with(flux_shape_of(y), FLUX_F32), type));
        part[0] = flux_to_dtype(pooled(&c, x, NULL), FLUX_F32), part[1] = flux_to_dtype(flux_to_dtype(y, type), FLUX_F32);
        part[2] = flux_to_dtype(pooled(&c, x, g), FLUX_F32);
        part[3] = flux_to_dtype(flux_to_dtype(pooled(&c, wide, flux_to_dtype(g, FLUX_F32)), type), FLUX_F32);
        for (int k = 0; k < 4; k += 2)
            if (!CHECK(k && c.mean ? flux_item(flux_max(flux_abs(flux_sub(part[k], part[k + 1])))) < (type == FLUX_F16 ? 0.01 : 0.06)
                                   : flux_item(flux_sum(flux_ne(part[k], part[k + 1]))) == 0))
                fprintf(stderr, "    %s of %s, %d dims, windows %lldx%lldx%lld by %lldx%lldx%lld%s\n", c.mean ? "mean" : "maximum", flux_dtype_name(type), nd,
                        (long long)c.window.dim[0], (long long)c.window.dim[1], (long long)c.window.dim[2], (long long)c.stride.dim[0], (long long)c.stride.dim[1],
                        (long long)c.stride.dim[2], k ? ", gradient" : "");
    }
}

/* Windows that are not 3 x 3, a step apart and dense are none of those: of channels and images large
   enough that they would be, beside a product of float64. */
TEST(a_convolution_of_other_windows_is_as_exact) {
    ONLY_ON_CPU();
    flux_seed(4);
    flux_tensor *x = flux_eval(flux_randn(16, 14, 18, 2)), *wide = flux_to_dtype(x, FLUX_F64);
    for (int i = 0; i < 40; i++) FLUX_SCOPE {
        const int a = i < 32 ? 3 : 1 + i % 2 * 4, b = i < 32 ? 3 : 1 + i / 2 % 4;
        const int stride[2] = { 1 + (i & 1), 1 + (i >> 1 & 1) }, dense[2] = { 1 + (i >> 2 & 1), 1 + (i >> 3 & 1) };
        flux_tensor *w = flux_eval(flux_randn(a, b, 18, 16)), *y, *want;
#define OPTIONS .stride = FLUX_SHAPE(stride[0], stride[1]), .dilation = FLUX_SHAPE(dense[0], dense[1])
        if (i & 16) y = flux_crosscor(x, w, OPTIONS), want = flux_crosscor(wide, flux_to_dtype(w, FLUX_F64), OPTIONS);
        else y = flux_conv(x, w, OPTIONS), want = flux_conv(wide, flux_to_dtype(w, FLUX_F64), OPTIONS);
#undef OPTIONS
        CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_to_dtype(y, FLUX_F64), want)))) < 1e-3);
    }
}

/* Images, channels and batches at random, so that what is computed at once ends anywhere in a sample. */
TEST(a_convolution_of_any_size_is_as_exact) {
    ONLY_ON_CPU();
    flux_seed(6);
    dice_state = 6;
    for (int i = 0; i < 40; i++) FLUX_SCOPE {
        const int64_t wide = 6 + dice(30), high = 5 + dice(16), batch = 1 + dice(6);
        const int64_t in = 16 + dice(20), out = 16 + dice(30), pad = 1 + dice(2);
        flux_tensor *x = flux_eval(flux_randn(wide, high, in, batch)), *w = flux_eval(flux_randn(3, 3, in, out));
        flux_tensor *y = flux_conv(x, w, .pad = FLUX_SHAPE(pad));
        flux_tensor *want = flux_conv(flux_to_dtype(x, FLUX_F64), flux_to_dtype(w, FLUX_F64), .pad = FLUX_SHAPE(pad));
        CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_to_dtype(y, FLUX_F64), want)))) < 1e-3);
    }
}

/* The gradient of the largest of 2 x 2 numbers, and what is almost that: other numbers than each
   element's place to compare with, or than 0 elsewhere, another winner, elements of g for each number.
   Lazily it is what it is step by step. */
static flux_tensor *largest_of_four(int kind, flux_tensor *x, flux_tensor *g, bool stepwise) {
    flux_tensor *place = flux_to_dtype(flux__iota_over(x, 5), FLUX_I64);
    flux_tensor *win = flux__argreduce_node(x, kind != 1, 5, x->ndim);
    flux_tensor *any = flux_to_dtype(flux_mul(flux_rand_with(flux_shape_of(x), FLUX_F32), 4), FLUX_I64);
    if (kind == 2) place = flux_sub(3, place);
    if (kind == 3) place = flux_add(place, flux_eq(place, 3));
    if (kind == 4) place = flux_broadcast_to_with(flux_slice(any, 0, 0, 1), flux_shape_of(x));
    if (kind == 5) place = flux_slice(any, 1, 0, 1);
    if (kind == 6) place = any;
    if (kind == 7) place = flux_reshape(flux_slice(any, 4, 0, 1), 2, 9, 2, 7, 1);
    if (kind == 8) g = flux_broadcast_to_with(flux_slice(g, 0, 0, 1), flux_shape_of(x));
    if (kind == 8) g = flux_eval(flux_add(g, any));
    if (kind == 12) place = flux_add(place, flux_gt(flux__iota_on(x->device, 9, 1), 0));
    place = flux_eval(place);
    if (stepwise) win = flux_eval(win);
    flux_tensor *same = kind == 9 ? flux_eq(win, place) : flux_eq(place, win);
    if (stepwise) same = flux_eval(same);
    flux_tensor *y = flux_where(same, g, kind == 10 ? 5.0 : kind == 11 ? (double)NAN : 0.0);
    return kind == 13 ? flux_add(y, same) : y;
}
TEST(what_is_almost_the_gradient_of_a_maximum) {
    ONLY_ON_CPU();
    static float was[2 * 9 * 2 * 7 * 3], now[2 * 9 * 2 * 7 * 3];
    for (int kind = 0; kind < 14; kind++)
        for (int flat = 0; flat < 2; flat++) FLUX_SCOPE {
            flux_seed(3);
            flux_tensor *x = flux_eval(flux_randn(2, 9, 2, 7, 3));
            flux_tensor *g = flux_eval(flux_randn(1, flat ? 1 : 9, 1, 7, 3)), *y[2];
            for (int k = 0; k < 2; k++) {
                flux_seed(8);
                y[k] = largest_of_four(kind, x, g, k == 1);
            }
            REQUIRE(flux_read(y[0], now, sizeof now) == 0 && flux_read(y[1], was, sizeof was) == 0);
            if (!CHECK(first_other((char *)was, (char *)now, sizeof was, FLUX_F32) < 0))
                fprintf(stderr, "    kind %d, %d\n", kind, flat);
        }
}

/* What is not finite comes out as such, and only where a window has it. */
TEST(a_convolution_spreads_what_is_not_finite_to_its_windows_alone) {
    static float v[18 * 16 * 16], got[18 * 16 * 16];
    for (int i = 0; i < 18 * 16 * 16; i++) v[i] = (float)(i % 7);
    v[5 * 18 + 7] = INFINITY, v[18 * 16 + 15 * 18 + 17] = NAN;
    flux_tensor *y = flux_conv(flux_from(v, 18, 16, 16, 1), flux_ones(3, 3, 16, 16), .pad = FLUX_SHAPE(1));
    REQUIRE(flux_read(y, got, sizeof got) == 0);
    for (int i = 0; i < 18 * 16 * 16; i++) {
        const int px = i % 18, py = i / 18 % 16;
        const bool meets = (abs(px - 7) <= 1 && abs(py - 5) <= 1) || (px >= 16 && py >= 14);
        CHECK(!isfinite(got[i]) == meets);
    }
}

/* ------------------------------------------------------------------ Adam's step, in any company */

/* Its lines run as one (flux__match_adam), whatever its operands are, whoever else needs what it makes, and whatever looks
   like it and is another step: computed line by line it has the same bits. */
static flux_tensor *adam_operand(int64_t n, int64_t m, flux_tensor *other) {
    flux_tensor *a = flux_eval(flux_randn(n, m)), *b = flux_eval(flux_randn(n, 1));
    switch (dice(10)) {
    case 0: return flux_transpose(flux_eval(flux_randn(m, n)));
    case 1: return flux_slice(flux_eval(flux_randn(n, m + 2)), 1, 1, m + 1);
    case 2: return flux_eval(flux_to_dtype(a, dice(2) ? FLUX_F16 : FLUX_BF16));
    case 3: return flux_tanh(flux_mul(a, b));
    case 4: return b;
    case 5: return flux_matmul(flux_eval(flux_randn(n, 5)), flux_eval(flux_randn(5, m)));
    case 6: return other ? other : a;
    case 7: return a;
    default: return other ? a : flux_matmul(flux_eval(flux_randn(n, 5)), flux_eval(flux_randn(5, m)));
    }
}
static flux_tensor *adam_number(double v, int64_t n) { return dice(12) ? flux__number(v) : dice(2) ? flux_eval(flux_full(v, n, 1)) : flux_eval(flux_full(v, 1)); }
/* The tensor, looked at now with this likelihood, which takes nothing from the dice of the others. */
static flux_tensor *adam_looked(flux_tensor *y, int look, uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (int)(*state >> 33) % 100 < look ? flux_eval(y) : y;
}
/* The tensors that are wanted; look: how likely a step is looked at as soon as it is there. */
static int adam_step(uint64_t seed, int look, flux_tensor **want) {
    dice_state = seed, flux_seed(seed);
    const int64_t n = dice(2) ? 1 + dice(40) : 41 + dice(260), m = n > 40 ? 1 + dice(100) : dice(4) ? 1 + dice(60) : 400;
    uint64_t looks = seed;
#define STEP(y) adam_looked(y, look, &looks)
    flux_tensor *g = STEP(adam_operand(n, m, NULL)), *old_m = STEP(adam_operand(n, m, g)), *old_v = STEP(flux_abs(adam_operand(n, m, old_m)));
    flux_tensor *w = STEP(adam_operand(n, m, old_m)), *b1 = adam_number(0.1, n), *b2 = adam_number(0.01, n);
    if (dice(2)) old_v = STEP(flux_eval(flux_rand(n, m)));
    flux_tensor *squared = STEP(dice(15) ? flux_square(g) : flux_mul(g, old_m));
    flux_tensor *new_m = STEP(dice(20) ? flux__lerp(old_m, g, b1) : flux_add(old_m, g)), *new_v = STEP(flux__lerp(old_v, squared, b2));
    flux_tensor *root = STEP(flux_sqrt(flux_abs(new_v))), *plain = STEP(flux_sqrt(new_v));
    if (dice(10)) root = plain;
    flux_tensor *sum = STEP(flux_add(root, adam_number(1e-3, n))), *d = STEP(dice(15) ? flux_div(new_m, sum) : flux_div(g, sum));
    flux_tensor *to = STEP(dice(10) ? flux__fma(d, adam_number(-0.05, n), w) : flux_sub(w, d));
    flux_tensor *const all[] = { to, d, new_m, new_v, sum, root, squared, g };
    int k = 0;
    for (int i = 0; i < 8; i++)
        if (dice(10) < (i == 0 ? 8 : i < 4 ? 5 : 1)) {
            flux_tensor *y = all[i];
            if (dice(4) == 0) want[k++] = y;
            switch (dice(8)) {
            case 0: y = STEP(flux_to_dtype(y, dice(2) ? FLUX_F16 : FLUX_BF16)); break;
            case 1: y = STEP(flux_tanh(y)); break;
            case 2: y = STEP(flux_sum(y, dice(2))); break;
            case 3: y = STEP(flux_mul(y, all[dice(8)])); break;
            default: break;
            }
            want[k++] = y;
        }
    if (!k) want[k++] = to;
    return k;
#undef STEP
}
TEST(adams_step_in_any_company) {
    static char was[20][4 * 300 * 100];
    for (uint64_t seed = 1; seed <= (test_device.backend ? 20 : 1500); seed++) FLUX_SCOPE {
        flux_tensor *want[20], *again[20];
        const int n = adam_step(seed, 100, want), looks[] = { 0, 0, 30 };
        for (int i = 0; i < n; i++) CHECK(flux_read(want[i], was[i], (size_t)flux_len(want[i]) * flux_dtype_size(flux_dtype_of(want[i]))) == 0);
        for (int way = 0; way < 3; way++) {
            CHECK(adam_step(seed, looks[way], again) == n);
            if (way) flux_eval_all(n, again);
            for (int i = 0; i < n; i++) {
                const flux_dtype t = flux_dtype_of(want[i]);
                const size_t bytes = (size_t)flux_len(want[i]) * flux_dtype_size(t);
                const char *now = flux_len(again[i]) == flux_len(want[i]) && flux_dtype_of(again[i]) == t ? (const char *)flux_data(flux_cpu(again[i])) : NULL;
                const int64_t other = now ? first_other(was[i], now, bytes, t) : 0;
                if (other >= 0) fprintf(stderr, "step %d, way %d: tensor %d of %d differs at %d\n", (int)seed, way, i, n, (int)other);
                CHECK(other < 0);
            }
        }
    }
}

/* ------------------------------------------------------------------ updates in the memory of what they replace */

/* Some steps from three matrices, of which the last are to take the first one's memory: by whom that is read, and when, is
   as it comes. Nobody but `kept` keeps what lies between. */
enum { REPLACED = 3, STEPS = 12 };
static void replacing(uint64_t seed, int look, flux_tensor **old, flux_tensor **fresh, flux_tensor **kept) {
    flux_tensor *x[REPLACED + STEPS];
    dice_state = seed, flux_seed(seed);
    const int64_t n = dice(3) ? 1 + dice(40) : 64, m = dice(3) ? n : 1 + dice(40);
    const int steps = 1 + dice(STEPS), kinds = dice(2) ? 5 : 17;
    FLUX_SCOPE {
        for (int i = 0; i < REPLACED; i++) {                     /* a weight is a leaf, or was computed */
            flux_tensor *y = flux_eval(dice(3) ? flux_randn(n, m) : flux_transpose(flux_eval(flux_randn(m, n))));
            if (dice(3)) y = flux_eval(flux_to(test_device, flux_from_with(flux_data(flux_cpu(y)), FLUX_F32, FLUX_SHAPE(n, m))));
            old[i] = x[i] = (flux_tensor *)flux_retain(y);
        }
        for (int i = REPLACED; i < REPLACED + steps; i++) {
            flux_tensor *a = x[dice(4) ? i - 1 - dice(i < 4 ? i : 4) : dice(i)], *b = x[dice(i)], *c = x[dice(3)], *y;
            switch (dice(kinds)) {
            case 0: y = flux_tanh(a); break;
            case 1: y = flux_mul(a, b); break;
            case 2: y = flux_add(flux_mul(a, 0.5), b); break;
            case 3: y = flux__fma(a, flux__number(0.5), c); break;
            case 4: y = dice(2) ? flux__lerp(a, b, c) : dice(3) ? flux_add(flux_mul(a, b), c) : flux_copy(b); break;
            case 5: y = n == m ? flux_add(flux_transpose(a), b) : flux_sub(a, b); break;
            case 6: y = flux_add(a, flux_sum(b, dice(2))); break;
            case 7: y = flux_mul(a, flux_softmax(b, dice(2))); break;
            case 8: y = flux_mul(flux_matmul(a, flux_matmul(flux_transpose(b), a)), 0.01); break;
            case 9: y = flux_add(flux_flip(a, dice(2)), b); break;
            case 10: y = n > 1 ? flux_cat(0, flux_slice(a, 0, 1, n), flux_slice(b, 0, 0, 1)) : flux_neg(a); break;
            case 11: y = flux_sub(a, flux_slice(b, 0, n - 1, n)); break;
            case 12: y = flux_to_dtype(flux_to_dtype(a, FLUX_F16), FLUX_F32); break;
            case 13: y = flux_add(flux_max(flux_abs(a)), b); break;
            case 14: case 15: y = n == m ? flux_transpose(dice(2) ? a : c) : flux_flip(a, 0); break;
            default: y = flux_add(flux_mul(a, b), x[dice(i)]); break;
            }
            x[i] = look ? flux_eval(y) : y;
        }
        for (int i = 0; i < REPLACED; i++) {
            const int at = REPLACED + steps - 1 - i;
            fresh[i] = (flux_tensor *)flux_retain(at >= REPLACED ? x[at] : flux_exp(x[at]));
        }
        *kept = dice(2) ? (flux_tensor *)flux_retain(x[REPLACED + dice(steps)]) : NULL;
    }
}
/* A buffer says of whom it is, for messages about memory. */
static bool is_labelled(const flux_tensor *x) {
    return FLUX__IS_VIEW(x) || flux__buffer_labelled(x->buf, x, (size_t)(flux__size(x) * (int64_t)flux__dtypes[x->dtype].size));
}
TEST(updates_in_place) {
    int taken = 0;
    for (uint64_t seed = 1; seed <= (test_device.backend ? 20 : 2000); seed++) {
        flux_tensor *old[REPLACED], *fresh[REPLACED], *old2[REPLACED], *fresh2[REPLACED], *kept, *kept2;
        int owners[REPLACED] = { 1, 1, 1 }, n = 1 + (int)seed % REPLACED;
        replacing(seed, 1, old, fresh, &kept), flux_eval(fresh[REPLACED - 1]);
        replacing(seed, 0, old2, fresh2, &kept2);
        if (seed % 5 == 0) n = REPLACED, owners[seed / 5 % REPLACED] = 0;      /* whoever it is keeps it */
        const flux__buffer *const memory[REPLACED] = { old2[0]->buf, old2[1]->buf, old2[2]->buf };
        CHECK(flux__update_eval(NULL, n, old2, fresh2, owners, 0, NULL) == 0);
        for (int i = 0; i <= n; i++) {
            flux_tensor *a = i < n ? fresh[i] : kept, *b = i < n ? fresh2[i] : kept2;
            if (!a) continue;
            const size_t bytes = (size_t)flux_len(a) * 4;
            const bool same = flux_data(flux_cpu(b)) && first_other((const char *)flux_data(flux_cpu(a)), (const char *)flux_data(flux_cpu(b)), bytes, FLUX_F32) < 0;
            if (!same) fprintf(stderr, "seed %d: tensor %d of %d\n", (int)seed, i, n);
            CHECK(same && is_labelled(b));
        }
        for (int i = 0; i < REPLACED; i++) {
            const bool gone = !old2[i]->buf && !FLUX__IS_VIEW(old2[i]), whole = !gone && first_other((const char *)flux_data(flux_cpu(old[i])), (const char *)flux_data(flux_cpu(old2[i])), (size_t)flux_len(old[i]) * 4, FLUX_F32) < 0;
            taken += gone;
            CHECK(gone ? i < n && owners[i] && (old2[i]->flags & FLUX__CONSUMED) && fresh2[i]->buf == memory[i] : whole);
        }
        for (int i = 0; i < REPLACED; i++) flux_release(old[i]), flux_release(old2[i]), flux_release(fresh[i]), flux_release(fresh2[i]);
        flux_release(kept), flux_release(kept2);
    }
    CHECK(flux__eager() || taken > (test_device.backend ? 2 : 200));
}

/* The same of steps by the gradients of a loss, which some of the matrices may have no part in; lazily, with `look` at once. */
static flux_grads *by_gradients(uint64_t seed, int look, flux_tensor **old, flux_tensor **fresh, flux_tensor **kept) {
    flux_tensor *last[REPLACED], *loss = NULL;
    replacing(seed, look, old, last, kept);
    const int parts = 1 + (int)seed % REPLACED;
    for (int i = 0; i < parts; i++) {
        flux_tensor *y = flux_sum(flux_sin(last[i]));
        loss = loss ? flux_add(loss, y) : y;
    }
    flux_grads *g = flux_gradient(loss, flux_variables(&old[2], &old[0], &old[1]));       /* the variables hold them, too */
    for (int i = 0; i < REPLACED; i++) {
        flux_tensor *d = flux_grad(g, old[i]), *y = d ? flux_sub(old[i], flux_mul(d, 0.5)) : flux_mul(old[i], 0.5);
        fresh[i] = (flux_tensor *)flux_retain(look ? flux_eval(y) : y);
        flux_release(last[i]);
    }
    return (flux_grads *)flux_retain(g);
}
/* The walk behind an update finds each reference but those that the program holds: to the loss, the new tensors, and the matrix
   that is kept. */
static void check_history(flux_grads *g, flux_tensor **old, flux_tensor **fresh, const int *owners) {
    flux__history h;
    REQUIRE(flux__history_find(&h, g, REPLACED, old, fresh, owners, 0, NULL));
    for (int k = 0; k < h.walk.n; k++) {
        const flux_tensor *x = h.walk.node[k];
        int held = x == g->loss;
        for (int i = 0; i < REPLACED; i++) held += (x == fresh[i]) + (x == old[i] && owners[i] < 2);
        if (!CHECK(FLUX__REFS(x->head.refs) == h.walk.refs[k] + held))
            fprintf(stderr, "node %d of %d: %d references, %d found, %d held\n", k, h.walk.n, (int)FLUX__REFS(x->head.refs), h.walk.refs[k], held);
    }
    flux__history_free(&h);
}
TEST(updates_by_gradients_in_place) {
    int taken = 0, left = 0;
    for (uint64_t seed = 1; seed <= (test_device.backend ? 12 : 600); seed++) {
        flux_tensor *old[REPLACED], *fresh[REPLACED], *old2[REPLACED], *fresh2[REPLACED], *kept, *kept2;
        int owners[REPLACED] = { 2, 2, 2 };
        flux_grads *g = NULL, *g2 = NULL;
        FLUX_SCOPE g = by_gradients(seed, 1, old, fresh, &kept);
        FLUX_SCOPE g2 = by_gradients(seed, 0, old2, fresh2, &kept2);
        if (seed % 2) owners[seed / 2 % REPLACED] = 1;                         /* whoever it is keeps it */
        const flux__buffer *const memory[REPLACED] = { old2[0]->buf, old2[1]->buf, old2[2]->buf };
        if (!kept2) check_history(g2, old2, fresh2, owners);
        CHECK(flux__update_eval(g2, REPLACED, old2, fresh2, owners, 0, NULL) == 0);
        for (int i = 0; i <= REPLACED; i++) {
            flux_tensor *a = i < REPLACED ? fresh[i] : kept, *b = i < REPLACED ? fresh2[i] : kept2;
            if (!a) continue;
            const char *p = (const char *)flux_data(flux_cpu(a)), *q = (const char *)flux_data(flux_cpu(b));
            if (!CHECK(p && q && first_other(p, q, (size_t)flux_len(a) * 4, FLUX_F32) < 0))
                fprintf(stderr, "seed %d: tensor %d\n", (int)seed, i);
        }
        for (int i = 0; i < REPLACED; i++) {
            const bool gone = !old2[i]->buf && !FLUX__IS_VIEW(old2[i]);
            taken += gone, left += !gone;
            CHECK(gone ? owners[i] == 2 && fresh2[i]->buf == memory[i]
                       : first_other((const char *)flux_data(flux_cpu(old[i])), (const char *)flux_data(flux_cpu(old2[i])), (size_t)flux_len(old[i]) * 4, FLUX_F32) < 0);
        }
        flux_release(g), flux_release(g2);
        for (int i = 0; i < REPLACED; i++) flux_release(old[i]), flux_release(old2[i]), flux_release(fresh[i]), flux_release(fresh2[i]);
        flux_release(kept), flux_release(kept2);
    }
    CHECK(flux__eager() || (taken > (test_device.backend ? 2 : 100) && left > taken / 10));
}

/* Processors with AVX2 and those with AVX-512 give the same bits. */
TEST(instruction_sets_agree) {
    static const way ways[] = { { "as it is", 0, false, 2, 2, 0 }, { "with AVX2", 0, false, 2, 1, 0 } };
    ONLY_ON_CPU();
    if (flux__simd() < 2) SKIP("needs AVX-512");
    compare_ways(ways, 2, 100000, 200);
}

/* ------------------------------------------------------------------ products that share a matrix */

/* m x k matrices, the second one alternating with the first if `two`, by k x n ones; uses: products of each. turned: stored transposed;
   view: both begin within one tensor, and B is transposed; bare: nothing is computed of the products; sort: in the middle a kernel
   uses the memory in which the packed matrix lies. packed: how many products read it packed, which of too few or too large ones is 0. */
typedef struct sharing {
    const char *what;
    int64_t m, k, n;
    int uses;
    flux_dtype dtype;
    bool two, turned, view, bare, sort;
    int packed;
} sharing;
static const sharing sharings[] = {
    { "plain", 160, 128, 8, 16, FLUX_F32, false, false, false, false, false, 16 }, { "once less", 160, 128, 8, 15, FLUX_F32, false, false, false, false, false, 0 },
    { "bare", 160, 128, 8, 16, FLUX_F32, false, false, false, true, false, 16 },   { "odd rows", 171, 128, 5, 16, FLUX_F32, false, false, false, false, false, 16 },
    { "odd rows, bare", 171, 128, 5, 17, FLUX_F32, false, false, false, true, false, 17 },
    { "turned", 267, 600, 20, 16, FLUX_F32, false, true, false, false, false, 16 }, { "turned, f64", 90, 1100, 7, 16, FLUX_F64, false, true, false, true, false, 16 },
    { "two", 128, 128, 2, 16, FLUX_F32, true, false, false, false, false, 32 },    { "views", 131, 140, 13, 16, FLUX_F32, true, false, true, false, false, 32 },
    { "columns a page apart", 96, 1024, 12, 16, FLUX_F32, false, false, false, false, false, 16 },
    { "f64", 70, 520, 32, 16, FLUX_F64, false, false, false, false, false, 16 },   { "many columns", 160, 128, 33, 16, FLUX_F32, false, false, false, false, false, 0 },
    { "a vector", 160, 128, 1, 16, FLUX_F32, false, false, false, false, false, 16 },
    { "sorted", 160, 128, 8, 34, FLUX_F32, false, false, false, false, true, 34 }, { "sorted early", 160, 128, 8, 24, FLUX_F32, false, false, false, false, true, 0 },
    { "inner products", 171, 600, 3, 16, FLUX_F32, false, true, false, false, false, 0 },
    { "halves", 160, 128, 8, 16, FLUX_F16, false, false, false, false, false, 0 },
};

/* How many products of this thread's plans read a packed matrix; the plans are dropped. */
static int packed_products(void) {
    flux__thread *self = flux__self();
    int n = 0;
    for (int i = 0; self->plans && i < FLUX__BUCKETS; i++)
        for (const flux__plan *p = self->plans->bucket[i]; p; p = p->next)
            for (int k = 0; k < p->nkernel; k++)
                n += p->kernel[k].kind == FLUX__K_MATMUL && p->kernel[k].ready && ((const flux__cpu *)p->kernel[k].ready)->panels.used;
    if (self->plans) flux__plans_free(self->plans), self->plans = NULL;
    return n;
}
/* Both matrices; as views they lie in one tensor, one row apart. */
static void shared_matrices(const sharing *s, flux_tensor **a) {
    for (int i = 0; i < 2; i++) {
        flux_tensor *x = flux_randn_with(s->turned ? FLUX_SHAPE(s->k, s->m) : FLUX_SHAPE(s->m + s->view, s->k), FLUX_F32);
        x = flux_eval(flux_to_dtype(x, s->dtype));
        a[i] = s->turned ? flux_transpose(x) : x;
    }
    for (int i = 1; s->view && i >= 0; i--) a[i] = flux_slice(a[0], 0, 1 - i, s->m + 1 - i);
}

/* Makes the products, the first ones of each matrix in turn, and copies their numbers behind each other; `alone`: each by itself. */
static int64_t share(const sharing *s, bool alone, char *to) {
    flux_tensor *y[70], *a[2];
    const int64_t bytes = s->m * s->n * (int64_t)flux_dtype_size(s->dtype);
    int n = 0;
    flux_seed(7);
    shared_matrices(s, a);
    flux_tensor *x = flux_randn_with(s->view ? FLUX_SHAPE(s->n * s->uses, s->k) : FLUX_SHAPE(s->k, s->n * s->uses), FLUX_F32);
    x = flux_eval(flux_to_dtype(x, s->dtype));
    if (s->view) x = flux_transpose(x);
    for (int i = 0; i < s->uses * (1 + s->two); i++, n++) {
        const int64_t at = i / (1 + s->two) * s->n;
        flux_tensor *b = flux_slice(x, 1, at, at + s->n);
        if (s->sort && i == s->uses / 2) b = flux_reshape_with(flux_sort(flux_reshape(b, -1)), flux_shape_of(b));
        y[n] = flux_matmul(a[i % (1 + s->two)], b);
        if (!s->bare) y[n] = flux_add(flux_tanh(y[n]), 1.0);
        if (alone) flux_eval(y[n]);
    }
    CHECK(flux_eval_all(n, y) == 0);
    for (int i = 0; i < n; i++) CHECK(flux_read(y[i], to + i * bytes, (size_t)bytes) == 0);
    return bytes * n;
}

/* Where memory runs out, at whichever allocation, it is told, or the numbers are those that they are. */
TEST(memory_runs_out_for_a_shared_matrix) {
    ONLY_ON_CPU();
    const int64_t least = flux__shared_least;
    const sharing *s = &sharings[4];      /* odd rows, bare: a scratch block in each product */
    flux_tensor *y[16], *a[2], *x;
    flux__shared_least = 64 << 10;
    shared_matrices(s, a);
    x = flux_eval(flux_randn(s->k, s->n * 16));
    char *want = (char *)malloc(1 << 20), *got = (char *)malloc(1 << 20);
    const int64_t bytes = s->m * s->n * 4;
    bool done = false;
    int failures = 0;
    for (int i = 0; i < 16; i++) CHECK(flux_read(flux_matmul(a[0], flux_slice(x, 1, i * s->n, (i + 1) * s->n)), want + i * bytes, (size_t)bytes) == 0);
    flux_on_error(test_silent, NULL);
    for (long n = 0; n < 2000 && !done; n++) {
        flux_scope_open();
        packed_products();
        flux_mem_trim(test_device);
        flux__threads_stop();             /* nor is there any memory kept from before */
        bool made = true;
        for (int i = 0; i < 16; i++) made = made && (y[i] = flux_matmul(a[0], flux_slice(x, 1, i * s->n, (i + 1) * s->n)));
        flux__test_memory(n);
        done = made && flux_eval_all(16, y) == 0;
        flux__test_memory(-1);
        failures += !done;
        CHECK(made && done == !flux_failed());
        for (int i = 0; i < 16 && done; i++) CHECK(flux_read(y[i], got + i * bytes, (size_t)bytes) == 0);
        CHECK(!done || !memcmp(got, want, (size_t)(16 * bytes)));
        flux_clear();
        flux_scope_close();
    }
    flux_on_error(NULL, NULL);
    CHECK(done && failures > 20);
    CHECK(flux__eager() || !FLUX__SHARES || packed_products() == 16);
    flux__shared_least = least;
    free(want);
    free(got);
}

/* A matrix that many products read is packed once for all of them: each has the bits that it has alone. */
TEST(products_that_share_a_matrix_are_what_each_is_alone) {
    static const way ways[] = { { "one thread", 0, false, 1, 2, 0 }, { "two, AVX2", 0, false, 2, 1, 0 }, { "three, plain", 0, false, 3, 0, 0 } };
    ONLY_ON_CPU();
    const int simd = flux__simd();
    const int64_t least = flux__shared_least;
    flux__shared_least = 64 << 10;
    char *got = (char *)malloc(1 << 21), *want = (char *)malloc(1 << 21);
    for (size_t i = 0; i < sizeof sharings / sizeof *sharings; i++)
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) FLUX_SCOPE {
            const sharing *s = &sharings[i];
            char what[120];
            set_way(&ways[w], simd);
            const int64_t bytes = share(s, true, want);
            packed_products();
            CHECK(share(s, false, got) == bytes && bytes <= 1 << 21);
            const int packed = packed_products();
            const bool same = !memcmp(got, want, (size_t)bytes);
            snprintf(what, sizeof what, "%s, %s: %s, %d packed", s->what, ways[w].name, same ? "the same" : "others", packed);
            CHECK_STR(strrchr(what, ':') + 2, same && packed == (flux__eager() || !FLUX__SHARES ? 0 : s->packed) ? strrchr(what, ':') + 2 : what);
        }
    const way last = { "", 0, false, 0, simd, 0 };
    set_way(&last, simd);
    flux__shared_least = least;
    free(got);
    free(want);
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
                flux_tensor *x = flux_eval(flux_full_with(FLUX_SHAPE(n), numbers[i] > 60000 && t == 2 ? 777 : numbers[i], types[t]));
                CHECK(flux_item(flux_var(x)) == 0);
                if (n < 5000) CHECK(flux_at(flux_var(flux_eval(flux_broadcast_to(flux_reshape(x, 1, n), 5, n)), 1), 4, 0) == 0);
            }
    flux_tensor *x = flux_add(flux_to_dtype(flux_randn(1000), FLUX_F64), 3), *v = flux_var(x);
    CHECK_NEAR(flux_item(v), flux_item(flux_mean(flux_square(flux_sub(x, flux_mean(x))))), 1e-13);
    CHECK_NEAR(flux_item(flux_var(flux_to_dtype(x, FLUX_F32))), flux_item(v), 1e-6);
}

/* The means of across x down windows, on 3 channels of 2 images. */
static void check_windows(int wide, int high, int stride, int64_t across, int64_t down) {
    const int64_t w = wide + (across - 1) * stride, h = high + (down - 1) * stride, all = across * down * 6;
    flux_tensor *x = flux_eval(flux_rand(w, h, 3, 2)), *part[30];
    for (int r = 0, n = 0; r < high; r++)
        for (int c = 0; c < wide; c++)
            part[n++] = flux_slice_step(flux_slice_step(x, 0, c, c + (across - 1) * stride + 1, stride), 1, r, r + (down - 1) * stride + 1, stride);
    flux_tensor *rows = flux_eval(flux_stack_with(0, wide * high, part)),
                *want = flux_eval(flux_div(flux_sum(rows, 0), (double)(wide * high))),
                *got = flux_eval(flux_meanpool(x, FLUX_SHAPE(wide, high), .stride = FLUX_SHAPE(stride)));
    CHECK(flux_len(got) == all && flux_len(want) == all);
    CHECK(flux_data(want) && flux_data(got) && !memcmp(flux_data(want), flux_data(got), 4 * (size_t)all));
}

/* Windows that overlap are read where they lie, their sums joined side by side; those of a copy, row by row. Of many windows, few
   elements fit a block at a time. */
TEST(windows_in_place_and_copied_have_the_same_sums) {
    for (int wide = 2; wide <= 6; wide++)
        for (int high = 2; high <= 5; high++)
            for (int stride = 1; stride <= 3; stride++) FLUX_SCOPE {
                if (stride == wide && stride == high) continue;     /* these tile: no windows */
                check_windows(wide, high, stride, 11, 5);
                check_windows(wide, high, stride, 66, 10);
            }
}

static bool same_elements(flux_tensor *a, flux_tensor *b) {
    const size_t bytes = (size_t)flux_len(a) * flux_dtype_size(flux_dtype_of(a));
    return flux_len(a) == flux_len(b) && flux_data(a) && flux_data(b) && !memcmp(flux_data(a), flux_data(b), bytes);
}
/* A product reads the elements of a copy where they came from, unless it was looked at: rows of 32 neighbours without packing
   them. The same of a convolution's windows, which are stored where a graph is computed in parts. */
TEST(a_product_is_the_same_of_a_copy_that_is_stored) {
    static const int shapes[][3] = { { 2, 4, 18 }, { 5, 16, 3 }, { 9, 88, 1 }, { 3, 100, 60 }, { 11, 90, 12 }, { 25, 40, 33 } };
    for (int i = 0; i < 12; i++) FLUX_SCOPE {
        const int *k = shapes[i / 2], wide = i / 2 % 2 ? 64 : 32;
        const flux_dtype t = i % 2 ? FLUX_F64 : FLUX_F32;
        flux_tensor *x = flux_eval(flux_randn_with(FLUX_SHAPE(wide, k[1], k[0]), t)), *w = flux_eval(flux_randn_with(FLUX_SHAPE(k[0] * k[1], k[2]), t));
        flux_tensor *read = flux_eval(flux_matmul(flux_reshape(flux_permute(x, 0, 2, 1), wide, k[0] * k[1]), w));
        flux_tensor *stored = flux_eval(flux_reshape(flux_permute(x, 0, 2, 1), wide, k[0] * k[1]));
        CHECK(same_elements(read, flux_matmul(stored, w)));
        flux_tensor *image = flux_eval(flux_randn_with(FLUX_SHAPE(wide, 6, k[1], 3), t));
        flux_tensor *weight = flux_eval(flux_randn_with(FLUX_SHAPE(5, 2, k[1], k[2] % 16), t));
        flux_tensor *whole = flux_eval(flux_conv(image, weight, .pad = FLUX_SHAPE(2, 0)));
        flux__part_nodes = 1;
        flux_tensor *parts = flux_eval(flux_conv(image, weight, .pad = FLUX_SHAPE(2, 0)));
        flux__part_nodes = 4096;
        CHECK(same_elements(whole, parts));
    }
}

/* A tensor of these three dims, each of several of a view whose dims lie in any order in memory. */
static flux_tensor *of_many_dims(const int *parts, const int64_t *part, flux_dtype t) {
    int64_t whole[3] = { 1, 1, 1 };
    flux_shape stored = { 0, { 0 } }, order = stored;
    for (int d = 0; d < 3; d++)
        for (int i = 0; i < parts[d]; i++) whole[d] *= part[order.ndim], order.dim[order.ndim] = order.ndim, order.ndim++;
    for (int i = order.ndim - 1; i > 0; i--) {
        const int j = dice(3) ? (int)dice(i + 1) : i;
        const int64_t was = order.dim[i];
        order.dim[i] = order.dim[j], order.dim[j] = was;
    }
    stored.ndim = order.ndim;
    for (int i = 0; i < order.ndim; i++) stored.dim[order.dim[i]] = part[i];
    return flux_reshape(flux_permute_with(flux_eval(flux_randn_with(stored, t)), order), whole[0], whole[1], whole[2]);
}
/* a b in float64, by sums of products of their elements. */
static flux_tensor *plain_product(flux_tensor *a, flux_tensor *b) {
    const int64_t m = flux_dim(a, 0), k = flux_dim(a, 1), n = flux_dim(b, 1), batch = flux_dim(a, 2);
    a = flux_reshape(flux_eval(flux_permute(flux_eval(flux_to_dtype(a, FLUX_F64)), 1, 0, 2)), k, m, 1, batch);
    b = flux_reshape(flux_eval(flux_to_dtype(b, FLUX_F64)), k, 1, n, batch);
    return flux_reshape(flux_sum(flux_mul(a, b), 0), m, n, batch);
}
/* Products of such, with few columns or many, which read a copy that is never made: as of the copy that is stored, to the bit. */
TEST(products_of_views_of_many_dims) {
    const int n = test_device.backend ? 60 : 1500;
    for (int i = 0; i < n; i++) FLUX_SCOPE {
        const flux_dtype t = dice(3) ? FLUX_F32 : dice(2) ? FLUX_BF16 : FLUX_F64;
        const int parts[2][3] = { { 1 + (int)dice(3), 1 + (int)dice(2), 1 + (int)dice(3) }, { 1, parts[0][1], parts[0][2] } };
        int64_t part[2][8];
        for (int k = 0; k < 8; k++) part[0][k] = 1 + (int64_t)dice(5);
        part[1][0] = dice(2) ? 1 : 1 + (int64_t)dice(6);
        for (int k = parts[0][0]; k < 8; k++) part[1][k - parts[0][0] + 1] = part[0][k];
        flux_tensor *a = of_many_dims(parts[0], part[0], t), *w = of_many_dims(parts[1], part[1], t), *b = flux_permute(w, 1, 0, 2);
        if (dice(2)) b = flux_eval(b);
        flux_tensor *read = flux_eval(flux_matmul(a, b)), *far = flux_sub(flux_to_dtype(read, FLUX_F64), plain_product(a, b));
        flux_eval(a), flux_eval(w);
        if (!CHECK(same_elements(read, flux_matmul(a, b)) && flux_item(flux_max(flux_abs(far))) < (t == FLUX_BF16 ? 0.3 : 2e-5)))
            fprintf(stderr, "    product %d\n", i);
    }
}

/* Matrices of half formats, one or several, by one column and few: as they are in f32, rounded. */
TEST(half_formats_by_few_columns_are_those_of_float32) {
    ONLY_ON_CPU();
    flux_seed(10), dice_state = 10;
    for (int i = 0; i < 200; i++) FLUX_SCOPE {
        const flux_dtype t = dice(2) ? FLUX_BF16 : FLUX_F16;
        const int64_t m = 16 + (int64_t)dice(dice(4) ? 200 : 9000), k = 4096 / m + 1 + (int64_t)dice(50), batch = 1 + (int64_t)dice(4), n = dice(3) ? 1 : t == FLUX_F16 ? 1 + (int64_t)dice(4) : 1;
        flux_tensor *a = flux_eval(flux_to_dtype(flux_randn(m, k, batch), t)), *b = flux_eval(flux_to_dtype(flux_randn(k, n, dice(2) ? batch : 1), t));
        flux_threads(1 + (int)dice(3));
        flux_tensor *y = flux_eval(flux_matmul(a, b)), *z = flux_eval(flux_matmul(flux_eval(flux_to_dtype(a, FLUX_F32)), flux_eval(flux_to_dtype(b, FLUX_F32))));
        if (!CHECK(same_elements(y, flux_eval(flux_to_dtype(z, t))))) fprintf(stderr, "    %d x %d x %d, %d\n", (int)m, (int)k, (int)n, (int)batch);
    }
    flux_threads(0);
}

/* ------------------------------------------------------------------ padding */

/* A random image, perhaps a view of one in another order, or a part of a larger one. */
static flux_tensor *some_image(flux_shape s, flux_dtype t) {
    const int kind = (int)dice(4);
    flux_shape order = { 0, { 0 } }, stored = s;
    if (kind == 1) {                                       /* channels first, or rows and columns exchanged */
        const bool rows = s.ndim > 3 && dice(2);
        order = s;
        for (int i = 0; i < s.ndim; i++) order.dim[i] = i;
        const int a = rows ? 0 : s.ndim - 2, b = rows ? 1 : 0;
        order.dim[a] = b, order.dim[b] = a;
        stored.dim[a] = s.dim[b], stored.dim[b] = s.dim[a];
    }
    for (int i = 0; i < s.ndim && kind == 2; i++) stored.dim[i] += (int64_t)dice(3);
    flux_tensor *x = flux_eval(flux_to_dtype(flux_randn_with(stored, FLUX_F32), t));
    if (kind == 1) return flux_permute_with(x, order);
    for (int i = 0; i < s.ndim && kind == 2; i++) x = flux_slice(x, i, stored.dim[i] - s.dim[i], stored.dim[i]);
    return x;
}

/* Convolutions and their gradients by weights that pad their images themselves, row by row, a sample at a time or all at once, are
   those of images that were padded before, to the bit. */
TEST(convolutions_pad_to_the_last_bit) {
    static const flux_dtype types[] = { FLUX_F32, FLUX_F32, FLUX_BF16, FLUX_BF16, FLUX_F16, FLUX_F64 };
    const int n = test_device.backend ? 9 : 600;
    flux_seed(9), dice_state = 9;
    for (int i = 0; i < n; i++) FLUX_SCOPE {
        const flux_dtype t = types[dice(6)];
        const bool many = dice(2), square = dice(2), flip = dice(2), depthwise = !dice(5);
        const int nd = dice(5) ? 2 : 1 + 2 * (int)dice(2), groups = depthwise ? 2 + (int)dice(9) : dice(3) ? 1 : 1 + (int)dice(4);
        const int64_t most = many && nd < 3 ? 40 : 6, in = depthwise ? 1 : 1 + (int64_t)dice(most), out = depthwise ? 1 : 1 + (int64_t)dice(most);
        flux_shape image = { nd + 2, { 0 } }, w = { nd + 2, { 0 } }, lo = { nd, { 0 } }, hi = { nd, { 0 } }, both = { 2 * nd, { 0 } },
                   by = { nd, { 0 } }, dilation = { nd, { 0 } };
        for (int d = 0; d < nd; d++) {
            w.dim[d] = square && d ? w.dim[0] : 1 + (int64_t)dice(4), by.dim[d] = square && d ? by.dim[0] : 1 + (int64_t)dice(3) / 2;
            dilation.dim[d] = dice(4) ? 1 : 2;
            /* where a window lies in the padding altogether gradients go another way */
            const int reach = (int)((w.dim[d] - 1) * dilation.dim[d]) + 1;
            both.dim[2 * d] = lo.dim[d] = (int64_t)dice(reach), both.dim[2 * d + 1] = hi.dim[d] = (int64_t)dice(reach);
            if (depthwise && many) by.dim[d] = 1, both.dim[2 * d + 1] = hi.dim[d] = reach - 1 - lo.dim[d];      /* results as many as elements */
            image.dim[d] = 1 + (w.dim[d] - 1) * dilation.dim[d] + (int64_t)dice(nd > 2 ? 6 : 30);
        }
        image.dim[nd] = in * groups, image.dim[nd + 1] = 1 + (int64_t)dice(5), w.dim[nd] = in, w.dim[nd + 1] = out * groups;
        flux_tensor *x = some_image(image, t), *weight = flux_eval(flux_to_dtype(flux_randn_with(w, FLUX_F32), t)), *y[2], *g[2];
        const bool later = dice(2);                        /* the image is computed in the same plan, and the result may lie where it was */
        for (int k = 0; k < 2; k++) {
            flux_tensor *from = later ? flux_neg(x) : x;
            if (k) from = flux_eval(flux_pad_by(from, 0, lo, hi));
            const flux_conv_opts o = { .x = from, .weight = weight, .stride = by, .dilation = dilation, .groups = groups, .marked = true,
                                       .pad = k ? FLUX_SHAPE(0) : both };
            flux_threads(test_device.backend ? 0 : 1 + (int)dice(3));
            y[k] = flip ? flux_conv_with(o) : flux_crosscor_with(o);
            g[k] = flux_eval(flux_grad(flux_gradient(flux_sum(flux_square(flux_to_dtype(y[k], FLUX_F32))), weight), weight));
            flux_conv_opts again = o;
            FLUX_NOGRAD {
                const int h = flux__hide();
                if (later && !k) again.x = flux_neg(x);    /* which no one else reads */
                y[k] = flux__reveal(h, flux_relu(flip ? flux_conv_with(again) : flux_crosscor_with(again)));
            }
            flux_eval(y[k]);
        }
        if (!CHECK(same_elements(y[0], y[1]) && same_elements(g[0], g[1])))
            fprintf(stderr, "    convolution %d: %s of %s\n", i, flux__dtypes[t].name, flux__describe(x).s);
    }
    flux_threads(0);
}

/* ------------------------------------------------------------------ plans */

/* What random graphs are planned as is what it was, by count: a fusion that is lost shows in no value. Where a change of the
   schedule makes these fewer, the numbers here are brought down with it. */
TEST(plans_of_random_graphs_are_no_worse) {
    ONLY_ON_CPU();
    flux__thread *self = flux__self();
    long kernels = 0, lines = 0, operands = 0, outs = 0;
    if (flux__eager() || flux__simd() < 1 || !self) SKIP("counted for plans of whole graphs, with AVX2");
    for (uint64_t seed = 1; seed <= 400; seed++) FLUX_SCOPE {
        built g;
        if (self->plans) flux__plans_free(self->plans), self->plans = NULL;
        CHECK(build(&g, seed, 0, 0) && flux_eval_all(g.n - LEAVES < 3 ? g.n - LEAVES : 3, g.x + (g.n - LEAVES < 3 ? LEAVES : g.n - 3)) == 0);
        for (int i = 0; self->plans && i < FLUX__BUCKETS; i++)
            for (const flux__plan *p = self->plans->bucket[i]; p; p = p->next)
                for (int k = 0; k < p->nkernel; k++, kernels++)
                    lines += p->kernel[k].nvalue, operands += p->kernel[k].noperand, outs += p->kernel[k].nouts;
        flux_clear();
    }
    char what[200];
    snprintf(what, sizeof what, "%ld kernels, %ld lines, %ld operands, %ld results", kernels, lines, operands, outs);
    CHECK_STR(what, "2373 kernels, 13063 lines, 3553 operands, 3203 results");
}

/* ------------------------------------------------------------------ seeds */

/* A sum that each element's value and place show in. */
static double digest(flux_tensor *x) {
    double v = 0;
    flux_tensor *d = flux_cpu(flux_to_dtype(x, FLUX_F64));
    const double *p = (const double *)flux_data(d);
    for (int64_t i = 0; p && i < flux_len(d); i++) v += p[i] * cos(1 + (double)i);
    return p ? v : (double)NAN;
}
static flux_tensor *first_epoch(flux_loader *l) {
    flux_tensor *all = NULL;
    flux_each (b, l) {
        flux_tensor *x = flux_to_dtype(b.x, FLUX_F64);
        if (b.index == 0) all = flux_keep(x);
        else all = flux_keep(flux_vcat(all, x));
    }
    return all;
}
static flux_tensor *dropped(flux_layer *m) {
    flux_trainmode(m, true);
    return flux_call(m, flux_ones(40));
}

/* A seed's numbers are those of the last version: an experiment is repeated after an update. Where this fails by intention,
   the release says so. */
TEST(a_seed_gives_the_numbers_it_gave) {
    flux_tensor *numbers = flux_arange(0, 40, 1), *labels = flux_to_dtype(flux_floor(flux_sqrt(numbers)), FLUX_I64),
                *weights = flux_div(flux_add(numbers, 1), 40);
#define GIVES(value, ...) do {                                                                       \
        flux_seed(17);                                                                               \
        CHECK_NEAR(digest(__VA_ARGS__), value, 2e-5);                                                \
    } while (0)
    GIVES(-1.23759093, flux_rand(41));
    GIVES(-1.23759084, flux_rand_with(FLUX_SHAPE(41), FLUX_F64));
    GIVES(-1.23980047, flux_rand_with(FLUX_SHAPE(41), FLUX_BF16));
    GIVES(5.07637933, flux_randn(41));
    GIVES(-3.42231045, flux_randn_with(FLUX_SHAPE(41), FLUX_F64));
    GIVES(-1238.19349, flux_randint(-3, 1000, 41));
    GIVES(-1.83842777, flux_randperm(41));
    GIVES(1.65143953, flux_bernoulli(weights));
    GIVES(-8.23887527, flux_categorical(flux_reshape(numbers, 8, 5)));
    GIVES(0.528178803, flux_rrelu(flux_neg(numbers)));
    GIVES(-0.941750674, dropped(flux_dropout(0.4)));
    GIVES(-1.2074256, dropped(flux_alphadropout(0.4)));
    GIVES(-1.00883984, flux_glorot_uniform(FLUX_SHAPE(6, 7)));
    GIVES(2.08837609, flux_glorot_normal(FLUX_SHAPE(6, 7)));
    GIVES(-1.37481685, flux_kaiming_uniform(FLUX_SHAPE(6, 7)));
    GIVES(2.8459769, flux_kaiming_normal(FLUX_SHAPE(6, 7)));
    GIVES(-0.375516165, flux_lecun_normal(FLUX_SHAPE(6, 7)));
    GIVES(-1.20440855, flux_truncated_normal(FLUX_SHAPE(6, 7)));
    GIVES(0.176016261, flux_orthogonal(FLUX_SHAPE(6, 7)));
    GIVES(0.0831541683, flux_orthogonal(FLUX_SHAPE(6, 6)));
    GIVES(1.7118553, flux_orthogonal(FLUX_SHAPE(7, 6)));
    GIVES(-0.00473665981, flux_init("sparse", FLUX_SHAPE(6, 7), .sparsity = 0.4));
    GIVES(-32.8251469, flux_shuffleobs(numbers, 5));
    GIVES(78.1946201, flux_oversample(numbers, labels, 5));
    GIVES(36.8865424, flux_undersample(numbers, labels, 5));
    GIVES(-15.0142434, first_epoch(flux_dataloader(numbers, .batchsize = 3, .shuffle = true)));
    GIVES(30.1780452, first_epoch(flux_dataloader(numbers, .batchsize = 3, .weights = weights)));
    GIVES(31.8174334, first_epoch(flux_dataloader(numbers, .batchsize = 3, .shuffle = true, .rank = 1, .ranks = 2)));
#undef GIVES
}

/* So are the orders in which numbers are summed, which its last bits depend on: by shape and dims, and by nothing else. */
TEST(sums_are_in_the_order_they_were) {
    static const int64_t sizes[] = { 1, 2, 3, 4, 5, 9, 16, 33, 250, 1500, 100000 };
    enum { SIZES = sizeof sizes / sizeof *sizes };
    uint64_t hash = 0;
    for (int i = 0; i < SIZES * SIZES * SIZES; i++)
        for (unsigned reduced = 1; reduced < 8; reduced++) {
            const int64_t full[FLUX_MAX_DIMS] = { sizes[i % SIZES], sizes[i / SIZES % SIZES], sizes[i / SIZES / SIZES], 1, 1, 1, 1, 1 };
            const flux__join_order o = flux__order_of(full, reduced);
            const int64_t of[] = { o.outer, o.inner, o.chunk, o.slots, o.rows, o.parts };
            for (int k = 0; k < 6; k++) hash = (hash ^ (uint64_t)of[k]) * UINT64_C(0x100000001b3);
        }
    char what[40];
    snprintf(what, sizeof what, "%016llx", (unsigned long long)hash);
    CHECK_STR(what, "e03acebfb089859c");
}

/* ------------------------------------------------------------------ memory with an edge */

#if (defined(__unix__) || defined(__APPLE__)) && defined(MAP_ANONYMOUS)
/* Memory that ends, or begins, where nothing may be read: who reads past it ends the program. */
enum { EDGES = 8 };
static struct { char *map; size_t size; } edge[EDGES];
static int edges;
static flux_tensor *at_edge(flux_tensor *x, int where) {           /* 0: x itself, 1: at the end, 2: at the beginning */
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (size_t)flux_len(x) * flux_dtype_size(flux_dtype_of(x)), size = (bytes + page - 1) / page * page;
    if (where == 0 || edges == EDGES) return x;
    char *map = (char *)mmap(NULL, size + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == (char *)MAP_FAILED || mprotect(map, page, PROT_NONE) || mprotect(map + page + size, page, PROT_NONE)) return NULL;
    edge[edges].map = map, edge[edges++].size = size + 2 * page;
    char *p = map + page + (where == 1 ? size - bytes : 0);
    return flux_read(x, p, bytes) == 0 ? flux_borrow_with(p, flux_dtype_of(x), flux_shape_of(x)) : NULL;
}
static void forget_edges(void) {
    while (edges > 0) edges--, munmap(edge[edges].map, edge[edges].size);
}

/* Operation number `op` of a (m x k), t (k x m), b (k x n), u (n x k) and w (3 x 2 x 1 x 2), or NULL: there are no more. */
enum { EDGE_OPS = 38 };
static flux_tensor *edge_op(int op, flux_tensor *const *x) {
    flux_tensor *a = x[0], *t = x[1], *b = x[2], *u = x[3], *w = x[4], *image = flux_reshape(a, flux_dim(a, 0), flux_dim(a, 1), 1, 1);
    const bool windows = flux_dim(a, 0) >= 3 && flux_dim(a, 1) >= 2;
    switch (op) {
    case 0: return flux_matmul(a, b);
    case 1: return flux_matmul(flux_transpose(t), b);
    case 2: return flux_matmul(a, flux_transpose(u));
    case 3: return flux_matmul(flux_transpose(t), flux_transpose(u));
    case 4: return flux_relu(flux_add(flux_matmul(a, b), flux_slice(a, 1, 0, 1)));
    case 5: return flux_matmul(flux_select(t, 1, 0), b);
    case 6: return flux_sum(a, 0);
    case 7: return flux_sum(a, 1);
    case 8: return flux_sum(a);
    case 9: return flux_max(a, 0);
    case 10: return flux_min(a, 1);
    case 11: return flux_argmax(a, 0);
    case 12: return flux_argmin(a, 1);
    case 13: return flux_var(a, 0);
    case 14: return flux_exp(a);
    case 15: return flux_tanh(flux_mul(a, flux_transpose(t)));
    case 16: return flux_to_dtype(a, FLUX_F32);
    case 17: return flux_to_dtype(a, FLUX_F64);
    case 18: return flux_to_dtype(a, FLUX_F16);
    case 19: return flux_to_dtype(a, FLUX_BF16);
    case 20: return flux_to_dtype(flux_abs(a), FLUX_U8);
    case 21: return (flux_softmax)(a);
    case 22: return flux_cumsum(a, 0);
    case 23: return flux_cumsum(a, 1);
    case 24: return flux_sort(a, 0);
    case 25: return flux_sort(a, 1);
    case 26: return flux_copy(flux_transpose(a));
    case 27: return flux_flip(a, 0);
    case 28: return flux_copy(flux_slice_step(a, 0, 0, flux_dim(a, 0), 2));
    case 29: return flux_tril(a);
    case 30: return flux_cat(0, a, a);
    case 31: return flux_cat(1, a, flux_transpose(t));
    case 32: return flux_gather(a, 1, flux_argmax(a, 1));
    case 33: return flux_nth(flux_dot_product_attention(a, a, a), 0);
    case 34: return windows ? flux_conv(image, w) : a;
    case 35: return windows ? flux_maxpool(image, FLUX_SHAPE(2, 2)) : a;
    case 36: return windows ? flux_meanpool(image, FLUX_SHAPE(3, 2), .stride = FLUX_SHAPE(1)) : a;
    case 37: return flux_call(flux_upsample(FLUX_BILINEAR, .size = FLUX_SHAPE(7, 5)), image);
    }
    return NULL;
}
/* Of an image x (w x h x 4 x 2), weights for each channel (3 x 3 x 1 x 4) and for all (3 x 2 x 4 x 5), and y (6 x 7 x 2): gradient number
   op by the first and last of them. */
enum { EDGE_GRADIENTS = 14 };
static flux_tensor *edge_gradient(int op, flux_tensor *const *x) {
    flux_tensor *y = NULL, *by = x[op % 2 ? op / 2 == 1 || op / 2 == 2 ? 2 : 1 : 0];
    switch (op / 2) {
    case 0: y = flux_conv(x[0], x[1], .groups = 4); break;
    case 1: y = flux_conv(x[0], x[2]); break;
    case 2: y = flux_conv(x[0], x[2], .stride = FLUX_SHAPE(2), .pad = FLUX_SHAPE(1)); break;
    case 3: y = flux_crosscor(x[0], x[1], .groups = 4, .pad = FLUX_SHAPE(1)); break;
    case 4: y = op % 2 ? flux_maxpool(x[0], FLUX_SHAPE(2, 2)) : flux_meanpool(x[0], FLUX_SHAPE(3, 2)), by = x[0]; break;
    case 5: y = op % 2 ? flux_call(flux_upsample(FLUX_BILINEAR, .size = FLUX_SHAPE(13, 5)), x[0]) : flux_cumsum(x[0], 1), by = x[0]; break;
    case 6: y = op % 2 ? flux_nth(flux_dot_product_attention(x[3], x[3], x[3], .nheads = 2), 0) : (flux_softmax)(flux_matmul(x[3], flux_permute(x[3], 1, 0, 2))), by = x[3]; break;
    default: return NULL;
    }
    return y ? flux_grad(flux_gradient(flux_sum(flux_mul(y, flux_sin(y))), by), by) : NULL;
}
static void go_to(int level) {
    const way w = { "", 0, false, 0, level, 0 };
    set_way(&w, 9);
}
/* Of values of this dtype, each operation beside an edge has the bits that it has elsewhere. */
static void beside_edges(flux_dtype t, const flux_shape *shapes, int inputs, flux_tensor *(*f)(int op, flux_tensor *const *x), int ops) {
    char *want = (char *)malloc(1 << 20), *got = (char *)malloc(1 << 20);
    flux_tensor *plain[5], *x[5];
    for (int i = 0; i < inputs; i++) plain[i] = flux_eval(flux_to_dtype(flux_randn_with(shapes[i], FLUX_F32), t));
    for (int op = 0; op < ops; op++) {
        size_t size = 0;
        for (int where = 0; where < 3; where++) FLUX_SCOPE {
            for (int i = 0; i < inputs; i++) x[i] = at_edge(plain[i], where);
            flux_tensor *y = f(op, x);
            const size_t bytes = y ? (size_t)flux_len(y) * flux_dtype_size(flux_dtype_of(y)) : 0;
            if (!CHECK(y && bytes < 1 << 20 && flux_read(y, where ? got : want, bytes) == 0)) fprintf(stderr, "    operation %d\n", op);
            if (where && !CHECK(bytes == size && !memcmp(got, want, bytes))) fprintf(stderr, "    operation %d of %s from %lld x %lld\n", op, flux_dtype_name(t), (long long)shapes->dim[0], (long long)shapes->dim[1]);
            size = bytes;
        }
        forget_edges();
    }
    free(want), free(got);
}
TEST(nothing_is_read_beside_what_is_there) {
    ONLY_ON_CPU();
    static const int64_t sizes[][3] = { { 1, 1, 1 }, { 3, 2, 1 }, { 7, 5, 3 }, { 8, 8, 8 }, { 17, 16, 5 }, { 15, 31, 9 }, { 33, 3, 17 }, { 40, 65, 1 }, { 67, 9, 34 }, { 130, 70, 2 } };
    const int simd = flux__simd();
    for (int level = simd; level >= 0; level--)
        for (int i = 0; i < 10; i++)
            for (int t = FLUX_F32; t <= FLUX_BF16; t++) {
                go_to(level);
                flux_seed((uint64_t)i + 1);
                const int64_t m = sizes[i][0], k = sizes[i][1], n = sizes[i][2];
                const flux_shape shapes[] = { FLUX_SHAPE(m, k), FLUX_SHAPE(k, m), FLUX_SHAPE(k, n), FLUX_SHAPE(n, k), FLUX_SHAPE(3, 2, 1, 2) };
                const flux_shape images[] = { FLUX_SHAPE(5 + i, 9 - i % 4, 4, 2), FLUX_SHAPE(3, 3, 1, 4), FLUX_SHAPE(3, 2, 4, 5), FLUX_SHAPE(6, 7, 2) };
                FLUX_SCOPE beside_edges((flux_dtype)t, shapes, 5, edge_op, EDGE_OPS);
                if (i < 6) FLUX_SCOPE beside_edges((flux_dtype)t, images, 4, edge_gradient, EDGE_GRADIENTS);
            }
    go_to(simd);
}
/* Nor by products that share a matrix, which is packed as a whole. */
TEST(nothing_is_read_beside_a_shared_matrix) {
    ONLY_ON_CPU();
    const int64_t least = flux__shared_least;
    const int simd = flux__simd();
    enum { N = 20 };
    static char want[16 * 280 * N * 8], got[sizeof want];
    flux__shared_least = 64 << 10;
    for (int way = 0; way < 16; way++) {
        const bool turned = way % 2;
        const int64_t m = 257 + way, k = turned ? 600 : 70, size = way & 2 ? 8 : 4;
        go_to(way / 4 < simd ? way / 4 : simd);
        flux_tensor *a = flux_eval(flux_randn_with(turned ? FLUX_SHAPE(k, m) : FLUX_SHAPE(m, k), way & 2 ? FLUX_F64 : FLUX_F32));
        flux_tensor *x = flux_eval(flux_randn_with(FLUX_SHAPE(k, 16 * N), way & 2 ? FLUX_F64 : FLUX_F32)), *y[16];
        for (int where = 0; where < 3; where++) FLUX_SCOPE {
            flux_tensor *b = at_edge(a, where), *v = at_edge(x, where);
            for (int i = 0; i < 16; i++) y[i] = flux_matmul(turned ? flux_transpose(b) : b, flux_slice(v, 1, N * i, N * i + N));
            packed_products();
            CHECK(flux_eval_all(16, y) == 0 && (!FLUX__SHARES || packed_products() == 16));
            for (int i = 0; i < 16; i++) CHECK(flux_read(y[i], (where ? got : want) + N * i * m * size, (size_t)(N * m * size)) == 0);
            CHECK(!where || !memcmp(got, want, (size_t)(16 * N * m * size)));
        }
        forget_edges();
    }
    flux__shared_least = least;
    go_to(simd);
}
#endif

TEST_MAIN()
