/* driver.h - what cuda.c and hip.c put a name on. All of it is called with the lock held; the numbers returned are
   CUDA's, and HIP has the same for the same. `d` is the calling thread's device, or NULL if it has none. */
#ifndef SOFTGPU_DRIVER_H
#define SOFTGPU_DRIVER_H
#include "softgpu.h"
#include "control.h"
#include <stdbool.h>

typedef struct soft_device soft_device;
typedef struct soft_stream soft_stream;
typedef struct soft_event soft_event;
typedef struct soft_loaded soft_loaded;        /* a module */
typedef struct soft_function soft_function;
typedef struct soft_graph soft_graph;
typedef struct soft_node soft_node;             /* a kernel of a graph that was made without a capture */

extern const uint64_t soft_base;               /* cuda.c, hip.c: where this family's addresses begin */
extern const char *const soft_visible;         /* the environment's variable that picks devices */
extern const char *const soft_default_arch;
extern const unsigned soft_plain_shared;       /* bytes of shared memory that a kernel may have without asking */
bool soft_arch_is_ours(const char *arch);
int soft_takes(int version, bool text);        /* 0, or why an image of such a compiler can't be loaded */
bool soft_runs_on(const char *image_arch, const char *device_arch, bool text);    /* text: PTX, not machine code */

soft_device *soft_here(void);                  /* cuda.c, hip.c: the calling thread's, or NULL */
void soft_lock(void);
void soft_unlock(void);

int soft_init(void);                           /* sees which devices there are; OK again and again */
bool soft_ready(void);                         /* it was started; to ask after the driver's end ends the program */
void soft_end_last(void);                      /* the driver's end comes before what was registered by atexit so far */
int soft_count(void);
soft_device *soft_device_at(int i);            /* or NULL */
int soft_index(const soft_device *d);
int soft_physical(const soft_device *d);
const char *soft_arch(const soft_device *d);
uint64_t soft_total(const soft_device *d);
int soft_check(soft_device *d);                /* there is one, and it has not been lost */

int soft_alloc(soft_device *d, uint64_t *p, uint64_t n);
int soft_free(soft_device *d, uint64_t p);
int soft_memory(soft_device *d, size_t *free, size_t *total);
int soft_alloc_host(soft_device *d, void **p, size_t n);
int soft_free_host(soft_device *d, void *p);

int soft_read(soft_device *d, void *to, uint64_t from, uint64_t n);
int soft_write(soft_device *d, uint64_t to, const void *from, uint64_t n);
int soft_read_async(soft_device *d, void *to, uint64_t from, uint64_t n, soft_stream *s);
int soft_write_async(soft_device *d, uint64_t to, const void *from, uint64_t n, soft_stream *s);
int soft_copy_async(soft_device *d, uint64_t to, uint64_t from, uint64_t n, soft_stream *s);
int soft_peer_async(soft_device *d, uint64_t to, soft_device *td, uint64_t from, soft_device *fd, uint64_t n, soft_stream *s);
int soft_set_async(soft_device *d, uint64_t to, int value, uint64_t n, soft_stream *s);
int soft_can_peer(soft_device *d, soft_device *peer);
int soft_enable_peer(soft_device *d, soft_device *peer);

int soft_stream_create(soft_device *d, soft_stream **s, unsigned flags);
int soft_stream_destroy(soft_device *d, soft_stream *s);
int soft_stream_synchronize(soft_device *d, soft_stream *s);
int soft_stream_query(soft_device *d, soft_stream *s);
int soft_stream_wait(soft_device *d, soft_stream *s, soft_event *e);
int soft_synchronize(soft_device *d);

int soft_event_create(soft_device *d, soft_event **e, unsigned flags);
int soft_event_destroy(soft_device *d, soft_event *e);
int soft_event_record(soft_device *d, soft_event *e, soft_stream *s);
int soft_event_synchronize(soft_device *d, soft_event *e);
int soft_event_query(soft_device *d, soft_event *e);
int soft_event_elapsed(soft_device *d, float *ms, soft_event *from, soft_event *to);

int soft_load(soft_device *d, soft_loaded **m, const void *image);
int soft_unload(soft_device *d, soft_loaded *m);
int soft_get_function(soft_device *d, soft_function **f, soft_loaded *m, const char *name);
int soft_function_attribute(soft_device *d, int *value, int which, soft_function *f);
int soft_function_set(soft_device *d, soft_function *f, int which, int value);
int soft_launch(soft_device *d, soft_function *f, const unsigned grid[3], const unsigned threads[3], unsigned shared,
                soft_stream *s, void **args, void **extra);

int soft_capture_begin(soft_device *d, soft_stream *s, int mode);
int soft_capture_end(soft_device *d, soft_stream *s, soft_graph **g);
int soft_graph_create(soft_device *d, soft_graph **g);
int soft_graph_add(soft_device *d, soft_node **node, soft_graph *g, soft_node *const *after, size_t n, soft_function *f, const unsigned grid[3],
                   const unsigned threads[3], unsigned shared, void **args, void **extra);
int soft_graph_add_child(soft_device *d, soft_node **node, soft_graph *g, soft_node *const *after, size_t n, soft_graph *child);
int soft_graph_add_event(soft_device *d, soft_node **node, soft_graph *g, soft_node *const *after, size_t n, soft_event *e);
int soft_graph_set(soft_device *d, soft_graph *exec, soft_node *node, soft_function *f, const unsigned grid[3], const unsigned threads[3],
                   unsigned shared, void **args, void **extra);
int soft_graph_set_event(soft_device *d, soft_graph *exec, soft_node *node, soft_event *e);
int soft_graph_instantiate(soft_device *d, soft_graph **exec, soft_graph *g);
int soft_graph_launch(soft_device *d, soft_graph *exec, soft_stream *s);
int soft_graph_destroy(soft_graph *g, bool exec);

const char *soft_error_name(int code, bool hip);      /* or NULL */
const char *soft_error_text(int code);

#define SOFT_LOCKED(call) do { int soft_r; soft_lock(); soft_r = (call); soft_unlock(); return soft_r; } while (0)
#endif
