#ifndef FLUX__GPU_GEMM_H
#define FLUX__GPU_GEMM_H
#include "../base/platform.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "kernels.h"
#include "vectors.h"
#include "fused.h"

/* ---------------------------------------------------------------------- gpu/gemm.h
   What all texts of matrix products have in common: how an operand lies in memory
   (flux__factor), which part of the work a block does (flux__emit_product_start),
   whether the inner dim is split (flux__parts), and what becomes of a sum
   (flux__emit_sum). The kernels are in gpu/gemm_fma.h, where each thread keeps
   a piece of a block's tile in registers, and in gpu/gemm_mma.h, where each warp
   does, on a chip that multiplies small matrices. The windows that a convolution
   multiplies are read from the image itself, without padding (implicit GEMM), and
   by 16 bytes where channels lie side by side: what is fetched from is all that is
   another than in a plain product (flux__emit_window).

   Everything here emits text for one product: a is M x K, b is K x N, the result
   is M x N, mnk[] holds M, N, K, and there may be batches. The first dim is the
   contiguous one (column-major) in the result, which has leading dimension M; an
   operand may have any strides. The text's i and j number rows and columns of the
   result, l the inner dim.

   Invariant: shape and dtype alone choose tile and split, and the terms of an
   element's sum are added in one order. Shared memory stays within 48 KiB. */

FLUX__BEGIN_LEAN

typedef struct flux__factor {             /* an operand, its dims told apart */
    const flux__operand *o;
    char name;                            /* 'a' or 'b' */
    int p;                                /* the kernel's parameter with its address */
    int64_t limit;                        /* M for a, N for b */
    flux__axes across, in;                /* dims along M or N; dims along the inner dim K */
    bool deep;                            /* the inner dim is the contiguous one */
} flux__factor;

/* The sizes of the dims in memory that make up dim `dim` of an operand's matrix, and their steps
   out of `stride`: one dim, or several if the operand is the implicit im2col matrix of a
   convolution. Those that one step goes through are one, which spares divisions. */
static void flux__factor_axes(const flux__operand *o, const int64_t *stride, int dim,
                              flux__axes *x) {
    x->nd = 0;
    for (int d = 0; d < o->shape.ndim; d++) {
        if ((o->gather ? o->owner[d] : d) != dim) continue;
        if (x->nd && stride[d] == x->step[x->nd - 1] * x->dim[x->nd - 1]) {
            x->dim[x->nd - 1] *= o->shape.dim[d];
            continue;
        }
        x->dim[x->nd] = o->shape.dim[d];
        x->step[x->nd++] = stride[d];
    }
}

/* The stride of the first dim that has more than one element, or 0. */
static int64_t flux__first_step(const flux__axes *x) {
    for (int d = 0; d < x->nd; d++)
        if (x->dim[d] > 1) return x->step[d];
    return 0;
}

/* Operand 0 (a, M x K) or 1 (b, K x N) of the product; a vector has the inner dim alone. */
static flux__factor flux__factor_of(flux__emitter *c, int which) {
    flux__factor f;
    bool vector = c->k->operand[which].shape.ndim == 1 && !c->k->operand[which].gather;
    f.o = &c->k->operand[which];
    f.name = which ? 'b' : 'a';
    f.p = flux__emitter_slot(c, f.o->src, f.o->dtype);
    f.limit = c->k->mnk[which];
    flux__factor_axes(f.o, f.o->stride, vector ? -1 : which, &f.across);
    flux__factor_axes(f.o, f.o->stride, vector ? 0 : !which, &f.in);
    f.deep = flux__first_step(&f.in) == 1 && flux__first_step(&f.across) != 1;
    return f;
}

static int64_t flux__batches(const flux__kernel *k) {
    int64_t n = 1;
    for (int d = 2; d < FLUX_MAX_DIMS; d++) n *= k->full[d];
    return n;
}

/* Declares a_at or b_at: where the operand's matrix number `batch` starts, `first` of one, by these
   strides; for a bound's coordinate a_0, a_1, ... */
