#ifndef FLUX__NN_INITIALISERS_H
#define FLUX__NN_INITIALISERS_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../base/options.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/leaves.h"
#include "../graph/views.h"
#include "../graph/products.h"
#include "../schedule/looking.h"

/* ---------------------------------------------------------------------- nn/initialisers.h
   Initialisers of weights: one table of them by name (flux__inits), with default
   gain and standard deviation, and a public function for each.

   Invariant: uniform and normal initialisers are expressions of flux_rand and
   flux_randn, which are evaluated when they are needed. Those that need all
   their numbers at once (orthogonal, truncated, lecun, sparse, identity) are
   made on the host, in double precision, from the same random tensors, so a seed
   gives the same weights on every device. Results are float32 and record no
   graph. Fan-in and fan-out are (1, n) for a vector, columns and rows for a
   matrix, and channels times the window otherwise (flux__fans). Options are
   checked before anything is drawn: they must be finite, and where needed not
   negative. */

FLUX__BEGIN_COLD

typedef struct flux__init_row {
    const char *name;
    flux_tensor *(*make)(flux_shape s, const flux_init_opts *o);
    double gain, std;                     /* the defaults of .gain and .std */
} flux__init_row;

/* Fan-in of a weight of shape s, or with `out` fan-out: 1 and n of a vector, columns and rows of a
   matrix, else channels in and channels out times the window. */
static double flux__fan(const flux_shape *s, bool out) {
    double window = 1;
    for (int i = 0; i + 2 < s->ndim; i++) window *= (double)s->dim[i];
    const int back = out == (s->ndim == 2) ? 2 : 1;           /* the dim, counted from the last */
    return (s->ndim >= back ? (double)s->dim[s->ndim - back] : 1) * window;
}
/* The sum of both. */
static double flux__fans(const flux_shape *s) { return flux__fan(s, false) + flux__fan(s, true); }

/* Uniform numbers from -width / 2 to width / 2. */
static flux_tensor *flux__uniform(flux_shape s, double width) {
    return flux_mul(flux_sub(flux_rand_with(s, FLUX_F32), 0.5), width);
}

/* Uniform numbers of standard deviation gain sqrt(2 / (fan-in + fan-out)). */
static flux_tensor *flux__init_glorot_uniform(flux_shape s, const flux_init_opts *o) {
    return flux__uniform(s, o->gain * sqrt(24 / flux__fans(&s)));
}

/* Normal numbers of the same deviation. */
static flux_tensor *flux__init_glorot_normal(flux_shape s, const flux_init_opts *o) {
    return flux_mul(flux_randn_with(s, FLUX_F32), o->gain * sqrt(2 / flux__fans(&s)));
}

/* Uniform numbers of standard deviation gain / sqrt(fan-in). */
static flux_tensor *flux__init_kaiming_uniform(flux_shape s, const flux_init_opts *o) {
    return flux__uniform(s, 2 * o->gain * sqrt(3 / flux__fan(&s, false)));
}

/* Normal numbers of the same deviation. */
static flux_tensor *flux__init_kaiming_normal(flux_shape s, const flux_init_opts *o) {
    return flux_mul(flux_randn_with(s, FLUX_F32), o->gain / sqrt(flux__fan(&s, false)));
}

static flux_tensor *flux__init_zeros(flux_shape s, const flux_init_opts *o) {
    return (void)o, flux_full_with(s, 0.0, FLUX_F32);
}
static flux_tensor *flux__init_ones(flux_shape s, const flux_init_opts *o) {
    return (void)o, flux_full_with(s, 1.0, FLUX_F32);
}
static flux_tensor *flux__init_rand(flux_shape s, const flux_init_opts *o) {
    return (void)o, flux_rand_with(s, FLUX_F32);
}
static flux_tensor *flux__init_randn(flux_shape s, const flux_init_opts *o) {
    return (void)o, flux_randn_with(s, FLUX_F32);
}

/* The probability that a standard normal number is below x. */
static double flux__normal_below(double x) { return 0.5 * erfc(-x / 1.4142135623730951); }

/* The p-quantile of the standard normal distribution. First the inverse error function of M. Giles,
   "Approximating the erfinv function", GPU Computing Gems 2 (2010), good to single precision; one
   step of Halley's method makes it double. */
