#ifndef FLUX__BASE_SINKS_H
#define FLUX__BASE_SINKS_H
#include "platform.h"
#include "threads.h" /* flux__atomic_add */
#include "system.h" /* flux__wide, flux__from_wide */
#include "errors.h"
#include "memory.h"

/* ---------------------------------------------------------------------- base/sinks.h
   Files: the same calls for POSIX and Windows. File names are UTF-8 (Windows'
   calls get UTF-16). The room tells what stands at a path, reads a whole file
   (flux__read_file), and has flux__out, the writer that all saving goes through.

   Invariant: a file that flux__out writes appears whole or not at all: its bytes
   go to a temporary file in the same folder, and flux__out_commit syncs that
   file and renames it over the old one. Devices and pipes are written in place.
   An error is recorded where it happens; after it, writes do nothing, and
   flux__out_commit does what flux__out_abort does and returns false. A NULL
   flux__out counts as such an error, so callers check once, at the commit.
   Commit and abort both free the flux__out. */

FLUX__BEGIN_COLD

#if defined(_WIN32)
/* The attributes of what stands at path; INVALID_FILE_ATTRIBUTES: nothing. */
static DWORD flux__file_attributes(const char *path) {
    wchar_t *w = flux__wide(path);
    DWORD found = w ? GetFileAttributesW(w) : INVALID_FILE_ATTRIBUTES;
    flux__free(w);
    return found;
}
static bool flux__is_folder(const char *path) {
    DWORD found = flux__file_attributes(path);
    return found != INVALID_FILE_ATTRIBUTES && (found & FILE_ATTRIBUTE_DIRECTORY);
}
static FILE *flux__fopen(const char *path, const char *mode) {
    wchar_t m[8], *w = flux__wide(path);
    FILE *f = NULL;
    size_t i;
    for (i = 0; mode[i] && i < 7; i++) m[i] = (wchar_t)mode[i];
    m[i] = 0;
    if (w) f = _wfopen(w, m);
    flux__free(w);
    if (!f && errno == EACCES && flux__is_folder(path)) errno = EISDIR;
    return f;
}
static int flux__file_open_as(const char *path, int flags) {
    wchar_t *w = flux__wide(path);
    int fd = w ? _wopen(w, flags | _O_BINARY, _S_IREAD | _S_IWRITE) : -1;
    flux__free(w);
    return fd;
}
static int flux__file_create(const char *path, bool exclusive, int mode) {
    (void)mode;
    return flux__file_open_as(path, _O_WRONLY | (exclusive ? _O_CREAT | _O_EXCL : 0));
}
static int64_t flux__file_get(int fd, void *data, size_t bytes) {
    return _read(fd, data, bytes < 1 << 30 ? (unsigned)bytes : 1u << 30);
}
static bool flux__file_replace(const char *from, const char *to) {
    wchar_t *f = flux__wide(from), *t = flux__wide(to);
    bool done = f && t && MoveFileExW(f, t, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH);
    if (!done) errno = EACCES;
    flux__free(f);
    flux__free(t);
    return done;
}
static void flux__file_remove(const char *path) {
    wchar_t *w = flux__wide(path);
    if (w) _wunlink(w);
    flux__free(w);
}
static int64_t flux__file_put(int fd, const void *data, size_t bytes) {
    return _write(fd, data, bytes < 1 << 30 ? (unsigned)bytes : 1u << 30);
}
static bool flux__file_sync(int fd) { return _commit(fd) == 0; }
static bool flux__file_close(int fd) { return _close(fd) == 0; }
static int flux__process_id(void) { return (int)GetCurrentProcessId(); }
static void flux__folder_sync(const char *folder) { (void)folder; }
static bool flux__is_separator(char c) { return c == '/' || c == '\\' || c == ':'; }
/* Windows removes no open file, so flux__folder_sweep needs no locks to spare open ones. */
static bool flux__file_lock(int fd) { (void)fd; return true; }
static int flux__file_hold(int fd) { (void)fd; return -1; }
/* Removes the temporary files that killed writers left in a folder (see the version for POSIX). */
static void flux__folder_sweep(const char *folder, int at_fd, const char *start) {
    size_t n = strlen(folder);
    (void)at_fd;
    char *pattern = (char *)FLUX_MALLOC(n + strlen(start) + 8);
    wchar_t *w = NULL;
    WIN32_FIND_DATAW found;
    if (pattern) {
        snprintf(pattern, n + strlen(start) + 8, "%s%s*.tmp", folder, start);
        w = flux__wide(pattern);
    }
    HANDLE all = w ? FindFirstFileW(w, &found) : INVALID_HANDLE_VALUE;
    for (bool more = all != INVALID_HANDLE_VALUE; more; more = FindNextFileW(all, &found)) {
        size_t bytes = flux__from_wide(found.cFileName, NULL, 0);
        char *at = bytes > 0 ? (char *)FLUX_MALLOC(n + bytes) : NULL;
        if (!at) continue;
        memcpy(at, folder, n);
        flux__from_wide(found.cFileName, at + n, bytes);
        flux__file_remove(at);
        flux__free(at);
    }
    if (all != INVALID_HANDLE_VALUE) FindClose(all);
    flux__free(w);
    flux__free(pattern);
}
/* What stands at path: 0 nothing, 1 a regular file that may be replaced, 2 a device or a pipe,
   which is written to in place; -1 (with errno) a folder, or what this process may not write.
   *mode is 0 here. */
