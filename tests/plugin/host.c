/* Loads a plugin, uses it in a thread, and unloads it while that thread lives: host PLUGIN. Nothing of the plugin's may be
   called when the thread ends, or at a fork, or at exit. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_barrier_t step;
static double (*compute)(void);
static double sum;

static void *live(void *arg) {
    for (int i = 0; i < 3; i++) {
        pthread_barrier_wait(&step);
        sum = compute();
        pthread_barrier_wait(&step);      /* from here on it may be unloaded, and loaded again */
    }
    pthread_barrier_wait(&step);
    return arg;
}

int main(int argc, char **argv) {
    pthread_t thread;
    int status = -1;
    pthread_barrier_init(&step, NULL, 2);
    if (argc < 2 || pthread_create(&thread, NULL, live, NULL) != 0) return 1;
    for (int i = 0; i < 3; i++) {
        void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        if (!plugin || !(*(void **)&compute = dlsym(plugin, "plugin_compute"))) return printf("%s\n", dlerror()), 1;
        pthread_barrier_wait(&step);
        pthread_barrier_wait(&step);
        if (sum != 200.0 * 200 * 200 * 2) return printf("the sum is %g\n", sum), 1;
        if (compute() != sum) return 1;   /* in this thread too */
        if (dlclose(plugin) != 0) return 1;
        if (dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD)) return printf("it is still loaded\n"), 2;
    }
    pid_t pid = fork();
    if (pid == 0) exit(0);
    if (waitpid(pid, &status, 0) != pid || status != 0) return printf("the child ended with %d\n", status), 1;
    pthread_barrier_wait(&step);
    pthread_join(thread, NULL);
    printf("done\n");
    return 0;
}
