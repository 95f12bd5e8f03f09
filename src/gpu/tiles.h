#ifndef FLUX__GPU_TILES_H
#define FLUX__GPU_TILES_H
#include "../base/platform.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "../schedule/spelling.h"
#include "kernels.h"
#include "vectors.h"
#include "fused.h"

/* ---------------------------------------------------------------------- gpu/tiles.h
   The text of elementwise kernels that read an operand across: its neighbours in
   memory are not neighbours of the result, as in the copy of a transposed matrix.
   A block takes a square tile of points: it reads such operands along their own
   rows into shared memory, then computes along the result's rows, so that both
   accesses to memory are of whole lines.

   Invariant: a point is computed from the same numbers by the same lines as in
   flux__code_map, and all positions follow from coordinates, which a block finds
   once. A row of a tile in shared memory has a word more than it needs: threads
   that go down a column meet different banks, for every size of element (2 and 4
   of 1 and 2 bytes in a word, which they share).

   Rejected: accesses of 16 bytes, which would need tiles that the rows' lengths
   divide; several elements a thread are in flight instead. */

FLUX__BEGIN_LEAN

enum { FLUX__TILED = 1 };                /* of c->how: the value is read by way of a tile */
enum { FLUX__TILES = 4, FLUX__TILE_LEAST = 16 };   /* most tiles of a block; a dim's points */

/* Finds the kernel's coordinates: dims that follow each other in all values are one. */
static void flux__find_grid(const flux__kernel *k, flux__tiling *g) {
    g->nd = 0;
    for (int d = 0; d < FLUX_MAX_DIMS; d++) {
        if (k->full[d] == 1) continue;
        bool follows = g->nd > 0;
        for (int i = 0; i < k->nvalue && follows; i++) {
            int64_t step[FLUX_MAX_DIMS];
            flux__value_strides(k, &k->value[i], step);
            follows = step[d] == step[g->first[g->nd - 1]] * g->dim[g->nd - 1];
        }
        if (follows) g->dim[g->nd - 1] *= k->full[d];
        else g->first[g->nd] = d, g->dim[g->nd++] = k->full[d];
    }
}

/* The coordinate along which the neighbours of value i lie, if those along coordinate 0 lie in
   different sectors of 32 bytes; 0: none. */
static int flux__across(const flux__emitter *c, int i) {
    const flux__value *v = &c->k->value[i];
    int64_t step[FLUX_MAX_DIMS];
    if (v->kind != FLUX__V_LOAD) return 0;
    flux__value_strides(c->k, v, step);
    const int64_t far = step[c->tiling.first[0]] * flux__element_bytes(c, v);
    for (int d = 1; d < c->tiling.nd && (far >= 32 || far <= -32); d++) {
        const int64_t s = step[c->tiling.first[d]];
        if ((s == 1 || s == -1) && c->tiling.dim[d] >= FLUX__TILE_LEAST) return d;
    }
    return 0;
}

/* Whether the kernel reads across: then c->tiling is set, and c->how says of which values. */
static bool flux__reads_across(flux__emitter *c) {
    flux__tiling *g = &c->tiling;
    int64_t large = 1;
    int n = 0;
    flux__find_grid(c->k, g);
    memset(c->how, 0, (size_t)c->k->nvalue);
    g->across = 0;
    for (int i = 0; i < c->k->nvalue && n < FLUX__TILES; i++) {
        const int d = g->nd > 1 && g->dim[0] >= FLUX__TILE_LEAST ? flux__across(c, i) : 0;
        if (d == 0 || (g->across && d != g->across)) continue;
        const int64_t bytes = flux__element_bytes(c, &c->k->value[i]);
        if (bytes > large) large = bytes;
        g->across = d, c->how[i] = FLUX__TILED, n++;
    }
    if (n == 0) g->nd = 0;                /* the text has points instead */
    g->side = large <= 2 && g->nd && g->dim[0] >= 64 && g->dim[g->across] >= 64 ? 64 : 32;
    return n > 0;
}

/* Declares the coordinates of a thread's point in turn j: along coordinate `fast` neighbouring
   threads are neighbours, along `slow` a turn is some rows. Returns whether tiles stand over. */
static bool flux__emit_tile_point(flux__emitter *c, int fast, int slow) {
    const flux__tiling *g = &c->tiling;
    flux__emit(&c->s, "    const int row = y + j * %d;\n    const %s d%d = at%d + x, "
               "d%d = at%d + row;\n", 256 / g->side, c->index, fast, fast, slow, slow);
    return g->dim[fast] % g->side || g->dim[slow] % g->side;
}