static int flux__file_kind(const char *path, int *mode) {
    DWORD a = flux__file_attributes(path);
    *mode = 0;
    if (a == INVALID_FILE_ATTRIBUTES) return 0;
    errno = a & FILE_ATTRIBUTE_DIRECTORY ? EISDIR : EACCES;
    return a & (FILE_ATTRIBUTE_DIRECTORY | FILE_ATTRIBUTE_READONLY) ? -1 :
           a & FILE_ATTRIBUTE_DEVICE ? 2 : 1;
}
/* Gives the file's size in stamp[0] and the time of its last change in stamp[1]; false: no file. */
FLUX__UNUSED static bool flux__file_stamp(const char *path, int64_t *stamp) {
    WIN32_FILE_ATTRIBUTE_DATA a;
    wchar_t *w = flux__wide(path);
    bool found = w && GetFileAttributesExW(w, GetFileExInfoStandard, &a);
    flux__free(w);
    if (!found) return false;
    stamp[0] = (int64_t)a.nFileSizeHigh << 32 | (int64_t)a.nFileSizeLow;
    stamp[1] = (int64_t)a.ftLastWriteTime.dwHighDateTime << 32 |
               (int64_t)a.ftLastWriteTime.dwLowDateTime;
    return true;
}
/* Whether path is a pipe or a device, whose length is not known before its end is reached. */
static bool flux__file_streams(const char *path) {
    DWORD found = flux__file_attributes(path);
    return found == INVALID_FILE_ATTRIBUTES || (found & FILE_ATTRIBUTE_DEVICE);
}
/* The path of the file to which a symbolic link leads; the caller frees it with flux__free. NULL,
   with errno set: the link leads to no file, or memory ran out. */
static char *flux__link_end(const char *path) {
    wchar_t *w = flux__wide(path), *full = NULL;
    const DWORD shared = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
    HANDLE file = INVALID_HANDLE_VALUE;
    if (w) file = CreateFileW(w, 0, shared, NULL, OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS, NULL);
    DWORD n = file != INVALID_HANDLE_VALUE ? GetFinalPathNameByHandleW(file, NULL, 0, 0) : 0;
    char *out = NULL;
    errno = ENOENT;
    if (n > 0) full = (wchar_t *)FLUX_MALLOC(((size_t)n + 1) * sizeof *full);
    if (full && GetFinalPathNameByHandleW(file, full, n + 1, 0) <= n) {
        size_t bytes = flux__from_wide(full, NULL, 0);
        out = bytes > 0 ? (char *)FLUX_MALLOC(bytes) : NULL;
        if (out) flux__from_wide(full, out, bytes);
    }
    if (file != INVALID_HANDLE_VALUE) CloseHandle(file);
    flux__free(full);
    flux__free(w);
    return out;
}
/* The path at which a file named path is to be written: a symbolic link's target, which must
   exist, so that the link remains a link when its file is replaced. The caller frees it with
   flux__free. NULL: the target can't be found, as errno says. */
