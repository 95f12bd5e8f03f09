/* gpu_report.c - reads the kernels of known shapes in machine code, without a GPU, and estimates what they would do.

       gpu_report FOLDER [ARCH...]            FOLDER: for the images; sm_80, sm_90, gfx90a

   A device is opened whose driver does nothing (`idle` below), so that plans are made and compiled by the real NVRTC and hiprtc
   as for a card; what it is given to load and to launch is noted down. nvdisasm (NVDISASM) and llvm-objdump (OBJDUMP) give the
   instructions. A line of the table is a launch, or several of one kind:

       arch shape grid threads registers spills shared blocks waves share bytes instructions estimate

   registers of a thread, spills (loads and stores of what did not fit), shared bytes of a block, blocks that a multiprocessor
   holds, waves (grid / all that the chip holds); share (%): of FFMA, HMMA or mfma in the loop that has most; bytes that a
   thread's load from memory takes on average; instructions that a thread issues for an element. The estimate (%) is of what
   the chip can do at most, in products of its arithmetic, else of its memory's bandwidth. NOTHING HERE WAS MEASURED:

       issue   = instructions of all warps / (schedulers * multiprocessors * clock)
       unit    = multiply-adds, with the tiles' margins, / the chip's rate of that instruction
       memory  = bytes / min(bandwidth, bytes in flight / LATENCY)
       time    = max(max(issue, unit) / (waves / whole waves), memory) + BOUNDARY of each launch
       and of a ring of boxes (TMA), whose bytes are all in flight, where a block has a multiprocessor for itself:
       time    = max((unit + issue outside the loop) / (waves / whole waves), memory) + BOUNDARY
       estimate = (work / rate, or bytes / bandwidth) / time

   Of several launches one counts as that which does the work; attention's gradients have two, which share it. Every operand counts as read once. Left out are latencies, the
   bandwidth of shared memory, and what the instructions of a fused epilogue cost. A loop's turns follow from what it multiplies, or from the bytes that it loads. */
#define _DEFAULT_SOURCE
#define FLUX_IMPLEMENTATION
#include "library.h"

static const double LATENCY = 700e-9, BOUNDARY = 1.3e-6;

/* By the makers' sheets. `reserved` bytes of shared memory go to the system for each block; on sm_90 a kernel's number has them. mma: multiply-adds a second of mma or mfma on half floats, on TF32 (AMD: f32); `best` is the fastest
   instruction's on half floats, of which products are a fraction. */
typedef struct chip {
    const char *arch, *name;
    int multiprocessors, schedulers, lanes, registers, shared, reserved, threads;
    double clock, bandwidth, f32, f64, mma, mma32, best, best32;
} chip;
static const chip chips[] = {
    { "sm_80", "A100", 108, 4, 32, 65536, 167936, 1024, 2048, 1.41e9, 2.0e12, 9.75e12, 4.9e12, 156e12, 78e12, 156e12, 78e12 },
    { "sm_90", "H200", 132, 4, 32, 65536, 233472, 0, 2048, 1.83e9, 4.8e12, 33.5e12, 16.7e12, 310e12, 155e12, 495e12, 247e12 },
    { "gfx90a", "MI250X, one of its two", 110, 4, 64, 131072, 65536, 0, 2048, 1.7e9, 1.6e12, 12e12, 12e12, 95e12, 24e12, 95e12, 24e12 },
};
enum { CHIPS = sizeof chips / sizeof *chips };

/* ---------------- a driver that does nothing */

typedef struct image { char path[600]; struct kernel *kernel; } image;
typedef struct kernel {                   /* as it was compiled */
    image *from;
    char name[40];
    int registers, spills, shared, n, loads, load_bytes;
    double share, per_load, unit;         /* unit: multiply-adds of a warp in the instructions of `share` */
    double loop, loop_units, once;        /* instructions of the loop, its multiply-adds, and those outside */
    double each;                          /* instructions a byte that is loaded, of all loops that load */
    struct kernel *next;
} kernel;
typedef struct launch { kernel *k; unsigned grid[3], threads, shared; int n; } launch;      /* shared: bytes of dynamic memory */
static launch launches[64];
static int nlaunches, nimages;
static const chip *at;
static const char *folder;
static char *address = (char *)0x500000000000;