static double flux__normal_quantile(double p) {
    static const double middle[] = { 2.81022636e-08,  3.43273939e-07, -3.5233877e-06,
                                     -4.39150654e-06, 0.00021858087,  -0.00125372503,
                                     -0.00417768164,  0.246640727,    1.50140941 };
    static const double tails[] = { -0.000200214257, 0.000100950558, 0.00134934322,
                                    -0.00367342844,  0.00573950773,  -0.0076224613,
                                    0.00943887047,   1.00167406,     2.83297682 };
    double y = 2 * p - 1, w = -log(4 * p * (1 - p)), x = 0;
    if (!(p > 0 && p < 1)) return p <= 0 ? -HUGE_VAL : HUGE_VAL;
    const double *c = w < 5 ? middle : tails;
    w = w < 5 ? w - 2.5 : sqrt(w) - 3;
    for (int i = 0; i < 9; i++) x = x * w + c[i];
    x *= y * 1.4142135623730951;
    double miss = (flux__normal_below(x) - p) * 2.5066282746310002 * exp(x * x / 2);
    return x - miss / (1 + x * miss / 2);
}

/* Normal numbers between lo and hi. a and b are the probabilities of numbers below lo and below hi;
   the results are the quantiles of uniform numbers between a and b. */
static flux_tensor *flux__truncated(flux_shape s, double mean, double std, double lo, double hi) {
    if (mean < lo - 2 * std || mean > hi + 2 * std)
        flux__note(FLUX_LOG_WARN, "init.truncated", true,
                   "truncated_normal: the mean %g is more than two std outside %g to %g", mean, lo,
                   hi);
    flux_tensor *u = flux_rand_with(s, FLUX_F32);
    const float *from = u ? (const float *)flux_data(u) : NULL;
    int64_t n = from ? flux__count(&s) : 0;
    float *x = from ? (float *)flux__malloc((size_t)n * sizeof *x) : NULL;
    if (!x) return NULL;
    /* std 0: all numbers are the mean, or the bound nearest to it */
    double a = std > 0 ? flux__normal_below((lo - mean) / std) : 0;
    double b = std > 0 ? flux__normal_below((hi - mean) / std) : 1;
    for (int64_t i = 0; i < n; i++) {     /* u plus half its step is neither 0 nor 1 */
        double y = mean + std * flux__normal_quantile(
                                    a + ((double)from[i] + 2.9802322387695312e-8) * (b - a));
        x[i] = (float)(y < lo ? lo : y > hi ? hi : y);
    }
    flux_tensor *y = flux_from_with(x, FLUX_F32, s);
    flux__free(x);
    return y;
}

static flux_tensor *flux__init_truncated(flux_shape s, const flux_init_opts *o) {
    if (!(o->lo < o->hi))
        return (flux_tensor *)flux__fail("init: the bounds %g and %g are not in order",
                                         (double)o->lo, (double)o->hi);
    return flux__truncated(s, o->mean, o->std, o->lo, o->hi);
}

/* Normal numbers of standard deviation gain / sqrt(fan-in), truncated to -2 ... 2. */
static flux_tensor *flux__init_lecun(flux_shape s, const flux_init_opts *o) {
    return flux__truncated(s, 0, o->gain / sqrt(flux__fan(&s, false)), -2, 2);
}

/* Makes the columns of q, rows x cols, column-major, orthonormal, by the Gram-Schmidt process: each
   column is orthogonalised against those before it twice, which is enough (Giraud, Langou,
   Rozloznik 2005). Its R has a positive diagonal, so no signs need correction. */
static FLUX__O1 void flux__orthonormal_panel(double *q, int64_t rows, int64_t cols) {
    for (int64_t k = 0; k < cols; k++) {
        double *v = q + k * rows, sum = 0;
        for (int64_t j = 0; j < 2 * k; j++) {
            const double *u = q + (j % k) * rows;
            double dot = 0;
            for (int64_t i = 0; i < rows; i++) dot += u[i] * v[i];
            for (int64_t i = 0; i < rows; i++) v[i] -= dot * u[i];
        }
        for (int64_t i = 0; i < rows; i++) sum += v[i] * v[i];
        for (int64_t i = 0; i < rows && sum > 0; i++) v[i] /= sqrt(sum);
    }
}

/* Subtracts from the n columns at `panel` what they have along the `before` columns of q, which are
   orthonormal: panel - q (q' panel). All columns have `rows` numbers. False: an error was told. */
static bool flux__project_away(const double *q, double *panel, int64_t rows, int64_t before,
                               int64_t n) {
    int h = flux__hide();
    flux_tensor *a = flux_borrow_with(q, FLUX_F64, FLUX_SHAPE(rows, before));
    flux_tensor *b = flux_borrow_with(panel, FLUX_F64, FLUX_SHAPE(rows, n));
    flux_tensor *along = a && b ? flux_matmul(flux_transpose(a), b) : NULL;
    flux_tensor *y = along ? flux_sub(b, flux_matmul(a, along)) : NULL;
    const void *data = y ? flux_data(y) : NULL;
    if (data) memcpy(panel, data, (size_t)(rows * n) * sizeof *panel);
    flux__reveal_object(h, NULL);
    return data != NULL;
}

