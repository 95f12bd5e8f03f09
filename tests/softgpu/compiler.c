/* compiler.c - NVRTC and, with SOFT_HIP, hiprtc: kernel source becomes a shared library by the host's compiler.

   The source is C99 but for a few words, which the prelude defines; `extern "C"` is made `extern`, and an array of
   dynamic shared memory an ordinary one that is defined after the source. For each kernel found in the text a function
   follows that takes its arguments from an array of pointers, as a launch gives them. What was compiled once is kept in
   a folder, by the hash of all that went in. */
#define _GNU_SOURCE
#include "softgpu.h"
#include "control.h"
#include "compiler.h"
#include "ptx.h"
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined SOFT_HIP
#define RTC(name) hiprtc##name
#define RTC_NAME(name) "HIPRTC_" name
#define DEFAULT_ARCH "gfx90a:sramecc+:xnack-"
#else
#define RTC(name) nvrtc##name
#define RTC_NAME(name) "NVRTC_" name
#define DEFAULT_ARCH "75"
#endif

enum { OK, OUT_OF_MEMORY, CREATION, INVALID_INPUT, INVALID_PROGRAM, INVALID_OPTION, COMPILATION, BUILTIN };

typedef struct program {
    char *source, *name, *log;
    int nheaders;
    char **headers, **names;                  /* that the source may include */
    soft_image *image;
    char *ptx;
    bool is_virtual, compiled;
} program;

extern char **environ;
static long live_programs;
long soft_live(const char *what) { return strcmp(what, "programs") ? 0 : __atomic_load_n(&live_programs, __ATOMIC_RELAXED); }

/* ---------------- text */

typedef struct text { char *at; size_t n; FILE *f; } text;
static void open_text(text *t) {
    t->f = open_memstream(&t->at, &t->n);
    if (!t->f) abort();
}
static char *copy_of(const char *s) {
    char *p = strdup(s ? s : "");
    if (!p) abort();
    return p;
}
static bool starts(const char *s, const char *with) { return !strncmp(s, with, strlen(with)); }
static bool in_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* The source without comments and strings, each character in its place, to look for words in. */
static char *blanked(const char *source) {
    char *out = copy_of(source);
    for (char *p = out; *p;) {
        char *end = p + 1;
        if (*p == '/' && p[1] == '/') end = p + strcspn(p, "\n");
        else if (*p == '/' && p[1] == '*') end = strstr(p + 2, "*/"), end = end ? end + 2 : p + strlen(p);
        else if (*p == '"' || *p == '\'') {
            while (*end && *end != *p && *end != '\n') end += *end == '\\' && end[1] ? 2 : 1;
            end += *end && *end != '\n';
        } else {
            p++;
            continue;
        }
        for (; p < end; p++)
            if (*p != '\n') *p = ' ';
    }
    return out;
}

static char *find_word(char *in, const char *word) {
    size_t n = strlen(word);
    for (char *p = in; (p = strstr(p, word)) != NULL; p += n)
        if ((p == in || !in_word(p[-1])) && !in_word(p[n])) return p;
    return NULL;
}

/* The words that C does not know become what it knows; no line and no column moves. */
static void to_c(char *source) {
    for (char *p = source; (p = strstr(p, "extern")) != NULL; p += 6) {
        char *q = p + 6;
        q += strspn(q, " \t");
        if ((p == source || !in_word(p[-1])) && !strncmp(q, "\"C\"", 3)) memset(q, ' ', 3);
    }
}

static char *skip_parens(char *p) {            /* from '(' to after its ')' */
    int depth = 0;
    for (; *p; p++) {
        depth += (*p == '(') - (*p == ')');
        if (!depth) return p + 1;
    }
    return p;
}

/* An assembler statement becomes a call of the function that does what its instruction does (prelude.c), arguments in the
   order of the instruction, results by their addresses: asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h)) is
   softptx_cvt_f32_f16(&(x), (h)). No line moves. */
typedef struct range { char *start, *end; } range;

static char *part_end(char *p, char *end, char mark) {         /* where a mark stands outside all parentheses, or end */
    for (int depth = 0; p < end; p++) {
        if (!depth && *p == mark) return p;
        depth += (*p == '(' || *p == '[' || *p == '{') - (*p == ')' || *p == ']' || *p == '}');
    }
    return end;
}

/* The values between `start` and `end` of `words`, which are in parentheses behind a string that says what they are. */
static int asm_values(char *words, char *start, char *end, const char *source, range *value) {
    int n = 0;
    for (char *p = start; p < end && n < 24; p++) {
        char *stop = part_end(p, end, ','), *open = memchr(p, '(', (size_t)(stop - p));
        if (open) {
            value[n].start = (char *)(uintptr_t)source + (open - words);
            value[n++].end = (char *)(uintptr_t)source + (skip_parens(open) - words);
        }
        p = stop;
    }
    return n;
}

static void write_instruction(FILE *f, const char *text, const range *value, int results) {
    size_t n = strcspn(text, " ;");
    bool first = true;
    fprintf(f, "softptx_");
    for (size_t i = 0; i < n; i++) fputc(isalnum((unsigned char)text[i]) ? text[i] : '_', f);
    fputc('(', f);
    for (const char *p = text + n; *p && *p != ';'; p++) {
        if (*p != '%' && !isdigit((unsigned char)*p)) continue;
        char *next;
        bool is_value = *p == '%';
        long i = strtol(p + is_value, &next, 10);
        if (!first) fprintf(f, ", ");
        first = false;
        if (!is_value) fprintf(f, "%ld", i);
        else fprintf(f, "%s%.*s", i < results ? "&" : "", (int)(value[i].end - value[i].start), value[i].start);
        p = next - 1;
    }
    fputc(')', f);
}

static char *interpreted(const char *source, char *words) {
    text t;
    open_text(&t);
    const char *done = source;
    for (char *p = words; (p = find_word(p, "asm")) != NULL; p += 3) {
        char *open = p + 3 + strspn(p + 3, " \t\n"), instruction[600];
        if (!strncmp(open, "volatile", 8)) open += 8 + strspn(open + 8, " \t\n");
        if (*open != '(') continue;
        char *end = skip_parens(open), *at = open + 1;
        range part[4], value[48];
        size_t n = 0;
        for (int i = 0; i < 4; i++) {
            part[i].start = at, part[i].end = part_end(at, end - 1, ':');
            at = part[i].end < end - 1 ? part[i].end + 1 : end - 1;
        }
        bool quoted = false;
        for (const char *s = source + (part[0].start - words); s < source + (part[0].end - words) && n < sizeof instruction - 1; s++) {
            if (*s == '"') quoted = !quoted;
            else if (quoted) instruction[n++] = *s;
        }
        instruction[n] = 0;
        int results = asm_values(words, part[1].start, part[1].end, source, value);
        asm_values(words, part[2].start, part[2].end, source, value + results);
        fwrite(done, 1, (size_t)(source + (p - words) - done), t.f);
        write_instruction(t.f, instruction, value, results);
        for (char *s = p; s < end; s++)
            if (*s == '\n') fputc('\n', t.f);
        done = source + (end - words);
        p = end - 3;
    }
    fputs(done, t.f);
    fclose(t.f);
    return t.at;
}