static int none(void *p) { return (void)p, 0; }
static int none_of_two(void *p, void *q) { return (void)p, (void)q, 0; }
static int copied(void *dst, const void *src, size_t n, void *s) { return (void)dst, (void)src, (void)n, (void)s, 0; }
static int some(void **p) { return *p = &address, 0; }
static int enter(int id, void **before) { return (void)id, *before = NULL, 0; }
static int get(void **p, size_t n) { return *p = address, address += (n + 4095) / 4096 * 4096, 0; }
static int pinned(void **p, size_t n) { return (*p = calloc(1, n)) ? 0 : 2; }
static int down(void *dst, const void *src, size_t n, void *s) { return (void)src, (void)s, memset(dst, 0, n), 0; }
static int room(size_t *a, size_t *b) { return *a = *b = (size_t)1 << 40, 0; }
static void nothing(void *p) { (void)p; }
static void forget(int id) { (void)id; }
static int reserved(void *function, unsigned shared) { return (void)function, (void)shared, 0; }
static bool never(int code) { return (void)code, false; }
static bool no_graphs(void) { return false; }
static const char *sentence(int code, char *number) { return (void)code, (void)number, "an idle driver's error"; }
static size_t image_bytes(const char *p) {               /* of an ELF file: up to its last table */
    uint64_t ph, sh;
    unsigned short n[4];
    memcpy(&ph, p + 32, 8), memcpy(&sh, p + 40, 8), memcpy(n, p + 54, 8);
    uint64_t a = ph + (uint64_t)n[0] * n[1], b = sh + (uint64_t)n[2] * n[3];
    return (size_t)(a > b ? a : b);
}
static int load(void **module, const void *code) {
    image *m = (image *)calloc(1, sizeof *m);
    snprintf(m->path, sizeof m->path, "%s/%s-%03d.elf", folder, at->arch, nimages++);
    FILE *f = fopen(m->path, "wb");
    if (!f || memcmp(code, "\177ELF", 4) != 0) return 1;
    fwrite(code, 1, image_bytes((const char *)code), f);
    fclose(f);
    return *module = m, 0;
}
static int find(void **function, void *module, const char *name) {
    kernel *k = (kernel *)calloc(1, sizeof *k);
    k->from = (image *)module, k->next = k->from->kernel, k->from->kernel = k;
    snprintf(k->name, sizeof k->name, "%s", name);
    return *function = k, 0;
}
static int described(const flux__tensor_map *m, const void *at, void *words) { return (void)m, (void)at, (void)words, 0; }
static int start(void *function, const unsigned *grid, unsigned threads, unsigned shared, void *stream, void **args) {
    (void)stream, (void)args;
    launch *l = &launches[nlaunches < 63 ? nlaunches++ : 63];
    l->k = (kernel *)function, l->threads = threads, l->shared = shared, l->n = 1;
    memcpy(l->grid, grid, sizeof l->grid);
    return 0;
}

/* Opens device `id` of a back end as a chip whose driver is idle but for its compiler. */
static bool open_idle(int backend, int id, const chip *c, char *why, size_t n) {
    static flux__driver idle[CHIPS];
    flux__driver *d = &idle[c - chips];
    flux__gpu *g = &flux__gpus[backend - FLUX__CUDA_BACKEND][id];
    *d = *flux__driver_of(backend);
    if (backend == FLUX__AMDGPU_BACKEND) flux__roc_open(why, n);      /* its library contains the compiler */
    else flux__cu_version = 99000;        /* that of a driver which takes what any NVRTC makes */
    if (!d->compiler(why, n)) return false;
    if (flux__probe_of(backend)->count <= id) flux__probes[backend].count = id + 1;
    d->enter = enter, d->leave = nothing, d->close = forget, d->stream = some, d->stream_free = nothing, d->event = some;
    d->stream_wait = d->event_wait = d->event_query = none, d->event_free = d->release = d->unpin = d->unload = nothing;
    d->event_record = d->event_before = none_of_two, d->alloc = get, d->pinned = pinned;
    d->up = d->across = copied, d->down = down, d->memory = room;
    d->map = described, d->reserve = reserved, d->load = load, d->find = find, d->launch = start, d->has_graphs = no_graphs, d->error = sentence, d->lost = never;
    memset(g, 0, sizeof *g);
    g->driver = d, g->id = id, g->process = flux__process_id(), g->stream = g->own = &address, g->status = &address;
    snprintf(g->info.arch, sizeof g->info.arch, "%s", c->arch);
    g->info.multiprocessors = c->multiprocessors;
    g->tiled = strcmp(c->arch, "sm_90") == 0;
    for (int i = 0; i < FLUX__SLOTS; i++) pinned(&g->slot[i].memory, FLUX__SLOT_BYTES), some(&g->slot[i].event);
    return g->open = true;
}

