/* rtc.c - gives programs made for the software GPU to the real run-time compilers, for every architecture.

       rtc cuda FOLDER FROM TO           FOLDER: what SOFTGPU_SOURCES gathered; of the architectures that NVRTC knows, these: 80 99
       rtc hip FOLDER ARCH...

   A program is a common start, functions of operations and kernels, which are named by their content. Each function and
   each kernel is compiled once, many in one program, because a compiler's start costs more than a kernel. Registers that do
   not fit (spills) are reported; more than a few are a failure. The last line counts architectures. */
#define FLUX_IMPLEMENTATION
#define FLUX_CUDA
#define FLUX_HIP
#include "../flux.h"
#include <dirent.h>

enum { MOST_SPILT = 64 };                 /* bytes a kernel: some chips need a word or two, which costs nothing */

typedef struct block { char *text; bool kernel; } block;
static block *blocks;
static int nblocks, blocks_room;
static char *common;                      /* dialect and prelude */

static void add_block(const char *start, size_t n, bool kernel) {
    while (n > 1 && start[n - 1] == '\n' && start[n - 2] == '\n') n--;
    for (int i = 0; i < nblocks; i++)
        if (strlen(blocks[i].text) == n && memcmp(blocks[i].text, start, n) == 0) return;
    blocks = (block *)flux__grow(blocks, &blocks_room, nblocks + 1, sizeof *blocks);
    if (!blocks) exit(2);
    blocks[nblocks].text = (char *)flux__zalloc(n + 1);
    memcpy(blocks[nblocks].text, start, n);
    blocks[nblocks++].kernel = kernel;
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

static void read_program(const char *path) {
    size_t n;
    char *text = (char *)flux__read_file(path, &n, "rtc"), *at = text ? next_block(text) : NULL;
    if (!at) return;
    if (!common) {
        common = (char *)flux__zalloc((size_t)(at - text) + 1);
        memcpy(common, text, (size_t)(at - text));
    }
    while (at) {
        char *end = next_block(at);
        add_block(at, end ? (size_t)(end - at) : strlen(at), *at == 'e');
        at = end;
    }
    FLUX_FREE(text);
}

static void read_folder(const char *folder) {
    DIR *d = opendir(folder);
    struct dirent *e;
    char path[1200];
    while (d && (e = readdir(d)) != NULL) {
        if (*e->d_name == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        read_program(path);
    }
    if (d) closedir(d);
}

/* A program of all functions and `many` kernels from number *at on. */
static char *join(int *at, int many) {
    size_t n = strlen(common) + 1;
    for (int i = 0; i < nblocks; i++) n += strlen(blocks[i].text) + 1;
    char *text = (char *)flux__zalloc(n), *to = text;
    to += sprintf(to, "%s", common);
    for (int i = 0; i < nblocks; i++)
        if (!blocks[i].kernel) to += sprintf(to, "%s", blocks[i].text);
    for (; *at < nblocks && many > 0; (*at)++)
        if (blocks[*at].kernel) to += sprintf(to, "%s", blocks[*at].text), many--;
    return text;
}

/* Whether products that are meant for tensor cores are products of those. */
static bool has_tensor_cores(void *program, const char *source) {
    size_t n = 0;
    if (!strstr(source, "(sum[i][j], x[i], y[j])")) return true;
    flux__nvrtc.GetPTXSize(program, &n);
    char *ptx = (char *)flux__zalloc(n + 1);
    bool good = flux__nvrtc.GetPTX(program, ptx) == 0 && strstr(ptx, "mma.sync.aligned.m16n8k") != NULL;
    if (!good) printf("no mma in the PTX\n");
    FLUX_FREE(ptx);
    return good;
}

/* NVRTC with what the assembler says of each kernel: nothing may spill. */
static bool compile_cuda(const char *source, const char *arch) {
    char option[60];
    const char *options[] = { option, "--fmad=false", "--std=c++17", "--ptxas-options=-v", "-w" };
    void *program = NULL;
    size_t n = 0;
    snprintf(option, sizeof option, "--gpu-architecture=%s", arch);
    bool good = flux__nvrtc.CreateProgram(&program, source, "flux.cu", 0, NULL, NULL) == 0 && flux__nvrtc.CompileProgram(program, 5, options) == 0;
    flux__nvrtc.GetProgramLogSize(program, &n);
    char *log = (char *)flux__zalloc(n + 1);
    flux__nvrtc.GetProgramLog(program, log);
    if (!good) printf("%s: %.800s\n", arch, log);
    for (char *p = log; good && (p = strstr(p, "bytes spill stores")) != NULL; p++) {
        char *start = p;
        while (start > log && start[-1] != ',') start--;
        if (atoi(start) > 0) {
            char *name = start;           /* "Function properties for NAME" is the line before */
            while (name > log && strncmp(name, "properties for ", 15) != 0) name--;
            printf("%s: %d bytes spilt by %.*s\n", arch, atoi(start), (int)strcspn(name + 15, "\n"), name + 15);
        }
        if (atoi(start) > MOST_SPILT) {
            while (start > log && strncmp(start, "Function properties", 19) != 0) start--;
            printf("%s: %.*s\n", arch, (int)(p - start) + 18, start);
            good = false;
        }
    }
    FLUX_FREE(log);
    good = good && has_tensor_cores(program, source);
    flux__nvrtc.DestroyProgram(&program);
    return good;
}

static bool compile_hip(const char *source, const char *arch) {
    char *log;
    void *image;
    size_t bytes;
    int code = flux__hiprtc_compile(source, arch, &log, &image, &bytes);
    if (code != 0) printf("%s: %.800s\n", arch, log ? log : "no reason given");
    if (log) FLUX_FREE(log);
    if (image) FLUX_FREE(image);
    return code == 0;
}

static bool compile_all(bool cuda, const char *arch) {
    bool good = true;
    for (int at = 0; at < nblocks;) {
        char *source = join(&at, 150);
        good = (cuda ? compile_cuda(source, arch) : compile_hip(source, arch)) && good;
        FLUX_FREE(source);
    }
    return good;
}

int main(int argc, char **argv) {
    char why[400] = "", name[40];
    int passed = 0, failed = 0, archs[128], n = 0, kernels = 0;
    bool cuda = argc > 2 && strcmp(argv[1], "cuda") == 0;
    if (argc < (cuda ? 5 : 4)) return 2;
    flux__roc_open(why, sizeof why);      /* only for the library: there need be no device */
    if (!(cuda ? flux__nvrtc_open(why, sizeof why) : flux__hiprtc_open(why, sizeof why))) {
        printf("skipped the real compiler: %s\n0 passed, 0 failed, 1 skipped\n", why);
        return 0;
    }
    read_folder(argv[2]);
    for (int i = 0; i < nblocks; i++) kernels += blocks[i].kernel;
    printf("%s: %d kernels\n", cuda ? flux__nvrtc_version : flux__hiprtc_version, kernels);
    if (cuda && flux__nvrtc.GetNumSupportedArchs(&n) == 0 && n <= 128) flux__nvrtc.GetSupportedArchs(archs);
    for (int i = 0; i < (cuda ? n : argc - 3) && kernels; i++) {
        if (cuda && (archs[i] < atoi(argv[3]) || archs[i] > atoi(argv[4]))) continue;
        if (cuda) snprintf(name, sizeof name, "sm_%d", archs[i]);
        else snprintf(name, sizeof name, "%s", argv[3 + i]);
        double start = flux__now();
        bool good = compile_all(cuda, name);
        printf("%s %s in %.1f s\n", good ? "compiled for" : "FAILED", name, flux__now() - start);
        fflush(stdout);
        if (good) passed++;
        else failed++;
    }
    if (!kernels) printf("FAILED  no kernels in %s\n", argv[2]), failed = 1;
    printf("%d passed, %d failed, %d skipped\n", passed, failed, !passed && !failed);     /* NVRTC may not know such chips */
    return failed > 0;
}