static char *flux__file_target(const char *path) {
    DWORD found = flux__file_attributes(path);
    if (found != INVALID_FILE_ATTRIBUTES && (found & FILE_ATTRIBUTE_REPARSE_POINT))
        return flux__link_end(path);
    char *copy = (char *)FLUX_MALLOC(strlen(path) + 1);
    if (!copy) errno = ENOMEM;
    return copy ? strcpy(copy, path) : NULL;
}
FLUX__UNUSED static bool flux__is_absolute(const char *path) {
    return (path[0] && path[1] == ':' && flux__is_separator(path[2])) ||
           (flux__is_separator(path[0]) && flux__is_separator(path[1]));
}
static void flux__folder_make(const char *path) {
    wchar_t *w = flux__wide(path);
    if (w) CreateDirectoryW(w, NULL);
    flux__free(w);
}
static int flux__folder_open(const char *path) { (void)path; return -1; }
static void flux__folder_close(int fd) { (void)fd; }
/* What is wrong with a folder that only this user may change, or NULL: that it is a folder is all
   that is checked, since Windows closes a user's own folders to other users. */
static const char *flux__folder_unsafe(const char *path, int fd) {
    (void)fd;
    return flux__is_folder(path) ? NULL : "is not a folder";
}

#else
#  ifdef O_CLOEXEC
#    define FLUX__CLOEXEC O_CLOEXEC
#  else
#    define FLUX__CLOEXEC 0
#  endif
FLUX__UNUSED static bool flux__is_folder(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}
static FILE *flux__fopen(const char *path, const char *mode) { return fopen(path, mode); }
static int flux__file_create(const char *path, bool exclusive, int mode) {
    return open(path, O_WRONLY | FLUX__CLOEXEC | (exclusive ? O_CREAT | O_EXCL : 0),
                mode ? mode : 0666);
}
static int64_t flux__file_get(int fd, void *data, size_t bytes) {
    return (int64_t)read(fd, data, bytes < 1 << 30 ? bytes : 1 << 30);
}
static bool flux__file_replace(const char *from, const char *to) { return rename(from, to) == 0; }
static void flux__file_remove(const char *path) { unlink(path); }
static int64_t flux__file_put(int fd, const void *data, size_t bytes) {
    return (int64_t)write(fd, data, bytes < 1 << 30 ? bytes : 1 << 30);
}
static bool flux__file_sync(int fd) {     /* EINVAL, EROFS: a pipe or the like can't be synced */
    return fsync(fd) == 0 || errno == EINVAL || errno == EROFS;
}
static bool flux__file_close(int fd) { return close(fd) == 0; }
static int flux__process_id(void) { return (int)getpid(); }
/* Syncs the folder itself, so that a new name in it survives a power cut. Some systems refuse that,
   and it is no error. */
static void flux__folder_sync(const char *folder) {
    int fd = open(folder, O_RDONLY | FLUX__CLOEXEC);
    if (fd < 0) return;
    (void)fsync(fd);
    close(fd);
}
static bool flux__is_separator(char c) { return c == '/'; }
/* Locks a temporary file, which marks it as being written for as long as it is open and the
   process lives. False: another process's sweep removed the file before it was locked. */