static void flux__emit_start(flux__emitter *c, const flux__factor *f, const char *name,
                             int64_t first, const int64_t *stride) {
    int64_t before = 1;
    flux__emit(&c->s, "    const %s %c_%s = %lld", c->index, f->name, name, (long long)first);
    for (int d = 2; d < FLUX_MAX_DIMS; d++) {
        flux__axes x;
        char at[64];
        flux__factor_axes(f->o, stride, d, &x);
        snprintf(at, sizeof at, "(batch / %lld %% %lld)", (long long)before,
                 (long long)c->k->full[d]);
        if (c->k->full[d] > 1) flux__emit_axes(&c->s, &x, at);
        before *= c->k->full[d];
    }
    flux__emit(&c->s, ";\n");
}
static int flux__limits(const flux__factor *f) { return f->o->bounds ? f->o->bounds->n : 0; }
static void flux__emit_batch(flux__emitter *c, const flux__factor *f) {
    flux__emit_start(c, f, "at", f->o->offset, f->o->stride);
    for (int q = 0; q < flux__limits(f); q++) {
        const char name[2] = { (char)('0' + q), 0 };
        flux__emit_start(c, f, name, f->o->bounds->of[q].first, f->o->bounds->of[q].step);
    }
}

/* The position of the element at i (row of a, column of b) and l (inner dim) of the batch's
   matrix. */
static void flux__emit_element(flux__listing *s, const flux__factor *f) {
    flux__emit(s, "%c_at", f->name);
    flux__emit_axes(s, &f->across, "i");
    flux__emit_axes(s, &f->in, "l");
}

/* A coordinate of a convolution's image that its padding bounds (flux__bound), along the matrix's
   sides. Along the inner dim it goes by the window's places: those of dim `dim` of `in`, in.nd
   where there is but one, `step` apart; -1: of several dims. */
typedef struct flux__limit { flux__axes across, in; int dim; int64_t places, step, n; } flux__limit;

static flux__limit flux__limit_of(const flux__factor *f, int q) {
    const flux__bound *b = &f->o->bounds->of[q];
    flux__limit x;
    flux__factor_axes(f->o, b->step, f->name == 'b', &x.across);
    flux__factor_axes(f->o, b->step, f->name != 'b', &x.in);
    x.dim = x.in.nd, x.places = 1, x.step = 0, x.n = b->n;
    for (int d = 0; d < x.in.nd; d++) {
        if (!x.in.step[d] || x.in.dim[d] == 1) continue;
        x.dim = x.dim == x.in.nd ? d : -1, x.places = x.in.dim[d], x.step = x.in.step[d];
    }
    return x;
}

/* Whether a convolution's windows are rows along the contiguous inner dim. Then where a thread's
   rows lie and which places of their windows are padding is found before the loop
   (flux__emit_rows), and a turn adds where its place in the window is (flux__emit_turn). Places are
   bits of a word, those of each coordinate behind those of the one before; bit 30 is out in all
   rows, bit 31 in those beyond the matrix. */
static bool flux__goes_by_rows(const flux__factor *f) {
    int64_t bits = 0;
    for (int q = 0; q < flux__limits(f); q++) {
        const flux__limit x = flux__limit_of(f, q);
        bits += x.dim < 0 ? 31 : x.places;
    }
    return f->o->gather && f->deep && bits <= 30;
}

/* Declares a_row[count], where the rows of a thread begin, `rows` apart, and a_out[count]. */
static void flux__emit_rows(flux__emitter *c, const flux__factor *f, int count, int rows) {
    flux__listing *s = &c->s;
    const char n = f->name;
    int64_t bit = 0;
    flux__emit(s, "    %s %c_row[%d];\n    u32 %c_out[%d];\n#pragma unroll\n"
               "    for (int u = 0; u < %d; u++) {\n    const %s i = %c_i + u * %d;\n"
               "    %c_row[u] = %c_at", c->index, n, count, n, count, count, c->index, n, rows, n,
               n);
    flux__emit_axes(s, &f->across, "i");
    flux__emit(s, ", %c_out[u] = i < %lld ? 1u << 30 : 3u << 30;\n", n, (long long)f->limit);
    for (int q = 0; q < flux__limits(f); q++) {
        const flux__limit x = flux__limit_of(f, q);
        flux__emit(s, "    for (int w = 0; w < %lld; w++) {\n    const %s at = %c_%d",
                   (long long)x.places, c->index, n, q);
        flux__emit_axes(s, &x.across, "i");
        flux__emit(s, " + w * %lld;\n    if (at < 0 || at >= %lld) %c_out[u] |= 1u << (%lld + w);\n"
                   "    }\n", (long long)x.step, (long long)x.n, n, (long long)bit);
        bit += x.places;
    }
    flux__emit(s, "    }\n");
}

