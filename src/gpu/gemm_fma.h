#ifndef FLUX__GPU_GEMM_FMA_H
#define FLUX__GPU_GEMM_FMA_H
#include "../base/platform.h"
#include "../schedule/kernel.h"
#include "../schedule/spelling.h"
#include "kernels.h"
#include "fused.h"
#include "gemm.h"

/* ---------------------------------------------------------------------- gpu/gemm_fma.h
   The product with one fused multiply-add a term, for chips or dtypes without
   matrix instructions. Its text is made of three parts over one description
   (flux__fma_tile): fetch brings the next tiles of the operands (flux__emit_loads,
   flux__emit_puts), multiply adds the products of the present ones
   (flux__emit_fma_steps), finish hands the sums to the epilogue or to scratch
   memory (gpu/gemm.h).

   Invariant: both tiles lie in shared memory by the inner dim first, k x m and k x
   n, so that a thread reads its rows and columns 16 bytes at a time whatever the
   operands' layout. There are two stages: while one is multiplied the next is
   under way, by asynchronous copies where an operand's own layout is the tile's,
   else through registers. One barrier separates the turns: it says that the next
   stage is written and the other one has been read. Addresses grow by constants,
   except in a convolution's windows (flux__emit_window).

   Rejected: tiles in an operand's own layout, which cost one load from shared
   memory for every row and term. */

FLUX__BEGIN_LEAN

/* A block's tile of the result, and how its threads share the work. */
typedef struct flux__fma_tile {
    int m, n, k, tm, tn, groups;          /* tile m x n, k terms at a time; a thread has tm x tn of
                                             it; groups of threads take turns along the inner dim */
} flux__fma_tile;

typedef struct flux__fma_part {           /* an operand's tile, and what a thread loads of it */
    const flux__factor *f;
    int pitch, stage;                     /* elements from one row in shared memory to the next, and
                                             from one stage to the next */
    int chunk, per, count, rows;          /* elements of a load; loads along the contiguous side; a
                                             thread's loads, which are `rows` apart on the other */
    int64_t apart, step;                  /* in memory: of a thread's loads; along the inner dim */
    bool ahead;                           /* by asynchronous copies */
} flux__fma_part;

/* The largest tile of which the result has enough, and more than half of one's columns, else the
   smallest, whose groups split the inner dim. An oblong tile is for results that are narrow, not
   for few tiles; large tiles are not for f64. */
static flux__fma_tile flux__choose_fma_tile(const flux__kernel *k) {
    static const flux__fma_tile tiles[] = { { 128, 128, 8, 8, 8, 1 }, { 128, 64, 16, 8, 8, 1 },
                                            { 64, 64, 16, 8, 4, 1 }, { 32, 32, 16, 4, 4, 4 } };
    bool f64 = k->operand[0].dtype == FLUX_F64;
    int i = f64 ? 2 : 0;
    while (i < 3 && (flux__product_blocks(k, tiles[i].m, tiles[i].n) <
                         FLUX__ENOUGH_BLOCKS * (i == 1 ? 2 : 1) ||
                     (i < 2 && k->mnk[1] <= tiles[i].n / 2))) i++;
    flux__fma_tile t = tiles[i];
    if (f64) t.k = 8;                     /* f64 has twice the bytes */
    return t;
}

/* What each of a group's `threads` threads loads of operand f; `copies`: the chip copies
   asynchronously. */
static flux__fma_part flux__fma_part_of(const flux__kernel *k, const flux__factor *f,
                                        const flux__fma_tile *t, int threads, bool copies) {
    flux__fma_part p;
    int vector = f->o->dtype == FLUX_F64 ? 2 : 4, width = f->name == 'a' ? t->m : t->n;
    bool whole = (f->o->dtype == FLUX_F32 || f->o->dtype == FLUX_F64) &&
                 flux__chunks_fit(f, k->mnk[2], vector);
    p.f = f, p.chunk = whole ? vector : 1;
    p.pitch = width + vector, p.stage = t->groups * t->k * p.pitch;
    p.per = (f->deep ? t->k : width) / p.chunk, p.rows = threads / p.per;
    p.count = width * t->k / p.chunk / threads;
    p.apart = flux__first_step(f->deep ? &f->across : &f->in) * p.rows;
    p.step = flux__first_step(&f->in);
    p.ahead = copies && whole && !f->deep;
    return p;
}

/* Declares where a thread's loads of the part begin: a_i across, a_l along the inner dim, the
   address unless it is a convolution's windows, and a_put in shared memory. T: a sum's type. */
