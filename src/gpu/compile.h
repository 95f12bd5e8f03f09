#ifndef FLUX__GPU_COMPILE_H
#define FLUX__GPU_COMPILE_H
#include "../base/platform.h"
#include "../base/threads.h"
#include "../base/system.h"
#include "../base/errors.h"
#include "../base/memory.h"
#include "../base/workers.h"
#include "../graph/nodes.h"
#include "../schedule/kernel.h"
#include "../schedule/key.h"
#include "../schedule/dispatch.h"
#include "kernels.h"
#include "devices.h"
#include "fused.h"
#include "program.h"
#include "cache.h"

/* ---------------------------------------------------------------------- gpu/compile.h
   Compiling: a plan's new kernels are put together into programs of a few
   kernels each, which threads compile; a program's image comes from the cache on
   disk if it is there (gpu/cache.h). flux__gpu_ready is the back end's call that
   makes a plan's kernels on one device ready.

   Invariant: the number of programs does not depend on the number of threads, and
   so neither do their names on disk. A kernel whose text, by its hash, the device
   has is not compiled again; the compile lock keeps two threads from compiling
   the same one. The device lock is not held while compiling. An image from disk
   that the driver refuses is compiled anew. If loading fails, all programs of
   that call are unloaded and their kernels forgotten. An error names the kernel,
   the line of its text and what the compiler says. */

FLUX__BEGIN_LEAN

/* The first line with an error in a compiler's log, as "flux.cu(12): error: ..." or
   "flux.hip:12:3: error: ..."; *line is the line of the source that it means, or 0. */
static const char *flux__compile_complaint(const char *log, int *line) {
    const char *error = strstr(log, "error"), *start = error;
    *line = 0;
    if (!error) return log;
    while (start > log && start[-1] != '\n') start--;
    for (const char *p = start; p < error && !*line; p++)
        if ((*p == '(' || *p == ':') && p[1] >= '0' && p[1] <= '9') *line = atoi(p + 1);
    return start;
}

/* The error for source text that did not compile: the compiler's message, the kernel and the
   line that it means. */
static void flux__compile_failed(const flux__gpu *g, const char *source, const char *log) {
    int line;
    const char *said = flux__compile_complaint(log, &line), *text = source, *kernel = NULL,
        *next = source;
    for (int i = 1; i < line && text; i++) {
        text = strchr(text, '\n');
        if (text) text++;
    }
    if (!line || !text) {
        flux__fail("%s device %d: a kernel did not compile for %s: %.500s", g->driver->name, g->id,
                   g->info.arch, said);
        return;
    }
    while ((next = strstr(next, "\nextern \"C\" __global__")) != NULL && next < text)
        kernel = next++;
    const char *name = kernel ? strstr(kernel, ") ") : NULL;      /* after the launch bounds */
    int width = name ? (int)strcspn(name + 2, "(") : 0;
    flux__fail("%s device %d: a kernel did not compile for %s: %.400s\n  in %.*s, line %d: %.*s",
               g->driver->name, g->id, g->info.arch, said, name ? width : 11,
               name ? name + 2 : "the prelude", line, (int)strcspn(text, "\n"), text);
}

/* The device's compiled kernel of this name, or NULL. */
static flux__gpu_fn *flux__gpu_loaded(flux__gpu *g, const char *name) {
    for (flux__gpu_fn *f = g->known[(unsigned char)(name[1] * 31 + name[2] * 7 + name[3])]; f;
         f = f->next) {
        char same[40];
        snprintf(same, sizeof same, "k%016llx%016llx", (unsigned long long)f->hash[0],
                 (unsigned long long)f->hash[1]);
        if (strcmp(same, name) == 0) return f;
    }
    return NULL;
}