/* Declares what a turn adds to a row's place, a_in, and the bits of the window's places there,
   a_places; `l` is the text of its place along the inner dim: beyond the end all is out. */
static void flux__emit_turn(flux__emitter *c, const flux__factor *f, const char *l) {
    flux__listing *s = &c->s;
    int64_t bit = 0;
    flux__emit(s, "    const %s %c_in = 0", c->index, f->name);
    flux__emit_axes(s, &f->in, l);
    flux__emit(s, ";\n    const u32 %c_places = (%s < end ? 2u : 3u) << 30", f->name, l);
    for (int q = 0; q < flux__limits(f); q++) {
        flux__limit x = flux__limit_of(f, q);
        for (int d = 0; d < x.in.nd; d++) x.in.step[d] = d == x.dim;
        flux__emit(s, " | 1u << ((%lld", (long long)bit);
        flux__emit_axes(s, &x.in, l);
        flux__emit(s, ") & 31)");
        bit += x.places;
    }
    flux__emit(s, ";\n");
}

/* Declares whether the element at i and l is `there`: in the matrix and not in the padding. */
static void flux__emit_there(flux__emitter *c, const flux__factor *f) {
    flux__listing *s = &c->s;
    flux__emit(s, "    const int there = i < %lld && l < end", (long long)f->limit);
    for (int q = 0; q < flux__limits(f); q++) {
        const flux__limit x = flux__limit_of(f, q);
        flux__emit(s, " && (%s)(%c_%d",
                   strcmp(c->index, "int") == 0 ? "u32" : "u64", f->name, q);
        flux__emit_axes(s, &x.across, "i");
        flux__emit_axes(s, &x.in, "l");
        flux__emit(s, ") < %lld", (long long)x.n);
    }
    flux__emit(s, ";\n");
}

/* Declares of a thread's load number u of a convolution whether it is `there`, in the matrix and
   not in the padding, and where it is from; `type`: of an element. */
static void flux__emit_window(flux__emitter *c, const flux__factor *f, const char *type) {
    flux__listing *s = &c->s;
    const char n = f->name;
    if (flux__goes_by_rows(f)) {
        flux__emit(s, "    const int there = !(%c_out[u] & %c_places);\n"
                   "    const %s *const from = p%d + (%c_row[u] + %c_in);\n", n, n, type, f->p, n,
                   n);
        return;
    }
    flux__emit_there(c, f);
    flux__emit(s, "    const %s *const from = p%d + (", type, f->p);
    flux__emit_element(s, f);
    flux__emit(s, ");\n");
}

/* Opens the text's block for the unit `name` of n, which blockIdx.y chooses; `only` stands
   before it. It is a loop only if there are more units than a grid may have blocks along y,
   since a loop costs registers. */
static void flux__emit_unit(flux__emitter *c, const char *name, int64_t n, const char *only) {
    if (n <= 65535)
        flux__emit(&c->s, "    %s{ const %s %s = (%s)blockIdx.y;\n", only, c->index, name,
                    c->index);
    else flux__emit(&c->s,
                     "    %sfor (%s %s = (%s)blockIdx.y; %s < %lld; %s += (%s)gridDim.y) {\n", only,
                     c->index, name, c->index, name, (long long)n, name, c->index);
}

/* Whether all chunks of `chunk` elements along the contiguous side are whole and aligned: only one
   dim has stride 1 (two have it where windows overlap), and of windows no padding bounds it. */
static bool flux__chunks_fit(const flux__factor *f, int64_t inner, int chunk) {
    const flux__operand *o = f->o;
    bool fit = flux__first_step(f->deep ? &f->in : &f->across) == 1 &&
               (f->deep ? inner : f->limit) % chunk == 0 && o->offset % chunk == 0;
    int along = 0;                        /* dims of stride 1 */
    for (int d = 0; d < o->shape.ndim && fit; d++) {
        const int64_t n = o->shape.dim[d];
        if (n <= 1) continue;
        if (o->stride[d] != 1) fit = o->stride[d] % chunk == 0;
        else fit = along++ == 0 && (!o->gather || n % chunk == 0);
        for (int q = 0; q < flux__limits(f) && o->stride[d] == 1; q++)
            fit = fit && o->bounds->of[q].step[d] == 0;
    }
    return fit;
}

