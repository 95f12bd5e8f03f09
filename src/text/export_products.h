#ifndef FLUX__TEXT_EXPORT_PRODUCTS_H
#define FLUX__TEXT_EXPORT_PRODUCTS_H
#include "../base/platform.h"
#include "../base/text.h"
#include "../base/dtypes.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "../schedule/spelling.h"
#include "export_words.h"
#include "export_fused.h"
#include "export_whole.h"

/* ---------------------------------------------------------------------- text/export_products.h
   A matrix product as a C function. One operand is the rows' side, whose elements
   are loaded as vectors, @_ROWS rows at a time; of the other, four columns at a
   time, single numbers are multiplied with these (flux__net_helpers, $_tile). If
   rows lie side by side in memory they are read where they are, else a panel of
   them is packed first. The epilogue's lines follow for each element of a tile.

   A convolution's windows are never copied if its stride is 1: with the rows of
   the image, pitch elements apart, taken as one long row, the windows of all
   positions lie side by side. The results between two rows of the output are
   thrown away.

   Invariant: the last tile overlaps the one before it, so that nothing beyond an
   operand is read; what is computed twice gets the same value. Rejected: packing
   weights into tiles as they are written, since their width is the compiler's to
   choose. */

FLUX__BEGIN_COLD

/* An operand of a product: the axes of its rows or columns, and of the inner dim. */
typedef struct flux__net_factor {
    int number;                           /* 0 or 1 */
    int64_t limit;                        /* rows (of operand 0) or columns (of 1) */
    flux__axes across, in;
} flux__net_factor;

/* The sizes and strides of the dims in memory that make up dim `dim` of an operand's matrix;
   none if it has one element. */
static void flux__net_axes(const flux__operand *o, int dim, flux__axes *x) {
    x->nd = 0;
    for (int d = 0; d < o->shape.ndim; d++) {
        const int last = x->nd - 1;
        if ((o->gather ? o->owner[d] : d) != dim || o->shape.dim[d] == 1) continue;
        if (last >= 0 && o->stride[d] == x->step[last] * x->dim[last])
            x->dim[last] *= o->shape.dim[d];
        else x->dim[x->nd] = o->shape.dim[d], x->step[x->nd++] = o->stride[d];
    }
}

static flux__net_factor flux__net_factor_of(const flux__net_kernel *c, int which) {
    flux__net_factor f;
    const flux__operand *o = &c->k->operand[which];
    const bool vector = o->shape.ndim == 1;
    f.number = which, f.limit = c->k->mnk[which];
    flux__net_axes(o, vector ? -1 : which, &f.across);
    flux__net_axes(o, vector ? 0 : !which, &f.in);
    return f;
}

/* Puts the offset of element number `var` of these axes: "(q) % 3 * 7 + (q) / 3 * 50". */
static void flux__net_offset(flux__sink *s, const flux__axes *x, const char *var) {
    int64_t before = 1;
    if (!x->nd) flux__put(s, "0");
    for (int d = 0; d < x->nd; d++) {
        flux__putf(s, d ? " + (%s)" : "(%s)", var);
        if (before > 1) flux__putf(s, " / %lld", (long long)before);
        if (d + 1 < x->nd) flux__putf(s, " %% %lld", (long long)x->dim[d]);
        if (x->step[d] != 1) flux__putf(s, " * (%lld)", (long long)x->step[d]);
        before *= x->dim[d];
    }
}

/* Pads the image of operand 0 in $_scratch, as `padded`. */
static void flux__net_pad(flux__net_kernel *c) {
    const flux__operand *o = &c->k->operand[0];
    const flux__padding *pad = o->padding;
    const flux_tensor *t = c->g->node[pad->node];
    const int64_t floats = flux__size(t) * (int64_t)flux__dtypes[t->dtype].size / 4;
    if (c->scratch < floats) c->scratch = floats;
    flux__net_declare(c, 'a', 0, o->dtype, o->src, pad->offset);
    flux__putf(&c->s, "%s *const padded = (%s *)(void *)$_scratch;\n", flux__dtype_types[o->dtype],
               flux__dtype_types[o->dtype]);
    flux__net_scatter(c, t, "padded", &pad->shape, pad->stride);
}

/* Declares p0 or p1: where an operand's matrix of this batch begins. */
static void flux__net_matrix(flux__net_kernel *c, int which) {
    flux__operand o = c->k->operand[which];
    flux__putf(&c->s, "const %s *@_R p%d = ", flux__dtype_types[o.dtype], which);
    if (o.padding) flux__putf(&c->s, "padded + %lld", (long long)o.offset);
    else {
        flux__net_operand(c, which);
        flux__putf(&c->s, "a%d", which);
    }
    for (int d = 2; d < FLUX_MAX_DIMS; d++) {
        flux__axes x;
        char var[16];
        flux__net_axes(&o, d, &x);
        snprintf(var, sizeof var, "b%d", d);
        if (c->k->full[d] > 1 && x.nd) flux__put(&c->s, " + "), flux__net_offset(&c->s, &x, var);
    }
    flux__put(&c->s, ";\n");
}