static bool flux__file_lock(int fd) {
#  ifdef LOCK_EX
    struct stat s;
    if (flock(fd, LOCK_EX) == 0 && fstat(fd, &s) == 0) return s.st_nlink > 0;
#  endif
    (void)fd;
    return true;                          /* a file system without locks: nothing is swept there */
}
/* A second descriptor of the file, or -1: the file's lock then outlives the closing of fd. */
static int flux__file_hold(int fd) { return dup(fd); }
/* Removes a temporary file that nobody has locked: the process that wrote it was killed. The name
   is relative to the open folder `at`, or to the current folder if at is -1. */
static void flux__file_sweep(int at, const char *path) {
#  ifdef LOCK_EX
    int flags = O_WRONLY | O_NONBLOCK | FLUX__CLOEXEC,
        fd = at < 0 ? open(path, flags) : openat(at, path, flags);
    struct stat s;
    if (fd < 0) return;
    if (fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0)
        (void)(at < 0 ? unlink(path) : unlinkat(at, path, 0));
    close(fd);
#  else
    (void)at, (void)path;
#  endif
}
/* Removes the files of a folder whose names begin with `start` and end in .tmp, unless a process
   that is writing them has them locked. folder: "", or its name with the last separator. at: the
   open folder in which the files are then opened and removed; -1: they are found by path. */
static void flux__folder_sweep(const char *folder, int at, const char *start) {
    DIR *d = opendir(*folder ? folder : ".");
    size_t n = strlen(folder), begins = strlen(start);
    for (const struct dirent *e; d && (e = readdir(d)) != NULL;) {
        size_t length = strlen(e->d_name);
        if (length < begins + 4 || memcmp(e->d_name, start, begins) != 0 ||
            strcmp(e->d_name + length - 4, ".tmp") != 0) continue;
        char *path = (char *)FLUX_MALLOC(n + length + 1);
        if (!path) continue;
        memcpy(path, folder, n);
        memcpy(path + n, e->d_name, length + 1);
        flux__file_sweep(at, at < 0 ? path : path + n);
        flux__free(path);
    }
    if (d) closedir(d);
}
/* What stands at path: 0 nothing, 1 a regular file that may be replaced, 2 a device or a pipe,
   which is written to in place; -1 (with errno) a folder, or what this process may not write.
   *mode: a file's permission bits. */
static int flux__file_kind(const char *path, int *mode) {
    struct stat s;
    *mode = 0;
    if (stat(path, &s) != 0) return errno == ENOENT ? 0 : -1;
    if (S_ISDIR(s.st_mode)) {
        errno = EISDIR;
        return -1;
    }
    if (access(path, W_OK) != 0) return -1;
    *mode = (int)(s.st_mode & 07777);
    return S_ISREG(s.st_mode) ? 1 : 2;
}
/* Gives the file's size in stamp[0] and the time of its last change in stamp[1]; false: no file. */
FLUX__UNUSED static bool flux__file_stamp(const char *path, int64_t *stamp) {
    struct stat s;
    if (stat(path, &s) != 0) return false;
    stamp[0] = (int64_t)s.st_size, stamp[1] = (int64_t)s.st_mtime;
    return true;
}
/* Whether path is a pipe or a device, whose length is not known before its end is reached. */
static bool flux__file_streams(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && !S_ISREG(s.st_mode) && !S_ISDIR(s.st_mode);
}
/* The target of the symbolic link at path; a relative target gets path's folder before it. The
   caller frees it with flux__free. NULL: path is not a link or can't be read, as errno says. */
static char *flux__link_target(const char *path) {
    size_t folder = strlen(path), capacity = 4096;
    char *out = NULL;
    ssize_t n = -1;
    while (folder > 0 && path[folder - 1] != '/') folder--;
    for (; capacity < 1 << 20; capacity *= 2) {
        flux__free(out);
        out = (char *)FLUX_MALLOC(folder + capacity);
        if (!out) return errno = ENOMEM, (char *)NULL;
        n = readlink(path, out + folder, capacity);
        if (n < (ssize_t)capacity) break;
    }
    if (n > 0 && n < (ssize_t)capacity) {
        out[folder + (size_t)n] = 0;
        if (out[folder] == '/') memmove(out, out + folder, (size_t)n + 1);
        else memcpy(out, path, folder);
        return out;
    }
    flux__free(out);
    return NULL;
}
/* The path at which a file named path is to be written: the target of symbolic links, even where
   that does not exist yet, so that a link remains a link when its file is replaced. The caller
   frees it with flux__free. NULL: the target can't be found, as errno says. */