/* `extern __shared__ T name[];` is an extern array here; the definition for the end of the text is printed. */
static void take_dynamic(char *source, char *words, FILE *defined, FILE *listed) {
    for (char *p = words; (p = find_word(p, "extern")) != NULL; p += 6) {
        char *type = p + 6 + strspn(p + 6, " \t\n"), *end;
        if (strncmp(type, "__shared__", 10)) continue;
        memset(source + (type - words), ' ', 10);
        memset(type, ' ', 10);
        end = type + strcspn(type, "[;");
        if (*end != '[') continue;
        while (end > type && isspace((unsigned char)end[-1])) end--;
        char *name = end;
        while (name > type && in_word(name[-1])) name--;
        fprintf(defined, "#ifndef SOFT_HAS_%.*s\n#define SOFT_HAS_%.*s\n__attribute__((aligned(16))) %.*s[%d];\n#endif\n",
                (int)(end - name), name, (int)(end - name), name, (int)(end - type), type, SOFT_MOST_SHARED + 4096);
        fprintf(listed, "(char *)%.*s, ", (int)(end - name), name);
    }
}

/* ---------------- kernels */

/* From after `__global__`: the name that the parameters follow, or NULL. */
static char *kernel_name(char *p, char **params) {
    while (*p && *p != ';' && *p != '{') {
        char *word = p;
        if (!in_word(*p)) {
            if (*p == '(') p = skip_parens(p);
            else p++;
            continue;
        }
        while (in_word(*p)) p++;
        char *next = p + strspn(p, " \t\n");
        bool attribute = !strncmp(word, "__launch_bounds__", 17) || !strncmp(word, "__attribute__", 13);
        if (*next == '(' && !attribute) {
            *params = next;
            return word;
        }
    }
    return NULL;
}

/* The types of the parameters between the parentheses. */
static int parameters(char *p, range *type, int most) {
    char *close = skip_parens(p) - 1;
    int n = 0;
    for (p++; p < close && n < most;) {
        char *start = p + strspn(p, " \t\n"), *end;
        int depth = 0;
        for (; p < close && (depth || *p != ','); p++) depth += (*p == '(' || *p == '[') - (*p == ')' || *p == ']');
        for (end = p; end > start && isspace((unsigned char)end[-1]);) end--;
        p++;
        if (end == start || (end - start == 4 && !strncmp(start, "void", 4))) continue;
        while (end > start && in_word(end[-1])) end--;
        type[n].start = start, type[n].end = end;
        n++;
    }
    return n;
}

static void write_kernel(FILE *f, FILE *table, char *name, char *params) {
    range type[256];
    int n = parameters(params, type, 256), length = (int)strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789");
    fprintf(f, "static const unsigned softgpu_size_%.*s[] = { ", length, name);
    for (int i = 0; i < n; i++) fprintf(f, "sizeof(%.*s), ", (int)(type[i].end - type[i].start), type[i].start);
    fprintf(f, "0 };\nstatic void softgpu_run_%.*s(void **softgpu_a) { %.*s(", length, name, length, name);
    for (int i = 0; i < n; i++)
        fprintf(f, "%s*(%.*s*)softgpu_a[%d]", i ? ", " : "", (int)(type[i].end - type[i].start), type[i].start, i);
    fprintf(f, "); }\n");
    fprintf(table, "{ \"%.*s\", softgpu_size_%.*s, %d, softgpu_run_%.*s },\n", length, name, length, name, n, length, name);
}

/* Only what is `extern "C"` can be found by its plain name: the word stands before, in the same declaration. */
static bool has_c_name(const char *words, const char *at) {
    const char *start = at;
    while (start > words && start[-1] != ';' && start[-1] != '}') start--;
    for (const char *p = start; (p = strstr(p, "extern")) != NULL && p < at; p += 6)
        if ((p == words || !in_word(p[-1])) && !in_word(p[6])) return true;
    return false;
}

static void write_kernels(FILE *f, char *words) {
    text table;
    open_text(&table);
    for (char *p = words; (p = find_word(p, "__global__")) != NULL; p += 10) {
        char *params = NULL, *name = kernel_name(p + 10, &params);
        if (!name) continue;
        char *after = skip_parens(params);
        after += strspn(after, " \t\n");
        if (*after == '{' && has_c_name(words, p)) write_kernel(f, table.f, name, params);
    }
    fclose(table.f);
    fprintf(f, "static const struct softgpu_kernel softgpu_kernels[] = {\n%s{ 0 } };\n", table.at);
    free(table.at);
}

/* ---------------- the whole text */

typedef struct options {
    char arch[56];
    bool is_virtual, includes;                 /* compute_XX: no machine code; -I: the result may not be kept */
    char *passed[256];                         /* to the host's compiler */
    int n;
} options;

static const char *const meetings[] = { "__syncthreads", "__syncwarp", "__shfl", "__ballot", "__any", "__all" };

static void write_quoted(FILE *f, const char *s) {
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') fputc('\\', f);
        fputc(*s, f);
    }
}

/* Whether what stands at `at` is a macro's text, and the macro is not used. */
static bool is_idle(const char *words, const char *at) {
    char name[64];
    while (at > words && at[-1] != '\n') at--;
    if (sscanf(at, "#define %63[A-Za-z0-9_]", name) != 1) return false;
    const char *next = at + strcspn(at, "\n");
    return !find_word((char *)(uintptr_t)next, name);
}

static bool has_meeting(const char *words) {
    for (size_t i = 0; i < sizeof meetings / sizeof *meetings; i++)
        for (const char *p = words; (p = strstr(p, meetings[i])) != NULL; p++)
            if ((p == words || !in_word(p[-1])) && !is_idle(words, p)) return true;
    return false;
}

/* The real compilers lack some macros, so that a source may bring them. */
static bool defines(char *words, const char *name) {
    for (char *p = words; (p = find_word(p, name)) != NULL; p += strlen(name)) {
        char *q = p;
        while (q > words && (q[-1] == ' ' || q[-1] == '\t')) q--;
        if (q - words >= 6 && !strncmp(q - 6, "define", 6)) return true;
    }
    return false;
}