/* The same as flux__orthonormal_panel, in panels of 32 columns, whose parts along the panels before
   them are products of matrices: for a matrix of 1024 a sixth of the time. */
static bool flux__orthonormalise(double *q, int64_t rows, int64_t cols) {
    enum { PANEL = 32 };
    for (int64_t k = 0; k < cols; k += PANEL) {
        const int64_t n = cols - k < PANEL ? cols - k : (int64_t)PANEL;
        double *panel = q + k * rows;
        for (int twice = 0; twice < 2 && k; twice++)
            if (!flux__project_away(q, panel, rows, k, n)) return false;
        flux__orthonormal_panel(panel, rows, n);
    }
    return true;
}

/* A random orthogonal matrix times gain; all dims but the last are merged into its rows. */
static flux_tensor *flux__init_orthogonal(flux_shape s, const flux_init_opts *o) {
    if (s.ndim < 2)
        return (flux_tensor *)flux__fail(
            "init: orthogonal makes matrices and more, not tensors of %d dims", s.ndim);
    const int64_t cols = s.dim[s.ndim - 1], n = flux__count(&s), rows = n ? n / cols : 0;
    if (!n) return flux_full_with(s, 0.0, FLUX_F32);
    bool wide = rows < cols;              /* if so, the transpose is made orthonormal */
    flux_tensor *g = flux_randn_with(wide ? FLUX_SHAPE(cols, rows) : FLUX_SHAPE(rows, cols),
                                     FLUX_F32);
    const float *from = g ? (const float *)flux_data(g) : NULL;
    double *q = from ? (double *)flux__malloc((size_t)n * sizeof *q) : NULL;
    float *x = q ? (float *)flux__malloc((size_t)n * sizeof *x) : NULL;
    flux_tensor *y = NULL;
    if (x) {
        for (int64_t i = 0; i < n; i++) q[i] = (double)from[i];
        const bool good = flux__orthonormalise(q, wide ? cols : rows, wide ? rows : cols);
        for (int64_t j = 0; j < cols; j++)
            for (int64_t i = 0; i < rows; i++)
                x[j * rows + i] = (float)(o->gain * (wide ? q[i * cols + j] : q[j * rows + i]));
        y = good ? flux_from_with(x, FLUX_F32, s) : NULL;
    }
    flux__free(q);
    flux__free(x);
    return y;
}

/* Normal numbers, except for zeros at random places of each column, as many as .sparsity says. */
static flux_tensor *flux__init_sparse(flux_shape s, const flux_init_opts *o) {
    if (s.ndim != 2)
        return (flux_tensor *)flux__fail("init: sparse makes matrices, not tensors of %d dims",
                                         s.ndim);
    if (!flux__count(&s)) return flux_full_with(s, 0.0, FLUX_F32);
    int64_t rows = s.dim[0],
            zeros = (int64_t)ceil((o->sparsity < 1 ? o->sparsity : 1) * (double)rows);
    flux_tensor *u = flux_rand_with(s, FLUX_F32),
                *w = flux_mul(flux_randn_with(s, FLUX_F32), o->std);
    const float *pick = u ? (const float *)flux_data(u) : NULL,
                *from = pick ? (const float *)flux_data(w) : NULL;
    float *x = from ? (float *)flux__malloc((size_t)flux__count(&s) * sizeof *x) : NULL;
    int64_t *order = x ? (int64_t *)flux__malloc((size_t)rows * sizeof *order) : NULL;
    flux_tensor *y = NULL;
    if (order) {
        for (int64_t i = 0; i < rows * s.dim[1]; i++) x[i] = from[i];
        for (int64_t j = 0; j < s.dim[1]; j++) {
            for (int64_t i = 0; i < rows; i++) order[i] = i;
            for (int64_t i = 0; i < zeros; i++) {
                int64_t k = i + (int64_t)((double)pick[j * rows + i] * (double)(rows - i)),
                        place = order[k];
                order[k] = order[i];
                x[j * rows + place] = 0;
            }
        }
        y = flux_from_with(x, FLUX_F32, s);
    }
    flux__free(x);
    flux__free(order);
    return y;
}

/* .gain on the diagonal of a matrix or, in a convolution's weight, from channel i to channel i at
   the window's centre; .shift moves them along dim 0, cyclically. */
