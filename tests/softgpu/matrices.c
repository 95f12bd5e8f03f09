/* matrices.c - what the lanes of a warp do together on matrices: part of the device process, compiled once with optimisation,
   so that no kernel brings it. The prelude declares what is called here.

   Each lane shows its words, all meet, and the first lane to come from the meeting reads the operands' numbers out of all
   lanes' words, by the layouts that PTX's and AMD's manuals give, and computes all sums, of which each takes its own. Two
   boards in turn: who is ahead shows new words while others still read. The products of two floats are exact in double. */
#include "device.h"
#include <math.h>
#include <string.h>

#define THREADS 1024
#define WORDS 24                                        /* of a lane, at most */
static unsigned board[2][THREADS][WORDS];
static unsigned turns[THREADS], read_at[THREADS];       /* of a thread; of a warp, by its first thread */

/* Operands and sums of the instruction at hand, two neighbours of a row at once. */
typedef double pair __attribute__((vector_size(16)));
static double left[16][16];
static union { double at[16][16]; pair of[16][8]; } right, sums;

/* Copies to shared memory that are done when their thread waits for them, and not before. */
enum { COPIES = 96 };
static struct { char *to; const char *from; int bytes, group; } copy[THREADS][COPIES];
static int copies[THREADS], group[THREADS];

static int used;                                        /* by the block that runs */
void soft_matrices_start(void) {
    if (!used) return;
    memset(turns, 0, sizeof turns), memset(read_at, 0, sizeof read_at);
    memset(copies, 0, sizeof copies), memset(group, 0, sizeof group);
    used = 0;
}

static void fault(void) { *(volatile int *)0 = 1; }
static int this_thread(void) {
    const unsigned *at = soft_now->thread, *size = soft_now->block_size;
    return (int)(at[0] + size[0] * (at[1] + size[1] * at[2]));
}
static int this_lane(void) { return this_thread() & (soft_now->warp - 1); }

static unsigned (*show(const unsigned *word, int n))[WORDS] {
    const int thread = this_thread(), turn = (int)(++turns[thread] & 1), warp = soft_now->warp;
    used = 1;
    memcpy(board[turn][thread], word, (size_t)n * sizeof *word);
    soft_shuffle(SOFT_SYNC_WARP, warp == 32 ? 0xffffffffu : ~0ull, 0, 0, warp);
    return &board[turn][thread & -warp];
}
static int is_first_here(void) {
    int thread = this_thread(), first = thread - this_lane();
    if (read_at[first] == turns[thread]) return 0;
    read_at[first] = turns[thread];
    return 1;
}

/* ---------------- numbers */

