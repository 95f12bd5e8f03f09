#ifndef FLUX__GPU_CACHE_H
#define FLUX__GPU_CACHE_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_add32 */
#include "../base/system.h"
#include "../base/errors.h"
#include "../base/sinks.h"
#include "kernels.h"

/* ---------------------------------------------------------------------- gpu/cache.h
   The cache of compiled programs on disk, in FLUX_CACHE_DIR or ~/.cache/flux.

   Invariant: an entry is named after all that it depends on (source,
   architecture, driver, the compiler's version) and holds a checksum; one that
   does not match is not used. It is written under another name and renamed, so a
   reader finds it whole or not at all. The folder must be the user's own and
   writable by nobody else, since its content is run. A file for each kind of
   device records which compiler made its entries, and the size and time of that
   compiler's own file: if these are unchanged, the compiler need not be opened to
   know its version. A cache that cannot be written is a warning, once, and no
   error. */

FLUX__BEGIN_LEAN

/* An entry begins with this; `bytes` of image follow. sum is the image's hash. */
typedef struct flux__cache_head { char magic[8]; uint64_t key[2], sum[2], bytes; } flux__cache_head;
/* A compiler: its version, and its library's path, size and time. */
typedef struct flux__cache_maker {
    char version[40], file[488];
    int64_t stamp[2];
} flux__cache_maker;

/* The cache's folder, from the first of these variables that holds an absolute path; false if
   there is none, or if the name is too long (`out` is not empty then). The XDG specification
   tells to ignore relative paths. */
static bool flux__cache_place(char *out, size_t n) {
    const char *set[] = { flux__env("FLUX_CACHE_DIR"), flux__env("XDG_CACHE_HOME"),
                          flux__env("HOME"), flux__env("LOCALAPPDATA") };
    static const char *const below[] = { "", "/flux", "/.cache/flux", "/flux" };
    for (int i = 0; i < 4; i++) {
        if (!set[i]) continue;
        if (flux__is_absolute(set[i]))
            return (size_t)snprintf(out, n, "%s%s", set[i], below[i]) < n;
        flux__note(FLUX_LOG_WARN, "gpu.cache.relative", true,
                   "%.200s in the environment is a relative path: no cache of kernels is looked "
                   "for there", set[i]);
    }
    return *out = 0, false;
}

/* Opens the cache's folder, which the caller closes; false, with one warning, if there can be
   no cache. */
static bool flux__cache_open(flux__private *folder) {
    char place[600];
    const char *why;
    if (!flux__cache_place(place, sizeof place)) {
        flux__note(FLUX_LOG_WARN, "gpu.cache", true, "compiled kernels are not kept: %s",
                   *place ? "the folder's name is too long"
                   : "neither FLUX_CACHE_DIR nor HOME says where");
        return false;
    }
    if ((why = flux__private_open(folder, place)) == NULL) return true;
    flux__note(FLUX_LOG_WARN, "gpu.cache", true, "compiled kernels are not kept: %.200s %s", place,
               why);
    return false;
}

/* Makes and locks a temporary file, whose name it writes to aside; -1, with errno, if that fails.
   Another process may sweep the file away before it is locked: then the next one is made. The
   files of processes that were killed are swept at one entry of 64, for which the whole folder is
   read. */
static int flux__cache_aside(const flux__private *folder, char *aside, size_t n) {
    static const char start[] = ".flux-kernel-";
    static int count;
    for (int tries = 0; tries < 1000; tries++) {
        const int number = flux__atomic_add32(&count, 1);
        if (number % 64 == 1) flux__folder_sweep(folder->path, folder->fd, start);
        snprintf(aside, n, "%s%d-%d.tmp", start, flux__process_id(), number);
        const int fd = flux__private_file(folder, aside, true);
        if (fd < 0 || flux__file_lock(fd)) return fd;
        flux__file_close(fd);
    }
    errno = EBUSY;
    return -1;
}

/* Writes head and image to a temporary file and renames it to `name`; returns 0, or the errno
   of what failed. */
static int flux__cache_put(const flux__private *folder, const char *name, const void *head,
                           size_t n, const void *image, size_t bytes) {
    char aside[60];
    int fd = flux__cache_aside(folder, aside, sizeof aside), why = fd < 0 ? errno : 0;
    bool ok = fd >= 0 && flux__file_put(fd, head, n) == (int64_t)n;
    for (size_t at = 0; ok && at < bytes;) {
        int64_t done = flux__file_put(fd, (const char *)image + at, bytes - at);
        ok = done > 0;
        at += ok ? (size_t)done : 0;
    }
    if (fd < 0) return why;
    int held = flux__file_hold(fd);
    ok = ok && flux__file_sync(fd);
    if (!ok) why = errno;
    ok = flux__file_close(fd) && ok && flux__private_rename(folder, aside, name);
    if (!ok && !why) why = errno;
    if (held >= 0) flux__file_close(held);
    if (ok) return 0;
    flux__private_remove(folder, aside);
    return why ? why : EIO;
}

/* Warns, once, that an entry could not be written, for the errno `why`; nothing if that is 0. */
static void flux__cache_lost(const flux__private *folder, const char *name, int why) {
    if (why)
        flux__note(FLUX_LOG_WARN, "gpu.cache", true,
                   "compiled kernels are not kept: %.200s%.100s can't be written: %s", folder->path,
                   name, strerror(why));
}