/* ---------------- instructions */

typedef struct line { char op[32]; double units; int at, to, bytes; bool spill, load; } line;

/* The bytes of an access by the width in its name: LDG.E.128, global_load_dwordx4, ds_read_b64. */
static int width_of(const char *op) {
    static const struct { const char *word; int bytes; } words[] = {
        { "128", 16 }, { "x4", 16 }, { "x3", 12 }, { "x2", 8 }, { "64", 8 }, { "U16", 2 }, { "S16", 2 }, { "short", 2 }, { "U8", 1 }, { "S8", 1 },
        { "byte", 1 } };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(op, words[i].word)) return words[i].bytes;
    return 4;
}
static double unit_of(const char *op) {   /* multiply-adds of a warp */
    int m, n, k;
    if (strncmp(op, "FFMA2", 5) == 0) return 64;
    if (strncmp(op, "FFMA", 4) == 0 || strncmp(op, "DFMA", 4) == 0) return 32;
    if (strncmp(op, "HGMMA.64x", 9) == 0 && sscanf(op + 9, "%dx%d", &n, &k) == 2) return 64 * n * k / 4;    /* of four warps' */
    if (strncmp(op, "HMMA.16816", 10) == 0) return 2048;
    if (strncmp(op, "HMMA.1688", 9) == 0) return 1024;
    if (strncmp(op, "v_pk_fma_f32", 12) == 0) return 128;
    if (strncmp(op, "v_fma_f", 7) == 0 || strncmp(op, "v_fmac_f", 8) == 0) return 64;
    return strncmp(op, "v_mfma_f32_", 11) == 0 && sscanf(op + 11, "%dx%dx%d", &m, &n, &k) == 3 ? m * n * k : 0;
}

/* Fills in what a kernel's instructions say. Loops are the branches back; the one with most multiply-adds an instruction, or
   else that loads most, counts as the kernel's. */
static void read_lines(kernel *k, const line *l, int n) {
    double most = -1;
    bool told = false;
    k->n = n, k->once = n;
    for (int i = 0; i < n; i++) {
        k->spills += l[i].spill;
        if (l[i].load) k->loads++, k->load_bytes += l[i].bytes;
    }
    for (int end = 0; end < n; end++) {
        int from = end;
        double units = 0, bytes = 0, ops = 0;
        if (l[end].to < 0 || l[end].to >= l[end].at) continue;
        while (from > 0 && l[from].at > l[end].to) from--;
        bool inner = true;
        for (int i = from; i <= end; i++) {
            units += l[i].units, ops += l[i].units > 0, bytes += l[i].load ? l[i].bytes : 0;
            inner = inner && (i == end || l[i].to < 0 || l[i].to >= l[i].at || l[i].to < l[end].to);
        }
        if (inner && bytes > 0) k->each += (end - from + 1) / bytes, told = true;
        double here = (inner ? 1e6 : 1) * units + bytes * 1e-3;
        if (here <= most || (!inner && units == 0)) continue;
        most = here, k->loop = end - from + 1, k->loop_units = units, k->share = 100 * ops / k->loop, k->once = n - k->loop;
    }
    if (!told && k->load_bytes) k->each = (double)n / k->load_bytes;
    k->per_load = k->loads ? (double)k->load_bytes / k->loads : 0;
}

