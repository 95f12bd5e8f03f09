/* async.c - the device process: what sm_90 does behind its threads' backs. Phases (mbarriers), copies of boxes by tensor maps
   (TMA), products of warpgroups (wgmma), their registers.

   A copy lands when threads wait and not before, in changing order; until then its bytes are spoilt. Each 16 bytes of shared
   memory have a history: what wrote them, and whether who reads them may know of it. The launch fails where wgmma or a thread
   reads bytes whose copy is under way, or whose phase the thread has not seen end; where wgmma reads what a thread wrote
   without fence.proxy.async after it; where its operands change before wgmma.wait_group; where phases get more
   arrivals or bytes than they expect; where a warpgroup's threads disagree. Sums are spoilt until their group was waited for, and are
   cut off toward zero: float32 products by planes had the errors on an H100 that this predicts.
   It is stricter than the manual in one thing: to have met at a barrier with a thread that saw a phase end is not enough. */
#include "device.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { THREADS = 1024, PHASES = 64, COPIES = 256, CHUNKS = (SOFT_MOST_SHARED + 65536) / 16, GROUPS = 8, SETS = 4, RING = 32 };

typedef struct phase { unsigned at, all, left, over; long long bytes; int told; unsigned by; } phase;     /* over: how many have ended; told: the init is fenced */
typedef struct chunk { unsigned char state; unsigned char phase; unsigned short writer; unsigned number, fences, changes; } chunk;
enum { UNWRITTEN, BY_THREAD, UNDER_WAY, LANDED };
typedef struct box { soft_map map; int at[3]; unsigned to, bytes; int phase; } box;

static phase phases[PHASES];
static int nphases;
static chunk chunks[CHUNKS];
static box copies[COPIES];
static int ncopies;
static unsigned fences[THREADS], seen[THREADS][PHASES];
static unsigned seed;                          /* of the order in which copies land */
static int used;
unsigned soft_progress;                        /* changes whenever a thread that waits for others may find it done */

/* A warpgroup's products: operands as numbers, and what they were read from. */
typedef struct product { unsigned number; uint64_t a, b; int n, turned_a, turned_b, loaded; unsigned changes; float left[64][16], right[256][16]; } product;
typedef struct sums { uint64_t *first; uint64_t *at[128]; int n, last; float value[128]; } sums;         /* of a thread, until they are waited for */
typedef struct member {                        /* a thread as one of a warpgroup */
    unsigned number;                           /* products so far */
    int fenced, committed, open, nsets;        /* groups committed; the one at hand has products */
    sums set[SETS];
    struct { unsigned number; int group; } under_way[RING];
    int nunder_way;
} member;
static product products[GROUPS][RING];
static member members_of_block[THREADS];
static unsigned registers_of[GROUPS];

void soft_async_start(void) {
    if (!used) return;
    nphases = ncopies = used = 0;
    memset(chunks, 0, sizeof chunks), memset(fences, 0, sizeof fences), memset(seen, 0, sizeof seen);
    memset(registers_of, 0, sizeof registers_of);
    for (int g = 0; g < GROUPS; g++)
        for (int i = 0; i < RING; i++) products[g][i].number = 0;
    for (int t = 0; t < THREADS; t++) {
        member *m = &members_of_block[t];
        m->number = 0, m->fenced = m->committed = m->open = m->nsets = m->nunder_way = 0;
    }
}
void soft_async_end(void) {
    if (ncopies) soft_fault("a block ends while a copy of a box is under way");
}

static _Noreturn void fail(const char *what, unsigned address) {
    char text[200];
    snprintf(text, sizeof text, "%s, at %u of shared memory, thread %u", what, address, soft_now->thread[0]);
    soft_fault(text);
}
static int this_thread(void) {
    const unsigned *at = soft_now->thread, *size = soft_now->block_size;
    return (int)(at[0] + size[0] * (at[1] + size[1] * at[2]));
}
static void warp_meets(void) { soft_shuffle(SOFT_SYNC_WARP, 0xffffffffu, 0, 0, 32); }

/* ---------------- addresses of shared memory: static memory as matrices.c has it, then the dynamic */

