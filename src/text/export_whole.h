#ifndef FLUX__TEXT_EXPORT_WHOLE_H
#define FLUX__TEXT_EXPORT_WHOLE_H
#include "../base/platform.h"
#include "../base/text.h"
#include "../base/dtypes.h"
#include "../graph/nodes.h"
#include "../graph/interpolation.h"
#include "../schedule/kernel.h"
#include "../schedule/program.h"
#include "export_words.h"
#include "export_fused.h"

/* ---------------------------------------------------------------------- text/export_whole.h
   Kernels that run no lines as C functions: concatenation, spread (the reverse of
   a strided view), gather and scatter_add, interpolation, attention.

   Invariant: an index out of range, which is an error elsewhere, is brought into
   the range, so that nothing beyond the tensor is read or written. Attention goes
   query by query, in floats throughout: $_scratch holds the scores of one query
   and behind them the keys of a head, turned so that scores are a product of rows
   that lie side by side. What its node holds behind the result, for gradients, is
   not written. */

FLUX__BEGIN_COLD

/* Loops over a shape, the first dim innermost, around "to[...] = from[...];" (or +=), where the
   strides count in elements from `to_at` and `from_at`. */
static void flux__net_copy(flux__net_kernel *c, const flux_shape *s, const char *to,
                           const char *to_at,
                         const int64_t *to_step, const char *from, const char *from_at,
                         const int64_t *from_step, bool add) {
    flux__sink at[2] = { flux__sink_growing(), flux__sink_growing() };
    const int64_t *step[2] = { to_step, from_step };
    int opened = 0;
    flux__put(&at[0], to_at), flux__put(&at[1], from_at);
    for (int d = s->ndim - 1; d >= 0; d--) {
        if (s->dim[d] == 1) continue;
        const int var = c->loops++;
        flux__putf(&c->s, "for (int i%d = 0; i%d < %lld; i%d++) {\n", var, var,
                   (long long)s->dim[d], var);
        for (int k = 0; k < 2; k++) {
            if (step[k][d] == 0) continue;
            flux__putf(&at[k], " + i%d", var);
            if (step[k][d] != 1) flux__putf(&at[k], " * (%lld)", (long long)step[k][d]);
        }
        opened++;
    }
    flux__sink_end(&at[0]), flux__sink_end(&at[1]);
    if (at[0].failed || at[1].failed) c->ok = false;
    else {
        const char *const parts[] = { to, "[", at[0].out, add ? "] += " : "] = ", from, "[",
                                      at[1].out, "];\n" };
        for (int i = 0; i < 8; i++) flux__put(&c->s, parts[i]);
    }
    flux__net_close(c, opened);
    flux__free(at[0].out), flux__free(at[1].out);
}

/* Declares y0, what the kernel's node t is stored to. */
static void flux__net_result(flux__net_kernel *c, const flux_tensor *t) {
    flux__net_declare(c, 'y', -1, t->dtype, c->plan->nleaf + c->k->node, 0);
}

static void flux__net_cat(flux__net_kernel *c, const flux_tensor *t) {
    const flux_shape whole = flux__dims(t);
    const int dim = (int)t->arg.i[0];
    int64_t step[FLUX_MAX_DIMS], at = 0;
    flux__contiguous_strides(&whole, step);
    flux__net_result(c, t);
    for (int i = 0; i < c->k->noperand; i++) {
        const flux__operand *o = &c->k->operand[i];
        char to[32], from[16];
        snprintf(to, sizeof to, "%lld", (long long)(at * step[dim]));
        snprintf(from, sizeof from, "a%d", i);
        at += dim < o->shape.ndim ? o->shape.dim[dim] : 1;
        if (flux__count(&o->shape) == 0) continue;
        flux__net_operand(c, i);
        flux__net_copy(c, &o->shape, "y0", to, step, from, "0", o->stride, false);
    }
}

/* Fills `name` with the spread t of a0, whose layout is given. */
static void flux__net_scatter(flux__net_kernel *c, const flux_tensor *t, const char *name,
                              const flux_shape *s, const int64_t *step) {
    char to[32];
    flux__putf(&c->s, "for (int i = 0; i < %lld; i++) %s[i] = ", (long long)flux__size(t), name);
    flux__put_c_number(&c->s, flux__class_of(t->dtype), t->arg.i[1] ? 0 : t->arg.num);
    flux__put(&c->s, ";\n");
    snprintf(to, sizeof to, "%lld", (long long)t->rel);
    if (!flux__count(s)) return;
    flux__net_copy(c, s, name, to, t->stride, "a0", "0", step, t->arg.i[1] != 0);
}

