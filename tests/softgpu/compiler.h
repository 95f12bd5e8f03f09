/* compiler.h - the text around a kernel source, see prelude.c. */
#ifndef SOFTGPU_COMPILER_H
#define SOFTGPU_COMPILER_H
extern const char soft_prelude[], soft_prelude_bits[], soft_prelude_mathematics[], soft_prelude_atomics[],
                  soft_prelude_shuffles[], soft_prelude_ptx[], soft_prelude_mfma[],
                  soft_prelude_cuda[], soft_prelude_hip[], soft_epilogue[];
#endif