/* The address between slashes and asterisks, then `@P0 LDG.E.128 R4, [R2.64] ;` and, of a branch back, the label's address; of labels see `disassemble`. */
static bool read_line_cuda(char *s, line *l) {
    unsigned where, to;
    char op[64];
    char *body = strstr(s, "/*");
    if (!body || sscanf(body, "/*%x*/", &where) != 1 || !(body = strstr(body, "*/")) || !strchr(body, ';')) return false;
    body += 2 + strspn(body + 2, " \t{");
    if (*body == '@') body += strcspn(body, " "), body += strspn(body, " ");
    if (sscanf(body, "%63[^ ;]", op) != 1) return false;
    memset(l, 0, sizeof *l);
    snprintf(l->op, sizeof l->op, "%.31s", op);
    l->at = (int)where, l->to = -1, l->units = unit_of(op), l->bytes = width_of(op);
    l->spill = strncmp(op, "LDL", 3) == 0 || strncmp(op, "STL", 3) == 0;
    l->load = strncmp(op, "LDG", 3) == 0;
    const char *label = strncmp(op, "BRA", 3) == 0 ? strstr(body, "`(.L_x_") : NULL;
    if (label && sscanf(label + 7, "%u", &to) == 1) l->to = -2 - (int)to;      /* a label's number, until it is known */
    return true;
}
/* `	v_fma_f32 v1, v2, v3, v4   // 000000001234: D1CB...` */
static bool read_line_amd(char *s, line *l) {
    unsigned long long where;
    char op[64];
    char *note = strstr(s, "// ");
    if (*s != '\t' || !note || sscanf(note + 3, "%llx:", &where) != 1 || sscanf(s, " %63s", op) != 1) return false;
    memset(l, 0, sizeof *l);
    snprintf(l->op, sizeof l->op, "%.31s", op);
    l->at = (int)where, l->to = -1, l->units = unit_of(op), l->bytes = width_of(op);
    l->spill = strncmp(op, "scratch_", 8) == 0 || (strncmp(op, "buffer_", 7) == 0 && strstr(s, "s[0:3]"));
    l->load = strncmp(op, "global_load", 11) == 0 || strncmp(op, "flat_load", 9) == 0 || (strncmp(op, "buffer_load", 11) == 0 && !l->spill);
    if (strncmp(op, "s_cbranch", 9) == 0 || strcmp(op, "s_branch") == 0) {
        int jump = atoi(s + 1 + strlen(op));
        l->to = l->at + 4 + 4 * (jump > 32767 ? jump - 65536 : jump);
    }
    return true;
}

static kernel *kernel_named(image *m, const char *name, size_t n) {
    kernel *k = m->kernel;
    while (k && (strlen(k->name) != n || strncmp(k->name, name, n) != 0)) k = k->next;
    return k;
}

/* Runs a disassembler over an image and reads each kernel's instructions. */
static bool disassemble(image *m, bool amd) {
    enum { MOST = 40000, LABELS = 4000 };
    static line lines[MOST];
    static int labels[LABELS];
    char command[1400], s[4000];
    const char *tool = flux__env(amd ? "OBJDUMP" : "NVDISASM");
    snprintf(command, sizeof command, amd ? "%s -d --mcpu=%s %s" : "%s%.0s %s", tool ? tool : amd ? "llvm-objdump" : "nvdisasm", at->arch, m->path);
    FILE *f = popen(command, "r");
    kernel *k = NULL;
    int n = 0, label = -1;
    while (f && (fgets(s, sizeof s, f) || (*s = 0, k))) {
        const char *head = amd ? (*s == '\t' ? NULL : strchr(s, '<')) : strncmp(s, ".text.k", 7) == 0 ? s + 5 : NULL;
        bool starts = head && head[1] == 'k' && strspn(head + 2, "0123456789abcdef") == 32;
        if ((starts || !*s) && k) {       /* the last kernel has ended: labels become addresses */
            for (int i = 0; i < n; i++) if (lines[i].to < -1) lines[i].to = -2 - lines[i].to < LABELS ? labels[-2 - lines[i].to] : -1;
            read_lines(k, lines, n);
        }
        if (!*s) break;
        if (starts) k = kernel_named(m, head + 1, 33), n = 0, label = -1, memset(labels, 0xff, sizeof labels);
        if (!amd && strncmp(s, ".L_x_", 5) == 0) label = atoi(s + 5);
        if (!k || n == MOST || !(amd ? read_line_amd : read_line_cuda)(s, &lines[n])) continue;
        if (label >= 0 && label < LABELS) labels[label] = lines[n].at;
        label = -1, n++;
    }
    return f && pclose(f) == 0;
}

/* Registers and shared memory of CUDA's kernels: section .nv.info says of symbols, among other words, how many registers they
   have (EIATTR_REGCOUNT, 0x2f); the size of .nv.shared.NAME. */