/* Puts the position of value v at row i and column j of the batch. A vector times a matrix is a
   vector, whose one dim is the column. */
static void flux__net_point(flux__sink *s, const flux__kernel *k, const flux__value *v) {
    static const char *const all[] = { "i", "j", "b2", "b3", "b4", "b5", "b6", "b7" };
    const char *const *names = all + (k->mnk[0] == 1 && k->full[0] > 1);
    int64_t step[FLUX_MAX_DIMS];
    bool any = false;
    flux__value_strides(k, v, step);
    for (int d = 0; d < FLUX_MAX_DIMS; d++) {
        if (k->full[d] == 1 || step[d] == 0) continue;
        flux__putf(s, any ? " + %s" : "%s", names[d]);
        if (step[d] != 1) flux__putf(s, " * (%lld)", (long long)step[d]);
        any = true;
    }
    if (!any) flux__put(s, "0");
}

/* The epilogue at row i and column j: `sum` is the product's value there. */
static void flux__net_epilogue(flux__net_kernel *c, const char *sum) {
    const flux__kernel *k = c->k;
    for (int i = 0; i < k->nvalue; i++) {
        const flux__value *v = &k->value[i];
        flux__sink at = flux__sink_growing();
        flux__net_point(&at, k, v);
        flux__sink_end(&at);
        if (v->kind == FLUX__V_PRODUCT)
            flux__putf(&c->s, "const %s v%d = %s;\n", flux__class_types[v->ctype], i, sum);
        else if (!at.failed) flux__net_line(c, i, at.out, false);
        if (v->out >= 0 && !at.failed) flux__net_store(c, i, at.out);
        c->ok = c->ok && !at.failed;
        flux__free(at.out);
    }
}

/* A product as three plain loops: of integers, and of layouts that nothing else is for. */
static void flux__net_plain(flux__net_kernel *c, const flux__net_factor *a,
                            const flux__net_factor *b) {
    const char *type = flux__dtype_types[c->k->operand[0].dtype];
    flux__putf(&c->s, "for (int j = 0; j < %lld; j++)\nfor (int i = 0; i < %lld; i++) {\n"
               "%s sum = 0;\nfor (int l = 0; l < %lld; l++) sum += p0[", (long long)b->limit,
               (long long)a->limit, type, (long long)c->k->mnk[2]);
    flux__net_offset(&c->s, &a->across, "i"), flux__put(&c->s, " + ");
    flux__net_offset(&c->s, &a->in, "l"), flux__put(&c->s, "] * p1[");
    flux__net_offset(&c->s, &b->across, "j"), flux__put(&c->s, " + ");
    flux__net_offset(&c->s, &b->in, "l"), flux__put(&c->s, "];\n");
    flux__net_epilogue(c, "sum");
    flux__put(&c->s, "}\n");
}

static int64_t flux__net_step(const flux__axes *x) { return x->nd ? x->step[0] : 0; }
static bool flux__net_beside(const flux__net_factor *f) {
    return f->across.nd == 1 && f->across.step[0] == 1;
}

/* Whether operand f is to be the rows' side; the other, u, must then have a linear inner dim. */
static bool flux__net_is_rows(const flux__net_factor *f, const flux__net_factor *u) {
    if (f->in.nd > 1 || u->in.nd > 1) return u->in.nd < 2;
    if (f->limit == 1 || u->limit == 1) return u->limit == 1;
    if (flux__net_beside(f) != flux__net_beside(u) && f->limit >= 4 && u->limit >= 4)
        return flux__net_beside(f);
    return f->limit * 2 >= u->limit;
}