static void flux__emit_part(flux__emitter *c, const flux__fma_part *p, const flux__fma_tile *t,
                            const char *T) {
    const flux__factor *f = p->f;
    flux__listing *s = &c->s;
    char n = f->name, fast = f->deep ? 'l' : 'i', slow = f->deep ? 'i' : 'l';
    flux__emit(s, "    const int %c_%c0 = t %% %d * %d, %c_%c0 = t / %d;\n", n, fast, p->per,
                p->chunk, n, slow, p->per);
    flux__emit(s, "    const %s %c_i = %c0 + %c_i0;\n    %s %c_l = begin + g * %d + %c_l0;\n",
                c->index, n, n, n, c->index, n, t->k, n);
    flux__emit(s, "    %s *const %c_put = %c_tile + (g * %d + %c_l0) * %d + %c_i0;\n", T, n, n,
                t->k, n, p->pitch, n);
    if (!f->o->gather)
        flux__emit(s, "    const %s *%c_from = p%d + %c_at + %c_i * %lld + %c_l * %lld;\n",
                    flux__dtype_types[f->o->dtype], n, f->p, n, n,
                    (long long)flux__first_step(&f->across), n, (long long)p->step);
    if (flux__goes_by_rows(f)) flux__emit_rows(c, f, p->count, p->rows);
    if (!p->ahead)
        flux__emit(s, "    %s%s %c_next[%d];\n", T, p->chunk > 1 ? "_pack" : "", n, p->count);
}

/* Fetch: loads the thread's share of the next tile, to stage `stage` of shared memory or to
   registers, and goes on along the inner dim. Beyond the matrix are zeros. */
static void flux__emit_loads(flux__emitter *c, const flux__fma_part *p, const flux__fma_tile *t,
                             const char *T, const char *stage) {
    const flux__factor *f = p->f;
    flux__listing *s = &c->s;
    const char *E = flux__dtype_types[f->o->dtype];
    char n = f->name;
    const char l[] = { n, '_', 'l', 0 };
    if (flux__goes_by_rows(f)) flux__emit_turn(c, f, l);
    flux__emit(s, "#pragma unroll\n    for (int u = 0; u < %d; u++) {\n"
                "    const %s i = %c_i + u * %d, l = %c_l + u * %d;\n", p->count, c->index, n,
                f->deep ? p->rows : 0, n, f->deep ? 0 : p->rows);
    if (f->o->gather) flux__emit_window(c, f, E);
    else flux__emit(s, "    const int there = i < %lld && l < end;\n"
                    "    const %s *const from = %c_from + u * (%s)%lld;\n", (long long)f->limit,
                    E, n, c->index, (long long)p->apart);
    if (p->ahead)
        flux__emit(s, "    copy_16(%c_put + %s * %d + u * %d, there ? from : p%d, "
                    "there ? 16 : 0);\n", n, stage, p->stage, p->rows * p->pitch, f->p);
    else if (p->chunk > 1) {
        flux__emit(s, "    if (there) %c_next[u] = *(const %s_pack *)from;\n    else "
                    "for (int q = 0; q < %d; q++) %c_next[u].x[q] = 0;\n", n, T, p->chunk, n);
    } else {
        flux__emit(s, "    %c_next[u] = there ? ", n);
        flux__emit_loaded(s, f->o->dtype, "*from");
        flux__emit(s, " : 0;\n");
    }
    flux__emit(s, "    }\n    %c_l += %d;\n", n, t->k * t->groups);
    if (!f->o->gather)
        flux__emit(s, "    %c_from += %lld;\n", n, (long long)p->step * t->k * t->groups);
}

/* Stores what flux__emit_loads left in registers to stage `stage`, the inner dim first. */
static void flux__emit_puts(flux__emitter *c, const flux__fma_part *p, const char *T,
                            const char *stage) {
    flux__listing *s = &c->s;
    char n = p->f->name;
    if (p->ahead) return;
    flux__emit(s, "#pragma unroll\n    for (int u = 0; u < %d; u++) {\n"
                "    %s *const to = %c_put + %s * %d + u * %d;\n", p->count, T, n, stage, p->stage,
                p->rows * (p->f->deep ? 1 : p->pitch));
    if (p->chunk == 1) flux__emit(s, "    *to = %c_next[u];\n", n);
    else if (!p->f->deep) flux__emit(s, "    *(%s_pack *)to = %c_next[u];\n", T, n);
    else flux__emit(s, "#pragma unroll\n    for (int q = 0; q < %d; q++) to[q * %d] = "
                     "%c_next[u].x[q];\n", p->chunk, p->pitch, n);
    flux__emit(s, "    }\n");
}