static char *flux__file_target(const char *path) {
    struct stat s;
    bool there = stat(path, &s) == 0, file = there && S_ISREG(s.st_mode);
    char *real = file ? realpath(path, NULL) : NULL;
    const char *from = real ? real : path;
    char *at = (char *)FLUX_MALLOC(strlen(from) + 1), *next;
    if (at) strcpy(at, from);
    free(real);
    if (!at) return errno = ENOMEM, (char *)NULL;
    if (real || (there && !file)) return at;       /* a pipe's link in /proc names no path */
    for (int links = 0; links < 40; links++) {
        errno = 0;
        next = flux__link_target(at);
        if (!next && (errno == 0 || errno == EINVAL || errno == ENOENT)) return at;
        flux__free(at);
        if (!next) return NULL;
        at = next;
    }
    flux__free(at);
    return errno = ELOOP, (char *)NULL;
}
FLUX__UNUSED static bool flux__is_absolute(const char *path) { return path[0] == '/'; }
static void flux__folder_make(const char *path) { mkdir(path, 0700); }
#  ifdef O_DIRECTORY
#    define FLUX__DIRECTORY O_DIRECTORY
#  else
#    define FLUX__DIRECTORY 0
#  endif
static int flux__folder_open(const char *path) {
    return open(path, O_RDONLY | FLUX__DIRECTORY | FLUX__CLOEXEC);
}
static void flux__folder_close(int fd) { close(fd); }
/* Whether no other user can replace what is in this folder. A user with write permission for a
   folder may replace its entries, unless the folder is sticky, as /tmp is. A group whose number
   is the user's own is taken for a private group that has no other members; root's group is not. */
static bool flux__folder_guarded(const struct stat *s) {
    bool own_group = s->st_gid == (gid_t)geteuid() && geteuid() != 0;
    mode_t others = own_group ? 002 : 022;
    return (s->st_uid == geteuid() || s->st_uid == 0) &&
           (!(s->st_mode & others) || (s->st_mode & 01000));
}
/* Why another user could change what is in the open folder fd, or replace the folder; NULL: nobody
   could. The folders above it are found from fd by "..", so that links in its path don't matter. */
static const char *flux__folder_unsafe(const char *path, int fd) {
    char up[1200] = "..";
    struct stat s, below;
    (void)path;
    if (fd < 0 || fstat(fd, &s) != 0 || !S_ISDIR(s.st_mode) || s.st_uid != geteuid() ||
        (s.st_mode & 022) != 0)
        return "is not a folder of this user that nobody else may write to";
    for (size_t n = 2; n + 4 < sizeof up; n += 3) {
        below = s;
        if (fstatat(fd, up, &s, 0) != 0) break;
        if (s.st_dev == below.st_dev && s.st_ino == below.st_ino) return NULL;     /* the root */
        if (!flux__folder_guarded(&s)) break;
        memcpy(up + n, "/..", 4);
    }
    return "is below a folder that somebody else may change";
}
#endif

/* ---- a folder that only this user may change (for kernels kept on disk)
   Files are opened relative to the open folder that was checked, not by path. */

typedef struct flux__private {            /* such a folder */
    char path[600];                       /* ends with a separator */
    int fd;                               /* the open folder; -1: none (always, under Windows) */
} flux__private;

