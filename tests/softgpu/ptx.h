/* ptx.h - PTX becomes C, see ptx.c. */
#ifndef SOFTGPU_PTX_H
#define SOFTGPU_PTX_H
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
/* Writes the functions and the table softgpu_kernels that stand for a module; *meets: its threads have barriers or
   shuffles. False: an instruction or a declaration is not known, and the log says which. */
bool soft_ptx_to_c(const char *ptx, FILE *out, bool *meets, char *log, size_t log_size);
#endif