/* Multiply: adds the products of stage `stage`. A thread's rows are packs of 16 bytes, wide * V
   apart, and so are its columns. */
static void flux__emit_fma_steps(flux__emitter *c, const flux__fma_part *a, const flux__fma_part *b,
                                 const flux__fma_tile *t, const char *T) {
    flux__listing *s = &c->s;
    int V = *T == 'd' ? 2 : 4;
    flux__emit(s, "    const %s *const as = a_tile + stage * %d + g * %d + tx * %d, "
                "*const bs = b_tile + stage * %d + g * %d + ty * %d;\n", T, a->stage,
                t->k * a->pitch, V, b->stage, t->k * b->pitch, V);
    flux__emit(s, "#pragma unroll\n    for (int l = 0; l < %d; l++) {\n    %s_pack x[%d], y[%d];\n",
                t->k, T, t->tm / V, t->tn / V);
    flux__emit(s, "#pragma unroll\n    for (int i = 0; i < %d; i++) "
                "x[i] = *(const %s_pack *)(as + l * %d + i * %d);\n", t->tm / V, T, a->pitch,
                t->m / t->tm * V);
    flux__emit(s, "#pragma unroll\n    for (int j = 0; j < %d; j++) "
                "y[j] = *(const %s_pack *)(bs + l * %d + j * %d);\n", t->tn / V, T, b->pitch,
                t->n / t->tn * V);
    flux__emit(s, "#pragma unroll\n    for (int j = 0; j < %d; j++)\n#pragma unroll\n"
                "    for (int i = 0; i < %d; i++) sum[j][i] = %s(x[i / %d].x[i %% %d], "
                "y[j / %d].x[j %% %d], sum[j][i]);\n    }\n", t->tn, t->tm,
                *T == 'd' ? "fma" : "fmaf", V, V, V, V);
}

/* Finish of one group: the thread's sums one by one. */
static void flux__emit_fma_sums(flux__emitter *c, const flux__fma_tile *t, const flux__parts *split,
                                const char *T) {
    flux__listing *s = &c->s;
    int V = *T == 'd' ? 2 : 4;
    flux__emit(s, "#pragma unroll\n    for (int jj = 0; jj < %d; jj++)\n#pragma unroll\n"
                "    for (int ii = 0; ii < %d; ii++) {\n", t->tn, t->tm);
    flux__emit(s, "    const %s i = a0 + tx * %d + ii / %d * %d + ii %% %d", c->index, V, V,
                t->m / t->tm * V, V);
    flux__emit(s, ", j = b0 + ty * %d + jj / %d * %d + jj %% %d;\n", V, V, t->n / t->tn * V, V);
    flux__emit(s, "    if (i < %lld && j < %lld) {\n", (long long)c->k->mnk[0],
                (long long)c->k->mnk[1]);
    flux__emit_sum(c, split, T, 1, "sum[jj][ii]");
    flux__emit(s, "    }\n    }\n");
}

/* Finish of several groups, whose sums are added in the order of the groups. They meet in the
   tiles' place. */
static void flux__emit_group_sums(flux__emitter *c, const flux__fma_tile *t,
                                  const flux__parts *split, const char *T, int threads) {
    flux__listing *s = &c->s;
    int V = *T == 'd' ? 2 : 4, pitch = t->m + 1;
    flux__emit(s, "    __syncthreads();\n    %s *const sums = shared;\n", T);
    flux__emit(s, "#pragma unroll\n    for (int j = 0; j < %d; j++)\n#pragma unroll\n"
                "    for (int i = 0; i < %d; i++) "
                "sums[(g * %d + ty * %d + j / %d * %d + j %% %d) * %d", t->tn, t->tm, t->n, V, V,
                t->n / t->tn * V, V, pitch);
    flux__emit(s, " + tx * %d + i / %d * %d + i %% %d] = sum[j][i];\n", V, V, t->m / t->tm * V, V);
    flux__emit(s, "    __syncthreads();\n    for (int e = (int)threadIdx.x; e < %d; e += %d) {\n"
                "    const %s i = a0 + e %% %d, j = b0 + e / %d;\n", t->m * t->n, threads, c->index,
                t->m, t->m);
    flux__emit(s, "    if (i < %lld && j < %lld) {\n    %s v = sums[e / %d * %d + e %% %d];\n",
                (long long)c->k->mnk[0], (long long)c->k->mnk[1], T, t->m, pitch, t->m);
    flux__emit(s, "    for (int q = 1; q < %d; q++) v += sums[(q * %d + e / %d) * %d + e %% %d];\n",
                t->groups, t->n, t->m, pitch, t->m);
    flux__emit_sum(c, split, T, 1, "v");
    flux__emit(s, "    }\n    }\n");
}