/* The name of the file that records the compiler for an architecture. */
static void flux__cache_maker_name(char *out, size_t n, const flux__driver *d, const char *arch) {
    snprintf(out, n, "%s-%s", d->name, arch);
}

/* Reads which compiler made the entries; false if that is not recorded, or the compiler's file
   is gone or has changed. */
static bool flux__cache_read_maker(const flux__private *folder, const char *name,
                                   flux__cache_maker *m) {
    int64_t stamp[2] = { 0, 0 };
    int fd = flux__private_file(folder, name, false);
    bool known = fd >= 0 && flux__file_get_all(fd, m, sizeof *m) == sizeof *m;
    if (fd >= 0) flux__file_close(fd);
    if (!known || m->version[sizeof m->version - 1] || m->file[sizeof m->file - 1]) return false;
    return flux__file_stamp(m->file, stamp) && stamp[0] == m->stamp[0] && stamp[1] == m->stamp[1];
}

/* The compiler recorded for an architecture, if it is unchanged and the driver loads what it
   makes. */
static bool flux__cache_made_by(const flux__driver *d, const char *arch, flux__cache_maker *m) {
    char name[200];
    flux__private folder;
    if (!flux__cache_open(&folder)) return false;
    flux__cache_maker_name(name, sizeof name, d, arch);
    bool known = flux__cache_read_maker(&folder, name, m) && d->takes(m->version);
    flux__private_close(&folder);
    return known;
}

/* Opens the compiler, and records its version and file for processes that only need to know the
   version. The caller holds the driver lock. */
static bool flux__cache_compiler(const flux__driver *d, const char *arch, char *why, size_t n) {
    flux__cache_maker m, before;
    char name[200];
    flux__private folder;
    bool kept = flux__cache_open(&folder), there = d->compiler(why, n);
    flux__cache_maker_name(name, sizeof name, d, arch);
    memset(&m, 0, sizeof m);
    if (there) snprintf(m.version, sizeof m.version, "%s", d->version());
    if (there && kept && flux__library_file(d->calls, m.file, sizeof m.file) &&
        flux__file_stamp(m.file, m.stamp)) {
        if (!flux__cache_read_maker(&folder, name, &before) || memcmp(&m, &before, sizeof m) != 0)
            flux__cache_lost(&folder, name, flux__cache_put(&folder, name, &m, sizeof m, NULL, 0));
    } else if (kept) flux__private_remove(&folder, name);
    if (kept) flux__private_close(&folder);
    return there;
}

/* Opens the cache's folder, and makes the name and key of the entry for this source and this
   version of the compiler. */
static bool flux__cache_entry(flux__private *folder, char *name, size_t n, const flux__gpu *g,
                              const uint64_t *source, const char *version, uint64_t *key) {
    key[0] = source[0], key[1] = source[1];
    flux__hash_bytes(key, version, strlen(version));
    if (!*version || !flux__cache_open(folder)) return false;
    snprintf(name, n, "%s-%.100s-%016llx%016llx", g->driver->name, g->info.arch,
             (unsigned long long)key[0], (unsigned long long)key[1]);
    return true;
}

/* Reads an entry's image, for the caller to free; NULL if the key, the size or the checksum
   does not match. */
static void *flux__cache_read_image(int fd, const uint64_t *key) {
    flux__cache_head head;
    char *image = NULL;
    if (flux__file_get_all(fd, &head, sizeof head) == sizeof head &&
        memcmp(head.magic, "fluxgpu2", 8) == 0 &&
        memcmp(head.key, key, sizeof head.key) == 0 && head.bytes < (1u << 30))
        image = (char *)FLUX_MALLOC((size_t)head.bytes + 1);
    if (!image) return NULL;
    uint64_t sum[2] = { 1, 2 };
    /* one byte more is asked for, so that an entry with something after the image is refused */
    bool whole = flux__file_get_all(fd, image, (size_t)head.bytes + 1) == head.bytes;
    if (whole) flux__hash_bytes(sum, image, (size_t)head.bytes);
    if (whole && memcmp(sum, head.sum, sizeof sum) == 0) return image;
    flux__free(image);
    return NULL;
}

/* The image of a program from the cache, or NULL. */
static void *flux__cache_read(const flux__gpu *g, const uint64_t *source, const char *version) {
    char name[200];
    uint64_t key[2];
    flux__private folder;
    if (!flux__cache_entry(&folder, name, sizeof name, g, source, version, key)) return NULL;
    int fd = flux__private_file(&folder, name, false);
    void *image = fd >= 0 ? flux__cache_read_image(fd, key) : NULL;
    if (fd >= 0) flux__file_close(fd);
    flux__private_close(&folder);
    return image;
}

/* Writes a program's image to the cache; a failure is a warning. */
static void flux__cache_write(const flux__gpu *g, const uint64_t *source, const void *image,
                              size_t bytes) {
    char name[200];
    flux__cache_head head;
    flux__private folder;
    memset(&head, 0, sizeof head);
    if (!flux__cache_entry(&folder, name, sizeof name, g, source, g->driver->version(), head.key))
        return;
    memcpy(head.magic, "fluxgpu2", 8);
    head.bytes = bytes, head.sum[0] = 1, head.sum[1] = 2;
    flux__hash_bytes(head.sum, image, bytes);
    flux__cache_lost(&folder, name,
                     flux__cache_put(&folder, name, &head, sizeof head, image, bytes));
    flux__private_close(&folder);
}

FLUX__END_LEAN

#endif /* FLUX__GPU_CACHE_H */