/* Makes the folder and its parents, opens and checks it. Returns NULL, or what is wrong with it. */
FLUX__UNUSED static const char *flux__private_open(flux__private *d, const char *path) {
    size_t n = strlen(path);
    d->fd = -1;
    if (n + 2 > sizeof d->path) return "is a name too long";
    memcpy(d->path, path, n + 1);
    for (char *p = d->path + 1; *p; p++)
        if (flux__is_separator(*p)) {
            char c = *p;
            *p = 0;
            flux__folder_make(d->path);
            *p = c;
        }
    flux__folder_make(d->path);
    d->fd = flux__folder_open(d->path);
    const char *why = flux__folder_unsafe(d->path, d->fd);
    if (why && d->fd >= 0) flux__folder_close(d->fd);
    if (!flux__is_separator(d->path[n - 1])) strcpy(d->path + n, "/");
    return why;
}
FLUX__UNUSED static void flux__private_close(flux__private *d) {
    if (d->fd >= 0) flux__folder_close(d->fd);
}

#if defined(_WIN32)
static bool flux__private_path(const flux__private *d, const char *name, char *out, size_t n) {
    return (size_t)snprintf(out, n, "%s%s", d->path, name) < n;
}
FLUX__UNUSED static int flux__private_file(const flux__private *d, const char *name, bool fresh) {
    char path[900];
    if (!flux__private_path(d, name, path, sizeof path)) return errno = ENAMETOOLONG, -1;
    return fresh ? flux__file_create(path, true, 0600) : flux__file_open_as(path, _O_RDONLY);
}
FLUX__UNUSED static bool flux__private_rename(const flux__private *d, const char *from,
                                              const char *to) {
    char a[900], b[900];
    return flux__private_path(d, from, a, sizeof a) && flux__private_path(d, to, b, sizeof b) &&
           flux__file_replace(a, b);
}
FLUX__UNUSED static void flux__private_remove(const flux__private *d, const char *name) {
    char path[900];
    if (flux__private_path(d, name, path, sizeof path)) flux__file_remove(path);
}
#else
/* Opens a file of the folder: a new one for writing (fresh), or an existing one for reading. */
FLUX__UNUSED static int flux__private_file(const flux__private *d, const char *name, bool fresh) {
    return openat(d->fd, name,
                  fresh ? O_WRONLY | O_CREAT | O_EXCL | FLUX__CLOEXEC : O_RDONLY | FLUX__CLOEXEC,
                  0600);
}
FLUX__UNUSED static bool flux__private_rename(const flux__private *d, const char *from,
                                              const char *to) {
    return renameat(d->fd, from, d->fd, to) == 0;
}
FLUX__UNUSED static void flux__private_remove(const flux__private *d, const char *name) {
    unlinkat(d->fd, name, 0);
}
#endif

/* Reads the next `bytes` bytes of a file and returns how many came; fewer: its end or an error. */
FLUX__UNUSED static size_t flux__file_get_all(int fd, void *data, size_t bytes) {
    size_t n = 0;
    while (n < bytes) {
        int64_t got = flux__file_get(fd, (char *)data + n, bytes - n);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        n += (size_t)got;
    }
    return n;
}

/* The last 120 bytes of a long path, for messages, whose length is limited: the end says most. */
FLUX__UNUSED static const char *flux__short_path(const char *path) {
    size_t n = strlen(path);
    return n > 120 ? path + n - 120 : path;
}

#define FLUX__STREAM_MAX (1 << 28)        /* bytes that are read from a pipe or device at most */

/* Reads a whole text file; returns its *size bytes with a 0 after the last, which the caller
   frees with flux__free. NULL is an error, named after `call`. Pipes and devices, some of which
   never end, are read up to FLUX__STREAM_MAX, and a zero byte in them is the error "it is no
   text". */