static float float_of(unsigned bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static unsigned bits_of(float x) {
    unsigned bits;
    memcpy(&bits, &x, 4);
    return bits;
}
static float half(unsigned h) {
    const unsigned size = (h & 0x7fff) << 13, sign = h << 16 & 0x80000000u;
    if (size >= 0x0f800000) return float_of(sign | (size & 0x7fe000 ? 0x7fffe000 : 0x7f800000));
    return float_of(sign | size) * 0x1p112f;           /* from the exponents of one to those of the other */
}
static unsigned short half_of(float x) {
    unsigned u = bits_of(x), sign = u >> 16 & 0x8000;
    int e = (int)(u >> 23 & 255) - 127;
    double a = (double)float_of(u & 0x7fffffff);
    if (x != x) return 0x7fff;
    if (a >= 65520.0) return (unsigned short)(sign | 0x7c00);
    if (e < -14) return (unsigned short)(sign | (unsigned)rint(a * 16777216.0));
    return (unsigned short)(sign | (((unsigned)(e + 14) << 10) + (unsigned)rint(a * (double)float_of((unsigned)(137 - e) << 23))));
}
enum { F16, BF16, TF32, F32 };
static double number(int kind, unsigned word, int i) {
    unsigned low = i ? word >> 16 : word & 0xffff;
    if (kind == F16) return (double)half(low);
    return (double)float_of(kind == BF16 ? low << 16 : kind == TF32 ? word & 0xffffe000u : word);
}

float soft_half(unsigned h, int brain) { return (float)number(brain ? BF16 : F16, h, 0); }

/* ---------------- PTX ISA, "Matrix fragments for mma.m16n8k8, .m16n8k16" and "ldmatrix". A group is four lanes. */

/* The sums, of so many pairs in a row and k products each, are added to what is there, one product after the other. */
static void add_products(int pairs, int k) {
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < pairs; j += 4) {
            pair s0 = sums.of[i][j], s1 = sums.of[i][j + 1], s2 = sums.of[i][j + 2], s3 = sums.of[i][j + 3];
            for (int l = 0; l < k; l++) {
                const pair x = { left[i][l], left[i][l] }, *y = &right.of[l][j];
                s0 += x * y[0], s1 += x * y[1], s2 += x * y[2], s3 += x * y[3];
            }
            sums.of[i][j] = s0, sums.of[i][j + 1] = s1, sums.of[i][j + 2] = s2, sums.of[i][j + 3] = s3;
        }
}
static void read_mma(int kind, int na, int nb, unsigned (*all)[WORDS]) {
    for (int lane = 0; lane < 32; lane++) {
        const unsigned *word = all[lane];
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; i++) sums.at[i < 2 ? g : g + 8][t * 2 + (i & 1)] = (double)float_of(word[na + nb + i]);
        for (int i = 0; i < na && kind == TF32; i++) left[i & 1 ? g + 8 : g][i < 2 ? t : t + 4] = number(TF32, word[i], 0);
        for (int i = 0; i < nb && kind == TF32; i++) right.at[i ? t + 4 : t][g] = number(TF32, word[na + i], 0);
        for (int i = 0; i < na && kind != TF32; i++) {
            double *to = &left[i & 1 ? g + 8 : g][t * 2 + (i < 2 ? 0 : 8)];
            to[0] = number(kind, word[i], 0), to[1] = number(kind, word[i], 1);
        }
        for (int i = 0; i < nb && kind != TF32; i++) {
            const int row = t * 2 + (i ? 8 : 0);
            right.at[row][g] = number(kind, word[na + i], 0), right.at[row + 1][g] = number(kind, word[na + i], 1);
        }
    }
}
static void mma(int kind, int k, float **d, float **c, unsigned *word) {
    const int na = k == 16 || kind == TF32 ? 4 : 2, nb = na / 2, row = this_lane() / 4, in = this_lane() % 4;
    for (int i = 0; i < 4; i++) word[na + nb + i] = bits_of(*c[i]);
    unsigned (*all)[WORDS] = show(word, na + nb + 4);
    if (is_first_here()) read_mma(kind, na, nb, all), add_products(4, k);
    for (int i = 0; i < 4; i++) *d[i] = (float)sums.at[i < 2 ? row : row + 8][in * 2 + (i & 1)];
}
#define MMA_6(name, kind, k)                                                                                                   \
    void softptx_mma_sync_aligned_##name(float *d0, float *d1, float *d2, float *d3, unsigned a0, unsigned a1, unsigned a2,     \
                                         unsigned a3, unsigned b0, unsigned b1, float *c0, float *c1, float *c2, float *c3);    \
    void softptx_mma_sync_aligned_##name(float *d0, float *d1, float *d2, float *d3, unsigned a0, unsigned a1, unsigned a2,     \
                                         unsigned a3, unsigned b0, unsigned b1, float *c0, float *c1, float *c2, float *c3) {   \
        unsigned word[10] = { a0, a1, a2, a3, b0, b1 };                                                                        \
        float *d[4] = { d0, d1, d2, d3 }, *c[4] = { c0, c1, c2, c3 };                                                          \
        mma(kind, k, d, c, word);                                                                                              \
    }
MMA_6(m16n8k16_row_col_f32_f16_f16_f32, F16, 16)
MMA_6(m16n8k16_row_col_f32_bf16_bf16_f32, BF16, 16)
MMA_6(m16n8k8_row_col_f32_tf32_tf32_f32, TF32, 8)

#define KERNEL_CALLS(type, name, parameters) type name parameters; type name parameters
KERNEL_CALLS(void, softptx_mma_sync_aligned_m16n8k8_row_col_f32_f16_f16_f32,
             (float *d0, float *d1, float *d2, float *d3, unsigned a0, unsigned a1, unsigned b0, float *c0, float *c1, float *c2, float *c3)) {
    unsigned word[7] = { a0, a1, b0 };
    float *d[4] = { d0, d1, d2, d3 }, *c[4] = { c0, c1, c2, c3 };
    mma(F16, 8, d, c, word);
}
KERNEL_CALLS(void, softptx_cvt_rna_tf32_f32, (unsigned *d, float x)) { *d = (bits_of(x) + 0x1000u) & 0xffffe000u; }
KERNEL_CALLS(void, softptx_cvt_f32_f16, (float *d, unsigned short h)) { *d = half(h); }
KERNEL_CALLS(void, softptx_cvt_rn_f16_f32, (unsigned short *d, float x)) { *d = half_of(x); }