enum { FLUX__ENOUGH_BLOCKS = 128, FLUX__MOST_PARTS = 64, FLUX__LEAST_TERMS = 256 };

/* Tiles of m x n in the result, of all batches. */
static int64_t flux__product_tiles(const flux__kernel *k, int m, int n) {
    return (k->mnk[0] + m - 1) / m * ((k->mnk[1] + n - 1) / n) * flux__batches(k);
}
/* Blocks that these tiles may have: of a convolution as many for each as its inner dim has parts
   (flux__parts). */
static int64_t flux__product_blocks(const flux__kernel *k, int m, int n) {
    int64_t parts = k->operand[0].gather ? k->mnk[2] / FLUX__LEAST_TERMS : 1;
    if (parts > FLUX__MOST_PARTS) parts = FLUX__MOST_PARTS;
    return flux__product_tiles(k, m, n) * (parts < 1 ? 1 : parts);
}

/* How a product's inner dim is split where its tiles would not fill a chip: into parts of
   `each` terms, which have blocks of their own (blockIdx.z). Their sums go to scratch memory,
   [part][element], and a second launch adds them in the order of the parts. Shape alone
   decides, so that a sum is the same on every chip. */
typedef struct flux__parts {
    int64_t each, points;                 /* terms of a part; elements of the result */
    int parts, scratch;                   /* scratch: the parameter that is the memory's address */
} flux__parts;

/* The split for tiles of m x n; `unit`: terms of a turn of the kernel's loop. A convolution's
   gradient by its weight has few tiles and a very long inner dim: of tiles that leave room on a
   multiprocessor it has more blocks. */
static flux__parts flux__parts_of(flux__emitter *c, int m, int n, int unit) {
    const bool image = c->k->operand[0].gather;
    const int64_t blocks = (image && m * n < 128 * 128 ? 3 : 2) * FLUX__ENOUGH_BLOCKS,
        most = image ? 2 * FLUX__MOST_PARTS : FLUX__MOST_PARTS;
    int64_t tiles = flux__product_tiles(c->k, m, n), K = c->k->mnk[2],
        parts = tiles > 0 && tiles < FLUX__ENOUGH_BLOCKS ? blocks / tiles : 1;
    flux__parts s;
    if (parts > K / FLUX__LEAST_TERMS) parts = K / FLUX__LEAST_TERMS;
    if (parts > most) parts = most;
    if (parts < 2) parts = 1;
    s.each = ((K + parts - 1) / parts + unit - 1) / unit * unit;
    s.parts = parts > 1 ? (int)((K + s.each - 1) / s.each) : 1;
    s.points = c->k->mnk[0] * c->k->mnk[1] * flux__batches(c->k);
    s.scratch = s.parts > 1 ? flux__emitter_param(c, 's', 0, "long long *") : -1;
    return s;
}

/* What both kinds of products begin with: the tile's first row a0 and column b0, the batch, the
   terms of the part, begin to end, and where its operands start. Opens two blocks of text, over
   tiles and over batches, and sets the launch's grid. */
static void flux__emit_product_start(flux__emitter *c, const flux__factor *a, const flux__factor *b,
                                      int m, int n, const flux__parts *split) {
    int64_t tiles = (c->k->mnk[0] + m - 1) / m, batches = flux__batches(c->k),
        all = tiles * ((c->k->mnk[1] + n - 1) / n);
    flux__emit_iterations(c, all);
    flux__emit(&c->s,
                "    const %s a0 = (%s)(turn %% %lldu) * %d, b0 = (%s)(turn / %lldu) * %d;\n",
                c->index, c->index, (long long)tiles, m, c->index, (long long)tiles, n);
    flux__emit_unit(c, "batch", batches, "");
    flux__emit_batch(c, a);
    flux__emit_batch(c, b);
    long long K = (long long)c->k->mnk[2], each = (long long)split->each;
    if (split->parts == 1) flux__emit(&c->s, "    const %s begin = 0, end = %lld;\n", c->index, K);
    else flux__emit(&c->s, "    const %s begin = (%s)blockIdx.z * %lld, "
                     "end = begin + %lld < %lld ? begin + %lld : %lld;\n", c->index, c->index, each,
                     each, K, each, K);
    c->gk->next.grid[2] = (unsigned)split->parts;
    c->gk->next.grid[0] = flux__gpu_blocks(all);
    c->gk->next.grid[1] = (unsigned)(batches < 65535 ? batches : 65535);
}