/* Unloads a program, and forgets those of its kernels that are known. */
static void flux__gpu_unload(flux__gpu *g, void *module) {
    for (int i = 0; i < 256; i++)
        for (flux__gpu_fn **at = &g->known[i]; *at;) {
            flux__gpu_fn *f = *at;
            if (f->module != module) at = &f->next;
            else {
                *at = f->next;
                flux__free(f);
            }
        }
    for (int i = 0; i < g->nmodule; i++)
        if (g->module[i] == module) g->module[i--] = g->module[--g->nmodule];
    g->driver->unload(module);
}

/* Finds a kernel in a loaded program and enters it into the device's table; NULL is an error. */
static flux__gpu_fn *flux__gpu_load_fn(flux__gpu *g, const char *name, void *module) {
    flux__gpu_fn *f = (flux__gpu_fn *)flux__zalloc(sizeof *f);
    if (!f) return NULL;
    if (!flux__gpu_ok(g, g->driver->find(&f->function, module, name),
                      "finding a kernel in its module")) {
        flux__free(f);
        return NULL;
    }
    char half[17];
    for (int i = 0; i < 2; i++) {
        memcpy(half, name + 1 + i * 16, 16);
        half[16] = '\0';
        f->hash[i] = strtoull(half, NULL, 16);
    }
    flux__gpu_fn **at = &g->known[(unsigned char)(name[1] * 31 + name[2] * 7 + name[3])];
    f->module = module;
    f->next = *at;
    return *at = f;
}

enum { FLUX__PROGRAM_KERNELS = 4 };       /* about so many kernels a program */
typedef struct flux__fresh { flux__gpu_kernel *gk; int launch; } flux__fresh;   /* a launch to be
                                                                                   compiled */
typedef struct flux__program {
    flux__gpu *g;
    const flux__fresh *first;             /* its n launches */
    int n;
    char *source, *log;
    uint64_t key[2];                      /* hash of driver, architecture and source */
    void *image, *module;                 /* compiled; loaded */
    size_t bytes;
    bool read;                            /* the image is from disk */
    int code;                             /* the compiler's answer */
} flux__program;

/* Compiles program number i of `list` unless it has an image. It runs in any thread: it takes
   no lock and reports nothing. */
static void flux__program_compile(void *list, int64_t i) {
    flux__program *p = (flux__program *)list + i;
    if (p->image) return;
    p->code = p->g->driver->compile(p->source, p->g->info.arch, &p->log, &p->image, &p->bytes);
    if (p->code == 0 || !p->image) return;
    flux__free(p->image);
    p->image = NULL;
}

/* Puts a program's source together from the preface and its kernels, and hashes it.
   FLUX_LOG=source prints it. */
static bool flux__program_source(flux__program *p, const char *preface) {
    flux__listing s = { NULL, 0, 0, false };
    flux__emit(&s, "%s", preface);
    for (int i = 0; i < p->n; i++) {
        const flux__gpu_step *step = &p->first[i].gk->step[p->first[i].launch];
        flux__emit(&s, "\nextern \"C\" __global__ void __launch_bounds__(%u", step->threads);
        if (step->blocks) flux__emit(&s, " BLOCKS(%u)", step->blocks);
        flux__emit(&s, ") %s%s", step->name, step->text);
    }
    p->source = s.text;
    if (s.failed) return false;
    p->key[0] = 0xcbf29ce484222325u, p->key[1] = 0x84222325cbf29ce4u;
    flux__hash_bytes(p->key, p->g->driver->name, strlen(p->g->driver->name));
    flux__hash_bytes(p->key, p->g->info.arch, strlen(p->g->info.arch));
    flux__hash_bytes(p->key, p->source, strlen(p->source));
    const char *log = flux__env("FLUX_LOG");
    if (log && strstr(log, "source")) fprintf(stderr, "%s", p->source);
    return true;
}

