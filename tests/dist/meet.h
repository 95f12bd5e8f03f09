/* A rank that leaves without MPI's end has the launcher end the others, which may still have to wait and to tell. So ranks leave
   together: each leaves a mark in the folder that DIST_MEET names, and waits for those of the others, most_seconds at most. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* The path of a file that all ranks know by this name: beside that folder, since other checks may run here at the same time. */
static inline void common_file(char *path, size_t size, const char *name) {
    const char *folder = getenv("DIST_MEET");
    snprintf(path, size, "%s%s%s", folder ? folder : "", folder ? "." : "", name);
}

static inline void meet(int rank, int size, double most_seconds) {
    const char *folder = getenv("DIST_MEET");
    const struct timespec rest = { 0, 20000000 };
    char path[600];
    for (int r = rank, came = 0; came < size && most_seconds > 0; most_seconds -= 0.02) {
        snprintf(path, sizeof path, "%s/%d", folder ? folder : ".", r);
        FILE *mark = folder ? fopen(path, r == rank ? "wb" : "rb") : NULL;
        if (mark) fclose(mark), came++, r = (r + 1) % size;
        else nanosleep(&rest, NULL);
    }
}