FLUX__UNUSED static void *flux__read_file(const char *path, size_t *size, const char *call) {
    FILE *f = path ? flux__fopen(path, "rb") : NULL;
    size_t n = 0, capacity = 1 << 16;
    char *data = NULL, *more;
    const char *why = NULL;
    *size = 0;
    if (!path) return flux__fail("%s: the path is NULL", call);
    if (!f)
        return flux__fail("%s: cannot open %s: %s", call, flux__short_path(path), strerror(errno));
    const bool streams = flux__file_streams(path);
    int64_t stamp[2];
    if (!streams && flux__file_stamp(path, stamp) && stamp[0] > 0 && stamp[0] < PTRDIFF_MAX)
        capacity = (size_t)stamp[0] + 1;      /* one more, so that the first read sees the end */
    while (!why) {
        more = capacity <= SIZE_MAX / 4 ? (char *)FLUX_REALLOC(data, capacity + 1) : NULL;
        if (!more) {
            why = "out of memory";
            break;
        }
        data = more;
        errno = 0;
        n += fread(data + n, 1, capacity - n, f);
        if (ferror(f)) why = errno ? strerror(errno) : "read error";
        else if (n < capacity) break;
        else if (streams && memchr(data, 0, n)) why = "it is no text";
        else if (streams && n >= FLUX__STREAM_MAX)
            why = "it gives more than 256 MiB: save that as a file";
        capacity = streams && capacity == FLUX__STREAM_MAX ? capacity + 1 : capacity * 2;
    }
    fclose(f);
    if (why) {
        flux__free(data);
        return flux__fail("%s: cannot read %s: %s", call, flux__short_path(path), why);
    }
    more = (char *)FLUX_REALLOC(data, n + 1);   /* gives back the unused capacity */
    if (more) data = more;
    data[n] = 0;
    *size = n;
    return data;
}

enum { FLUX__TEMPORARY = 78 };            /* bytes of a temporary file's name at most */
/* A file that is being written; it appears whole or not at all (see the head of this room). */
typedef struct flux__out {
    int fd;                               /* the temporary file, or the device or pipe */
    bool aside,                           /* written to `temporary`; false: in place */
         failed;                          /* an error was recorded: writes do nothing */
    const char *call;                     /* whose name an error begins with */
    char *path, *temporary;               /* path: the final one, links followed; both behind o */
    size_t folder,                        /* length of the folder's name in path, with separator */
           used;                          /* bytes that wait in buffer */
    char start[32];                       /* the temporary name begins so: ".flux-", a hash, "-" */
    char buffer[1 << 14];
} flux__out;

static bool flux__out_fail(flux__out *o) {
    if (!o->failed)
        flux__fail("%s: cannot write %s: %s", o->call, flux__short_path(o->path), strerror(errno));
    o->failed = true;
    return false;
}

/* Removes the temporary files that killed writers of this file have left, then creates and locks
   a new one. Its name has a hash of the file's name, and not the name itself, which could make it
   longer than a file name may be. */
static bool flux__out_name(flux__out *o, int mode) {
    static int64_t serial;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);      /* FNV-1a */
    for (const char *p = o->path + o->folder; *p; p++)
        hash = (hash ^ (unsigned char)*p) * UINT64_C(0x100000001b3);
    snprintf(o->start, sizeof o->start, ".flux-%016llx-", (unsigned long long)hash);
    o->temporary[o->folder] = 0;
    flux__folder_sweep(o->temporary, -1, o->start);
    for (int tries = 0; tries < 1000; tries++) {
        snprintf(o->temporary + o->folder, FLUX__TEMPORARY, "%s%d-%lld.tmp", o->start,
                 flux__process_id(), (long long)flux__atomic_add(&serial, 1));
        o->fd = flux__file_create(o->temporary, true, mode & 0777);
        if (o->fd < 0 && errno != EEXIST) break;
        if (o->fd >= 0 && flux__file_lock(o->fd)) break;
        if (o->fd >= 0) flux__file_close(o->fd), o->fd = -1;     /* another process swept it away */
        errno = EEXIST;
    }
    return o->fd >= 0;
}

/* Begins to write the file at path: under a temporary name, or in place if it is a device or a
   pipe. A file that is replaced gives its permissions to the new one. NULL is an error,
   named after `call`. */