/* Writes a compiled program to the cache; an error if it did not compile. */
static bool flux__program_compiled(const flux__gpu *g, const flux__program *p) {
    if (p->read) return true;
    if (!p->image)
        flux__compile_failed(g, p->source,
                             p->log && *p->log ? p->log : "the compiler gives no reason");
    else flux__cache_write(g, p->key, p->image, p->bytes);
    return p->image != NULL;
}

/* The compiler's version, "" if there is no compiler. Unless the compiler itself is needed, it
   is opened only if the cache does not know its version. */
static const char *flux__gpu_compiler(const flux__gpu *g, bool needed, flux__cache_maker *m,
                                      char *why, size_t n) {
    flux__mutex_lock(&flux__driver_lock);
    bool known = !needed && !*g->driver->version() &&
                 flux__cache_made_by(g->driver, g->info.arch, m);
    bool there = known || flux__cache_compiler(g->driver, g->info.arch, why, n);
    flux__mutex_unlock(&flux__driver_lock);
    return known ? m->version : there ? g->driver->version() : "";
}

/* Gets the programs' images from disk, or compiles them. The device lock is not held. */
static bool flux__programs_images(const flux__gpu *g, flux__program *p, int n) {
    char why[320] = "";
    flux__cache_maker m;
    const char *version = flux__gpu_compiler(g, false, &m, why, sizeof why);
    bool all = true;
    for (int i = 0; i < n; i++) {
        p[i].image = flux__cache_read(g, p[i].key, version);
        p[i].read = p[i].image != NULL;
        all = all && p[i].read;
    }
    if (all) return true;
    if (!*flux__gpu_compiler(g, true, &m, why, sizeof why)) {
        flux__fail("%s device %d: kernels can't be compiled: %s", g->driver->name, g->id, why);
        return false;
    }
    flux__parallel(n, flux__program_compile, p);
    for (int i = 0; i < n; i++) all = flux__program_compiled(g, &p[i]) && (i == 0 || all);
    return all;
}

/* Loads a program's image. If the driver refuses one from disk, as another version of it may,
   the program is compiled anew. */
static bool flux__program_load(flux__gpu *g, flux__program *p) {
    char why[320] = "";
    flux__cache_maker m;
    void **more = (void **)flux__grow(g->module, &g->module_room, g->nmodule + 1, sizeof *more);
    if (!more) return false;
    g->module = more;
    int code = g->driver->load(&p->module, p->image);
    if (code != 0 && p->read && !g->driver->lost(code) &&
        *flux__gpu_compiler(g, true, &m, why, sizeof why)) {
        flux__free(p->image);
        p->image = NULL, p->read = false;
        flux__program_compile(p, 0);
        if (!flux__program_compiled(g, p)) return false;
        g->counters.programs_compiled++;
        code = g->driver->load(&p->module, p->image);
    }
    if (code != 0) p->module = NULL;
    if (!flux__gpu_ok(g, code, "loading a program")) return false;
    g->module[g->nmodule++] = p->module;
    return true;
}

/* Loads all programs and finds their kernels; after a failure none is left. */
static bool flux__programs_load(flux__gpu *g, flux__program *p, int n) {
    bool ok = true;
    for (int i = 0; i < n && ok; i++) {
        ok = flux__program_load(g, &p[i]);
        for (int j = 0; j < p[i].n && ok; j++) {
            const flux__gpu_step *step = &p[i].first[j].gk->step[p[i].first[j].launch];
            const flux__gpu_fn *f = flux__gpu_load_fn(g, step->name, p[i].module);
            ok = f != NULL;
            if (ok && step->shared)
                ok = flux__gpu_ok(g, g->driver->reserve(f->function, step->shared),
                                  "reserving a block's shared memory");
        }
    }
    for (int i = 0; i < n && !ok; i++)
        if (p[i].module) flux__gpu_unload(g, p[i].module);
    return ok;
}