/* Reads the values that c->how names into their tiles. */
static void flux__emit_tiles_read(flux__emitter *c, int turns) {
    const flux__kernel *k = c->k;
    const flux__tiling *g = &c->tiling;
    flux__listing *s = &c->s;
    for (int i = 0; i < k->nvalue; i++)
        if (c->how[i] == FLUX__TILED)
            flux__emit(s, "    %s l%d[%d];\n",
                       flux__dtype_types[k->operand[k->value[i].operand].dtype], i, turns);
    flux__emit(s, "    FULLY\n    for (int j = 0; j < %d; j++) {\n", turns);
    const bool over = flux__emit_tile_point(c, g->across, 0);
    if (over) flux__emit(s, "    const int in = d0 < %lld && d%d < %lld;\n", (long long)g->dim[0],
                         g->across, (long long)g->dim[g->across]);
    for (int i = 0; i < k->nvalue; i++) {
        if (c->how[i] != FLUX__TILED) continue;
        const flux__operand *o = &k->operand[k->value[i].operand];
        flux__emit(s, "    l%d[j] = %sp%d[", i, over ? "!in ? 0 : " : "",
                   flux__emitter_slot(c, o->src, o->dtype));
        flux__emit_place(c, s, i);
        flux__emit(s, "];\n");
    }
    flux__emit(s, "    }\n    FULLY\n    for (int j = 0; j < %d; j++) {\n", turns);
    for (int i = 0; i < k->nvalue; i++)
        if (c->how[i] == FLUX__TILED)
            flux__emit(s, "    tile%d[y + j * %d][x] = l%d[j];\n", i, 256 / g->side, i);
    flux__emit(s, "    }\n    __syncthreads();\n");
}

/* An elementwise kernel that reads operands across. */
static void flux__code_tiles(flux__emitter *c, int64_t points) {
    const flux__tiling *g = &c->tiling;
    const int turns = g->side * g->side / 256;
    int64_t tiles = points > 0;
    flux__listing *s = &c->s;
    flux__emit_numbers(c);
    for (int i = 0; i < c->k->nvalue; i++) {
        const int64_t bytes = flux__element_bytes(c, &c->k->value[i]);
        if (c->how[i] != FLUX__TILED) continue;
        flux__emit(s, "    __shared__ %s tile%d[%d][%d];\n",
                   flux__dtype_types[c->k->operand[c->k->value[i].operand].dtype], i, g->side,
                   g->side + (bytes < 4 ? 4 / (int)bytes : 1));
    }
    for (int d = 0; d < g->nd; d++) {
        const int64_t side = d == 0 || d == g->across ? g->side : 1;
        tiles *= (g->dim[d] + side - 1) / side;
    }
    flux__emit(s, "    const int x = (int)threadIdx.x %% %d, y = (int)threadIdx.x / %d;\n", g->side,
               g->side);
    flux__emit_iterations(c, tiles);
    flux__emit(s, "    %s next = (%s)turn;\n", c->index, c->index);
    for (int d = 0; d < g->nd; d++) {     /* where the tile starts; its points' other coordinates */
        const bool tiled = d == 0 || d == g->across;
        const int64_t n = tiled ? (g->dim[d] + g->side - 1) / g->side : g->dim[d];
        flux__emit(s, "    const %s %s%d = next %% %lld * %d;\n    next /= %lld;\n", c->index,
                   tiled ? "at" : "d", d, (long long)n, tiled ? g->side : 1, (long long)n);
    }
    flux__emit_tiles_read(c, turns);
    flux__emit(s, "%s    for (int j = 0; j < %d; j++) {\n",
               c->k->nvalue * turns <= 128 ? "    FULLY\n" : "", turns);
    if (flux__emit_tile_point(c, 0, g->across))
        flux__emit(s, "    if (d0 >= %lld || d%d >= %lld) continue;\n", (long long)g->dim[0],
                   g->across, (long long)g->dim[g->across]);
    flux__emit_point(c, -1);
    flux__emit(s, tiles > FLUX__GPU_BLOCKS ? "    }\n    __syncthreads();\n    }\n"
               : "    }\n    }\n");
    c->gk->next.threads = 256, c->gk->next.blocks = 1;
    c->gk->next.grid[0] = flux__gpu_blocks(tiles);
}

FLUX__END_LEAN

#endif /* FLUX__GPU_TILES_H */
