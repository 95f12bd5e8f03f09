/* link.h - what the software NCCL and RCCL (nccl.c) use of the software driver that lies beside them: the driver exports
   it as `soft_link`. All but `lock` and `unlock` are called with the driver's lock held; a stream is the program's handle. */
#ifndef SOFTGPU_LINK_H
#define SOFTGPU_LINK_H
#include <stdbool.h>
#include <stdint.h>

/* Part of a stream's queue that another library does: asked again and again until it is done. It never waits. */
typedef bool soft_poll(void *data);
/* Makes such a part of what was captured, when a graph is launched: it has this number in the stream's queue. Without a stream
   it says whether that can be done. NULL: it can't. */
typedef void *soft_again(void *data, void *stream, uint64_t number);
/* One more capture, graph or child of a graph has it (1), or one less (-1). */
typedef void soft_held(void *data, int change);

typedef struct soft_link {
    void (*lock)(void);
    void (*unlock)(void);
    int (*device)(void);                       /* that is current for the calling thread; -1: none */
    int (*physical)(int device);
    int (*device_of)(const void *stream);      /* -1: no stream of this driver, or a destroyed one */
    bool (*holds)(int device, uint64_t at, uint64_t n);   /* all of it is in one allocation of this device */
    int (*queue)(void *stream, soft_poll *poll, void *data, uint64_t *number);   /* 0, or a driver's code */
    bool (*captures)(const void *stream);      /* whether the stream is being captured */
    int (*capture)(void *stream, soft_poll *poll, soft_again *again, soft_held *held, void *data);
    bool (*advance)(void *stream, uint64_t number);       /* does what is queued up to there, as far as it goes without waiting */
    bool (*read)(int device, void *to, uint64_t from, uint64_t n);
    bool (*write)(int device, uint64_t to, const void *from, uint64_t n);
} soft_link_table;
#endif
