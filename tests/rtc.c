/* rtc.c - gives the kernels of the suite to the real run-time compilers, for every architecture.

       rtc where                              prints the path of NVRTC's library
       rtc FOLDER some|each|all [ARCH...]     FOLDER: of folders that SOFTGPU_SOURCES named; sm_90, gfx90a ...

   Kernels that differ in nothing but numbers are one, unless it is the launch's bounds or a shared array that differs.
   `all` compiles each for every architecture; `each` one of each kind (tiles of a size, operands of a type) for every one, and
   each of the others for one of a maker's, which its text chooses; `some` that of each kind for one of neighbours (sm_80 to 89; sm_100 to 121), which
   the kind chooses, and leaves out those of the others whose lines, but for numbers, are all found in SEEN longer ones that the same
   maker's compiler gets, each term of an address by itself: operations in another order, which long kernels have most of. A kernel of
   tensor or matrix cores, or of asynchronous copies, is for chips that have the same cores as the chip for which it was made. Many are compiled in
   one program, because a compiler's start costs more than a kernel; each architecture in a process of its own, because a compiler may
   end the process over one that it does not know.
   Chips that hiprtc 5 does not know are clang 19's, with rtc_clang.h before each program.
   Registers that do not fit (spills) are a failure, and so is a product that was meant for tensor or matrix cores and has none. */
#define _GNU_SOURCE
#define FLUX_IMPLEMENTATION
#include "library.h"
#include <dirent.h>
#include <dlfcn.h>
#include <glob.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CUDA, AMD, TOGETHER = 150, SEEN = 1, MOST_CHIPS = 32, MOST_ARCHS = 64 };     /* TOGETHER: kernels of a program */
enum { SOME, EACH, ALL };

typedef struct block {                    /* a function of an operation, or a kernel */
    char *text, *name;
    uint64_t hash, structure, kind;       /* kind 0: such kernels differ in what they compute, not in how they are made */
    uint32_t chips;                       /* that it was made for */
    bool kernel, cores, wanted;
    bool telling[2];                      /* has lines that few have, by maker */
} block;
static block *blocks;
static int nblocks, blocks_room, nslots;
static int *slots;                        /* number of a block + 1, by its hash */
static char *common[2];                   /* dialect and prelude */

typedef struct target {                   /* a chip or an architecture */
    char name[16];
    int vendor, clang;                    /* clang: what it compiles for by the name that device libraries have for it, else 0 */
    const flux__fragment *cores;
} target;
static target chips[MOST_CHIPS], archs[MOST_ARCHS];
static int nchips, narchs;
static const flux__driver *const drivers[] = { &flux__cuda_driver, &flux__hip_driver };

static target target_of(const char *name) {
    target t;
    snprintf(t.name, sizeof t.name, "%s", name);
    t.clang = 0;
    t.vendor = strncmp(name, "gfx", 3) == 0 ? AMD : CUDA;
    t.cores = drivers[t.vendor]->fragment(name, FLUX_F16, true);
    return t;
}

static bool is_for(const block *b, const target *arch) {
    for (int i = 0; i < nchips; i++)
        if (b->chips >> i & 1 && chips[i].vendor == arch->vendor && (!b->cores || chips[i].cores == arch->cores)) return true;
    return false;
}

static uint64_t hash_of(uint64_t h, const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    return h;
}

/* ---------------- what is the same but for its numbers */