static unsigned dynamic_at(void) { return (unsigned)soft_round((size_t)(soft_now->shared_end - soft_now->shared) + 16, 16); }
#define KERNEL_CALLS(type, name, parameters) type name parameters; type name parameters
KERNEL_CALLS(char *, softgpu_dynamic_shared, (unsigned long long at, int bytes)) {
    const unsigned start = dynamic_at();
    if (!soft_now->dynamics || at < start || at + (unsigned)bytes > (unsigned long long)start + SOFT_MOST_SHARED)
        fail("an address outside shared memory", (unsigned)at);
    return soft_now->dynamic[0] + (at - start);
}
char *soft_shared_memory(unsigned at, int bytes) {
    char *p = soft_now->shared + at - 16;
    return at >= 16 && p + bytes <= soft_now->shared_end ? p : softgpu_dynamic_shared(at, bytes);
}
size_t soft_dynamic_address(const char *p) {   /* 0: it is none */
    const char *start = soft_now->dynamics ? soft_now->dynamic[0] : NULL;
    return start && p >= start && p < start + SOFT_MOST_SHARED ? (size_t)(p - start) + dynamic_at() : 0;
}
static chunk *chunk_at(unsigned at) {
    if (at / 16 >= CHUNKS) fail("an address outside shared memory", at);
    return &chunks[at / 16];
}

/* ---------------- phases */

static int find(unsigned at) {
    for (int i = 0; i < nphases; i++)
        if (phases[i].at == at) return i;
    fail("an mbarrier that was not initialised", at);
}
static void ends(phase *p) {
    soft_progress++;
    if (p->left || p->bytes) return;
    p->over++, p->left = p->all;
}
KERNEL_CALLS(void, softptx_mbarrier_init, (unsigned at, unsigned all)) {
    used = 1;
    for (int i = 0; i < nphases; i++)
        if (phases[i].at == at) fail("an mbarrier that is initialised twice", at);
    if (at % 8 || !all || all > 0xfffff || nphases == PHASES) fail("an mbarrier that can't be", at);
    memset(soft_shared_memory(at, 8), 0xa5, 8);
    memset(&phases[nphases], 0, sizeof *phases);
    phases[nphases].at = at, phases[nphases].all = phases[nphases].left = all, phases[nphases++].by = (unsigned)this_thread();
}
KERNEL_CALLS(void, softptx_mbarrier_arrive, (unsigned at, unsigned bytes)) {
    phase *p = &phases[find(at)];
    if (!p->left) fail("more arrivals than an mbarrier's phase has", at);
    p->bytes += bytes, p->left--;
    ends(p);
}
/* Whether the phase of this parity has ended; if not, others run before it is looked at again. */
KERNEL_CALLS(int, softptx_mbarrier_try_wait, (unsigned at, unsigned parity)) {
    const int i = find(at);
    if (parity > 1) fail("a parity that is neither 0 nor 1", at);
    if ((phases[i].over & 1) == parity) soft_yield();
    if ((phases[i].over & 1) == parity) return 0;
    seen[this_thread()][i] = phases[i].over;
    return 1;
}
/* fence.proxy.async and fence.mbarrier_init: what the thread has written is told to copies and products. */
KERNEL_CALLS(void, softptx_fence_async, (int of_all)) {
    const unsigned t = (unsigned)this_thread();
    used = 1;
    if (of_all) fences[t]++;
    for (int i = 0; i < nphases; i++)
        if (phases[i].by == t) phases[i].told = 1;
}

/* ---------------- what is read and written */

static void check_read(unsigned at, int by_product) {
    const chunk *c = chunk_at(at);
    if (c->state == UNDER_WAY) fail("a copy has not landed in what is read", at);
    if (c->state == LANDED && seen[this_thread()][c->phase] <= c->number) fail("the phase of what is read has not ended for its reader", at);
    if (!by_product) return;
    if (c->state == UNWRITTEN) fail("wgmma reads what nobody has written", at);
    if (c->state == BY_THREAD && fences[c->writer] == c->fences) fail("wgmma reads what a thread wrote without fence.proxy.async", at);
}
/* A kernel's own accesses, where it has copies or products. */
KERNEL_CALLS(void, softptx_reads, (const void *p, int bytes)) {
    const unsigned at = (unsigned)softgpu_shared_address(p);
    for (unsigned a = at & ~15u; a < at + (unsigned)bytes; a += 16) check_read(a, 0);
}
void soft_async_reads(unsigned at) { check_read(at, 0); }
KERNEL_CALLS(void, softptx_writes, (const void *p, int bytes)) {
    const unsigned at = (unsigned)softgpu_shared_address(p), t = (unsigned)this_thread();
    used = 1;
    for (unsigned a = at & ~15u; a < at + (unsigned)bytes; a += 16) {
        chunk *c = chunk_at(a);
        if (c->state == UNDER_WAY) fail("a thread writes where a copy is under way", a);
        c->state = BY_THREAD, c->writer = (unsigned short)t, c->fences = fences[t], c->changes++;
    }
}