static uint64_t word(const char *p, size_t n) {
    uint64_t x = 0;
    memcpy(&x, p, n);
    return x;
}
static void read_sections(image *m) {
    size_t bytes;
    char *p = (char *)flux__read_file(m->path, &bytes, "gpu_report"), *infos = NULL, *symbols = NULL, *strings = NULL;
    if (!p) return;
    char *head = p + word(p + 40, 8);
    size_t each = word(p + 58, 2), n = word(p + 60, 2), info_bytes = 0;
    const char *names = p + word(head + word(p + 62, 2) * each + 24, 8);
    for (size_t i = 0; i < n; i++, head += each) {
        const char *name = names + word(head, 4);
        char *at_file = p + word(head + 24, 8);
        if (strcmp(name, ".nv.info") == 0) infos = at_file, info_bytes = word(head + 32, 8);
        if (strcmp(name, ".symtab") == 0) symbols = at_file;
        if (strcmp(name, ".strtab") == 0) strings = at_file;
        kernel *k = strncmp(name, ".nv.shared.k", 12) == 0 ? kernel_named(m, name + 11, 33) : NULL;
        if (k) k->shared = (int)word(head + 32, 8);
    }
    for (size_t i = 0; symbols && strings && i + 12 <= info_bytes; i += 4) {
        if (word(infos + i, 4) != 0x00082f04) continue;
        kernel *k = kernel_named(m, strings + word(symbols + 24 * word(infos + i + 4, 4), 4), 33);
        if (k) k->registers = (int)word(infos + i + 8, 4);
    }
    FLUX_FREE(p);
}

/* AMD's: the notes are MessagePack, names and numbers in the alphabet's order: .agpr_count, .group_segment_fixed_size, .name,
   .vgpr_count, .vgpr_spill_count. */
static int64_t packed(const unsigned char *p) {
    return *p < 0x80 ? *p : *p == 0xcc ? p[1] : *p == 0xcd ? p[1] << 8 | p[2] : *p == 0xce ? (int64_t)p[1] << 24 | p[2] << 16 | p[3] << 8 | p[4] : 0;
}
static void read_notes(image *m) {
    size_t bytes;
    char *p = (char *)flux__read_file(m->path, &bytes, "gpu_report");
    int shared = 0;
    kernel *k = NULL;
    for (size_t i = 0; p && i + 64 < bytes; i++) {
        if (memcmp(p + i, ".group_segment_fixed_size", 25) == 0) shared = (int)packed((unsigned char *)p + i + 25);
        if (memcmp(p + i, ".name\xd9\x21k", 8) == 0 && (k = kernel_named(m, p + i + 7, 33)) != NULL) k->shared = shared;
        if (memcmp(p + i, ".vgpr_count", 11) == 0 && k) k->registers = (int)packed((unsigned char *)p + i + 11);
        if (memcmp(p + i, ".vgpr_spill_count", 17) == 0 && k) k->spills += (int)packed((unsigned char *)p + i + 17);
    }
    if (p) FLUX_FREE(p);
}

/* ---------------- the estimate */

typedef struct work { double madds, bytes, read; int dtype; bool tf32; double again; } work;       /* of a shape; read: bytes of an element; again: multiply-adds that are done more than once */

static double least(double a, double b) { return a < b ? a : b; }
static double most(double a, double b) { return a > b ? a : b; }

static int blocks_of(const launch *l) {   /* that a multiprocessor holds at once */
    int warps = ((int)l->threads + at->lanes - 1) / at->lanes,
        regs = (l->k->registers + 7) / 8 * 8 * at->lanes * warps, shared = l->k->shared + (int)l->shared + at->reserved;
    int n = at->threads / (warps * at->lanes);
    if (regs && at->registers / regs < n) n = at->registers / regs;
    if (shared && at->shared / shared < n) n = at->shared / shared;
    return n < 1 ? 1 : n > 32 ? 32 : n;
}