static void write_prelude(FILE *f, const options *o, int warp) {
#if defined SOFT_HIP
    const int name = (int)strcspn(o->arch, ":");
    fprintf(f, "#define __AMDGCN_WAVEFRONT_SIZE__ %d\n#define __%.*s__ 1\n#define __GFX%.*s__ 1\n%s", warp, name, o->arch, name - 5, o->arch + 3, soft_prelude_hip);
#else
    (void)warp;
    fprintf(f, "#define __CUDA_ARCH__ %d\n%s", atoi(o->arch) * 10, soft_prelude_cuda);
#endif
    fprintf(f, "%s%s%s%s%s", soft_prelude, soft_prelude_bits, soft_prelude_mathematics, soft_prelude_atomics, soft_prelude_shuffles);
#if defined SOFT_HIP
    fputs(soft_prelude_mfma, f);
#else
    fputs(soft_prelude_ptx, f);
#endif
}

static void write_epilogue(FILE *f, const char *dynamic, bool meets) {
    fprintf(f, "#define SOFT_DYNAMIC %s\n#define SOFT_MEETS %d\n", dynamic, meets);
#if defined SOFT_HIP
    fprintf(f, "#define SOFT_MASKS 0\n");
#else
    fprintf(f, "#define SOFT_MASKS 1\n");
#endif
    fputs(soft_epilogue, f);
}

/* *head: how many characters of it are the same for every program of this architecture. */
static char *whole_text(const program *p, const options *o, int warp, size_t *head) {
    text t, defined, listed;
    open_text(&t), open_text(&defined), open_text(&listed);
    char *source = copy_of(p->source);
    to_c(source);
    char *words = blanked(source), *plain = interpreted(source, words);
    free(source), free(words);
    source = plain, words = blanked(source);
    bool meets = has_meeting(words) || o->includes;
    for (int i = 0; i < o->n; i++) meets = meets || has_meeting(o->passed[i]);
    for (int i = 0; i < p->nheaders; i++) meets = meets || has_meeting(p->headers[i]);
    take_dynamic(source, words, defined.f, listed.f);
    fclose(defined.f);
    fclose(listed.f);
    write_prelude(t.f, o, warp);
    *head = (size_t)ftell(t.f);
    if (!defines(words, "INFINITY")) fprintf(t.f, "#define INFINITY (1.0f / 0.0f)\n");
    if (!defines(words, "NAN")) fprintf(t.f, "#define NAN (-(0.0f / 0.0f))\n");
    fprintf(t.f, "#line 1 \"");
    write_quoted(t.f, p->name);
    fprintf(t.f, "\"\n%s\n#line 1 \"(after the source)\"\n", source);
    fputs(defined.at, t.f);
    write_kernels(t.f, words);
    write_epilogue(t.f, listed.at, meets);
    fclose(t.f);
    free(source), free(words), free(defined.at), free(listed.at);
    return t.at;
}

/* ---------------- the real compiler's PTX, where SOFTGPU_PTX names its library (ptx.c) */

#if defined SOFT_HIP
static char *text_of_ptx(const program *p, const options *o, int n, const char *const *list, size_t *head, text *log) {
    return (void)p, (void)o, (void)n, (void)list, (void)head, (void)log, (char *)NULL;
}
#else
typedef struct real_nvrtc {
    int (*create)(void **out, const char *source, const char *name, int n, const char *const *headers, const char *const *names);
    int (*compile)(void *p, int n, const char *const *list);
    int (*destroy)(void **p), (*ptx_size)(void *p, size_t *n), (*ptx)(void *p, char *to), (*log_size)(void *p, size_t *n), (*log)(void *p, char *to);
} real_nvrtc;

static bool open_real(real_nvrtc *r, text *log) {
    static const char *const names[] = { "nvrtcCreateProgram", "nvrtcCompileProgram", "nvrtcDestroyProgram", "nvrtcGetPTXSize", "nvrtcGetPTX",
                                         "nvrtcGetProgramLogSize", "nvrtcGetProgramLog" };
    void *symbol[7], *library = dlopen(getenv("SOFTGPU_PTX"), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    for (int i = 0; i < 7; i++) {
        symbol[i] = library ? dlsym(library, names[i]) : NULL;
        if (!symbol[i]) return fprintf(log->f, "SOFTGPU_PTX: %s\n", dlerror()), false;
    }
    memcpy(&r->create, &symbol[0], sizeof r->create), memcpy(&r->compile, &symbol[1], sizeof r->compile);
    memcpy(&r->destroy, &symbol[2], sizeof r->destroy), memcpy(&r->ptx_size, &symbol[3], sizeof r->ptx_size);
    memcpy(&r->ptx, &symbol[4], sizeof r->ptx), memcpy(&r->log_size, &symbol[5], sizeof r->log_size);
    memcpy(&r->log, &symbol[6], sizeof r->log);
    return true;
}

/* The PTX that the real compiler makes with these options, for the virtual architecture of theirs. */
static char *real_ptx(const program *p, const options *o, int n, const char *const *list, text *log) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    real_nvrtc r;
    void *q = NULL;
    char arch[100], *ptx = NULL;
    const char *passed[256] = { arch };
    int k = 1;
    size_t size = 0;
    snprintf(arch, sizeof arch, "--gpu-architecture=compute_%s", o->arch);
    for (int i = 0; i < n && k < 256; i++)
        if (!starts(list[i], "--gpu-architecture") && !starts(list[i], "-arch")) passed[k++] = list[i];
    if (!open_real(&r, log)) return NULL;
    pthread_mutex_lock(&lock);
    int code = r.create(&q, p->source, p->name, p->nheaders, (const char *const *)p->headers, (const char *const *)p->names);
    if (!code) code = r.compile(q, k, passed);
    if (!code && !r.ptx_size(q, &size) && (ptx = (char *)calloc(1, size + 1)) != NULL) r.ptx(q, ptx);
    if (code && q && !r.log_size(q, &size) && size > 1) {
        char *said = (char *)calloc(1, size + 1);
        if (said && !r.log(q, said)) fputs(said, log->f);
        free(said);
    }
    if (q) r.destroy(&q);
    pthread_mutex_unlock(&lock);
    return ptx;
}

/* NULL: the log says what is wrong. */
static char *text_of_ptx(const program *p, const options *o, int n, const char *const *list, size_t *head, text *log) {
    char why[300] = "";
    char *ptx = strcmp(getenv("SOFTGPU_PTX"), "source") ? real_ptx(p, o, n, list, log) : copy_of(p->source);
    text t;
    bool meets = false;
    if (!ptx) return NULL;
    open_text(&t);
    write_prelude(t.f, o, 32);
    *head = (size_t)ftell(t.f);
    const bool good = soft_ptx_to_c(ptx, t.f, &meets, why, sizeof why);
    write_epilogue(t.f, strstr(ptx, ".extern .shared") ? "softgpu_extern, " : "", meets);
    fclose(t.f);
    free(ptx);
    if (good) return t.at;
    fputs(why, log->f);
    free(t.at);
    return NULL;
}
#endif