FLUX__UNUSED static flux__out *flux__out_open(const char *path, const char *call) {
    if (!path || !*path)
        return (flux__out *)flux__fail("%s: the path is %s", call, path ? "empty" : "NULL");
    char *target = flux__file_target(path);
    if (!target)
        return (flux__out *)flux__fail("%s: cannot write %s: %s", call, flux__short_path(path),
                                       strerror(errno));
    size_t n = strlen(target);
    flux__out *o = (flux__out *)flux__malloc(sizeof *o + 2 * n + 2 + FLUX__TEMPORARY);
    int kind, mode;
    if (!o) {
        flux__free(target);
        return NULL;
    }
    o->call = call;
    o->fd = -1;
    o->failed = false;
    o->used = 0;
    o->path = (char *)(o + 1);
    o->temporary = o->path + n + 1;
    memcpy(o->path, target, n + 1);
    memcpy(o->temporary, target, n + 1);
    flux__free(target);
    for (o->folder = n; o->folder > 0 && !flux__is_separator(o->path[o->folder - 1]);)
        o->folder--;
    kind = flux__file_kind(o->path, &mode);
    o->aside = kind == 0 || kind == 1;
    if (o->aside) flux__out_name(o, mode);
    else if (kind == 2) o->fd = flux__file_create(o->path, false, 0);
    if (o->fd < 0) {
        flux__out_fail(o);
        flux__free(o);
        return NULL;
    }
#if !defined(_WIN32)
    if (kind == 1) (void)(fchmod(o->fd, (mode_t)mode) == 0);   /* refused: that of creation stays */
#endif
    return o;
}

static bool flux__out_flush(flux__out *o, const char *data, size_t bytes) {
    while (bytes > 0) {
        int64_t n = flux__file_put(o->fd, data, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = ENOSPC;
        if (n <= 0) return flux__out_fail(o);
        data += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* Appends bytes, through the buffer unless they are more than it holds; false after an error. */
FLUX__UNUSED static bool flux__out_write(flux__out *o, const void *data, size_t bytes) {
    if (!o || o->failed) return false;
    if (bytes > sizeof o->buffer - o->used) {
        if (!flux__out_flush(o, o->buffer, o->used)) return false;
        o->used = 0;
        if (bytes > sizeof o->buffer) return flux__out_flush(o, (const char *)data, bytes);
    }
    if (bytes) memcpy(o->buffer + o->used, data, bytes);
    o->used += bytes;
    return true;
}

/* Gives up: closes the file, removes the temporary one and frees o (NULL is fine). */
FLUX__UNUSED static void flux__out_abort(flux__out *o) {
    if (!o) return;
    if (o->fd >= 0) flux__file_close(o->fd);
    if (o->aside) flux__file_remove(o->temporary);
    flux__free(o);
}

/* Ends the file: writes what waits, syncs and closes it and renames it to its final name. False:
   it, or something before it, failed, and the old file is as it was. Frees o in any case. */
FLUX__UNUSED static bool flux__out_commit(flux__out *o) {
    bool good;
    if (!o) return false;
    if (!o->failed && flux__out_flush(o, o->buffer, o->used)) {
        int held = o->aside ? flux__file_hold(o->fd) : -1;     /* locked until it is renamed */
        good = flux__file_sync(o->fd);
        if (!good) flux__out_fail(o);
        if (!flux__file_close(o->fd) && good) flux__out_fail(o);
        o->fd = -1;
        if (!o->failed && o->aside && !flux__file_replace(o->temporary, o->path))
            flux__out_fail(o);
        if (held >= 0) flux__file_close(held);
    }
    good = !o->failed;
    if (good && o->aside) {
        o->path[o->folder] = 0;
        flux__folder_sync(o->folder ? o->path : ".");
        o->aside = false;                 /* renamed: there is no temporary file to remove */
    }
    flux__out_abort(o);
    return good;
}

FLUX__END_COLD

#endif /* FLUX__BASE_SINKS_H */