/* One column: rows side by side, or along the inner dim. False: neither. */
static bool flux__net_one_column(flux__net_kernel *c, const flux__net_factor *v,
                               const flux__net_factor *u) {
    const char row = v->number ? 'j' : 'i', column = v->number ? 'i' : 'j';
    const long long limit = (long long)v->limit, inner = (long long)c->k->mnk[2];
    if (u->limit != 1 || v->in.nd > 1) return false;
    if (flux__net_beside(v)) {
        flux__putf(&c->s, "const int %c = 0;\n", column);
        flux__putf(&c->s, "for (int p = 0; p < %lld; p += 4 * @_LANES) {\n"
                   "float sums[4 * @_LANES];\n", limit);
        flux__putf(&c->s, "const int from = %lld - p >= @_LANES || %lld < @_LANES ? p : "
                   "%lld - @_LANES;\n", limit, limit, limit);
        flux__putf(&c->s, "const int rows = %lld - from < 4 * @_LANES ? %lld - from "
                   ": 4 * @_LANES;\n", limit, limit);
        flux__putf(&c->s, "$_matvec(sums, p%d + from, %lld, p%d, %lld, rows, %lld);\n", v->number,
                   (long long)flux__net_step(&v->in), u->number, (long long)flux__net_step(&u->in),
                   inner);
        flux__putf(&c->s, "for (int r = 0; r < rows; r++) {\nconst int %c = from + r;\n", row);
        flux__net_epilogue(c, "sums[r]");
        flux__put(&c->s, "}\n}\n");
    } else if (flux__net_step(&v->in) == 1 && flux__net_step(&u->in) == 1 && v->across.nd < 2) {
        flux__putf(&c->s, "const int %c = 0;\n", column);
        flux__putf(&c->s, "for (int %c = 0; %c < %lld; %c++) {\n", row, row, limit, row);
        flux__putf(&c->s, "const float sum = $_dot(p%d + %c * (%lld), p%d, %lld);\n", v->number,
                   row, (long long)flux__net_step(&v->across), u->number, inner);
        flux__net_epilogue(c, "sum");
        flux__put(&c->s, "}\n");
    } else return false;
    flux__putf(&c->s, "(void)%c;\n", column);
    return true;
}

/* Writes the loop over columns, four from q on, and the call of $_tile for them; rows: its rows'
   address and step. */
static void flux__net_columns(flux__net_kernel *c, const flux__net_factor *u, const char *call,
                              const char *rows) {
    flux__putf(&c->s, "for (int q = 0; q < %lld; q += 4) {\nfloat sums[4 * @_ROWS];\n"
               "const int last = %lld - q;\n", (long long)u->limit, (long long)u->limit - 1);
    for (int m = 0; m < 4; m++) {
        char column[40];
        snprintf(column, sizeof column, m ? "(last < %d ? q : q + %d)" : "q", m, m);
        flux__putf(&c->s, "const int c%d = ", m);
        flux__net_offset(&c->s, &u->across, column);
        flux__put(&c->s, m ? " - c0;\n" : ";\n");
    }
    flux__putf(&c->s, "%s(sums, %s, p%d + c0, c1, c2, c3, %lld, %lld);\n", call, rows, u->number,
               (long long)flux__net_step(&u->in), (long long)c->k->mnk[2]);
    flux__put(&c->s, "for (int m = 0; m < 4 && m <= last; m++) {\n");
    flux__putf(&c->s, "const int %c = q + m;\n", u->number ? 'j' : 'i');
}

/* Rows that lie side by side, `long_row` of them, of which those of each `pitch` that are beyond
   dim 0 are thrown away. */
static void flux__net_direct(flux__net_kernel *c, const flux__net_factor *v,
                             const flux__net_factor *u,
                           int64_t long_row) {
    /* rows far apart lie in few sets of a cache: if many columns read them, they are copied */
    const bool table = v->in.nd > 1, one = v->across.nd == 1, panel = !table && u->limit > 8;
    const char row = v->number ? 'j' : 'i';
    char rows[96];
    if (table) {
        flux__putf(&c->s, "static const int at[%lld] = {", (long long)c->k->mnk[2]);
        for (int64_t l = 0; l < c->k->mnk[2]; l++)
            flux__putf(&c->s, l ? l % 16 ? ", %lld" : ",\n%lld" : "\n%lld",
                       (long long)flux__axes_at(&v->in, l));
        flux__put(&c->s, " };\n");
    }
    flux__putf(&c->s, "for (int p = 0; p < %lld; p += @_ROWS) {\n"
               "const int from = p + @_ROWS <= %lld ? p : %lld - @_ROWS;\n", (long long)long_row,
               (long long)long_row, (long long)long_row);
    if (panel) {
        if (c->panel < c->k->mnk[2]) c->panel = c->k->mnk[2];
        flux__putf(&c->s, "#if @_LANES > 1\nfor (int l = 0; l < %lld; l++)\n"
                   "memcpy($_panel + l * @_ROWS, p%d + from + l * %lld, sizeof(float) * @_ROWS);\n"
                   "const float *x = $_panel;\nconst int as = @_ROWS;\n#else\n",
                   (long long)c->k->mnk[2], v->number, (long long)flux__net_step(&v->in));
        flux__putf(&c->s, "const float *x = p%d + from;\nconst int as = %lld;\n#endif\n",
                   v->number, (long long)flux__net_step(&v->in));
        snprintf(rows, sizeof rows, "x, as");
    } else if (table) snprintf(rows, sizeof rows, "p%d + from, at", v->number);
    else snprintf(rows, sizeof rows, "p%d + from, %lld", v->number,
                  (long long)flux__net_step(&v->in));
    flux__net_columns(c, u, table ? "$_tile_at" : "$_tile", rows);
    if (one) flux__putf(&c->s, "for (int r = 0; r < @_ROWS; r++) {\nconst int %c = from + r;\n",
                        row);
    else {
        const long long wide = (long long)v->across.dim[0], pitch = (long long)v->across.step[1];
        flux__putf(&c->s, "for (int t = from; t < from + @_ROWS; t += %lld - t %% %lld) {\n"
                   "const int x = t %% %lld, to = t / %lld * %lld + x;\n", pitch, pitch, pitch,
                   pitch, wide);
        flux__putf(&c->s, "const int n = %lld - x < from + @_ROWS - t ? %lld - x : "
                   "from + @_ROWS - t;\n", wide, wide);
        flux__putf(&c->s, "for (int r = t - from; r < t - from + n; r++) {\n"
                   "const int %c = to + r - (t - from);\n", row);
    }
    flux__net_epilogue(c, "sums[m * @_ROWS + r]");
    flux__put(&c->s, one ? "}\n}\n}\n}\n" : "}\n}\n}\n}\n}\n");
}