/* The kernel's value that is the product, or -1. */
static int flux__product_value(const flux__kernel *k) {
    for (int i = 0; i < k->nvalue; i++)
        if (k->value[i].kind == FLUX__V_PRODUCT) return i;
    return -1;
}

/* How many neighbouring rows of a column a thread finishes together: up to `most`, as many as
   fill 16 bytes where they lie side by side; else 1. */
static int flux__sum_width(flux__emitter *c, const flux__parts *split, int most) {
    int width = split->parts > 1 ? 4 : flux__map_width(c);
    if (width > most) width = most;
    while (c->k->mnk[0] % width != 0) width /= 2;
    if (width < 4) return 1;
    if (split->parts == 1) flux__find_ways(c, false, width);
    return width;
}

/* What becomes of the sums of type T from row i of column j on, whose texts are `sum`, of the
   element's number j: a part's go to scratch memory, else the kernel's epilogue computes from
   them and stores. */
static void flux__emit_sum(flux__emitter *c, const flux__parts *split, const char *T, int width,
                           const char *sum) {
    int product = flux__product_value(c->k), V = *T == 'd' ? 2 : 4;
    flux__emit(&c->s, "    const %s first = (batch * %lld + j) * %lld + i;\n", c->index,
                (long long)c->k->mnk[1], (long long)c->k->mnk[0]);
    if (split->parts > 1)
        flux__emit(&c->s, "    %s *const to = (%s *)p%d + blockIdx.z * %lldLL + first;\n", T, T,
                    split->scratch, (long long)split->points);
    if (split->parts > 1 && width == 1) flux__emit(&c->s, "    *to = %s;\n", sum);
    else if (split->parts > 1)
        flux__emit(&c->s, "    %s_pack v[%d];\n    FULLY\n    for (int j = 0; j < %d; j++) "
                    "v[j / %d].x[j %% %d] = %s;\n    FULLY\n"
                    "    for (int q = 0; q < %d; q++) ((%s_pack *)to)[q] = v[q];\n", T, width / V,
                    width, V, V, sum, width / V, T);
    else if (width > 1) flux__emit_neighbours(c, product, T, sum);
    else {
        flux__emit(&c->s, "    const %s o = first;\n", c->index);
        if (product >= 0) flux__emit(&c->s, "    const %s v%d = %s;\n", T, product, sum);
        flux__emit_point(c, product);
    }
}

/* The second launch of a split product: adds the parts' sums, and has the epilogue. */
static void flux__code_product_parts(flux__emitter *c, const flux__parts *split, const char *T) {
    int product = flux__product_value(c->k);
    flux__emit_numbers(c);
    flux__emit_iterations(c, (split->points + 255) / 256);
    flux__emit(&c->s, "    const %s o = (%s)turn * 256 + (int)threadIdx.x;\n"
                "    if (o < %lld) {\n    const %s *const part = (const %s *)p%d + o;\n"
                "    %s v = part[0];\n", c->index, c->index, (long long)split->points, T, T,
                split->scratch, T);
    flux__emit(&c->s, "#pragma unroll 8\n"
                "    for (int q = 1; q < %d; q++) v += part[q * %lldLL];\n", split->parts,
                (long long)split->points);
    if (product >= 0) flux__emit(&c->s, "    const %s v%d = v;\n", T, product);
    flux__emit_point(c, product);
    flux__emit(&c->s, "    }\n    }\n");
    c->gk->next.threads = 256, c->gk->next.blocks = 1;
    c->gk->next.grid[0] = flux__gpu_blocks((split->points + 255) / 256);
}

FLUX__END_LEAN

#endif /* FLUX__GPU_GEMM_H */