/* ---------------- options */

#if defined SOFT_HIP
static const char *const known_options[] = {
    "-O", "-std=", "--std=", "-f", "-m", "-W", "-w", "-g", "-x", "--hip-", "-nogpu", "--gpu-max", "-v", "-U", "-include", NULL
};
static const char *const known_archs[] = {
    "gfx803", "gfx900", "gfx906", "gfx908", "gfx90a", "gfx90c", "gfx940", "gfx941", "gfx942", "gfx950", "gfx1010", "gfx1012",
    "gfx1030", "gfx1031", "gfx1032", "gfx1034", "gfx1035", "gfx1036", "gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150",
    "gfx1151", "gfx1200", "gfx1201", NULL
};
#else
static const char *const known_options[] = {
    "-std=", "--std=", "-default-device", "--device-as-default-execution-space", "-fmad=", "--fmad=", "-lineinfo",
    "--generate-line-info", "-G", "--device-debug", "-use_fast_math", "--use_fast_math", "-ftz=", "--ftz=", "-prec-",
    "--prec-", "-maxrregcount", "--maxrregcount", "-extra-device-vectorization", "--extra-device-vectorization", "-O",
    "-dopt", "--dopt", "-w", "--disable-warnings", "-diag-", "--diag-", "-opt-info", "--optimization-info", "-restrict",
    "--restrict", "-Xptxas", "--ptxas-options", "-split-compile", "--split-compile", "-minimal", "--minimal",
    "-no-source-include", "--no-source-include", "-time=", "--time=", "-dc", "-rdc=", "--relocatable-device-code=",
    "-include=", "--pre-include=", "-U", "--undefine-macro=", "-modify-stack-limit", "--modify-stack-limit",
    "-fdevice-", "--fdevice-", "-brief-diagnostics", "--brief-diagnostics", "-builtin-", "--builtin-", "-ewp", NULL
};
static const char *const known_archs[] = { "75", "80", "86", "87", "88", "89", "90", "100", "103", "110", "120", "121", NULL };
#endif

static int take_arch(options *o, const char *value, text *log) {
    char bare[56];
    const char *digits = value;
#if defined SOFT_HIP
    snprintf(bare, sizeof bare, "%.*s", (int)strcspn(value, ":"), value);
#else
    if (starts(value, "sm_")) digits += 3;
    else if (starts(value, "compute_")) digits += 8, o->is_virtual = true;
    else return fprintf(log->f, "nvrtc: error: invalid value for --gpu-architecture (-arch)\n"), INVALID_OPTION;
    size_t n = strspn(digits, "0123456789");
    snprintf(bare, sizeof bare, "%.*s", (int)n, digits);
    if (digits[n] && strcmp(digits + n, "a") && strcmp(digits + n, "f")) bare[0] = 0;
#endif
    for (int i = 0; known_archs[i]; i++) {
        if (strcmp(known_archs[i], bare)) continue;
        snprintf(o->arch, sizeof o->arch, "%s", digits);
        return OK;
    }
#if defined SOFT_HIP
    fprintf(log->f, "error: invalid target ID '%s'\n", value);
    return COMPILATION;
#else
    fprintf(log->f, "nvrtc: error: invalid value for --gpu-architecture (-arch)\n");
    return INVALID_OPTION;
#endif
}

/* A value behind `name`: after `=`, in the next string or, behind a single letter, at once. */
static const char *value_of(const char *name, const char *const *list, int n, int *i) {
    size_t k = strlen(name);
    if (strncmp(list[*i], name, k)) return NULL;
    if (list[*i][k] == '=') return list[*i] + k + 1;
    if (!list[*i][k]) return *i + 1 < n ? list[++*i] : NULL;
    return k == 2 ? list[*i] + k : NULL;
}

static void pass(options *o, const char *flag, const char *value) {
    if (o->n == 256 || asprintf(&o->passed[o->n], "%s%s", flag, value) < 0) abort();
    o->n++;
}

/* As the environment says, or NVRTC's file: libnvrtc.so.12 is 12.9, libnvrtc.so.11.2 is 11.2. */
static bool version_of(int *major, int *minor) {
    const char *asked = getenv("SOFTGPU_COMPILER_VERSION");
#if defined SOFT_HIP
    *major = 6, *minor = 0;
#else
    static const int here = 0;
    Dl_info info;
    const char *number = dladdr(&here, &info) && info.dli_fname ? strstr(info.dli_fname, ".so.") : NULL;
    int found = number ? sscanf(number, ".so.%d.%d", major, minor) : 0;
    if (found < 1) *major = 13;
    if (found < 2) *minor = *major < 13 ? 9 : 0;
#endif
    return !asked || sscanf(asked, "%d.%d", major, minor) == 2;
}

/* What an NVRTC before 11.4 does not know */
static bool too_new(const char *option) {
    int major, minor;
    return strstr(option, "modify-stack-limit") && version_of(&major, &minor) && major * 100 + minor < 1104;
}

static int take_option(options *o, const char *const *list, int n, int *i, text *log) {
    static const char *const archs[] = { "--gpu-architecture", "-arch", "--offload-arch", NULL };
    static const char *const defines[] = { "--define-macro", "-D", NULL }, *const includes[] = { "--include-path", "-I", NULL };
    const char *v;
    for (int k = 0; archs[k]; k++)
        if ((v = value_of(archs[k], list, n, i)) != NULL) return take_arch(o, v, log);
    for (int k = 0; defines[k]; k++)
        if ((v = value_of(defines[k], list, n, i)) != NULL) return pass(o, "-D", v), OK;
    for (int k = 0; includes[k]; k++)
        if ((v = value_of(includes[k], list, n, i)) != NULL) return pass(o, "-I", v), o->includes = true, OK;
    for (int k = 0; known_options[k]; k++)
        if (starts(list[*i], known_options[k]) && !too_new(list[*i])) return OK;
    fprintf(log->f, "error: unrecognized option %s found\n", list[*i]);
    return INVALID_OPTION;
}

/* ---------------- files */

static char *read_file(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    struct stat s;
    char *data = NULL;
    if (f && !fstat(fileno(f), &s) && (data = (char *)malloc((size_t)s.st_size + 1)) != NULL) {
        *n = fread(data, 1, (size_t)s.st_size, f);
        data[*n] = 0;
    }
    if (f) fclose(f);
    return data;
}
static bool write_file(const char *path, const char *s) {
    FILE *f = fopen(path, "wb");
    bool good = f && fputs(s, f) >= 0;
    return f && !fclose(f) && good;
}

