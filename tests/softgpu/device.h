/* device.h - between the parts of the device process, device.c and matrices.c. */
#ifndef SOFTGPU_DEVICE_H
#define SOFTGPU_DEVICE_H
#include "softgpu.h"

extern soft_module *soft_now;                  /* whose kernel runs */
/* The thread that calls waits for others of its warp, as the kinds in softgpu.h say. */
unsigned long long soft_shuffle(int kind, unsigned long long mask, unsigned long long value, int lane, int width);
void soft_matrices_start(void);                /* of a block */
#endif