static void flux__net_spread(flux__net_kernel *c, const flux_tensor *t) {
    const flux__operand *o = &c->k->operand[0];
    flux__net_result(c, t);
    if (flux__count(&o->shape)) flux__net_operand(c, 0);
    flux__net_scatter(c, t, "y0", &o->shape, o->stride);
}

/* Gather and scatter_add: for each index a slice, the dims but `dim`, is copied or added. */
static void flux__net_index(flux__net_kernel *c, const flux_tensor *t) {
    const bool scatter = t->op == FLUX__SCATTER;
    const flux__operand *x = &c->k->operand[0], *index = &c->k->operand[1],
                        *src = scatter ? &c->k->operand[2] : NULL;
    const int dim = (int)t->arg.i[0];
    const flux_shape whole = flux__dims(t), is = index->shape;
    flux_shape slice = flux__shape(NULL, 0);
    int64_t contiguous[FLUX_MAX_DIMS], big_step[FLUX_MAX_DIMS], small_step[FLUX_MAX_DIMS];
    char big_at[64], small_at[200] = "0";
    flux__sink at = flux__sink_to(small_at, sizeof small_at);
    flux__contiguous_strides(&whole, contiguous);
    const int64_t *big = scatter ? contiguous : x->stride,
                  *small = scatter ? src->stride : contiguous;
    flux__net_result(c, t);
    flux__net_operand(c, 0);
    flux__net_operand(c, 1);
    if (scatter) flux__net_operand(c, 2),
                 flux__net_copy(c, &x->shape, "y0", "0", contiguous, "a0", "0", x->stride, false);
    for (int d = 0; d < x->shape.ndim; d++) {
        if (d == dim) continue;
        big_step[slice.ndim] = big[d];
        small_step[slice.ndim] = small[d < dim ? d : d - 1 + is.ndim];
        slice.dim[slice.ndim++] = x->shape.dim[d];
    }
    flux__put(&at, "0");
    for (int d = is.ndim - 1; d >= 0; d--) {
        flux__putf(&c->s, "for (int n%d = 0; n%d < %lld; n%d++)\n", d, d, (long long)is.dim[d], d);
        flux__putf(&at, " + n%d * (%lld)", d, (long long)small[dim + d]);
    }
    flux__sink_end(&at);
    flux__put(&c->s, "{\nlong long at = a1[0");
    for (int d = 0; d < is.ndim; d++)
        flux__putf(&c->s, " + n%d * (%lld)", d, (long long)index->stride[d]);
    flux__putf(&c->s, "];\nat = at < 0 ? 0 : at < %lld ? at : %lld;\n",
               (long long)x->shape.dim[dim], (long long)x->shape.dim[dim] - 1);
    snprintf(big_at, sizeof big_at, "(int)at * (%lld)", (long long)big[dim]);
    if (scatter)
        flux__net_copy(c, &slice, "y0", big_at, big_step, "a2", small_at, small_step, true);
    else flux__net_copy(c, &slice, "y0", small_at, small_step, "a0", big_at, big_step, false);
    flux__put(&c->s, "}\n");
}

/* Interpolation, or its reverse: for each element the sum over all dims of what it is made of. */
static void flux__net_interpolation(flux__net_kernel *c, const flux_tensor *t) {
    const flux__operand *x = &c->k->operand[0];
    char text[512];
    int64_t step = 1;
    flux__net_result(c, t);
    flux__net_operand(c, 0);
    for (int d = t->ndim - 1; d >= 0; d--)
        flux__putf(&c->s, "for (int d%d = 0; d%d < %lld; d%d++) {\n", d, d, (long long)t->dim[d],
                   d);
    flux__put(&c->s, "float sum = 0.0f;\n");
    for (int d = t->ndim - 1; d >= 0; d--) {
        if (t->dim[d] == x->shape.dim[d]) continue;
        flux__lerps_text(text, sizeof text, t, d, "float");
        flux__put(&c->s, text);
    }
    flux__put(&c->s, "sum += a0[0");
    for (int d = 0; d < t->ndim; d++)
        flux__putf(&c->s, " + %c%d * (%lld)", t->dim[d] == x->shape.dim[d] ? 'd' : 'i', d,
                   (long long)x->stride[d]);
    flux__put(&c->s, "]");
    for (int d = 0; d < t->ndim; d++)
        if (t->dim[d] != x->shape.dim[d]) flux__putf(&c->s, " * w%d", d);
    flux__put(&c->s, ";\n");
    for (int d = 0; d < t->ndim; d++)
        if (t->dim[d] != x->shape.dim[d]) flux__net_close(c, 1);
    flux__put(&c->s, "y0[0");
    for (int d = 0; d < t->ndim; step *= t->dim[d++])
        flux__putf(&c->s, " + d%d * %lld", d, (long long)step);
    flux__put(&c->s, "] = sum;\n");
    flux__net_close(c, t->ndim);
}