/* Compiles or reads, and loads, the n launches of `fresh`, which the device does not have yet. */
static bool flux__gpu_load_all(flux__gpu *g, const flux__fresh *fresh, int n,
                                const char *preface) {
    int count = n < 2 * FLUX__PROGRAM_KERNELS ? n > 0
                : (n + FLUX__PROGRAM_KERNELS - 1) / FLUX__PROGRAM_KERNELS;
    flux__program *p = (flux__program *)flux__zalloc((size_t)count * sizeof *p);
    bool ok = p != NULL;
    for (int i = 0; i < count && ok; i++) {
        int from = (int)((int64_t)n * i / count), to = (int)((int64_t)n * (i + 1) / count);
        p[i].g = g;
        p[i].first = fresh + from, p[i].n = to - from;
        ok = flux__program_source(&p[i], preface);
    }
    if (ok) {
        flux__gpu_unlock(g);
        ok = flux__programs_images(g, p, count);
        flux__gpu_lock(g);
        for (int i = 0; i < count; i++)
            g->counters.programs_read += p[i].read,
            g->counters.programs_compiled += p[i].image && !p[i].read;
        ok = ok && flux__programs_load(g, p, count);
    }
    for (int i = 0; p && i < count; i++) {
        flux__free(p[i].source);
        flux__free(p[i].image);
        flux__free(p[i].log);
    }
    flux__free(p);
    return ok;
}

/* The text before the kernels of a plan's programs: the dialect, the prelude, and the functions
   of the operations that are used. NULL: no memory. */
static char *flux__gpu_preface(const flux__gpu *g, const uint8_t *ops) {
    flux__listing s = { NULL, 0, 0, false };
    flux__emit(&s, "%s%s%s", g->driver->dialect, g->driver->matrices, g->driver->boxes);
    for (size_t i = 0; i < sizeof flux__gpu_prelude / sizeof *flux__gpu_prelude; i++)
        flux__emit(&s, "%s", flux__gpu_prelude[i]);
    for (int op = 0; op < FLUX__ELEMENTWISE_COUNT; op++)
        for (int ctype = 0; ctype < FLUX__CLASSES; ctype++)
            if (ops[op] >> ctype & 1) flux__emit_formula(&s, op, ctype);
    if (!s.failed) return s.text;
    flux__free(s.text);
    return NULL;
}

/* Counts the launches of these kernels that the device does not have, each once, and lists them
   in `fresh`. */
static int flux__gpu_not_loaded(flux__gpu *g, flux__gpu_kernel **list, int n, flux__fresh *fresh) {
    int count = 0;
    for (int i = 0; i < n; i++)
        for (int l = 0; l < list[i]->launches; l++) {
            const char *name = list[i]->step[l].name;
            bool known = flux__gpu_loaded(g, name) != NULL;
            for (int j = 0; j < count && !known; j++)
                known = strcmp(fresh[j].gk->step[fresh[j].launch].name, name) == 0;
            fresh[count].gk = list[i], fresh[count].launch = l;
            count += !known;
        }
    return count;
}

/* Finds the compiled kernel of each launch, compiling those that the device does not have; then
   frees their texts. */
static bool flux__gpu_compile(flux__gpu *g, flux__gpu_kernel **list, int n, const uint8_t *ops) {
    size_t launches = 1;
    for (int i = 0; i < n; i++) launches += (size_t)list[i]->launches;
    flux__fresh *fresh = (flux__fresh *)flux__zalloc(launches * sizeof *fresh);
    flux__mutex *compiling = &flux__compile_locks[0][0] + (g - &flux__gpus[0][0]);
    bool ok = fresh != NULL;
    if (ok && flux__gpu_not_loaded(g, list, n, fresh)) {
        flux__gpu_unlock(g);
        flux__mutex_lock(compiling);
        flux__gpu_lock(g);
        /* counted again: another thread may have compiled some meanwhile */
        int count = flux__gpu_not_loaded(g, list, n, fresh);
        char *preface = count ? flux__gpu_preface(g, ops) : NULL;
        ok = count == 0 || (preface && flux__gpu_load_all(g, fresh, count, preface));
        flux__free(preface);
        flux__mutex_unlock(compiling);
    }
    flux__free(fresh);
    for (int i = 0; i < n && ok; i++)
        for (int l = 0; l < list[i]->launches; l++) {
            flux__gpu_step *step = &list[i]->step[l];
            step->fn = flux__gpu_loaded(g, step->name);
            flux__free(step->text);
            step->text = NULL;
        }
    return ok;
}

