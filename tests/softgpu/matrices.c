/* matrices.c - what the lanes of a warp do together on matrices: part of the device process, compiled once with optimisation,
   so that no kernel brings it. The prelude declares what is called here.

   Each lane shows its words, all meet, and the first lane to come from the meeting reads the operands' numbers out of all
   lanes' words, by the layouts that PTX's and AMD's manuals give. Then each computes the sums that are its own. Two boards in
   turn: who is ahead shows new words while others still read. The products of half floats are exact in double. */
#include "device.h"
#include <math.h>
#include <string.h>

#define THREADS 1024
static unsigned board[2][THREADS][16];
static unsigned turns[THREADS], read_at[THREADS];       /* of a thread; of a warp, by its first thread */
static double left[16][16], right[16][16];

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
static int this_lane(void) { return this_thread() % soft_now->warp; }

static unsigned (*show(const unsigned *word, int n))[16] {
    int thread = this_thread(), turn = (int)(++turns[thread] & 1);
    used = 1;
    for (int i = 0; i < n; i++) board[turn][thread][i] = word[i];
    soft_shuffle(SOFT_SYNC_WARP, soft_now->warp == 32 ? 0xffffffffu : ~0ull, 0, 0, soft_now->warp);
    return &board[turn][thread - this_lane()];
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
    unsigned e = h >> 10 & 31, m = h & 1023;
    float x = e == 31 ? float_of(m ? 0x7fffe000 : 0x7f800000) : e ? (float)(1024 + m) * float_of((e + 102) << 23) : (float)m * 5.9604644775390625e-8f;
    return h >> 15 & 1 ? -x : x;
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

static float sum_of(int k, int i, int j, float c) {
    double sum = (double)c;
    for (int l = 0; l < k; l++) sum += left[i][l] * right[l][j];
    return (float)sum;
}
static void mma(int kind, int k, float **d, float **c, const unsigned *word) {
    int na = k == 16 || kind == TF32 ? 4 : 2, nb = na / 2, row = this_lane() / 4, in = this_lane() % 4;
    unsigned (*all)[16] = show(word, na + nb);
    for (int lane = 0, mine = is_first_here(); mine && lane < 32; lane++)
        for (int i = 0; i < (kind == TF32 ? 4 : na * 2); i++) {
            int g = lane / 4, t = lane % 4;
            if (kind == TF32) {
                left[i == 1 || i == 3 ? g + 8 : g][i < 2 ? t : t + 4] = number(TF32, all[lane][i], 0);
                if (i < 2) right[i == 0 ? t : t + 4][g] = number(TF32, all[lane][na + i], 0);
                continue;
            }
            left[i < 2 || (i >= 4 && i < 6) ? g : g + 8][t * 2 + (i & 1) + (i >= 4 ? 8 : 0)] = number(kind, all[lane][i / 2], i & 1);
            if (i < nb * 2) right[t * 2 + (i & 1) + (i >= 2 ? 8 : 0)][g] = number(kind, all[lane][na + i / 2], i & 1);
        }
    for (int i = 0; i < 4; i++) *d[i] = sum_of(k, i < 2 ? row : row + 8, in * 2 + (i & 1), *c[i]);
}
#define MMA_6(name, kind, k)                                                                                                   \
    void softptx_mma_sync_aligned_##name(float *d0, float *d1, float *d2, float *d3, unsigned a0, unsigned a1, unsigned a2,     \
                                         unsigned a3, unsigned b0, unsigned b1, float *c0, float *c1, float *c2, float *c3);    \
    void softptx_mma_sync_aligned_##name(float *d0, float *d1, float *d2, float *d3, unsigned a0, unsigned a1, unsigned a2,     \
                                         unsigned a3, unsigned b0, unsigned b1, float *c0, float *c1, float *c2, float *c3) {   \
        unsigned word[6] = { a0, a1, a2, a3, b0, b1 };                                                                         \
        float *d[4] = { d0, d1, d2, d3 }, *c[4] = { c0, c1, c2, c3 };                                                          \
        mma(kind, k, d, c, word);                                                                                              \
    }
MMA_6(m16n8k16_row_col_f32_f16_f16_f32, F16, 16)
MMA_6(m16n8k16_row_col_f32_bf16_bf16_f32, BF16, 16)
MMA_6(m16n8k8_row_col_f32_tf32_tf32_f32, TF32, 8)

#define KERNEL_CALLS(type, name, parameters) type name parameters; type name parameters
KERNEL_CALLS(void, softptx_mma_sync_aligned_m16n8k8_row_col_f32_f16_f16_f32,
             (float *d0, float *d1, float *d2, float *d3, unsigned a0, unsigned a1, unsigned b0, float *c0, float *c1, float *c2, float *c3)) {
    unsigned word[3] = { a0, a1, b0 };
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
    char *p = soft_now->shared + address - 16;
    if (p < soft_now->shared || p + 16 > soft_now->shared_end || (uintptr_t)p % 16) fault();
    return p;
}
static void ldmatrix(unsigned **r, unsigned address, int turned) {
    soft_race(shared_at(address), 16, SOFT_READS);
    unsigned (*all)[16] = show(&address, 1);
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
KERNEL_CALLS(void, softgpu_mfma, (int kind, int each, const void *a, const void *b, void *sums)) {
    int words = kind == F32 ? 1 : each / 2, lane = this_lane();
    unsigned word[4];
    float d[4];
    memcpy(word, a, (size_t)words * 4), memcpy(word + words, b, (size_t)words * 4), memcpy(d, sums, sizeof d);
    unsigned (*all)[16] = show(word, 2 * words);
    if (is_first_here())
        for (int k = 0; k < each * 4; k++)
            for (int i = 0; i < 16; i++) {
                const unsigned *from = all[16 * (k / each) + i];
                int at = k % each;
                left[i][k] = number(kind, from[at / 2], at % 2);
                right[k][i] = number(kind, from[words + at / 2], at % 2);
            }
    for (int r = 0; r < 4; r++) d[r] = sum_of(each * 4, 4 * (lane / 16) + r, lane % 16, d[r]);
    memcpy(sums, d, sizeof d);
}