static const char *cache_folder(char *path, size_t n) {
    const char *named = getenv("SOFTGPU_CACHE"), *tmp = getenv("TMPDIR");
    if (named && *named) snprintf(path, n, "%s", named);
    else snprintf(path, n, "%s/softgpu-%ld", tmp && *tmp ? tmp : "/tmp", (long)getuid());
    mkdir(path, 0700);
    return path;
}

static bool on_path(const char *name) {
    char path[4096];
    for (const char *p = getenv("PATH"); p && *p; p += strcspn(p, ":"), p += *p == ':') {
        snprintf(path, sizeof path, "%.*s/%s", (int)strcspn(p, ":"), p, name);
        if (!access(path, X_OK)) return true;
    }
    return false;
}

/* ---------------- the host's compiler */

typedef struct command { char *words, *arg[300]; int n; bool full; } command;   /* full: too much for tcc, which has tables of a fixed size */

static void add(command *c, const char *arg) { c->arg[c->n++] = (char *)(uintptr_t)arg; }

static void begin_command(command *c, const char *fallback) {
    const char *asked = getenv("SOFTGPU_CC"), *races = getenv("SOFTGPU_RACES");
    if (races && *races) fallback = "cc -O0 -fsanitize=thread,undefined -fno-sanitize=alignment -fsanitize-undefined-trap-on-error";
    const char *compiler = fallback ? fallback : asked && *asked ? asked : on_path("tcc") ? "tcc" : "cc -O0";
    const bool tcc = memmem(compiler, strcspn(compiler, " "), "tcc", 3) != NULL;
    c->n = 0;
    if (asprintf(&c->words, "%s -shared -Wimplicit-function-declaration %s", compiler, tcc ? "" : SOFT_CC_FLAGS) < 0) abort();
    for (char *rest, *p = strtok_r(c->words, " ", &rest); p && c->n < 40; p = strtok_r(NULL, " ", &rest)) add(c, p);
}

/* Whether the device process may compile it again: nobody has said by what, and it has no variables of its own, whose
   values would be lost. */
static bool may_improve(const program *p, const options *o) {
    const char *asked = getenv("SOFTGPU_CC"), *races = getenv("SOFTGPU_RACES");
    if ((asked && *asked) || (races && *races) || o->n || p->nheaders || strstr(p->source, "\n.global ")) return false;
    char *words = blanked(p->source), *params;
    bool variables = find_word(words, "__constant__") || find_word(words, "__managed__");
    for (char *at = words; !variables && (at = find_word(at, "__device__")) != NULL; at += 10) variables = !kernel_name(at + 10, &params);
    free(words);
    return !variables;
}

/* A file that has no name, and this text. */
static int file_of(const char *text) {
    const int fd = memfd_create("softgpu", MFD_CLOEXEC);
    size_t n = strlen(text);
    for (ssize_t k; n > 0; text += k, n -= (size_t)k)
        if ((k = write(fd, text, n)) <= 0) abort();
    lseek(fd, 0, SEEK_SET);
    return fd;
}
static char *text_of(int fd, size_t *n) {
    const off_t end = lseek(fd, 0, SEEK_END);
    char *text = (char *)calloc(1, (size_t)end + 1);
    if (!text || pread(fd, text, (size_t)end, 0) != end) abort();
    *n = (size_t)end;
    return text;
}

/* Runs it; it reads the file `from`, and what it says goes to the file `log`. */
static bool run(command *c, int from, int log) {
    posix_spawn_file_actions_t a;
    pid_t pid;
    int status = -1;
    c->arg[c->n] = NULL;
    posix_spawn_file_actions_init(&a);
    posix_spawn_file_actions_adddup2(&a, from, 0);
    posix_spawn_file_actions_adddup2(&a, log, 1), posix_spawn_file_actions_adddup2(&a, log, 2);
    int failed = posix_spawnp(&pid, c->arg[0], &a, NULL, c->arg, environ);
    posix_spawn_file_actions_destroy(&a);
    if (failed) return false;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    return WIFEXITED(status) && !WEXITSTATUS(status);
}

static void write_headers(const program *p, const char *folder) {
    char path[8400];
    mkdir(folder, 0700);
    for (int i = 0; i < p->nheaders; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, p->names[i]);
        for (char *s = path + strlen(folder) + 1; (s = strchr(s, '/')) != NULL; *s++ = '/') *s = 0, mkdir(path, 0700);
        write_file(path, p->headers[i]);
    }
}
static void remove_headers(const program *p, const char *folder) {
    char path[8400];
    for (int i = 0; i < p->nheaders; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, p->names[i]);
        for (remove(path); strlen(path) > strlen(folder);) *strrchr(path, '/') = 0, rmdir(path);
    }
}

/* A name for files that this call makes beside the file at `to`. */
static void take_stem(char *stem, size_t n, const char *to) {
    static unsigned count;
    snprintf(stem, n, "%s.%ld.%u", to, (long)getpid(), __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED));
}

/* ---------------- a compiler that stays (server.c): it has read the head of the text before it is asked

   The head is at first the prelude. Where a text goes on as the last one did, as the kernels of one program do, which
   begin with the same functions, the server is started again with all that both have in common. */

typedef struct server {
    pthread_mutex_t lock;
    pid_t pid, owner;                          /* owner: the process that started it, 0: it does not run */
    int fd;                                    /* the socket to it */
    char *head, head_path[4210];               /* the text that it has read, and the file that it was in */
    char *last;                                /* the text that it compiled last */
} server;
enum { WORTH_READING = 2000 };                 /* characters in common for which a server is started again */
static server servers[] = {                    /* one for each thread that compiles at the same time */
    { .lock = PTHREAD_MUTEX_INITIALIZER }, { .lock = PTHREAD_MUTEX_INITIALIZER },
    { .lock = PTHREAD_MUTEX_INITIALIZER }, { .lock = PTHREAD_MUTEX_INITIALIZER },
};

/* It lies beside this library. */
static bool preload_of(char *setting, size_t n) {
    static const int here = 0;
    Dl_info info;
    const char *file = dladdr(&here, &info) ? info.dli_fname : NULL, *name = file ? strrchr(file, '/') : NULL;
    if (!name) return false;
    snprintf(setting, n, "LD_PRELOAD=%.*s/softgpu-cc.so", (int)(name - file), file);
    return !access(strchr(setting, '=') + 1, R_OK);
}

static void stop_server(server *s) {
    if (!s->owner) return;
    close(s->fd);
    if (s->owner == getpid()) waitpid(s->pid, NULL, 0);        /* a fork's server is the parent's own */
    remove(s->head_path);
    free(s->head);
    s->owner = 0, s->head = NULL;
}

