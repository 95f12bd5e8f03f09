#ifndef FLUX__FILES_FOLDERS_H
#define FLUX__FILES_FOLDERS_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/sinks.h"
#include "../base/listing.h"
#include "../base/scopes.h"
#include "../graph/leaves.h"
#include "images.h"

/* ---------------------------------------------------------------------- files/folders.h
   A folder of images as a data set: each folder in it is a class, and each image
   in that is an observation of the class. Only names are read at first; the data
   set's get reads, decodes and resizes one image, on a loader's worker if it has
   any.

   Invariant: classes and the images of a class are in the order of their names'
   bytes, so that a label means the same class on every system. A flux_folder
   never changes, so any number of threads may read images of it. Folders within
   a class's folder, and files that are no images by their names, are passed
   over.

   Rejected: following folders further down, and classes from file names. */

FLUX__BEGIN_COLD

struct flux_folder {
    flux__box box;
    flux_dataset data;                    /* .user is the folder itself */
    flux__dirnames names, paths;           /* of classes; of images */
    int32_t *label;                       /* of each image */
    int label_room;
    int width, height, channels;          /* 0: as in the files */
};

static void flux__folder_free(flux__box *box) {
    flux_folder *f = (flux_folder *)(void *)box;
    flux__dirnames_free(&f->names);
    flux__dirnames_free(&f->paths);
    flux__free(f->label);
    flux__quarantine(f);
}

/* "a/b" of "a" and "b"; the caller frees it. */
static char *flux__path_join(const char *folder, const char *name) {
    const size_t n = strlen(folder), m = strlen(name) + 1;
    char *path = (char *)flux__malloc(n + m + 1);
    if (!path) return NULL;
    memcpy(path, folder, n);
    path[n] = '/';
    memcpy(path + n + 1, name, m);
    return path;
}

/* Whether a file's name is that of an image. */
static bool flux__image_name(const char *name) {
    static const char *const kinds[] = { "png", "jpg", "jpeg", "bmp", "tga", "gif", "psd", "pgm",
                                         "ppm", "pnm" };
    for (int i = 0; i < 10; i++)
        if (flux__ends_with(name, kinds[i])) return true;
    return false;
}

/* Adds the images of one class's folder, `path`. */
static bool flux__folder_images(flux_folder *f, const char *path, int label) {
    flux__dirnames files;
    if (!flux__list_folder(&files, path, "image_folder")) return false;
    bool good = true;
    for (int i = 0; good && i < files.count; i++) {
        if (!flux__image_name(files.name[i])) continue;
        int32_t *one = (int32_t *)flux__one_more(&f->label, &f->label_room, f->paths.count,
                                                 sizeof *one);
        if (one) *one = label;
        char *full = one ? flux__path_join(path, files.name[i]) : NULL;
        good = full && flux__dirnames_add(&f->paths, full, strlen(full));
        flux__free(full);
    }
    flux__dirnames_free(&files);
    return good;
}

/* Finds the classes and images of a folder. */
static bool flux__folder_fill(flux_folder *f, const char *path) {
    flux__dirnames all;
    if (!flux__list_folder(&all, path, "image_folder")) return false;
    bool good = true;
    for (int i = 0; good && i < all.count; i++) {
        char *full = flux__path_join(path, all.name[i]);
        good = full != NULL;
        if (good && flux__is_folder(full))
            good = flux__dirnames_add(&f->names, all.name[i], strlen(all.name[i])) &&
                   flux__folder_images(f, full, f->names.count - 1);
        flux__free(full);
    }
    flux__dirnames_free(&all);
    if (good && !f->paths.count)
        good = FLUX__REFUSE("image_folder: %s has no images in folders, one for each class",
                            flux__short_path(path));
    return good;
}

static int64_t flux__folder_length(void *user) { return ((flux_folder *)user)->paths.count; }

/* The data set's get: the image as width x height x channels, and its label as an int32. */
static int flux__folder_get(void *user, int64_t i, int n, flux_tensor **out) {
    const flux_folder *f = (const flux_folder *)user;
    flux_device cpu = { 0, 0 };
    (void)n;
    out[0] = flux__image_read("image_folder", f->paths.name[i], f->width, f->height, f->channels);
    out[1] = out[0] ? flux__leaf(flux__shape(NULL, 0), FLUX_I32, cpu) : NULL;
    if (out[1]) memcpy(out[1]->buf->ptr, &f->label[i], sizeof f->label[i]);
    return out[1] ? 0 : -1;
}

FLUX_DEF flux_folder *flux_image_folder_with(flux_image_opts o) {
    if (!o.path) return (flux_folder *)flux__null("image_folder", "path", o.path);
    flux_folder *f = (flux_folder *)flux__handle_new(sizeof *f, FLUX__BOX);
    if (!f) return NULL;
    f->box.free = flux__folder_free;
    f->data.user = f;
    f->data.length = flux__folder_length;
    f->data.get = flux__folder_get;
    f->data.arrays = 2;
    if (flux__image_sizes("image_folder", &o, &f->width, &f->height, &f->channels) &&
        flux__folder_fill(f, o.path))
        return (flux_folder *)flux__own(f);
    flux_release(f);
    return NULL;
}

/* The folder, unless it is NULL or freed, which is an error of this call. */
static const flux_folder *flux__folder_there(const flux_folder *f, const char *call) {
    if (f && !FLUX__GONE(call, f)) return f;
    return (const flux_folder *)flux__null(call, "f", f);
}

FLUX_DEF const flux_dataset *flux_folder_data(const flux_folder *f) {
    return flux__folder_there(f, "folder_data") ? &f->data : NULL;
}
FLUX_DEF int64_t flux_folder_length(const flux_folder *f) {
    return flux__folder_there(f, "folder_length") ? f->paths.count : -1;
}
FLUX_DEF int flux_folder_classes(const flux_folder *f) {
    return flux__folder_there(f, "folder_classes") ? f->names.count : -1;
}
FLUX_DEF const char *flux_folder_class(const flux_folder *f, int i) {
    if (!flux__folder_there(f, "folder_class")) return NULL;
    if (i >= 0 && i < f->names.count) return f->names.name[i];
    return (const char *)flux__fail("folder_class: class %d of %d", i, f->names.count);
}
FLUX_DEF const char *flux_folder_path(const flux_folder *f, int64_t i) {
    if (!flux__folder_there(f, "folder_path")) return NULL;
    if (i >= 0 && i < f->paths.count) return f->paths.name[i];
    return (const char *)flux__fail("folder_path: image %lld of %d", (long long)i, f->paths.count);
}

FLUX__END_COLD

#endif /* FLUX__FILES_FOLDERS_H */