/* ---------------- boxes */

/* The 128-byte swizzle: which of eight chunks of a line by the line's number. */
static unsigned swizzled(unsigned at) { return at ^ (at >> 7 & 7) << 4; }

KERNEL_CALLS(void, softptx_box, (unsigned to, const void *map, int x, int y, int z, unsigned at)) {
    box *b = &copies[ncopies];
    const int i = find(at);
    if (ncopies == COPIES) fail("too many copies of boxes at once", to);
    memcpy(&b->map, map, sizeof b->map);
    if (memcmp(b->map.magic, SOFT_MAP, sizeof b->map.magic) || b->map.rank != 3) fail("not a tensor map of three dims", to);
    if (!phases[i].told) fail("a copy by an mbarrier whose initialisation was not fenced", at);
    b->at[0] = x, b->at[1] = y, b->at[2] = z, b->to = to, b->phase = i;
    b->bytes = (unsigned)b->map.box[0] * b->map.box[1] * b->map.box[2] * b->map.bytes;
    if (to % (b->map.swizzle ? 1024 : 128)) fail("a box that is not aligned", to);
    for (unsigned a = to; a < to + b->bytes; a += 16) {
        chunk *c = chunk_at(a);
        if (c->state == UNDER_WAY) fail("two copies to the same place", a);
        if (c->state == BY_THREAD && fences[c->writer] == c->fences) fail("a copy to what a thread wrote without fence.proxy.async", a);
        c->state = UNDER_WAY, c->changes++;
        memset(soft_shared_memory(a, 16), 0xff, 16);
    }
    ncopies++, used = 1;
}
static void land(int which) {
    box b = copies[which];
    copies[which] = copies[--ncopies];
    phase *p = &phases[b.phase];
    unsigned o = 0;
    for (int z = 0; z < b.map.box[2]; z++)
        for (int y = 0; y < b.map.box[1]; y++)
            for (int x = 0; x < b.map.box[0]; x++, o += b.map.bytes) {
                const long long at[3] = { (long long)b.at[0] + x, (long long)b.at[1] + y, (long long)b.at[2] + z };
                const unsigned to = b.map.swizzle ? swizzled(b.to + o) : b.to + o;
                int in = 1;
                for (int d = 0; d < 3; d++) in = in && at[d] >= 0 && (uint64_t)at[d] < b.map.dim[d];
                char *put = soft_shared_memory(to, b.map.bytes);
                if (in) memcpy(put, (const char *)(uintptr_t)(b.map.at + (uint64_t)at[0] * b.map.bytes + (uint64_t)at[1] * b.map.step[0] + (uint64_t)at[2] * b.map.step[1]), b.map.bytes);
                else memset(put, 0, b.map.bytes);
            }
    for (unsigned a = b.to; a < b.to + b.bytes; a += 16) {
        chunk *c = chunk_at(a);
        c->state = LANDED, c->phase = (unsigned char)b.phase, c->number = p->over, c->changes++;
    }
    p->bytes -= b.bytes;
    if (p->bytes < 0 && p->left == 0) fail("more bytes than an mbarrier's phase expects", p->at);
    ends(p);
}
/* Threads wait: one copy lands. */
int soft_async_step(void) {
    if (!ncopies) return 0;
    seed = seed * 1664525u + 1013904223u;
    land((int)(seed >> 16) % ncopies);
    return 1;
}

/* ---------------- products of warpgroups: PTX ISA, "Asynchronous warpgroup level matrix instructions" */