static bool start_server(server *s, const command *like, const char *head, size_t n, const char *to) {
    char stem[4200], preload[4300], *text = NULL, *variables[1000] = { preload };
    posix_spawn_file_actions_t a;
    command c = *like;
    int pair[2], k = 1;
    for (char **e = environ; *e && k < 999; e++)
        if (!starts(*e, "LD_PRELOAD=")) variables[k++] = *e;
    take_stem(stem, sizeof stem, to);
    snprintf(s->head_path, sizeof s->head_path, "%s.head.c", stem);
    if (!preload_of(preload, sizeof preload) || asprintf(&text, "%.*s#include \"softgpu-program\"\n", (int)n, head) < 0) return false;
    bool good = write_file(s->head_path, text) && !socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair);
    free(text);
    if (!good) return remove(s->head_path), false;
    add(&c, "-Werror=implicit-function-declaration"), add(&c, "-S"), add(&c, s->head_path), add(&c, "-o"), add(&c, "-");
    c.arg[c.n] = NULL;
    posix_spawn_file_actions_init(&a);
    posix_spawn_file_actions_adddup2(&a, pair[1], 0);
    posix_spawn_file_actions_addopen(&a, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&a, 1, 2);
    good = !posix_spawnp(&s->pid, c.arg[0], &a, NULL, c.arg, variables);
    posix_spawn_file_actions_destroy(&a);
    close(pair[1]);
    if (!good) return close(pair[0]), remove(s->head_path), false;
    s->fd = pair[0], s->owner = getpid(), s->head = strndup(head, n);
    return true;
}

/* How many of the first n characters end with a declaration at the top level, outside of every #if; 0: none do. A
   file may be included there. */
static size_t whole_declarations(const char *text, size_t n) {
    char *start = strndup(text, n), *words = start ? blanked(start) : NULL;
    size_t whole = 0;
    int depth = 0, ifs = 0;
    for (const char *p = words; p && *p; p++) {
        depth += (*p == '(' || *p == '[' || *p == '{') - (*p == ')' || *p == ']' || *p == '}');
        if (*p == '#' && (p == words || p[-1] == '\n')) ifs += starts(p, "#if") - starts(p, "#endif");
        if (*p == '\n' && p > words && (p[-1] == '}' || p[-1] == ';') && !depth && !ifs) whole = (size_t)(p + 1 - words);
    }
    free(start), free(words);
    return whole;
}

/* How much of the text a server should have read before: the first `head` characters, or more. */
static size_t longer_head(const server *s, const char *text, size_t head) {
    size_t shared = 0;
    while (s->last && text[shared] && text[shared] == s->last[shared]) shared++;
    shared = shared < head + WORTH_READING ? 0 : whole_declarations(text, shared);
    return shared < head + WORTH_READING ? head : shared;
}

/* Starts the server, or starts it again if what it has read is not what this text begins with, or is much less than
   the last two texts have in common; false: there is none. *head becomes what it has read. */
static bool fit_server(server *s, const command *like, const char *text, size_t *head, const char *to) {
    if (s->owner && (s->owner != getpid() || !starts(text, s->head))) stop_server(s);
    size_t longer = longer_head(s, text, *head), read = s->owner ? strlen(s->head) : 0;
    if (read && longer > read + WORTH_READING) stop_server(s);
    if (s->owner) *head = read;
    else *head = longer;
    return s->owner || start_server(s, like, text, *head, to);
}

/* Has the server write the assembly of what follows the head; false: it can't, for whatever reason. */
static bool ask_server(server *s, const command *like, const char *text, size_t head, const char *to, const char *source,
                       const char *assembly) {
    char request[9000], bad = 1;
    const bool runs = fit_server(s, like, text, &head, to);
    free(s->last);
    s->last = strdup(text);
    if (!runs) return false;
    int n = snprintf(request, sizeof request, "%s%c%s%c", source, 0, assembly, 0);
    bool answered = write_file(source, text + head) && send(s->fd, request, (size_t)n, MSG_NOSIGNAL) == n && recv(s->fd, &bad, 1, 0) == 1;
    remove(s->head_path);
    if (!answered) stop_server(s);
    return answered && !bad;
}

static bool run_tool(const char *first, const char *second, const char *from, const char *to) {
    const int none = open("/dev/null", O_RDWR | O_CLOEXEC);
    command c = { .n = 0 };
    add(&c, first);
    if (second) add(&c, second);
    add(&c, from), add(&c, "-o"), add(&c, to);
    const bool good = run(&c, none, none);
    close(none);
    return good;
}

/* Compiles to the file at `to`, which appears whole or not at all. What it can't do, compile_to() can, or says why not. */
static bool compile_by_server(const command *like, const char *text, size_t head, const char *to) {
    char stem[4200], path[4][4210];
    static const char *const ends[4] = { "c", "s", "o", "new" };
    size_t k = 0;
    take_stem(stem, sizeof stem, to);
    for (int i = 0; i < 4; i++) snprintf(path[i], sizeof path[i], "%s.%s", stem, ends[i]);
    while (k < sizeof servers / sizeof *servers && pthread_mutex_trylock(&servers[k].lock)) k++;
    if (k == sizeof servers / sizeof *servers) return false;
    bool good = ask_server(&servers[k], like, text, head, to, path[0], path[1]);
    pthread_mutex_unlock(&servers[k].lock);
    good = good && run_tool("as", NULL, path[1], path[2]) && run_tool("ld", "-shared", path[2], path[3]) &&
           !rename(path[3], to);
    for (int i = 0; i < 4; i++) remove(path[i]);
    return good;
}

/* Compiles `source` to the file at `to`, which appears whole or not at all; otherwise the log is filled. */
static bool compile_to(const program *p, const options *o, command *c, const char *source, const char *to, text *log) {
    char stem[4200], out[4210], headers[4210], flag[4220];
    const int from = file_of(source), said = file_of("");
    take_stem(stem, sizeof stem, to);
    snprintf(out, sizeof out, "%s.new", stem);
    snprintf(headers, sizeof headers, "%s.h", stem);
    snprintf(flag, sizeof flag, "-I%s", headers);
    if (p->nheaders) write_headers(p, headers), add(c, flag);
    for (int i = 0; i < o->n; i++) add(c, o->passed[i]);
    add(c, "-xc"), add(c, "-"), add(c, "-o"), add(c, out);
    bool good = run(c, from, said);
    size_t n;
    char *words = text_of(said, &n);
    if (good && strstr(words, "implicit declaration of function")) good = false;   /* C++ has no such thing */
    if (good) good = !rename(out, to);
    c->full = !good && strstr(words, "memory full") != NULL;
    if (!good && !c->full) fprintf(log->f, "%s", n ? words : "error: the host's compiler could not be run (SOFTGPU_CC)\n");
    free(words);
    remove_headers(p, headers);
    remove(out);
    close(from), close(said);
    return good;
}

