/* server.c - the host's C compiler, started once, compiles many kernels.

   This library is preloaded (LD_PRELOAD) into `cc -S head.c -o -`, where head.c is what kernels have in common, the
   prelude at least, and ends by including a file "softgpu-program", which is not there. When the compiler proper opens
   that, it has started up and read the head. It stays there, takes requests from its standard input, a socket, and has a child made by fork() compile
   each: the child's open() gives it the kernel's file in place of the one asked for, and its standard output is the
   file for the assembly. So a kernel costs a fork in place of the start of a driver and of a compiler.

   A request is two paths, SOURCE and ASSEMBLY, with a 0 behind each; the answer is one byte, 0 if all went well. The
   server ends when its socket does. Where anything of this does not work, as with a compiler that is not gcc, compiler.c
   runs the driver for each kernel. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int really_open(const char *path, int flags, int mode) {
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

/* gcc readies itself for a processor when it compiles the first function, which takes as long as a small kernel does, and has
   that as a function that its plugins see: here it is done once for all children. */
static void ready_compiler(void) {
    void *start = dlsym(RTLD_DEFAULT, "_Z14initialize_rtlv");
    void (*initialize)(void);
    memcpy(&initialize, &start, sizeof start);
    if (start) initialize();
}

/* Returns in a child for each request, with the kernel's file open. */
static int serve(void) {
    static char request[9000];
    ready_compiler();
    for (;;) {
        ssize_t n = recv(0, request, sizeof request - 1, 0);
        if (n <= 0) _exit(0);
        request[n] = 0;
        pid_t child = fork();
        if (!child) break;
        int status = -1;
        if (child > 0) waitpid(child, &status, 0);
        char bad = status != 0;
        if (send(0, &bad, 1, MSG_NOSIGNAL) != 1) _exit(0);
    }
    int none = really_open("/dev/null", O_RDONLY, 0);
    int to = really_open(request + strlen(request) + 1, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (none < 0 || to < 0 || dup2(none, 0) < 0  || dup2(to, 1) < 0) _exit(1);
    return really_open(request, O_RDONLY, 0);
}

static int is_program(const char *path) {
    const char *name = strrchr(path, '/');
    return !strcmp(name ? name + 1 : path, "softgpu-program");
}

#define OPEN(name)                                                     \
    int name(const char *path, int flags, ...);                        \
    int name(const char *path, int flags, ...) {                       \
        va_list more;                                                  \
        va_start(more, flags);                                         \
        int mode = flags & O_CREAT ? va_arg(more, int) : 0;            \
        va_end(more);                                                  \
        return is_program(path) ? serve() : really_open(path, flags, mode); \
    }
#undef open
#undef open64
OPEN(open)
OPEN(open64)