KERNEL_CALLS(void, softptx_cvt_rn_f16x2_f32, (unsigned *d, float high, float low)) { *d = (unsigned)half_of(high) << 16 | half_of(low); }
static unsigned brain_of(float x) {
    unsigned u = bits_of(x);
    return x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
KERNEL_CALLS(void, softptx_cvt_rn_bf16x2_f32, (unsigned *d, float high, float low)) { *d = brain_of(high) << 16 | brain_of(low); }
/* A unit off in the last place, as the manual permits; what is subnormal is 0. */
KERNEL_CALLS(void, softptx_rcp_approx_ftz_f32, (float *d, float x)) {
    unsigned u = bits_of(x), sign = u & 0x80000000u;
    float y = 1.0f / x;
    if (!(u & 0x7f800000)) u = sign | 0x7f800000;
    else if (x != x) u = 0x7fffffff;
    else if (!(bits_of(y) & 0x7f800000)) u = sign;
    else u = bits_of(y) ^ 1;
    memcpy(d, &u, sizeof *d);
}

/* The manual: 2 units off in the last place; what is subnormal is 0. */
KERNEL_CALLS(void, softptx_ex2_approx_ftz_f32, (float *d, float x)) {
    unsigned u = bits_of(exp2f(x));
    if (!(u & 0x7f800000)) u = 0;
    else if ((u & 0x7f800000) != 0x7f800000 && (u & 0x7fffff)) u ^= 1;
    memcpy(d, &u, sizeof *d);
}

/* Shared memory's own addresses: 16 bytes of it are the prelude's. */
KERNEL_CALLS(size_t, softgpu_shared_address, (const void *p)) {
    const char *at = (const char *)p;
    const size_t dynamic = soft_dynamic_address(at);
    if (dynamic) return dynamic;
    if (at < soft_now->shared || at >= soft_now->shared_end) fault();
    return (size_t)(at - soft_now->shared) + 16;
}
static char *shared_at(unsigned address) {
    if (address % 16) fault();
    return soft_shared_memory(address, 16);
}
static void ldmatrix(unsigned **r, unsigned address, int turned) {
    soft_race(shared_at(address), 16, SOFT_READS);
    soft_async_reads(address);
    unsigned (*all)[WORDS] = show(&address, 1);
    int lane = this_lane();
    for (int m = 0; m < 4; m++) {
        unsigned pair[2];
        for (int i = 0; i < 2; i++) {
            int row = turned ? lane % 4 * 2 + i : lane / 4, column = turned ? lane / 4 : lane % 4 * 2 + i;
            unsigned short word;
            memcpy(&word, shared_at(all[m * 8 + row][0]) + 2 * column, 2);
            pair[i] = word;
        }
        *r[m] = pair[0] | pair[1] << 16;
    }
}
KERNEL_CALLS(void, softptx_ldmatrix_sync_aligned_m8n8_x4_shared_b16, (unsigned *a, unsigned *b, unsigned *c, unsigned *d, unsigned p)) {
    unsigned *r[4] = { a, b, c, d };
    ldmatrix(r, p, 0);
}
KERNEL_CALLS(void, softptx_ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16, (unsigned *a, unsigned *b, unsigned *c, unsigned *d, unsigned p)) {
    unsigned *r[4] = { a, b, c, d };
    ldmatrix(r, p, 1);
}

KERNEL_CALLS(void, softptx_cp_async_cg_shared_global, (unsigned to, const void *from, int size, int bytes)) {
    int t = this_thread(), n = copies[t];
    if (size != 16 || bytes < 0 || bytes > 16 || (uintptr_t)from % 16 || n == COPIES) fault();
    used = 1;
    copy[t][n].to = shared_at(to), copy[t][n].from = (const char *)from, copy[t][n].bytes = bytes, copy[t][n].group = group[t];
    soft_race(from, (size_t)bytes, SOFT_READS);
    soft_race(copy[t][n].to, 16, SOFT_BEGINS);
    memset(copy[t][n].to, 0xff, 16);                    /* nothing that anyone could want, until then */
    copies[t]++;
}
KERNEL_CALLS(void, softptx_cp_async_commit_group, (void)) { group[this_thread()]++, used = 1; }
KERNEL_CALLS(void, softptx_cp_async_wait_group, (int waiting)) {
    int t = this_thread(), n = 0;
    for (int i = 0; i < copies[t]; i++) {
        if (copy[t][i].group >= group[t] - waiting) copy[t][n++] = copy[t][i];
        else soft_race(copy[t][i].to, 16, SOFT_LANDS), memset(copy[t][i].to, 0, 16), memcpy(copy[t][i].to, copy[t][i].from, (size_t)copy[t][i].bytes);
    }
    copies[t] = n;
}

/* ---------------- the layouts of AMD's matrix instruction calculator

   for v_mfma_f32_16x16x16f16, 16x16x16bf16_1k, 16x16x8bf16 and 16x16x4f32. each: of the inner dim in a lane */
static void read_mfma(int kind, int each, int words, unsigned (*all)[WORDS]) {
    for (int lane = 0; lane < 64; lane++)
        for (int r = 0; r < 4; r++) sums.at[4 * (lane / 16) + r][lane % 16] = (double)float_of(all[lane][2 * words + r]);
    for (int k = 0; k < each * 4; k++)
        for (int i = 0; i < 16; i++) {
            const unsigned *from = all[16 * (k / each) + i];
            const int at = k % each;
            left[i][k] = number(kind, from[at / 2], at % 2);
            right.at[k][i] = number(kind, from[words + at / 2], at % 2);
        }
}
KERNEL_CALLS(void, softgpu_mfma, (int kind, int each, const void *a, const void *b, void *sums_of_lane)) {
    const int words = kind == F32 ? 1 : each / 2, lane = this_lane();
    unsigned word[8];
    float d[4];
    memcpy(word, a, (size_t)words * 4), memcpy(word + words, b, (size_t)words * 4), memcpy(word + 2 * words, sums_of_lane, sizeof d);
    unsigned (*all)[WORDS] = show(word, 2 * words + 4);
    if (is_first_here()) read_mfma(kind, each, words, all), add_products(8, each * 4);
    for (int r = 0; r < 4; r++) d[r] = (float)sums.at[4 * (lane / 16) + r][lane % 16];
    memcpy(sums_of_lane, d, sizeof d);
}

/* ---------------- the layouts of AMD's matrix instruction calculator, RDNA 3 and 4

   for v_wmma_f32_16x16x16_f16 and _bf16 of 32 lanes. On RDNA 3 a lane has all of a row (of A) or column (of B), and lane + 16 the
   same, without which sums are anything; on RDNA 4 one of them has what the other lacks, four neighbours in turn. Their sums: */
static int wmma_row(int generation, int lane, int word) { return generation == 11 ? 2 * word + lane / 16 : 8 * (lane / 16) + word; }

static void read_wmma(int kind, int generation, int words, unsigned (*all)[WORDS]) {
    for (int lane = 0; lane < 32; lane++)
        for (int r = 0; r < 8; r++) sums.at[wmma_row(generation, lane, r)][lane % 16] = (double)float_of(all[lane][2 * words + r]);
    for (int i = 0; i < 16; i++) {
        if (generation == 11 && memcmp(all[i], all[i + 16], (size_t)words * 8)) fault();
        for (int k = 0; k < 16; k++) {
            const unsigned *from = all[generation == 11 ? i : i + k / 4 % 2 * 16];
            const int at = generation == 11 ? k : k / 8 * 4 + k % 4;
            left[i][k] = number(kind, from[at / 2], at % 2);
            right.at[k][i] = number(kind, from[words + at / 2], at % 2);
        }
    }
}
KERNEL_CALLS(void, softgpu_wmma, (int kind, int generation, const void *a, const void *b, void *sums_of_lane)) {
    const int words = generation == 11 ? 8 : 4, lane = this_lane();
    unsigned word[WORDS];
    float d[8];
    memcpy(word, a, (size_t)words * 4), memcpy(word + words, b, (size_t)words * 4), memcpy(word + 2 * words, sums_of_lane, sizeof d);
    unsigned (*all)[WORDS] = show(word, 2 * words + 8);
    if (is_first_here()) read_wmma(kind, generation, words, all), add_products(8, 16);
    for (int r = 0; r < 8; r++) d[r] = (float)sums.at[wmma_row(generation, lane, r)][lane % 16];
    memcpy(sums_of_lane, d, sizeof d);
}
