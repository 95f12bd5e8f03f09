#ifndef FLUX__BASE_LISTING_H
#define FLUX__BASE_LISTING_H
#include "platform.h"
#include "system.h" /* flux__wide, flux__from_wide */
#include "errors.h"
#include "memory.h"
#include "sinks.h"

/* ---------------------------------------------------------------------- base/listing.h
   The names in a folder, sorted by their bytes, so that they come in one order on
   every system. Names that begin with a dot, which are hidden, are left out.

   Invariant: a listing is whole, or there is an error and it is empty. */

FLUX__BEGIN_COLD

typedef struct flux__dirnames { char **name; int count, capacity; } flux__dirnames;

static void flux__dirnames_free(flux__dirnames *l) {
    for (int i = 0; i < l->count; i++) flux__free(l->name[i]);
    flux__free((const void *)l->name);
    memset(l, 0, sizeof *l);
}

/* Appends a copy of a text of n bytes. */
static bool flux__dirnames_add(flux__dirnames *l, const char *text, size_t n) {
    char **name = (char **)flux__one_more(&l->name, &l->capacity, l->count, sizeof *name);
    char *copy = name ? (char *)flux__malloc(n + 1) : NULL;
    if (!copy) return false;
    memcpy(copy, text, n);
    copy[n] = 0;
    *name = copy, l->count++;
    return true;
}

static int flux__by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Reads the names in folder `path` into l, but for those that begin with a dot. False: the folder
   can't be read, or memory ran out. */
#if defined(_WIN32)
static bool flux__dirnames_read(flux__dirnames *l, const char *path) {
    WIN32_FIND_DATAW found;
    size_t n = strlen(path);
    char *pattern = (char *)flux__malloc(n + 3);
    if (!pattern) return false;
    memcpy(pattern, path, n);
    memcpy(pattern + n, "/*", 3);
    wchar_t *w = flux__wide(pattern);
    HANDLE all = w ? FindFirstFileW(w, &found) : INVALID_HANDLE_VALUE;
    bool more = all != INVALID_HANDLE_VALUE, good = more;
    if (!more) errno = ENOENT;
    for (; good && more; more = FindNextFileW(all, &found)) {
        char name[1200];
        if (found.cFileName[0] == '.') continue;
        good = flux__from_wide(found.cFileName, name, sizeof name) == 0 ||
               flux__dirnames_add(l, name, strlen(name));
    }
    if (all != INVALID_HANDLE_VALUE) FindClose(all);
    flux__free(w);
    flux__free(pattern);
    return good;
}
#else
static bool flux__dirnames_read(flux__dirnames *l, const char *path) {
    DIR *d = opendir(path);
    bool good = d != NULL;
    for (const struct dirent *e; good && (e = readdir(d)) != NULL;)
        if (e->d_name[0] != '.') good = flux__dirnames_add(l, e->d_name, strlen(e->d_name));
    if (d) closedir(d);
    return good;
}
#endif

/* Lists a folder; false is an error, named after `call`. The caller frees the listing. */
static bool flux__list_folder(flux__dirnames *l, const char *path, const char *call) {
    const int64_t failures = flux__failures();
    memset(l, 0, sizeof *l);
    errno = 0;
    if (!flux__dirnames_read(l, path)) {
        if (!flux__failed_since(failures))
            flux__fail("%s: cannot list %s: %s", call, flux__short_path(path), strerror(errno));
        flux__dirnames_free(l);
        return false;
    }
    if (l->count) qsort((void *)l->name, (size_t)l->count, sizeof *l->name, flux__by_text);
    return true;
}

FLUX__END_COLD

#endif /* FLUX__BASE_LISTING_H */