/* Prints a launch's line but for the estimate, and returns the seconds that it would take. */
static double seconds_of(const launch *l, const work *w, const char *title) {
    const kernel *k = l->k;
    double blocks = (double)l->grid[0] * l->grid[1] * l->grid[2], warps = blocks * (double)((l->threads + (unsigned)at->lanes - 1) / (unsigned)at->lanes);
    double holds = blocks_of(l), waves = blocks / (holds * at->multiprocessors), issued, unit = 0, instructions;
    bool multiplies = w->madds > 0 && k->loop_units > 0 && k->share > 3;
    bool half = w->dtype == FLUX_BF16 || w->dtype == FLUX_F16;
    if (multiplies) {
        const double op = k->loop_units / (k->loop * k->share / 100);
        double rate = op > 4096 ? at->best : op <= 2.0 * at->lanes ? w->dtype == FLUX_F64 ? at->f64 : at->f32 : half ? at->mma : at->mma32;
        issued = w->madds / k->loop_units * k->loop + warps * k->once, unit = w->madds / rate;
        instructions = issued * at->lanes / w->madds;
    } else {
        instructions = k->each * w->read;
        issued = w->bytes / most(w->read, 1) * instructions / at->lanes;
        if (w->madds > 0) issued = warps * k->n;
    }
    double full = waves <= 1 ? least(1, blocks / at->multiprocessors) : waves / ceil(waves - 1e-9);
    double flight = least(holds, blocks / at->multiprocessors) * l->threads * most(k->per_load, 1) * least(k->loads, 4) * at->multiprocessors;
    if (l->shared) flight = holds * l->shared * at->multiprocessors;
    double memory = w->bytes / least(at->bandwidth, most(flight, 1) / LATENCY);
    printf("%-7s %-28s %9.0f %5u %4d %4d %6d %3.0f %8.2f %4.0f %5.1f %8.3f", at->arch, title, blocks, l->threads, k->registers, k->spills, k->shared + (int)l->shared, holds,
           waves, multiplies ? k->share : 0, k->per_load, instructions);
    const double each = at->multiprocessors * at->schedulers * at->clock;
    if (l->shared && multiplies) return most((unit + warps * k->once / each) / most(full, 1e-6), memory) + BOUNDARY * l->n;
    return most(most(issued / each, unit) / most(full, 1e-6), memory) + BOUNDARY * l->n;
}

/* Evaluates what `title` names, and prints a line for each of its kernels; equal launches are one. The last has the
   estimate. */
static void shape_is(const char *title, flux_tensor *t, work w) {
    nlaunches = 0;
    flux_eval(t);
    double time = 0, most_threads = -1, all = 0;
    int chief = 0;                        /* the launch that does the work: that multiplies, or of most threads */
    for (int i = 0; i < nlaunches; i++) {
        kernel *k = launches[i].k;
        if (!k->n && (!disassemble(k->from, at->lanes == 64) || !k->n)) {
            fprintf(stderr, "gpu_report: %s can't be disassembled\n", k->from->path);
            exit(1);
        }
        if (at->lanes == 64 && !k->registers) read_notes(k->from);
        if (at->lanes == 32 && !k->registers) read_sections(k->from);
        double threads = (double)launches[i].grid[0] * launches[i].grid[1] * launches[i].grid[2] * launches[i].threads;
        if (w.madds > 0 && k->share > 3) threads *= 1e3 * k->loop_units, all += threads;
        if (threads > most_threads) most_threads = threads, chief = i;
    }
    for (int i = 0; i < nlaunches; i++) {
        work mine = w;
        double part = (double)launches[i].grid[0] * launches[i].grid[1] * launches[i].grid[2] * launches[i].threads * 1e3 * launches[i].k->loop_units / most(all, 1);
        if (i != chief) mine.bytes = 0;
        if (i != chief && (launches[i].k->share <= 3 || part < 0.1)) mine.madds = 0;
        else if (w.again > 0) mine.madds = (w.madds + w.again) * part;
        time += seconds_of(&launches[i], &mine, title);
        bool half = w.dtype == FLUX_BF16 || w.dtype == FLUX_F16;
        double rate = half ? at->best : w.tf32 || (w.dtype == FLUX_F32 && at->lanes == 64) ? at->best32 : w.dtype == FLUX_F64 ? at->f64 : at->f32;
        double ideal = most(w.madds / rate, w.bytes / at->bandwidth);
        if (i + 1 < nlaunches) printf("%7s\n", "-");
        else printf("%7.1f\n", 100 * ideal / time);
    }
    fflush(stdout);
}

static flux_tensor *of(flux_dtype t, int nd, int64_t a, int64_t b, int64_t c, int64_t d) {
    flux_shape s = { nd, { a, b, c, d } };
    return flux_eval(flux_full_with(s, 1.0, t));
}
static double size_of(flux_dtype t) { return t == FLUX_F64 ? 8 : t == FLUX_F32 ? 4 : 2; }