/* The kernel's text: the first tiles are fetched before the loop, and each turn fetches the
   next ones and multiplies the present ones. */
static void flux__code_fma_product(flux__emitter *c, const flux__factor *fa,
                                   const flux__factor *fb, const flux__fma_tile *t,
                                   const flux__parts *split, bool copies) {
    const char *T = fa->o->dtype == FLUX_F64 ? "double" : "float";
    int wide = t->m / t->tm, each = wide * (t->n / t->tn), threads = each * t->groups;
    flux__fma_part a = flux__fma_part_of(c->k, fa, t, each, copies),
        b = flux__fma_part_of(c->k, fb, t, each, copies);
    int bytes = 2 * (a.stage + b.stage), sums = t->groups > 1 ? t->groups * t->n * (t->m + 1) : 0;
    flux__listing *s = &c->s;
    flux__emit(s, "    __shared__ ALIGN16 %s shared[%d];\n    %s *const a_tile = shared, "
                "*const b_tile = shared + %d;\n", T, bytes > sums ? bytes : sums, T, 2 * a.stage);
    flux__emit_numbers(c);
    flux__emit(s, "    const int g = (int)threadIdx.x / %d, t = (int)threadIdx.x %% %d, "
                "tx = t %% 8 + t / 32 %% %d * 8, ty = t / 8 %% 4 + t / %d * 4;\n", each, each,
                wide / 8, 4 * wide);
    flux__emit_product_start(c, fa, fb, t->m, t->n, split);
    flux__emit(s, "    %s sum[%d][%d];\n#pragma unroll\n    for (int y = 0; y < %d; y++)\n"
                "#pragma unroll\n    for (int x = 0; x < %d; x++) sum[y][x] = 0;\n", T, t->tn,
                t->tm, t->tn, t->tm);
    flux__emit_part(c, &a, t, T);
    flux__emit_part(c, &b, t, T);
    for (int turn = 0; turn < 2; turn++) {
        const char *next = turn ? "(1 - stage)" : "0";
        if (turn)
            flux__emit(s, "    int stage = 0;\n#pragma unroll 1\n"
                        "    for (%s first = begin; first < end; first += %d) {\n%s"
                        "    __syncthreads();\n", c->index, t->k * t->groups,
                        a.ahead || b.ahead ? "    copies_left(0);\n" : "");
        flux__emit_loads(c, &a, t, T, next);
        flux__emit_loads(c, &b, t, T, next);
        if (a.ahead || b.ahead) flux__emit(s, "    copies_end();\n");
        if (turn) flux__emit_fma_steps(c, &a, &b, t, T);
        flux__emit_puts(c, &a, T, next);
        flux__emit_puts(c, &b, T, next);
        if (turn) flux__emit(s, "    stage = 1 - stage;\n    }\n");
    }
    if (a.ahead || b.ahead) flux__emit(s, "    copies_left(0);\n");
    if (t->groups > 1) flux__emit_group_sums(c, t, split, T, threads);
    else flux__emit_fma_sums(c, t, split, T);
    flux__emit(s, "    __syncthreads();\n    }\n    }\n");
    c->gk->next.threads = (unsigned)threads;
    /* Threads that are to fit on a multiprocessor. The addresses of single elements take registers,
       and so does the one turn of a short inner dim, whose loads all come before its sums. Loads
       that pass through registers need them beside sums of f64, or of several groups. */
    const unsigned resident = t->tm > 4 || *T == 'd' ? 512 : 1024, n = c->gk->next.threads,
                   fit = resident / (a.chunk == 1 || b.chunk == 1 ? 2 : 1) / n;
    const bool tight = (*T == 'd' || t->groups > 1) && !(a.ahead && b.ahead);
    c->gk->next.blocks = c->k->mnk[2] <= t->k * t->groups ? 1 : fit == 4 && tight ? 3 : fit;
}

FLUX__END_LEAN

#endif /* FLUX__GPU_GEMM_FMA_H */