static float number_at(unsigned at, int kind) {
    unsigned short h;
    memcpy(&h, soft_shared_memory(at, 2), 2);
    return soft_half(h, kind);
}
/* Where element (i of the M or N side, l of the inner dim) lies, by the descriptor: in lines of 128 bytes, eight to 1024. K-major:
   a line is a row, of which the start names the part; MN-major: a line is a place of the inner dim, 64 of the other side to a box. */
static unsigned element_at(uint64_t d, int i, int l, int turned) {
    const unsigned start = (unsigned)(d & 0x3fff) << 4, lead = (unsigned)(d >> 16 & 0x3fff) << 4, stride = (unsigned)(d >> 32 & 0x3fff) << 4;
    if (d >> 62 != 1 || d >> 49 & 7) fail("a descriptor that is not of the 128-byte swizzle, with base 0", start);
    if (turned) return swizzled(start + (unsigned)(i / 64) * lead + (unsigned)(i % 64) * 2 + (unsigned)(l / 8) * stride + (unsigned)(l % 8) * 128);
    return swizzled(start + (unsigned)(i / 8) * stride + (unsigned)(i % 8) * 128 + (unsigned)l * 2);
}
/* How often what the operands lie in was written; `first`: by a thread that may not read it, it is a fault. */
static unsigned changes_of(uint64_t d, int n, int turned, int first) {
    unsigned sum = 0;
    for (int i = 0; i < n; i += turned ? 8 : 1)
        for (int l = 0; l < 16; l += turned ? 1 : 8) {
            const unsigned at = element_at(d, i, l, turned);
            if (first) check_read(at, 1);
            sum += chunk_at(at)->changes;
        }
    return sum;
}
static unsigned changes_of_product(const product *p, int first) {
    return (p->loaded ? 0 : changes_of(p->a, 64, p->turned_a, first)) + changes_of(p->b, p->n, p->turned_b, first);
}
static sums *set_of(member *m, uint64_t **at, int n) {
    for (int i = 0; i < m->nsets; i++)
        if (m->set[i].first == at[0]) return &m->set[i];
    if (!m->fenced) fail("wgmma without wgmma.fence before it", 0);
    if (m->nsets == SETS) fail("wgmma: too many sets of sums at once", 0);
    sums *s = &m->set[m->nsets++];
    s->first = at[0], s->n = n;
    for (int e = 0; e < n; e++) {
        unsigned bits = (unsigned)*at[e];
        s->at[e] = at[e];
        memcpy(&s->value[e], &bits, 4);
    }
    return s;
}
static float cut_off(double x) {
    const float y = (float)x;
    return fabs((double)y) > fabs(x) && isfinite(y) ? nextafterf(y, 0) : y;
}
/* A thread's part of a product; `words`: its four of the left operand, which is in registers, or NULL: it is at a. Of that a warp
   multiplies only what its own threads have. */