/* The product m x k by k x n; order: NN, NT or TN. times: the products of planes that it is made of, or 1. */
static void product_of(const char *name, flux_dtype t, int64_t m, int64_t n, int64_t k, const char *order, int times) {
    char title[64];
    bool tf32 = strstr(name, "tf32") != NULL, ta = order[0] == 'T', tb = order[1] == 'T';
    work w = { (double)m * (double)n * (double)k, (double)(m * k + k * n + m * n) * size_of(t), size_of(t), t, tf32, 0 };
    w.again = (times - 1) * w.madds;
    flux_tensor *a = of(t, 2, ta ? k : m, ta ? m : k, 1, 1), *b = of(t, 2, tb ? n : k, tb ? k : n, 1, 1);
    snprintf(title, sizeof title, "%s_%dx%dx%d_%s", name, (int)m, (int)n, (int)k, order);
    flux_allow_tf32(tf32);
    shape_is(title, flux_matmul(ta ? flux_transpose(a) : a, tb ? flux_transpose(b) : b), w);
    flux_allow_tf32(false);
}
static void product(const char *name, flux_dtype t, int64_t m, int64_t n, int64_t k, const char *order) {
    product_of(name, t, m, n, k, order, 1);
}
/* f32 by six products of bf16 planes, TF32 by three, where the chip has wgmma; the estimates are of the rates that f32 and TF32
   have without. Other shapes than those of `products`, whose plans are kept. */
static void planes(double least_worth) {
    if (strcmp(at->arch, "sm_90") != 0) return;
    flux__planes_least = least_worth;
    FLUX_SCOPE product_of("planes_f32", FLUX_F32, 4096, 4096, 8192, "NN", 6);
    FLUX_SCOPE product_of("planes_f32", FLUX_F32, 4096, 4096, 8192, "NT", 6);
    FLUX_SCOPE product_of("planes_tf32", FLUX_F32, 4096, 4096, 8192, "NN", 3);
    FLUX_SCOPE product_of("planes_f32", FLUX_F32, 1024, 1024, 4096, "NN", 6);
    flux__planes_least = INFINITY;
}
static void products(void) {
    static const char *const orders[] = { "NN", "NT", "TN" };
    for (int o = 0; o < 3; o++) FLUX_SCOPE product("f32", FLUX_F32, 4096, 4096, 4096, orders[o]);
    for (int o = 0; o < 3; o++) FLUX_SCOPE product("bf16", FLUX_BF16, 4096, 4096, 4096, orders[o]);
    FLUX_SCOPE {
        product("f16", FLUX_F16, 4096, 4096, 4096, "NN");
        product("tf32", FLUX_F32, 4096, 4096, 4096, "NN");
        product("f32", FLUX_F32, 1024, 1024, 1024, "NN");
        product("bf16", FLUX_BF16, 1024, 1024, 1024, "NN");
        product("f64", FLUX_F64, 1024, 1024, 1024, "NN");
        product("f32", FLUX_F32, 256, 64, 784, "NN");
        product("f32", FLUX_F32, 256, 784, 64, "NT");
        product("f32", FLUX_F32, 64, 64, 100000, "NN");
        product("bf16", FLUX_BF16, 4096, 16, 4096, "NN");
        product("f32", FLUX_F32, 4096, 1, 4096, "NN");
    }
}
static void rest(void) {
    const double n = 4096.0 * 4096;
    flux_tensor *x = of(FLUX_F32, 2, 4096, 4096, 1, 1), *y = of(FLUX_F32, 2, 4096, 4096, 1, 1), *h = of(FLUX_BF16, 2, 4096, 4096, 1, 1);
    shape_is("add", flux_add(x, y), (work){ 0, 12 * n, 8, FLUX_F32, false });
    shape_is("gelu", flux_gelu(x), (work){ 0, 8 * n, 4, FLUX_F32, false });
    shape_is("add_bf16", flux_add(h, h), (work){ 0, 4 * n, 2, FLUX_BF16, false });
    shape_is("transposed_copy", flux_copy(flux_transpose(x)), (work){ 0, 8 * n, 4, FLUX_F32, false });
    shape_is("sum", flux_sum(x), (work){ 0, 4 * n, 4, FLUX_F32, false });
    shape_is("sum_over_0", flux_sum(x, 0), (work){ 0, 4 * n, 4, FLUX_F32, false });
    shape_is("sum_over_1", flux_sum(x, 1), (work){ 0, 4 * n, 4, FLUX_F32, false });
    shape_is("softmax", flux_softmax(x), (work){ 0, 8 * n, 4, FLUX_F32, false });
    shape_is("argmax", flux_argmax(x, 0), (work){ 0, 4 * n, 4, FLUX_F32, false });
    shape_is("normalise", flux_normalise(x, FLUX_SHAPE(0), 1e-5), (work){ 0, 8 * n, 4, FLUX_F32, false });
    const double madds = 64.0 * 64 * 9 * 56 * 56 * 32, images_size = 2 * 56.0 * 56 * 64 * 32;
    for (int half = 0; half < 2; half++) {
        flux_dtype t = half ? FLUX_BF16 : FLUX_F32;
        flux_tensor *kernels = of(t, 4, 3, 3, 64, 64), *images = of(t, 4, 56, 56, 64, 32);
        shape_is(half ? "convolution_bf16" : "convolution_f32", flux_crosscor(images, kernels, .pad = { 1, { 1 } }),
                 (work){ madds, images_size * size_of(t), size_of(t), t, false });
    }
}
/* Causal attention as of a language model, forward, then its gradients; half of the scores count. */
static void attention(const char *name, flux_dtype t, int64_t d, bool drops) {
    const int64_t heads = 1024 / d, length = 2048, batch = 4;
    const double madds = (double)(heads * batch * d) * (double)length * (double)length, scores = (double)(length * length * heads * batch),
        bytes = 4.0 * (double)(1024 * length * batch) * size_of(t);
    char title[64];
    bool tf32 = strcmp(name, "tf32") == 0;
    flux_allow_tf32(tf32);
    flux_tensor *x[3], *y;
    for (int i = 0; i < 3; i++) x[i] = of(t, 3, 1024, length, batch, 1);
    flux_layer *drop = drops ? flux_dropout(0.1) : NULL;
    if (drop) flux_trainmode(drop, true);
    snprintf(title, sizeof title, "attention_%s%s_%d", drops ? "dropout_" : "", name, (int)d);
    shape_is(title, y = flux_nth(flux_dot_product_attention(x[0], x[1], x[2], .nheads = (int)heads, .causal = true, .drop = drop), 0),
             (work){ madds, bytes + (drops ? 2 * scores : 0), size_of(t), t, tf32, 0 });
    flux_grads *g = flux_gradient(flux_sum(y), x[0], x[1], x[2]);
    flux_tensor *all[3] = { flux_grad(g, x[0]), flux_grad(g, x[1]), flux_grad(g, x[2]) };
    snprintf(title, sizeof title, "attention_gradients_%s%s_%d", drops ? "dropout_" : "", name, (int)d);
    shape_is(title, flux_tuple_with(3, all), (work){ 2.5 * madds, 2 * bytes + (drops ? 2 * scores : 0), size_of(t), t, tf32, madds });
    flux_allow_tf32(false);
}
static void attentions(void) {
    FLUX_SCOPE attention("bf16", FLUX_BF16, 32, false);
    FLUX_SCOPE attention("bf16", FLUX_BF16, 64, false);
    FLUX_SCOPE attention("bf16", FLUX_BF16, 128, false);
    FLUX_SCOPE attention("f16", FLUX_F16, 64, false);
    FLUX_SCOPE attention("tf32", FLUX_F32, 64, false);
    FLUX_SCOPE attention("f32", FLUX_F32, 64, false);
    FLUX_SCOPE attention("bf16", FLUX_BF16, 64, true);
}