/* Rows that are packed, a panel at a time. */
static void flux__net_packed(flux__net_kernel *c, const flux__net_factor *v,
                             const flux__net_factor *u) {
    const char row = v->number ? 'j' : 'i';
    const long long limit = (long long)v->limit;
    if (c->packed < c->k->mnk[2]) c->packed = c->k->mnk[2];
    flux__putf(&c->s, "for (int p = 0; p < %lld; p += @_ROWS) {\nint at[@_ROWS];\n"
               "const int rows = %lld - p < @_ROWS ? %lld - p : @_ROWS;\n", limit, limit, limit);
    flux__put(&c->s, "for (int r = 0; r < rows; r++) at[r] = ");
    flux__net_offset(&c->s, &v->across, "p + r");
    flux__putf(&c->s, ";\nfor (int l = 0; l < %lld; l++) {\nconst float *x = p%d + ",
               (long long)c->k->mnk[2], v->number);
    flux__net_offset(&c->s, &v->in, "l");
    flux__put(&c->s, ";\nint r = 0;\n"
              "for (; r < rows; r++) $_pack[l * @_ROWS + r] = x[at[r]];\n"
              "for (; r < @_ROWS; r++) $_pack[l * @_ROWS + r] = 0;\n}\n");
    flux__net_columns(c, u, "$_tile", "$_pack, @_ROWS");
    flux__putf(&c->s, "for (int r = 0; r < rows; r++) {\nconst int %c = p + r;\n", row);
    flux__net_epilogue(c, "sums[m * @_ROWS + r]");
    flux__put(&c->s, "}\n}\n}\n}\n");
}

/* The body of a product. */
static void flux__net_product(flux__net_kernel *c) {
    const flux__kernel *k = c->k;
    const flux__net_factor a = flux__net_factor_of(c, 0), b = flux__net_factor_of(c, 1);
    const flux__net_factor *v = flux__net_is_rows(&a, &b) ? &a : &b, *u = v == &a ? &b : &a;
    const flux__axes *x = &v->across;
    int opened = 0;
    if (k->operand[0].padding) flux__net_pad(c);
    for (int d = FLUX_MAX_DIMS - 1; d >= 2; d--) {
        if (k->full[d] == 1) continue;
        flux__putf(&c->s, "for (int b%d = 0; b%d < %lld; b%d++) {\n", d, d, (long long)k->full[d],
                   d);
        opened++;
    }
    flux__net_matrix(c, 0);
    flux__net_matrix(c, 1);
    /* windows side by side, at most two thirds more of them than there are results */
    const bool windows = x->nd == 2 && x->step[0] == 1 && x->step[1] >= x->dim[0] &&
                         3 * x->step[1] <= 5 * x->dim[0];
    const int64_t long_row = windows ? (x->dim[1] - 1) * x->step[1] + x->dim[0] : v->limit;
    if (k->operand[0].dtype != FLUX_F32 || u->in.nd > 1 || k->mnk[2] == 0)
        flux__net_plain(c, &a, &b);
    else if (flux__net_one_column(c, v, u)) (void)0;
    else if (windows || flux__net_beside(v)) {
        flux__putf(&c->s, "if (%lld >= @_ROWS) {\n", (long long)long_row);
        flux__net_direct(c, v, u, long_row);
        flux__put(&c->s, "} else {\n");
        flux__net_packed(c, v, u);
        flux__put(&c->s, "}\n");
    } else flux__net_packed(c, v, u);
    flux__net_close(c, opened);
}

FLUX__END_COLD

#endif /* FLUX__TEXT_EXPORT_PRODUCTS_H */
