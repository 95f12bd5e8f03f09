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

   1. Operations record, looking computes. flux_add(a, b) checks shapes and dtypes at once and
      returns a tensor whose numbers are not computed yet. They are computed when somebody looks at
      them (flux_item, flux_data, flux_print, flux_save, flux_update, flux_eval), and the recorded
      operations are then fused into as few passes over memory as possible.
   2. Tensors are values. A tensor that you hold never changes: an operation makes a new tensor.
      (flux_update reuses the memory of weights that nobody else holds.)
   3. Memory has a scope. What a call returns belongs to the innermost open scope and is freed when
      that scope closes. A scope is an iteration of flux_times or flux_each, a FLUX_SCOPE block, or
      the whole program. So write loops that compute as flux_times (i, n) { } and
      flux_each (b, data) { }: in a plain `for` memory grows with every iteration.
      flux_keep(x) moves x to the enclosing scope. h = flux_carry(h, value) takes a value to the
      next iteration, where it replaces the previous h. flux_retain and flux_release count owners by
      hand. A tensor keeps the tensors that it was computed from, because its gradient needs them,
      until flux_detach or flux_update lets them go. Inside FLUX_NOGRAD { } nothing is recorded for
      gradients; FLUX_INFER { } is FLUX_NOGRAD and a scope in one.
   4. Errors are values. A call that can't be done returns NULL (or non-zero, or NaN) and changes
      nothing. It says why in one sentence, which is printed once to stderr and kept in
      flux_error(). A NULL argument that comes from an earlier error gives NULL without a second
      message, so a chain of calls is checked once, at its end, with flux_failed(). A program that
      goes on after an error calls flux_clear().
   5. Column-major, features first, batch last. Dimension 0 varies fastest in memory: the C array
      `float img[N][H][W]` is the tensor W x H x N, with no copy. Indices, dimensions and device ids
      count from 0.

   THE SAME BITS
   The bits of a value depend on what is computed and on nothing else: not on whether the value was
   looked at, on what is computed beside it, on FLUX_EAGER or on the number of threads. Where an
   element stands in a tensor does not matter either, and the order of a sum follows from its shape.
   With the same seed, two runs of a program agree on all x86 processors that have AVX2 or AVX-512,
   and on all GPUs of one kind; processors and GPUs do not agree with each other. The exceptions:
   - x86 without AVX2 (FLUX_SIMD=base), other processors, and compilers without vectors differ in
     the last bits: they have no fused multiply-add, or they join sums and products in other lanes.
     Random numbers are the same everywhere;
   - products of bf16 differ where the processor has its own instructions for them (AVX512_BF16),
     and all products differ under FLUX_BLAS;
   - functions of float64 (exp, sin, ...) are those of the C library;
   - numbers below the smallest normal one (1.2e-38 in float32): on x86 such a result becomes 0, no
     matter which operation computes it, an update or a formula; other processors and GPUs keep it.
     Numbers that the program itself supplies, as data or as constants, are kept everywhere.
   A sum of float32 has an error of at most 1e-6 of the sum of magnitudes, whatever its length.

   OPTIONS OF A CALL
   A call takes what it needs as plain arguments and what may be left out as named options:
   flux_dense(10, 5, flux_tanh, .bias = false). An option that is left out has its default. An
   option that is written as 0 is 0: flux_adjust(opt, .eta = 0); where 0 makes no sense, it is an
   error.
   flux_rule_with and similar functions take a struct of options:
   FLUX_OPTIONS(flux_rule_opts, .eta = 0) makes one in the same way as the calls do. In a struct
   that a C program fills itself, starting from {0}, a field that is 0 counts as left out.

   OPTIONS BEFORE THE #include
       FLUX_IMPLEMENTATION   compiles the code; define it in exactly one file
       FLUX_STATIC           makes everything static: private to the file that includes it
       FLUX_NO_THREADS       no worker threads, no thread-local state
       FLUX_DEBUG            the use of a handle after its scope has closed is an error that names
                             the scope; this is also on where the compiler does not optimise (-O0),
                             unless NDEBUG is defined
       FLUX_BLAS             matrix products are done by the CBLAS that your program links; its
                             integers must be 32 bits wide (if they are not, or if you use CBLAS
                             yourself, include its cblas.h before this file)
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

#endif /* FLUX_IMPLEMENTATION */