static flux_tensor *flux__init_identity(flux_shape s, const flux_init_opts *o) {
    if (s.ndim < 2 || !flux__count(&s)) return flux_full_with(s, 0.0, FLUX_F32);
    const flux_device cpu = { 0, 0 };
    flux_tensor *y = flux__leaf(s, FLUX_F32, cpu);
    if (!y) return NULL;
    float *x = (float *)y->buf->ptr;
    memset(x, 0, y->buf->bytes);
    int64_t a = s.dim[s.ndim - 2], b = s.dim[s.ndim - 1], first = s.dim[0];
    for (int64_t i = 0; i < a && i < b; i++) {
        int64_t at = 0, step = 1;
        for (int d = 0; d < s.ndim; d++) {
            int64_t k = d >= s.ndim - 2 ? i : (s.dim[d] + 1) / 2 - 1;
            if (d == 0) k = ((k + o->shift) % first + first) % first;
            at += k * step;
            step *= s.dim[d];
        }
        x[at] = (float)o->gain;
    }
    return flux__move(y, flux__home());
}

static const flux__init_row flux__inits[] = {
    { "glorot_uniform", flux__init_glorot_uniform, 1, 1 },
    { "glorot_normal", flux__init_glorot_normal, 1, 1 },
    { "kaiming_uniform", flux__init_kaiming_uniform, 1.4142135623730951, 1 },
    { "kaiming_normal", flux__init_kaiming_normal, 1.4142135623730951, 1 },
    { "truncated_normal", flux__init_truncated, 1, 1 },
    { "lecun_normal", flux__init_lecun, 1, 1 },
    { "orthogonal", flux__init_orthogonal, 1, 1 },
    { "sparse", flux__init_sparse, 1, 0.01 },
    { "identity", flux__init_identity, 1, 1 },
    { "zeros", flux__init_zeros, 1, 1 },
    { "ones", flux__init_ones, 1, 1 },
    { "rand", flux__init_rand, 1, 1 },
    { "randn", flux__init_randn, 1, 1 }
};

static bool flux__finite(double x) { return x - x == 0; }

/* Whether all numbers of the options are finite, and .std and .sparsity not negative. */
static bool flux__check_init(const flux_init_opts *o) {
    const struct { const char *name; double value; bool least0;
    } all[] = { { "gain", o->gain, false }, { "mean", o->mean, false },
                { "std", o->std, true },    { "lo", o->lo, false },
                { "hi", o->hi, false },     { "sparsity", o->sparsity, true } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!flux__finite(all[i].value) || (all[i].least0 && all[i].value < 0))
            return FLUX__REFUSE("init: .%s is %g", all[i].name, all[i].value);
    return true;
}

/* A float32 weight of shape o.shape by the initialiser of this name. */
FLUX_DEF flux_tensor *flux_init_with(const char *name, flux_init_opts o) {
    const flux__init_row *row = flux__inits, *end = row + sizeof flux__inits / sizeof *flux__inits;
    if (!name) return (flux_tensor *)flux__null("init", "name", name);
    while (row < end && strcmp(row->name, name) != 0) row++;
    if (row == end)
        return (flux_tensor *)flux__fail("init: there is no initialiser \"%.60s\"", name);
    bool bounds = flux__is_given(o.lo, o.marked) || flux__is_given(o.hi, o.marked),
         made = o.marked || bounds;
    o.gain = flux__given(o.gain, o.marked, row->gain);
    o.std = flux__given(o.std, o.marked, row->std);
    o.lo = flux__given(o.lo, made, -2);
    o.hi = flux__given(o.hi, made, 2);
    if (!flux__check_shape("init", &o.shape) || !flux__check_init(&o)) return NULL;
    int h = flux__hide();
    const int b = flux__nograd_enter();
    flux_tensor *y = row->make(o.shape, &o);
    flux__nograd_leave(b);
    return flux__reveal(h, y);
}

#define FLUX__INIT(function, name)                                                      \
    FLUX_DEF flux_tensor *flux_##function(flux_shape s) {                               \
        FLUX__ZEROED(flux_init_opts, o);                                                \
        o.shape = s;                                                                    \
        return flux_init_with(name, o);                                                 \
    }
FLUX__INIT(glorot_uniform, "glorot_uniform")
FLUX__INIT(glorot_normal, "glorot_normal")
FLUX__INIT(kaiming_uniform, "kaiming_uniform")
FLUX__INIT(kaiming_normal, "kaiming_normal")
FLUX__INIT(truncated_normal, "truncated_normal")
FLUX__INIT(lecun_normal, "lecun_normal")
FLUX__INIT(orthogonal, "orthogonal")
FLUX__INIT(identity_init, "identity")
FLUX__INIT(zeros32, "zeros")
FLUX__INIT(ones32, "ones")
FLUX__INIT(rand32, "rand")
FLUX__INIT(randn32, "randn")

FLUX__END_COLD

#endif /* FLUX__NN_INITIALISERS_H */