static void multiply(int n, int kind, uint64_t a, const unsigned *words, uint64_t b, int adds, int turned_a, int turned_b, uint64_t **d) {
    const int t = this_thread(), group = t / 128, lane = t % 32, first = t % 128 / 32 * 16 + lane / 4;
    member *m = &members_of_block[t];
    product *p = &products[group][++m->number % RING];
    used = 1;
    warp_meets();
    if (soft_now->block_size[0] % 128 || group >= GROUPS) fail("a warpgroup of fewer than four warps", 0);
    if (p->number != m->number) {              /* the warpgroup's first thread to come reads the operands */
        p->number = m->number, p->a = a, p->b = b, p->n = n, p->turned_a = turned_a, p->turned_b = turned_b, p->loaded = words != NULL;
        p->changes = changes_of_product(p, 0);
        for (int l = 0; l < 16; l++) {
            for (int i = 0; i < 64 && !words; i++) p->left[i][l] = number_at(element_at(a, i, l, turned_a), kind);
            for (int i = 0; i < n; i++) p->right[i][l] = number_at(element_at(b, i, l, turned_b), kind);
        }
    }
    for (int i = 0; i < 8 && words; i++)
        p->left[first + i / 2 % 2 * 8][lane % 4 * 2 + i % 2 + i / 4 * 8] = soft_half((unsigned short)(words[i / 2] >> i % 2 * 16), kind);
    if (words) warp_meets();
    if (p->number != m->number) fail("warps of a warpgroup are too far apart for this emulation", 0);
    if (p->a != a || p->b != b || p->n != n || p->loaded != (words != NULL)) fail("the threads of a warpgroup multiply different tiles", (unsigned)(a & 0x3fff) << 4);
    if (lane == 0) changes_of_product(p, 1);
    if (m->nunder_way == RING) fail("wgmma: too many products before wgmma.wait_group", 0);
    m->under_way[m->nunder_way].number = m->number, m->under_way[m->nunder_way++].group = m->committed;
    sums *s = set_of(m, d, n / 2);
    for (int e = 0; e < n / 2; e++) {
        const int row = first + e / 2 % 2 * 8, column = e / 4 * 8 + lane % 4 * 2 + e % 2;
        double sum = adds ? (double)s->value[e] : 0;
        for (int l = 0; l < 16; l++) sum += (double)p->left[row][l] * (double)p->right[column][l];
        s->value[e] = cut_off(sum);
        *d[e] = 0x7fc0dead;                    /* nobody may look */
    }
    s->last = m->committed, m->open = 1;
}
KERNEL_CALLS(void, softptx_wgmma, (int n, int kind, unsigned long long a, unsigned long long b, int adds, int turned_a, int turned_b, unsigned long long **d)) {
    multiply(n, kind, a, NULL, b, adds, turned_a, turned_b, (uint64_t **)d);
}
KERNEL_CALLS(void, softptx_wgmma_loaded, (int n, int kind, const unsigned *words, unsigned long long b, int adds, int turned_b, unsigned long long **d)) {
    multiply(n, kind, 0, words, b, adds, 0, turned_b, (uint64_t **)d);
}
KERNEL_CALLS(void, softptx_wgmma_fence, (void)) { warp_meets(), members_of_block[this_thread()].fenced = 1, used = 1; }
KERNEL_CALLS(void, softptx_wgmma_commit, (void)) { warp_meets(), members_of_block[this_thread()].committed++, members_of_block[this_thread()].open = 0; }
KERNEL_CALLS(void, softptx_wgmma_wait, (int left)) {
    const int t = this_thread();
    member *m = &members_of_block[t];
    const int done = m->committed - left;      /* so many groups are over */
    int n = 0;
    warp_meets();
    for (int i = 0; i < m->nunder_way; i++) {
        if (m->under_way[i].group >= done) { m->under_way[n++] = m->under_way[i]; continue; }
        const product *p = &products[t / 128][m->under_way[i].number % RING];
        if (t % 32 == 0 && p->number == m->under_way[i].number && p->changes != changes_of_product(p, 0)) fail("an operand of wgmma is written before wgmma.wait_group", (unsigned)(p->a & 0x3fff) << 4);
    }
    m->nunder_way = n, n = 0;
    for (int i = 0; i < m->nsets; i++) {
        sums *s = &m->set[i];
        if (s->last >= done) { if (n != i) m->set[n] = *s; n++; continue; }
        for (int e = 0; e < s->n; e++) {
            unsigned bits;
            memcpy(&bits, &s->value[e], 4);
            *s->at[e] = bits;
        }
        m->fenced = 0;
    }
    m->nsets = n;
}
/* setmaxnreg: registers of a thread, of 65536 that a block has; more are waited for. */
KERNEL_CALLS(void, softptx_setmaxnreg, (int more, int n)) {
    const int group = this_thread() / 128, groups = (int)(soft_now->block_size[0] / 128);
    const unsigned given = 65536 / soft_now->block_size[0] / 8 * 8;
    used = 1;
    if (n % 8 || n < 24 || n > 256 || groups > GROUPS) fail("setmaxnreg of a number that can't be", 0);
    for (int g = 0; g < groups; g++) registers_of[g] = registers_of[g] ? registers_of[g] : given;
    warp_meets();
    if (registers_of[group] != (unsigned)n && (more ? (unsigned)n < registers_of[group] : (unsigned)n > registers_of[group])) fail("setmaxnreg in the wrong direction", 0);
    registers_of[group] = (unsigned)n, soft_progress++;
    for (;;) {
        unsigned all = 0;
        for (int g = 0; g < groups; g++) all += registers_of[g] * 128;
        if (!more || all <= 65536) return;
        soft_yield();
    }
}