/* Allocates the arguments of a kernel's launches: nparam addresses, then 8 bytes each. */
static bool flux__gpu_reserve_args(flux__gpu_kernel *gk) {
    gk->args = (void **)flux__zalloc((size_t)gk->nparam * (sizeof(void *) + 8));
    return gk->args != NULL;
}

/* Emits the text of a plan's kernels on one device, then finds or compiles them. */
static bool flux__gpu_make(flux__gpu *g, flux_device d, flux__plan *plan, flux__graph *graph) {
    flux__gpu_kernel **list =
        (flux__gpu_kernel **)flux__zalloc((size_t)plan->nkernel * sizeof *list);
    uint8_t ops[FLUX__ELEMENTWISE_COUNT] = { 0 };
    bool ok = list != NULL;
    int n = 0;
    for (int i = 0; i < plan->nkernel && ok; i++) {
        flux__kernel *k = &plan->kernel[i];
        flux__emitter c;
        if (!flux__runs_on(k, d)) continue;
        k->ready = flux__zalloc(sizeof(flux__gpu_kernel));
        if (!k->ready) ok = false;
        else {
            flux__gpu_kernel *gk = (flux__gpu_kernel *)k->ready;
            flux__step_start(&gk->next);
            ok = flux__emitter_start(&c, plan, k, gk) && flux__code_kernel(&c, plan, graph, k, g) &&
                 flux__gpu_reserve_args(gk);
            for (int op = 0; op < FLUX__ELEMENTWISE_COUNT; op++) ops[op] |= c.ops[op];
            flux__emitter_end(&c);
            list[n++] = gk;
        }
    }
    ok = ok && flux__gpu_compile(g, list, n, ops);
    flux__free(list);
    return ok;
}

/* Forgets what flux__gpu_make made; returns whether a kernel of it used gpu/gemm_wgmma.h. */
static bool flux__gpu_unmake(flux_device d, flux__plan *plan) {
    bool tiled = false;
    for (int i = 0; i < plan->nkernel; i++) {
        flux__kernel *k = &plan->kernel[i];
        if (!flux__runs_on(k, d) || !k->ready) continue;
        tiled = tiled || ((flux__gpu_kernel *)k->ready)->maps;
        flux__gpu_kernel_drop(k->ready);
        k->ready = NULL;
    }
    return tiled;
}

/* Makes a plan's kernels on one device ready. Where the compiler or the driver refuses products by
   warpgroups, as a compiler older than the card does, the device does without them from then on. */
static bool flux__gpu_ready(flux_device d, flux__plan *plan, flux__graph *graph) {
    void *before;
    const int64_t failures = flux__failures();
    flux__gpu *g = flux__gpu_enter(d.backend, d.id, &before);
    if (!g) return false;
    bool ok = flux__gpu_make(g, d, plan, graph);
    if (!ok && g->tiled && !g->lost && flux__gpu_unmake(d, plan)) {
        char why[320];
        flux__withdraw(failures, why, sizeof why, "no memory");
        g->tiled = false;
        flux__note(FLUX_LOG_WARN, "gpu.wgmma", true, "%s device %d: products can't use warpgroups, "
                   "and are slower: %s", g->driver->name, d.id, why);
        ok = flux__gpu_make(g, d, plan, graph);
    }
    flux__gpu_leave(g, before);
    return ok;
}

FLUX__END_LEAN

#endif /* FLUX__GPU_COMPILE_H */
