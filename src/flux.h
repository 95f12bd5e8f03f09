/* flux.h - deep learning in one C header.                       public domain or MIT, see the end

   Drop this file into a project. In ONE source file write

       #define FLUX_IMPLEMENTATION
       #include "flux.h"

   and compile with `cc prog.c -lm`. Every other file just includes it.

   A first program: learn XOR.

       #define FLUX_IMPLEMENTATION
       #include "flux.h"

       int main(void) {
           float in[4][2] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}}, out[4] = {0, 1, 1, 0};
           flux_tensor *x = flux_from(&in[0][0], 2, 4);          // 2 features x 4 samples
           flux_tensor *y = flux_from(out, 1, 4);
           flux_layer *m = flux_chain(flux_dense(2, 8, flux_tanh), flux_dense(8, 1));
           flux_state *opt = flux_setup(flux_adam(0.05), m);
           flux_times (i, 300) {
               flux_tensor *loss = flux_logitbinarycrossentropy(flux_call(m, x), y);
               flux_update(opt, m, flux_gradient(loss, m));
           }
           flux_print(flux_sigmoid(flux_call(m, x)));
           return flux_failed();
       }

   HOW IT WORKS, IN FIVE RULES

   1. Operations record, looking computes. flux_add(a, b) checks shapes and dtypes there and then and
      returns at once; numbers are computed when somebody looks (flux_item, flux_data, flux_print,
      flux_save, flux_update, flux_eval), fused into as few passes over memory as can be.
   2. Tensors are values. Nothing that you hold ever changes: an operation makes a new tensor.
      (flux_update reuses the memory of weights that nobody else holds.)
   3. Memory has a scope. What a call returns belongs to the innermost open scope (a turn of
      flux_times or flux_each, FLUX_SCOPE, or the program) and goes when that closes. So loops that
      compute are flux_times (i, n) { } and flux_each (b, data) { }; in a bare `for` memory grows.
      flux_keep hands a value to the scope outside, h = flux_carry(h, value) to the next turn, each
      in place of the one before; flux_retain and flux_release are the manual way. A value keeps
      what it was computed from, for its gradient, until flux_detach or flux_update lets that go;
      FLUX_NOGRAD { } records without, and FLUX_INFER { } is that and a scope in one.
   4. Errors are values. A call that can't be done returns NULL (or non-zero, or NaN), says why in one
      sentence (printed once to stderr, kept in flux_error()), and changes nothing. NULL in gives
      NULL out silently, so a chain of calls is checked once, at its end, with flux_failed(). A
      program that goes on after an error calls flux_clear().
   5. Column-major, features first, batch last. Dimension 0 varies fastest: C's `float img[N][H][W]` is
      the tensor W x H x N, with no copy. Indices, dimensions and device ids count from 0.

   THE SAME BITS
   A value's bits depend on what is computed and on nothing else: not on whether it was looked at, on what is computed beside
   it, on FLUX_EAGER, on the number of threads. An element's place is no matter, and the order of a sum is said by its shape.
   With the same seed two runs of a program agree, on all processors for x86 with AVX2 or AVX-512, and on
   all GPUs of one kind, each among themselves. What differs from these:
   - x86 without AVX2 (FLUX_SIMD=base), other processors and compilers without vectors, in the last bits: they have no fused
     multiply-add, or join sums and products in other lanes. Random numbers are everywhere the same;
   - products of bf16 where the processor has its own (AVX512_BF16), and all products under FLUX_BLAS;
   - float64's functions (exp, sin, ...), which are the C library's;
   - numbers below the smallest normal one (1.2e-38 in float32): on x86 a result that small is 0, whatever computes it, an
     update or a formula; other processors and GPUs keep them. What a program gives, data and numbers, is kept everywhere.
   Sums of float32 have an error of at most 1e-6 of the sum of magnitudes, whatever their length.

   OPTIONS OF A CALL
   What a call needs are its arguments; what may be left out are named: flux_dense(10, 5, flux_tanh, .bias = false). An option that
   is left out has its default, and a 0 that is written is 0: flux_adjust(opt, .eta = 0). Where 0 can't be, it is an error.
   flux_rule_with and others like it take a struct: FLUX_OPTIONS(flux_rule_opts, .eta = 0) makes it as the calls do. In one that a
   C program fills itself, beginning with {0}, a 0 is left out.

   OPTIONS BEFORE THE #include
       FLUX_IMPLEMENTATION   the code, in one file
       FLUX_STATIC           everything static: private to the file that includes it
       FLUX_NO_THREADS       no worker threads, no thread-local state
       FLUX_DEBUG            a handle that is used after its scope has closed is an error that names the scope; also without
                             this where the compiler does not optimise (-O0), unless NDEBUG is defined
       FLUX_BLAS             matrix products by the CBLAS that your program links (its integers 32 bits wide;
                             if not, or if you use it yourself, include its cblas.h before this file)
       FLUX_MALLOC(n), FLUX_REALLOC(p, n), FLUX_FREE(p)      your own allocator; define all three

   ENVIRONMENT
       FLUX_NUM_THREADS=n    threads for CPU work, 1 for none but yours (default: the processors there are)
       FLUX_EAGER=1          compute each operation when it is called: the same bits, for a debugger
       FLUX_ERROR=abort      stop in the debugger at the first error
       FLUX_LOG=level        error, warn, info (default), debug; or "schedule" to list kernels as they are planned,
                             "source" to see their text for the GPU's compiler
       FLUX_TRACE=file.json  what ran when, a kernel an event, for ui.perfetto.dev
       FLUX_GPU_BACKEND      CUDA, AMDGPU, Metal or CPU: overrides LocalPreferences.toml
       FLUX_PREFERENCES      path of the preferences file, in place of LocalPreferences.toml
       FLUX_REPLAY=0         GPUs: a step's kernels one by one, never as one graph of the driver's
       FLUX_CACHE_DIR        where kernels compiled for GPUs are kept, in place of ~/.cache/flux; from the root, and
                             only you may write to it, or to what is above it
       FLUX_CUDA_LIBRARY, FLUX_NVRTC, FLUX_HIP_LIBRARY, FLUX_HIPRTC      paths of the drivers and their compilers
       FLUX_ASCII=1          print x and s in place of the Unicode signs
       FLUX_SIMD=name        use no better instruction set than: base, avx2, avx512 (to compare or debug;
                             what the last leaves out is a processor's own products of bf16)
       A program with rights that its user lacks, a setuid one, reads none of them.

   CONTENTS
   What follows the interface is joined from rooms, the files of src/, in this order. Each begins with a line
   that has its name; src/README.md is their map.
     base/      platform threads system object errors backend dtypes memory sinks scopes ending
                workers options text
     graph/     table nodes elementwise leaves views reductions products windows attention
                gradients backward
     schedule/  kernel key grouping program order trace plans looking update
     cpu/       loops float64 float32 vectors casts reductions random gemm_kernels gemm_pack
                gemm_tasks gemm_plan backend rows blocks run products whole windows half_products
                attention
     gpu/       kernels devices copies launch fused gemm whole attention program cache compile
                backend
     device/    registry preferences choosing
     data/      orders loader batch loader_text progress epoch
     nn/        fields walk map functions initialisers activations layers model gradient rules
                state adjust moves compile containers recurrent dropout attention conv norms
                losses ctc update train
     files/     sources idx npy csv safetensors tensors torch
     text/      dot tensors models summary formulas formula_reader
*/
#ifndef FLUX_H
#define FLUX_H

