/* device.h - between the parts of the device process: device.c, matrices.c, async.c, race.c. */
#ifndef SOFTGPU_DEVICE_H
#define SOFTGPU_DEVICE_H
#include "softgpu.h"

extern soft_module *soft_now;                  /* whose kernel runs */
/* The thread that calls waits for others of its warp, as the kinds in softgpu.h say. */
unsigned long long soft_shuffle(int kind, unsigned long long mask, unsigned long long value, int lane, int width);
void soft_yield(void);                         /* it waits for what others do, and looks again */
void soft_matrices_start(void);                /* of a block */
float soft_half(unsigned h, int brain);        /* f16, or bf16 */
size_t softgpu_shared_address(const void *p);

/* async.c: a block begins and ends; one copy lands, or 0; counts what may end a thread's waiting */
void soft_async_start(void);
void soft_async_end(void);
int soft_async_step(void);
extern unsigned soft_progress;
size_t soft_dynamic_address(const char *p);
char *soft_shared_memory(unsigned at, int bytes);   /* by its own address, dynamic shared memory too */
void soft_async_reads(unsigned at);            /* 16 bytes there are read: no copy may be under way to them */
uint64_t soft_base(void);                      /* of the devices' memory */
_Noreturn void soft_fault(const char *why);    /* the launch fails */

/* race.c: a launch, a block and a phase of one begin; an access to memory, or an asynchronous copy to it begins or lands */
enum { SOFT_READS, SOFT_WRITES, SOFT_BEGINS, SOFT_LANDS };
void soft_race_launch(void);
void soft_race_block(void);
void soft_race_barrier(void);
void soft_race(const void *p, size_t n, int how);
#endif