/* library: n bytes; its C follows, which is empty if the library is to stay as it is */
static soft_image *make_image(const char *arch, const char *library, size_t n, const char *source) {
    const size_t text = strlen(source);
    soft_image *image = (soft_image *)calloc(1, sizeof *image + n + text);
    if (!image) abort();
    memcpy(image->magic, SOFT_MAGIC, 8);
    snprintf(image->arch, sizeof image->arch, "%s", arch);
    image->bytes = n + text;
    image->text = text;
    int major, minor;
    if (version_of(&major, &minor)) image->version = major * 1000 + minor * 10;
    memcpy(image + 1, library, n);
    memcpy((char *)(image + 1) + n, source, text);
    image->hash = soft_hash(14695981039346656037u, image + 1, image->bytes);
    return image;
}

static char *hex_of(const soft_image *image) {
    size_t n = sizeof *image + image->bytes, start = strlen(SOFT_PTX) + strlen(image->arch) + 1;
    char *s = (char *)malloc(start + 2 * n + 1);
    if (!s) abort();
    sprintf(s, "%s%s\n", SOFT_PTX, image->arch);
    for (size_t i = 0; i < n; i++) {
        unsigned char b = ((const unsigned char *)image)[i];
        s[start + 2 * i] = "0123456789abcdef"[b >> 4];
        s[start + 2 * i + 1] = "0123456789abcdef"[b & 15];
    }
    s[start + 2 * n] = 0;
    return s;
}

static int warp_of(const char *arch) { return starts(arch, "gfx1") ? 32 : starts(arch, "gfx") ? 64 : 32; }

static void cached_path(char *path, size_t n, const program *p, const options *o, const command *c, const char *source) {
    char folder[4000];
    uint64_t h[2] = { 14695981039346656037u, 0x9e3779b97f4a7c15u };
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < c->n; i++) h[k] = soft_hash(h[k], c->arg[i], strlen(c->arg[i]) + 1);
        for (int i = 0; i < o->n; i++) h[k] = soft_hash(h[k], o->passed[i], strlen(o->passed[i]) + 1);
        for (int i = 0; i < p->nheaders; i++) {
            h[k] = soft_hash(h[k], p->names[i], strlen(p->names[i]) + 1);
            h[k] = soft_hash(h[k], p->headers[i], strlen(p->headers[i]) + 1);
        }
        h[k] = soft_hash(h[k], source, strlen(source));
    }
    snprintf(path, n, "%s/%016llx%016llx.so", cache_folder(folder, sizeof folder), (unsigned long long)h[0], (unsigned long long)h[1]);
}

/* For whoever wants to give the programs to a real compiler: SOFTGPU_SOURCES names a folder that gets them all. */
static void keep_source(const program *p, const char *arch, const char *path) {
    char to[4500];
    const char *folder = getenv("SOFTGPU_SOURCES"), *name = strrchr(path, '/');
    if (!folder || !*folder || !name) return;
    snprintf(to, sizeof to, "%s/%.*s-%.32s.txt", folder, (int)strcspn(arch, ":"), arch, name + 1);
    write_file(to, p->source);
}

/* hiprtc compiles for the device that there is, NVRTC for the oldest that it knows. */
static const char *default_arch(void) {
#if defined SOFT_HIP
    const char *asked = getenv("SOFTGPU_ARCH");
    if (asked && starts(asked, "gfx")) return asked;
#endif
    return DEFAULT_ARCH;
}

/* list: the n options as they were given */
static int compile(program *p, options *o, int given, const char *const *list, text *log) {
    command c;
    char path[4096];
    size_t n = 0, head;
    const char *real = default_arch()[0] == 'g' ? NULL : getenv("SOFTGPU_PTX");
    char *source = real && *real ? text_of_ptx(p, o, given, list, &head, log) : whole_text(p, o, warp_of(o->arch), &head);
    if (!source) return COMPILATION;
    begin_command(&c, NULL);
    cached_path(path, sizeof path, p, o, &c, source);
    keep_source(p, o->arch, path);
    if (o->includes) remove(path);             /* what the folders hold may have changed */
    char *library = read_file(path, &n);
    c.full = false;
    bool plain = !o->n && !p->nheaders && !strstr(c.arg[0], "tcc");
    if (!library && plain && compile_by_server(&c, source, head, path)) library = read_file(path, &n);
    if (!library && compile_to(p, o, &c, source, path, log)) library = read_file(path, &n);
    if (!library && c.full) {
        free(c.words);
        begin_command(&c, "cc -O0");
        if (compile_to(p, o, &c, source, path, log)) library = read_file(path, &n);
    }
    free(c.words);
    if (library) p->image = make_image(o->arch, library, n, may_improve(p, o) ? source : "");
    free(source);
    if (!library) return COMPILATION;
    free(library);
    p->ptx = hex_of(p->image);
    p->is_virtual = o->is_virtual;
    p->compiled = true;
    return OK;
}

/* ---------------- what is exported */

typedef struct program *rtc_program;
SOFT_EXPORT int RTC(Version)(int *major, int *minor);
SOFT_EXPORT int RTC(CreateProgram)(rtc_program *out, const char *source, const char *name, int n, const char *const *headers, const char *const *names);
SOFT_EXPORT int RTC(DestroyProgram)(rtc_program *p);
SOFT_EXPORT int RTC(CompileProgram)(rtc_program p, int n, const char *const *list);
SOFT_EXPORT int RTC(GetProgramLogSize)(rtc_program p, size_t *n);
SOFT_EXPORT int RTC(GetProgramLog)(rtc_program p, char *log);
SOFT_EXPORT const char *RTC(GetErrorString)(int code);

/* SOFT_ENTER wants the name as the library exports it */
#define RTC_ENTER(function) do {                                                               \
        static soft_point soft_here = { RTC_TEXT(RTC(function)), 0, NULL };                    \
        int soft_code = soft_enter(&soft_here);                                                \
        if (soft_code) return soft_code;                                                       \
    } while (0)
#define RTC_TEXT(x) RTC_TEXT_(x)
#define RTC_TEXT_(x) #x

int RTC(Version)(int *major, int *minor) {
    RTC_ENTER(Version);
    if (!major || !minor) return INVALID_INPUT;
    return version_of(major, minor) ? OK : INVALID_INPUT;
}

static char **copy_of_list(const char *const *list, int n) {
    char **out = (char **)calloc((size_t)n + 1, sizeof *out);
    if (!out) abort();
    for (int i = 0; i < n; i++) out[i] = copy_of(list[i]);
    return out;
}
static void free_list(char **list, int n) {
    for (int i = 0; i < n; i++) free(list[i]);
    free(list);
}