#include "api/types.h"
#include "api/errors.h"
#include "api/memory.h"
#include "api/devices.h"
#include "api/tensors.h"
#include "api/operations.h"
#include "api/models.h"
#include "api/layers.h"
#include "api/losses.h"
#include "api/optimisers.h"
#include "api/data.h"
#include "api/calls.h"

#endif /* FLUX_H */

/* ======================================================================================================
   The interface ends here. What follows is the implementation; you need not read it to use the library. It is made from the
   rooms in src/ by `make flux.h`: change it there.
   ====================================================================================================== */
#if defined(FLUX_IMPLEMENTATION) && !defined(FLUX__IMPLEMENTED)
#define FLUX__IMPLEMENTED

#include "base/platform.h"
#include "base/threads.h"
#include "base/system.h"
#include "base/object.h"
#include "base/errors.h"
#include "base/backend.h"
#include "base/dtypes.h"
#include "base/memory.h"
#include "base/sinks.h"
#include "base/scopes.h"
#include "base/ending.h"
#include "base/workers.h"
#include "base/options.h"
#include "base/text.h"
#include "graph/table.h"
#include "graph/nodes.h"
#include "graph/elementwise.h"
#include "graph/leaves.h"
#include "graph/views.h"
#include "graph/reductions.h"
#include "graph/products.h"
#include "graph/windows.h"
#include "graph/attention.h"
#include "graph/gradients.h"
#include "graph/backward.h"
#include "schedule/kernel.h"
#include "schedule/key.h"
#include "schedule/grouping.h"
#include "schedule/program.h"
#include "schedule/order.h"
#include "schedule/trace.h"
#include "schedule/plans.h"
#include "schedule/looking.h"
#include "schedule/update.h"
#include "cpu/loops.h"
#include "cpu/float64.h"
#include "cpu/float32.h"
#include "cpu/vectors.h"
#include "cpu/casts.h"
#include "cpu/reductions.h"
#include "cpu/random.h"
#include "cpu/gemm_kernels.h"
#include "cpu/gemm_pack.h"
#include "cpu/gemm_tasks.h"
#include "cpu/gemm_plan.h"
#include "cpu/backend.h"
#include "cpu/rows.h"
#include "cpu/blocks.h"
#include "cpu/run.h"
#include "cpu/products.h"
#include "cpu/whole.h"
#include "cpu/windows.h"
#include "cpu/half_products.h"
#include "cpu/attention.h"
#if defined(FLUX_CUDA) || defined(FLUX_HIP)
#include "gpu/kernels.h"
#include "gpu/devices.h"
#include "gpu/copies.h"
#include "gpu/launch.h"
#include "gpu/fused.h"
#include "gpu/gemm.h"
#include "gpu/whole.h"
#include "gpu/attention.h"
#include "gpu/program.h"
#include "gpu/cache.h"
#include "gpu/compile.h"
#include "gpu/backend.h"
#endif
#include "device/registry.h"
#include "device/preferences.h"
#include "device/choosing.h"
#include "data/orders.h"
#include "data/loader.h"
#include "data/batch.h"
#include "data/loader_text.h"
#include "data/progress.h"
#include "data/epoch.h"
#include "nn/fields.h"
#include "nn/walk.h"
#include "nn/map.h"
#include "nn/functions.h"
#include "nn/initialisers.h"
#include "nn/activations.h"
#include "nn/layers.h"
#include "nn/model.h"
#include "nn/gradient.h"
#include "nn/rules.h"
#include "nn/state.h"
#include "nn/adjust.h"
#include "nn/moves.h"
#include "nn/compile.h"
#include "nn/containers.h"
#include "nn/recurrent.h"
#include "nn/dropout.h"
#include "nn/attention.h"
#include "nn/conv.h"
#include "nn/norms.h"
#include "nn/losses.h"
#include "nn/ctc.h"
#include "nn/update.h"
#include "nn/train.h"
#include "files/sources.h"
#include "files/idx.h"
#include "files/npy.h"
#include "files/csv.h"
#include "files/safetensors.h"
#include "files/tensors.h"
#include "files/torch.h"
#include "text/dot.h"
#include "text/tensors.h"
#include "text/models.h"
#include "text/summary.h"
#include "text/formulas.h"
#include "text/formula_reader.h"

FLUX__ASBEFORE
#endif /* FLUX_IMPLEMENTATION */