static bool in_word(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

static uint64_t without_numbers(uint64_t h, const char *s, const char *end) {
    for (const char *p = s; p < end; p++) {
        bool number = *p >= '0' && *p <= '9' && (p == s || !in_word(p[-1]));
        h = hash_of(h, number ? "0" : p, 1);
        while (number && p + 1 < end && (in_word(p[1]) || p[1] == '.' || ((p[1] == '-' || p[1] == '+') && *p == 'e'))) p++;
    }
    return h;
}

/* `extern "C" __global__ void __launch_bounds__(256) NAME(...) {` and lines behind it */
static void look_at_kernel(block *b) {
    static const char *const words[] = { "f16_float(", "bf16_float(", "_words[u] |=", "_words[u] = BITS_OF", "(const words4 *)", "copy_16(a", "copy_16(b", "a_lane", "b_lane", "places[",
                                         "mma_f16(", "mma_bf16(", "mma_tf32(", "mma_f32(" };
    const char *params = strchr(b->text, '\n'), *line = params + 1, *first = strchr(b->name, '(');
    uint64_t h = 0xcbf29ce484222325u, kind;
    h = kind = hash_of(h, b->text, (size_t)(b->name - b->text));
    h = without_numbers(h, first, line);
    for (const char *end; *line; line = end) {
        end = line + strcspn(line, "\n");
        if (*end) end++;
        size_t n = (size_t)(end - line);
        bool shared = n > 14 && strncmp(line, "    __shared__", 14) == 0;
        h = shared ? hash_of(h, line, n) : without_numbers(h, line, end);
        if (shared) b->kind = kind = hash_of(kind, line, n);
    }
    for (size_t i = 0; i < sizeof words / sizeof *words && b->kind; i++)
        if (strstr(b->text, words[i])) b->kind = hash_of(b->kind, (const char *)&i, 1);
    b->structure = h;
}

/* ---------------- reading programs */

static block *block_of(const char *text, size_t n) {
    uint64_t h = hash_of(0xcbf29ce484222325u, text, n);
    if (2 * nblocks >= nslots) {
        nslots = nslots ? 2 * nslots : 4096;
        if (slots) FLUX_FREE(slots);
        slots = (int *)flux__zalloc((size_t)nslots * sizeof *slots);
        for (int i = 0; slots && i < nblocks; i++) {
            unsigned at = (unsigned)blocks[i].hash % (unsigned)nslots;
            while (slots[at]) at = (at + 1) % (unsigned)nslots;
            slots[at] = i + 1;
        }
    }
    if (!slots) exit(2);
    unsigned at = (unsigned)h % (unsigned)nslots;
    for (; slots[at]; at = (at + 1) % (unsigned)nslots) {
        block *b = &blocks[slots[at] - 1];
        if (b->hash == h && strlen(b->text) == n && memcmp(b->text, text, n) == 0) return b;
    }
    blocks = (block *)flux__grow(blocks, &blocks_room, nblocks + 1, sizeof *blocks);
    if (!blocks) exit(2);
    block *b = &blocks[nblocks++];
    slots[at] = nblocks;
    memset(b, 0, sizeof *b);
    b->hash = h;
    b->text = (char *)flux__zalloc(n + 1);
    if (!b->text) exit(2);
    memcpy(b->text, text, n);
    return b;
}

/* A kernel's name is k and its hash: another is one that a test wrote. */
static void add_block(const char *start, size_t n, bool kernel, int chip) {
    while (n > 1 && start[n - 1] == '\n' && start[n - 2] == '\n') n--;
    block *b = block_of(start, n);
    b->kernel = kernel;
    if (!b->name && kernel) {
        char *name = strstr(b->text, ") k");
        b->name = name && strspn(name + 3, "0123456789abcdef") == 32 ? name + 2 : b->text;
        b->cores = strstr(b->text, "mma_") || strstr(b->text, "copies_");
        if (b->name != b->text) look_at_kernel(b);
    }
    b->chips |= 1u << chip;
}

/* Where the next block starts: a function of an operation, or a kernel. */
static char *next_block(char *p) {
    for (p = strchr(p, '\n'); p; p = strchr(p, '\n')) {
        p++;
        size_t line = strcspn(p, "(");
        if (strncmp(p, "extern \"C\" __global__", 21) == 0) return p;
        if (strncmp(p, "DEVICE ", 7) == 0 && line > 3 && strncmp(p + line - 3, "_op", 3) == 0) return p;
    }
    return NULL;
}

static void read_program(const char *path, int chip) {
    size_t n;
    char *text = (char *)flux__read_file(path, &n, "rtc"), *at = text ? next_block(text) : NULL, **start = &common[chips[chip].vendor];
    if (at && !*start) {
        *start = (char *)flux__zalloc((size_t)(at - text) + 1);
        if (!*start) exit(2);
        memcpy(*start, text, (size_t)(at - text));
    }
    while (at) {
        char *end = next_block(at);
        add_block(at, end ? (size_t)(end - at) : strlen(at), *at == 'e', chip);
        at = end;
    }
    if (text) FLUX_FREE(text);
}

/* A program's file is called after the chip that it was made for: 90-HASH.txt, gfx90a-HASH.txt. */
static int chip_of(const char *file) {
    char name[16];
    int i = 0;
    snprintf(name, sizeof name, "%s%.*s", *file == 'g' ? "" : "sm_", (int)strcspn(file, "-"), file);
    while (i < nchips && strcmp(chips[i].name, name) != 0) i++;
    if (i == MOST_CHIPS) exit(2);
    if (i == nchips) chips[nchips++] = target_of(name);
    return i;
}

static void read_folder(const char *folder, int depth) {
    DIR *d = opendir(folder);
    struct dirent *e;
    char path[1200];
    while (d && (e = readdir(d)) != NULL) {
        if (*e->d_name == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (depth == 0) read_folder(path, 1);
        else read_program(path, chip_of(e->d_name));
    }
    if (d) closedir(d);
}

/* ---------------- which are compiled */

static int by_structure(const void *p, const void *q) {
    const block *a = (const block *)p, *b = (const block *)q;
    if (a->kernel != b->kernel) return a->kernel - b->kernel;
    if (a->structure != b->structure) return a->structure < b->structure ? -1 : 1;
    return strcmp(a->text, b->text);
}

/* Where the term of an address ends that starts at `p`: " + (o / 20 % 3) * 4", " + d0 * 1"; NULL: none does. */
static const char *term_end(const char *p, const char *end) {
    if (end - p < 4 || strncmp(p, " + ", 3) != 0) return NULL;
    const bool group = p[3] == '(';
    p += 3 + group;
    if (!in_word(*p) || *p < 'a' || *p > 'z') return NULL;
    while (p < end && (in_word(*p) || (group && strchr(" /%-", *p)))) p++;
    if (group && (p == end || *p++ != ')')) return NULL;
    if (end - p < 4 || strncmp(p, " * ", 3) != 0) return p < end && strchr(" )]", *p) ? p : NULL;
    p += 3 + (p[3] == '-');
    while (p < end && *p >= '0' && *p <= '9') p++;
    return p;
}

/* What a piece of a line says besides numbers and the numbers of variables: v12 and p3 are v and p. */
static uint64_t piece_of(const char *s, const char *end) {
    char text[2048];
    size_t n = 0;
    for (const char *p = s; p < end && n < sizeof text; p++) {
        text[n++] = *p;
        if (!in_word(*p) || *p < 'a' || *p > 'z' || (p > s && in_word(p[-1]))) continue;
        const char *digits = p + 1;
        while (digits < end && *digits >= '0' && *digits <= '9') digits++;
        if (!in_word(*digits)) p = digits - 1;
    }
    return without_numbers(0xcbf29ce484222325u, text, text + n);
}

/* What a line says: each term of its addresses by itself, of which there are many in any number and order, and the line without them. */
enum { PIECES = 64 };
static int pieces_of(const char *s, const char *end, uint64_t *pieces) {
    char rest[2048];
    size_t left = 0;
    int n = 0;
    for (const char *p = s; p < end && left < sizeof rest - 1;) {
        const char *after = n < PIECES - 1 ? term_end(p, end) : NULL;
        if (after) pieces[n++] = piece_of(p, after), p = after;
        else rest[left++] = *p++;
    }
    rest[left] = 0;
    pieces[n++] = piece_of(rest, rest + left);
    return n;
}

static int by_length(const void *p, const void *q) {
    const block *a = *(block *const *)p, *b = *(block *const *)q;
    size_t m = strlen(a->text), n = strlen(b->text);
    return m != n ? (m < n ? 1 : -1) : strcmp(a->text, b->text);
}

typedef struct line { uint64_t hash; int seen; const block *last; } line;

static line *find_line(line *table, size_t room, uint64_t hash) {
    size_t at = (size_t)hash % room;
    while (table[at].seen && table[at].hash != hash) at = (at + 1) % room;
    table[at].hash = hash;
    return &table[at];
}

/* Long kernels first, those that have a line that fewer than SEEN have had. */
static void choose_telling(block **longest, int n, int vendor) {
    enum { ROOM = 1 << 16 };
    line *table = (line *)flux__zalloc(ROOM * sizeof *table);
    uint64_t pieces[PIECES];
    if (!table) exit(2);
    for (int i = 0, lines = 0; i < n && lines < ROOM / 2; i++) {
        block *b = longest[i];
        const char *at = strchr(b->text, '\n') + 1, *end;
        for (int pass = 0; pass < 2; pass++)
            for (const char *p = at; *p; p = *end ? end + 1 : end) {
                end = p + strcspn(p, "\n");
                for (int k = pieces_of(p, end, pieces); k-- > 0;) {
                    line *l = find_line(table, ROOM, pieces[k]);
                    if (pass == 0) b->telling[vendor] = b->telling[vendor] || l->seen < SEEN;
                    else if (b->telling[vendor] && l->last != b) lines += !l->seen, l->seen++, l->last = b;
                }
            }
    }
    FLUX_FREE(table);
}

static bool is_made_for(const block *b, int vendor) {
    for (int i = 0; i < nchips; i++)
        if (b->chips >> i & 1 && chips[i].vendor == vendor) return true;
    return false;
}

/* Of kernels that are one the first is looked at, as choose() does. */
static void find_telling(int vendor) {
    block **longest = (block **)flux__zalloc((size_t)(nblocks + 1) * sizeof *longest);
    const block *last = NULL;
    int n = 0;
    if (!longest) exit(2);
    for (int i = 0; i < nblocks; i++) {
        block *b = &blocks[i];
        if (!b->kernel || b->name == b->text || !is_made_for(b, vendor) || (last && last->structure == b->structure)) continue;
        last = longest[n++] = b;
    }
    qsort(longest, (size_t)n, sizeof *longest, by_length);
    choose_telling(longest, n, vendor);
    FLUX_FREE(longest);
}

/* Neighbours are named alike in the first letters, those of a generation or two: sm_80, 86, 87, 88 and 89; sm_100 to 121; gfx900, 906,
   90a and 942; gfx1010 to 1201. */
static bool are_neighbours(const target *a, const target *b) { return strncmp(a->name, b->name, 4) == 0; }

/* Whether it is this architecture's turn, among its maker's or its neighbours that the kernel is for. */
static bool has_turn(const block *b, const target *arch, bool neighbours) {
    int mine = 0, all = 0;
    for (int i = 0; i < narchs; i++) {
        if (archs[i].vendor != arch->vendor || !is_for(b, &archs[i])) continue;
        if (neighbours && !are_neighbours(&archs[i], arch)) continue;
        if (&archs[i] == arch) mine = all;
        all++;
    }
    return (int)(b->structure % (uint64_t)all) == mine;
}

/* Whether no kernel of its kind comes before it for this architecture */
static bool is_first(int i, const target *arch) {
    for (int k = 0; k < i; k++)
        if (blocks[k].kind == blocks[i].kind && blocks[k].kernel && is_for(&blocks[k], arch)) return false;
    return blocks[i].kind != 0;
}

static int choose(const target *arch, int mode) {
    int kernels = 0, wanted = 0, last = -1;
    for (int i = 0; i < nblocks; i++) {
        block *b = &blocks[i];
        if (!b->kernel || b->name == b->text || !is_for(b, arch)) continue;
        if (last >= 0 && blocks[last].structure == b->structure) continue;
        last = i;
        b->wanted = mode == ALL || (is_first(i, arch) && (mode == EACH || has_turn(b, arch, true))) ||
                    ((mode == EACH || b->telling[arch->vendor]) && has_turn(b, arch, false));
        kernels++, wanted += b->wanted;
    }
    printf("%s: %d of %d kernels\n", arch->clang ? "clang 19" : drivers[arch->vendor]->version(), wanted, kernels);
    return wanted;
}

/* A program of all functions and the wanted kernels from number *at on. */
static char *join(const target *arch, int *at) {
    size_t n = strlen(common[arch->vendor]) + 1;
    int many = 0;
    for (int i = 0; i < nblocks; i++) n += strlen(blocks[i].text) + 1;
    char *text = (char *)flux__zalloc(n), *to = text;
    if (!text) exit(2);
    to += sprintf(to, "%s", common[arch->vendor]);
    for (int i = 0; i < nblocks; i++)
        if (!blocks[i].kernel && is_for(&blocks[i], arch)) to += sprintf(to, "%s", blocks[i].text);
    for (; *at < nblocks && many < TOGETHER; (*at)++)
        if (blocks[*at].wanted) to += sprintf(to, "%s\n", blocks[*at].text), many++;
    if (many) return text;
    FLUX_FREE(text);
    return NULL;
}

/* ---------------- compiling */

/* What ptxas says of each kernel: "Function properties for NAME", then what it spills. */
static bool nothing_spilt(const char *log, const char *arch) {
    bool good = true;
    for (const char *p = log; (p = strstr(p, "bytes spill stores")) != NULL; p++) {
        const char *start = p;
        while (start > log && start[-1] != ',') start--;
        if (atoi(start) == 0) continue;
        while (start > log && strncmp(start, "properties for ", 15) != 0) start--;
        printf("%s: spilt by %.*s\n", arch, (int)(p - start) + 3, start + 15);
        good = false;
    }
    return good;
}

/* Whether products that are meant for tensor or matrix cores are products of those: `entry` begins a kernel of the code, and the
   name of one of `instructions` stands in it. */
static bool has_cores(const char *source, const char *code, const char *begin, const char *const *instructions) {
    bool good = true;
    char entry[80];
    for (const char *p = source; (p = strstr(p, ") k")) != NULL; p++) {
        const char *next = strstr(p, "extern \"C\"");
        size_t n = next ? (size_t)(next - p) : strlen(p);
        const char *mma = strstr(p, "(sum[i][j], x[i], y[j])");
        if (strspn(p + 3, "0123456789abcdef") != 32 || !mma || mma > p + n) continue;
        snprintf(entry, sizeof entry, "%s%.33s", begin, p + 2);
        const char *at = strstr(code, entry), *end = at ? strstr(at + 1, begin) : NULL, *has = NULL;
        for (int i = 0; at && !has && instructions[i]; i++) {
            has = strstr(at, instructions[i]);
            if (has && end && has > end) has = NULL;
        }
        if (has) continue;
        printf("no %s in the code of %.33s\n", instructions[0], p + 2);
        good = false;
    }
    return good;
}

static bool compile_cuda(const char *source, const char *arch) {
    char option[60];
    const char *options[] = { option, "--fmad=false", "--std=c++17", "--ptxas-options=-v", "-w" }, *const mma[] = { "mma.sync.aligned.m16n8k", NULL };
    void *program = NULL;
    size_t n = 0;
    snprintf(option, sizeof option, "--gpu-architecture=%s", arch);
    bool good = flux__nvrtc.CreateProgram(&program, source, "flux.cu", 0, NULL, NULL) == 0 && flux__nvrtc.CompileProgram(program, 5, options) == 0;
    flux__nvrtc.GetProgramLogSize(program, &n);
    char *log = (char *)flux__zalloc(n + 1), *ptx = NULL;
    flux__nvrtc.GetProgramLog(program, log);
    if (!good) printf("%s: %.800s\n", arch, log);
    else {
        good = nothing_spilt(log, arch);
        flux__nvrtc.GetPTXSize(program, &n);
        ptx = (char *)flux__zalloc(n + 1);
        good = flux__nvrtc.GetPTX(program, ptx) == 0 && has_cores(source, ptx, ".entry ", mma) && good;
        FLUX_FREE(ptx);
    }
    FLUX_FREE(log);
    flux__nvrtc.DestroyProgram(&program);
    return good;
}

/* The code's notes say of each kernel, in MessagePack and by the order of the alphabet, ".name" and later ".vgpr_spill_count". */
static bool nothing_spilt_amd(const char *image, size_t bytes, const char *arch) {
    static const char count[] = ".vgpr_spill_count", name[] = ".name";
    bool good = true, any = false;
    const char *last = NULL;
    for (const char *p = image; p + 64 < image + bytes; p++) {
        if (memcmp(p, name, 5) == 0 && (unsigned char)p[5] == 0xd9 && p[7] == 'k') last = p + 7;
        if (memcmp(p, count, 17) != 0) continue;
        any = true;
        if (p[17] == 0) continue;
        printf("%s: registers spilt by %.33s\n", arch, last ? last : "?");
        good = false;
    }
    if (!any) printf("%s: the code does not say what it spills\n", arch);
    return good && any;
}

static bool compile_hip(const char *source, const char *arch) {
    char *log;
    void *image;
    size_t bytes;
    int code = flux__hiprtc_compile(source, arch, &log, &image, &bytes);
    if (code != 0) printf("%s: %.800s\n", arch, log ? log : "no reason given");
    bool good = code == 0 && image && nothing_spilt_amd((const char *)image, bytes, arch);
    if (log) FLUX_FREE(log);
    if (image) FLUX_FREE(image);
    return good;
}

/* ---------------- clang */

static const char *const clang_options =
    "-x hip --cuda-device-only -nogpuinc -nogpulib -O3 -ffp-contract=off -std=c++17 -w -include tests/rtc_clang.h -S -o -";

/* The folder of the device libraries; `path` has room for 400 bytes. */
static bool find_device_libraries(char *path, char *why, size_t n) {
    glob_t found;
    bool there = system("clang-19 --version >/dev/null 2>&1") == 0;
    *path = 0;
    if (!there) return snprintf(why, n, "no clang-19 on this machine; package: clang-19"), false;
    if (glob("/usr/lib/*/amdgcn/bitcode", 0, NULL, &found) == 0) {
        snprintf(path, 400, "%s", found.gl_pathv[0]);
        globfree(&found);
    }
    if (!*path) snprintf(why, n, "no libraries of AMD's devices; package: rocm-device-libs");
    return *path != 0;
}

/* What the assembly's notes say of the kernel whose note holds `at`, or -1. Their lines go by the alphabet, .name in the middle. */
static int noted(const char *code, const char *at, const char *what) {
    const char *start = at, *p;
    while (start > code && !flux__starts(start, "\n  - .")) start--;
    p = strstr(start, what);
    return p ? atoi(p + strlen(what)) : -1;
}

/* No kernel uses memory of its own for registers. Scalar ones may lie in lanes of a vector register where hundreds of addresses are
   the kernel's parameters, but not in one that has tiles. */
static bool nothing_spilt_clang(const char *code, const char *arch) {
    static const char name[] = "\n    .name:           k";
    bool good = true, any = false;
    for (const char *p = strstr(code, ".amdgpu_metadata"); p && (p = strstr(p, name)) != NULL; p++, any = true) {
        const int memory = noted(code, p, ".private_segment_fixed_size:"), vector = noted(code, p, ".vgpr_spill_count:"),
                  scalar = noted(code, p, ".group_segment_fixed_size:") == 0 ? 0 : noted(code, p, ".sgpr_spill_count:");
        if (memory == 0 && vector == 0 && scalar == 0) continue;
        printf("%s: %d bytes of memory, %d vector and %d scalar registers spilt by %.33s\n", arch, memory, vector, scalar, p + sizeof name - 2);
        good = false;
    }
    if (!any) printf("%s: the code does not say what it spills\n", arch);
    return good && any;
}

static char *read_all(FILE *f) {
    size_t n = 0, room = 1 << 20;
    char *text = (char *)malloc(room);
    for (size_t got = 1; text && got; n += got) {
        if (n + 1 >= room) text = (char *)realloc(text, room *= 2);
        got = text ? fread(text + n, 1, room - n - 1, f) : 0;
    }
    if (!text) exit(2);
    text[n] = 0;
    return text;
}

static bool compile_clang(const char *source, const target *arch) {
    static const char *const libraries[] = { "ocml", "ockl", "oclc_daz_opt_off", "oclc_unsafe_math_off", "oclc_finite_only_off",
                                             "oclc_correctly_rounded_sqrt_on", "oclc_wavefrontsize64_o", "oclc_abi_version_500" };
    static const char *const cores[2][3] = { { "v_mfma_", "v_smfmac_", NULL }, { "v_wmma_", NULL, NULL } };
    const bool wide = flux__starts(arch->name, "gfx9");
    const char *temporary = getenv("TMPDIR");
    char command[6000], folder[400], file[600], why[200];
    if (!find_device_libraries(folder, why, sizeof why)) return false;
    snprintf(file, sizeof file, "%.500s/flux_rtc_XXXXXX", temporary && *temporary ? temporary : P_tmpdir);
    int f = mkstemp(file);
    if (f < 0) return false;
    bool good = write(f, source, strlen(source)) == (ssize_t)strlen(source);
    size_t n = (size_t)snprintf(command, sizeof command, "clang-19 %s --offload-arch=%s -DISA_VERSION=%d", clang_options, arch->name, arch->clang);
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++)
        n += (size_t)snprintf(command + n, sizeof command - n, " -Xclang -mlink-builtin-bitcode -Xclang %s/%s%s.bc", folder, libraries[i],
                              strstr(libraries[i], "64_o") ? wide ? "n" : "ff" : "");
    snprintf(command + n, sizeof command - n, " %s", file);
    FILE *out = good ? popen(command, "r") : NULL;
    char *code = out ? read_all(out) : NULL;
    if (!out || pclose(out) != 0) printf("%s: clang did not compile it\n", arch->name), good = false;
    good = good && nothing_spilt_clang(code, arch->name);
    good = good && has_cores(source, code, "\t.globl\t", cores[wide ? 0 : 1]);
    free(code);
    close(f), remove(file);
    return good;
}

/* ---------------- an architecture, a process */

static bool has_compiler(const target *arch, char *why, size_t n) {
    char path[400];
    if (arch->clang) return find_device_libraries(path, why, n);
    flux__roc_open(why, n);               /* only for the library: there need be no device */
    return drivers[arch->vendor]->compiler(why, n);
}

static int compile_for(const target *arch, int mode) {
    double start = flux__now();
    bool good = true;
    char why[400] = "";
    if (!has_compiler(arch, why, sizeof why)) {
        printf("skipped  kernels for %s: %s\n", arch->name, why);
        return 2;
    }
    int wanted = common[arch->vendor] ? choose(arch, mode) : 0;
    for (int at = 0; at < nblocks && wanted;) {
        char *source = join(arch, &at);
        if (source && arch->clang) good = compile_clang(source, arch) && good;
        else if (source) good = (arch->vendor == AMD ? compile_hip : compile_cuda)(source, arch->name) && good;
        if (source) FLUX_FREE(source);
    }
    if (!wanted) printf("no kernels for %s\n", arch->name);
    good = good && wanted;
    printf("%s %s in %.0f s\n", good ? "compiled for" : "FAILED ", arch->name, flux__now() - start);
    return !good;
}

static pid_t begin(const target *arch, int mode, FILE **log) {
    *log = tmpfile();
    fflush(stdout);
    pid_t pid = *log ? fork() : -1;
    if (pid != 0) return pid;
    dup2(fileno(*log), 1), dup2(fileno(*log), 2);
    int status = compile_for(arch, mode);
    fflush(stdout);
    _exit(status);
}

static void show(FILE *log) {
    char text[4096];
    rewind(log);
    for (size_t n; (n = fread(text, 1, sizeof text, log)) > 0;) fwrite(text, 1, n, stdout);
    fclose(log);
}

/* All of NVRTC's architectures, and of AMD's those that hiprtc knows since version 5, and clang's. */
static void list_archs(void) {
    static const char *const gfx[] = { "gfx90a", "gfx803", "gfx900", "gfx906", "gfx1010", "gfx1030" };
    static const struct { const char *name; int version; } newer[] = { { "gfx942", 9402 }, { "gfx1100", 11000 }, { "gfx1151", 11501 }, { "gfx1201", 12001 } };
    int n = 0, sm[MOST_ARCHS - 10];
    char why[400] = "", name[16];
    flux__cu_version = 99000;             /* no driver has to load what is compiled here: any NVRTC will do */
    bool there = flux__nvrtc_open(why, sizeof why) && flux__nvrtc.GetNumSupportedArchs(&n) == 0 && n <= MOST_ARCHS - 10 && flux__nvrtc.GetSupportedArchs(sm) == 0;
    for (int i = 0; i < 6; i++) archs[narchs++] = target_of(gfx[i]);
    for (int i = 0; i < 4; i++) {
        archs[narchs] = target_of(newer[i].name);
        archs[narchs++].clang = newer[i].version;
    }
    for (int i = 0; i < n && there; i++) {
        snprintf(name, sizeof name, "sm_%d", sm[i]);
        archs[narchs++] = target_of(name);
    }
    if (!there) archs[narchs++] = target_of("sm_90");         /* which says that it is skipped */
}

/* For check_ptx.sh. */
static int where(void) {
    char why[400] = "";
    Dl_info info;
    flux__cu_version = 99000;             /* as in list_archs */
    if (!flux__nvrtc_open(why, sizeof why) || !dladdr((void *)(intptr_t)flux__nvrtc.Version, &info)) return fprintf(stderr, "%s\n", why), 1;
    return printf("%s\n", info.dli_fname) < 0;
}

int main(int argc, char **argv) {
    int count[3] = { 0, 0, 0 }, jobs = (int)sysconf(_SC_NPROCESSORS_ONLN), running = 0;
    pid_t pid[MOST_ARCHS] = { 0 };
    FILE *log[MOST_ARCHS];
    if (argc == 2 && strcmp(argv[1], "where") == 0) return where();
    if (argc < 3) return 2;
    const int mode = strcmp(argv[2], "all") == 0 ? ALL : strcmp(argv[2], "each") == 0 ? EACH : SOME;
    list_archs();
    read_folder(argv[1], 0);
    qsort(blocks, (size_t)nblocks, sizeof *blocks, by_structure);
    find_telling(CUDA);
    find_telling(AMD);
    for (int next = 0; next < narchs || running;) {
        bool named = argc == 3;
        for (int i = 3; i < argc && next < narchs; i++) named = named || strcmp(argv[i], archs[next].name) == 0;
        if (next < narchs && !named) next++;
        else if (next < narchs && running < jobs) {
            pid[next] = begin(&archs[next], mode, &log[next]);
            if (pid[next] < 0) return 2;
            running++, next++;
        } else {
            int status = 0, i = 0;
            pid_t done = wait(&status);
            while (i < narchs && pid[i] != done) i++;
            if (done < 0 || i == narchs) return 2;
            show(log[i]);
            if (!WIFEXITED(status) || WEXITSTATUS(status) > 2) printf("FAILED  %s: the compiler ended the process\n", archs[i].name), status = 1 << 8;
            count[WEXITSTATUS(status)]++;
            running--;
        }
    }
    printf("%d passed, %d failed, %d skipped\n", count[0], count[1], count[2]);
    return count[1] > 0;
}