int RTC(CreateProgram)(rtc_program *out, const char *source, const char *name, int n, const char *const *headers, const char *const *names) {
    RTC_ENTER(CreateProgram);
    if (!out || !source || n < 0 || (n && (!headers || !names))) return INVALID_INPUT;
    program *p = (program *)calloc(1, sizeof *p);
    if (!p) return OUT_OF_MEMORY;
    p->source = copy_of(source);
    p->name = copy_of(name && *name ? name : "default_program");
    p->nheaders = n;
    p->headers = copy_of_list(headers, n);
    p->names = copy_of_list(names, n);
    p->log = copy_of("");
    __atomic_add_fetch(&live_programs, 1, __ATOMIC_RELAXED);
    *out = p;
    return OK;
}

static void forget_result(program *p) {
    free(p->log), free(p->image), free(p->ptx);
    p->image = NULL, p->ptx = p->log = NULL, p->compiled = false;
}

int RTC(DestroyProgram)(rtc_program *at) {
    RTC_ENTER(DestroyProgram);
    if (!at || !*at) return INVALID_PROGRAM;
    program *p = *at;
    forget_result(p);
    free_list(p->headers, p->nheaders);
    free_list(p->names, p->nheaders);
    free(p->source), free(p->name), free(p);
    *at = NULL;
    __atomic_sub_fetch(&live_programs, 1, __ATOMIC_RELAXED);
    return OK;
}

int RTC(CompileProgram)(rtc_program p, int n, const char *const *list) {
    RTC_ENTER(CompileProgram);
    if (!p) return INVALID_PROGRAM;
    if (n < 0 || (n && !list)) return INVALID_INPUT;
    forget_result(p);
    text log;
    open_text(&log);
    options o = { .is_virtual = false };
    snprintf(o.arch, sizeof o.arch, "%s", default_arch());
#if !defined SOFT_HIP
    o.is_virtual = true;                       /* what NVRTC makes without being told an architecture */
    for (int i = 0; i < n; i++)
        if (strstr(list[i], "sm_")) o.is_virtual = false;
#endif
    int code = OK;
    bool raises = true;                        /* the real one sets the limit for all of the process */
    for (int i = 0; i < n; i++) raises = raises && !strstr(list[i], "-modify-stack-limit=false");
    static soft_point limit = { "setrlimit", 0, NULL };
    if (raises && !code && default_arch()[0] != 'g') code = soft_enter(&limit);
    for (int i = 0; i < n && !code; i++) code = take_option(&o, list, n, &i, &log);
    if (!code) code = compile(p, &o, n, list, &log);
    for (int i = 0; i < o.n; i++) free(o.passed[i]);
    fclose(log.f);
    p->log = log.at;
    return code;
}

int RTC(GetProgramLogSize)(rtc_program p, size_t *n) {
    RTC_ENTER(GetProgramLogSize);
    if (!p) return INVALID_PROGRAM;
    if (!n) return INVALID_INPUT;
    *n = strlen(p->log) + 1;
    return OK;
}

int RTC(GetProgramLog)(rtc_program p, char *log) {
    RTC_ENTER(GetProgramLog);
    if (!p) return INVALID_PROGRAM;
    if (!log) return INVALID_INPUT;
    strcpy(log, p->log);
    return OK;
}

static int give_image(program *p, char *to, size_t *n) {
    if (!p || !p->compiled) return INVALID_PROGRAM;
    if (!to && !n) return INVALID_INPUT;
    size_t size = p->is_virtual ? 0 : sizeof *p->image + p->image->bytes;
    if (n) *n = size;
    if (to) memcpy(to, p->image, size);
    return OK;
}

#if defined SOFT_HIP
SOFT_EXPORT int hiprtcGetCodeSize(rtc_program p, size_t *n);
SOFT_EXPORT int hiprtcGetCode(rtc_program p, char *code);
int hiprtcGetCodeSize(rtc_program p, size_t *n) { SOFT_ENTER(hiprtcGetCodeSize); return give_image(p, NULL, n); }
int hiprtcGetCode(rtc_program p, char *code) { SOFT_ENTER(hiprtcGetCode); return give_image(p, code, NULL); }
#else
SOFT_EXPORT int nvrtcGetNumSupportedArchs(int *n);
SOFT_EXPORT int nvrtcGetSupportedArchs(int *archs);
SOFT_EXPORT int nvrtcGetCUBINSize(rtc_program p, size_t *n);
SOFT_EXPORT int nvrtcGetCUBIN(rtc_program p, char *cubin);
SOFT_EXPORT int nvrtcGetPTXSize(rtc_program p, size_t *n);
SOFT_EXPORT int nvrtcGetPTX(rtc_program p, char *ptx);

int nvrtcGetNumSupportedArchs(int *n) {
    SOFT_ENTER(nvrtcGetNumSupportedArchs);
    if (!n) return INVALID_INPUT;
    for (*n = 0; known_archs[*n];) ++*n;
    return OK;
}
int nvrtcGetSupportedArchs(int *archs) {
    SOFT_ENTER(nvrtcGetSupportedArchs);
    if (!archs) return INVALID_INPUT;
    for (int i = 0; known_archs[i]; i++) archs[i] = atoi(known_archs[i]);
    return OK;
}
int nvrtcGetCUBINSize(rtc_program p, size_t *n) { SOFT_ENTER(nvrtcGetCUBINSize); return give_image(p, NULL, n); }
int nvrtcGetCUBIN(rtc_program p, char *cubin) { SOFT_ENTER(nvrtcGetCUBIN); return give_image(p, cubin, NULL); }
int nvrtcGetPTXSize(rtc_program p, size_t *n) {
    SOFT_ENTER(nvrtcGetPTXSize);
    if (!p || !p->compiled) return INVALID_PROGRAM;
    if (!n) return INVALID_INPUT;
    *n = strlen(p->ptx) + 1;
    return OK;
}
int nvrtcGetPTX(rtc_program p, char *ptx) {
    SOFT_ENTER(nvrtcGetPTX);
    if (!p || !p->compiled) return INVALID_PROGRAM;
    if (!ptx) return INVALID_INPUT;
    strcpy(ptx, p->ptx);
    return OK;
}
#endif

const char *RTC(GetErrorString)(int code) {
    static const char *const names[] = {
        RTC_NAME("SUCCESS"), RTC_NAME("ERROR_OUT_OF_MEMORY"), RTC_NAME("ERROR_PROGRAM_CREATION_FAILURE"),
        RTC_NAME("ERROR_INVALID_INPUT"), RTC_NAME("ERROR_INVALID_PROGRAM"), RTC_NAME("ERROR_INVALID_OPTION"),
        RTC_NAME("ERROR_COMPILATION"), RTC_NAME("ERROR_BUILTIN_OPERATION_FAILURE")
    };
    return code >= OK && code <= BUILTIN ? names[code] : RTC_NAME("ERROR_INTERNAL_ERROR");
}