/* Attention's result: for each query the scores of its keys, their softmax, and the values'
   sum. */
static void flux__net_attend(flux__net_kernel *c, const flux_tensor *t) {
    const flux__operand *q = &c->k->operand[0], *k = &c->k->operand[1], *v = &c->k->operand[2],
                        *mask = c->k->noperand > 3 ? &c->k->operand[3] : NULL;
    const long long heads = (long long)t->arg.i[0], d = (long long)q->shape.dim[0] / heads,
                    dv = (long long)v->shape.dim[0] / heads, queries = (long long)q->shape.dim[1],
                    keys = (long long)k->shape.dim[1], batch = (long long)q->shape.dim[2];
    if (c->scratch < keys * (d + 1)) c->scratch = keys * (d + 1);
    flux__net_result(c, t);
    for (int i = 0; i < c->k->noperand; i++) flux__net_operand(c, i);
    flux__putf(&c->s, "float *turned = $_scratch + %lld;\nfor (int n = 0; n < %lld; n++)\n"
               "for (int h = 0; h < %lld; h++) {\n", keys, batch, heads);
    flux__putf(&c->s, "for (int j = 0; j < %lld; j++)\nfor (int f = 0; f < %lld; f++) "
               "turned[f * %lld + j] = a1[h * %lld + j * (%lld) + n * (%lld) + f];\n", keys, d,
               keys, d, (long long)k->stride[1], (long long)k->stride[2]);
    flux__putf(&c->s, "for (int i = 0; i < %lld; i++) {\n", queries);
    flux__putf(&c->s, "const float *x = a0 + h * %lld + i * (%lld) + n * (%lld);\n", d,
               (long long)q->stride[1], (long long)q->stride[2]);
    flux__putf(&c->s, "float *y = y0 + ((n * %lld + i) * %lld + h) * %lld;\n", queries, heads, dv);
    flux__put(&c->s, "float most = -INFINITY, sum = 0.0f;\n");
    if (t->arg.i[1]) flux__putf(&c->s, "const int keys = i < %lld ? i + 1 : %lld;\n", keys, keys);
    else flux__putf(&c->s, "const int keys = %lld;\n", keys);
    flux__putf(&c->s, "$_matvec($_scratch, turned, %lld, x, 1, keys, %lld);\n"
               "for (int j = 0; j < keys; j++) {\nfloat s = $_scratch[j] * ", keys, d);
    flux__put_c_float(&c->s, (float)(1 / sqrt((double)d)));
    flux__put(&c->s, ";\n");
    if (mask) {
        const bool seen = mask->dtype == FLUX_BOOL;
        flux__put(&c->s, seen ? "if (!a3[" : "s += a3[");
        flux__putf(&c->s, "j * (%lld) + i * (%lld) + h * (%lld) + n * (%lld)]",
                   (long long)mask->stride[0], (long long)mask->stride[1],
                   (long long)mask->stride[2], (long long)mask->stride[3]);
        flux__put(&c->s, seen ? ") s = -INFINITY;\n" : ";\n");
    }
    flux__put(&c->s, "$_scratch[j] = s;\nmost = s > most ? s : most;\n}\n");
    /* a query that sees no key has the result 0 */
    flux__putf(&c->s, "if (most == -INFINITY) {\nfor (int f = 0; f < %lld; f++) y[f] = 0.0f;\n"
               "continue;\n}\n", dv);
    flux__put(&c->s, "for (int j = 0; j < keys; j++) $_scratch[j] = $_exp_f($_scratch[j] - most);\n"
              "for (int j = 0; j < keys; j++) sum += $_scratch[j];\n");
    flux__putf(&c->s, "$_matvec(y, a2 + h * %lld + n * (%lld), %lld, $_scratch, 1, %lld, keys);\n",
               dv, (long long)v->stride[2], (long long)v->stride[1], dv);
    flux__putf(&c->s, "for (int f = 0; f < %lld; f++) y[f] /= sum;\n}\n}\n", dv);
}

FLUX__END_COLD

#endif /* FLUX__TEXT_EXPORT_WHOLE_H */