int main(int argc, char **argv) {
    folder = argc > 1 ? argv[1] : ".";
    int ids[2] = { 0, 0 };
    const double least_worth = flux__planes_least;
    flux__planes_least = INFINITY;        /* plain products, which sm_80 has, too */
    printf("# Estimates by tests/gpu_report.c, which says how; nothing here was measured on a card.\n"
           "#arch   shape                           grid  block regs spill shared blocks  waves share  bytes    instr estimate\n");
    for (int i = 0; i < CHIPS; i++) {
        char why[400] = "";
        bool named = argc < 3;
        for (int a = 2; a < argc; a++) named = named || strcmp(argv[a], chips[i].arch) == 0;
        if (!named) continue;
        int backend = *chips[i].arch == 'g' ? FLUX__AMDGPU_BACKEND : FLUX__CUDA_BACKEND, id = ids[backend - FLUX__CUDA_BACKEND]++;
        at = &chips[i];
        if (!open_idle(backend, id, at, why, sizeof why)) {
            fprintf(stderr, "skipped %s: %s\n", at->arch, why);
            continue;
        }
        flux_default_device((flux_device){ backend, id });
        FLUX_SCOPE products();
        FLUX_SCOPE planes(least_worth);
        FLUX_SCOPE rest();
        FLUX_SCOPE attentions();
    }
    fflush(stdout);
    _Exit(flux_failed());                 /* the idle driver has nothing to give back */
}
