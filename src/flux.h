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
      goes on after an error calls flux_clear(). Calls do not ask what failed before them: each
      different sentence is printed once, and valid calls are done. But while an error is pending,
      flux_new takes a field that is NULL for one that failed, and flux_times and flux_each begin no
      further iteration. No file, however broken, and no failed allocation makes the library crash.
   5. Column-major, features first, batch last. Dimension 0 varies fastest in memory: the C array
      `float img[N][H][W]` is the tensor W x H x N, with no copy. Indices, dimensions and device ids
      count from 0.

   WHICH WAY A TENSOR LIES
   A C array is the tensor with its dimensions read backwards; no number moves:

       float a[3][2];                  flux_from(&a[0][0], 2, 3)      2 x 3
                                       (without copying: flux_borrow)
       memory    | 0 | 1 | 2 | 3 | 4 | 5 |
       C           a[0][0] a[0][1] a[1][0] ...   rows of 2, one after the other
       flux.h                                    columns of 2, one after the other
                                                    sample 0   sample 1   sample 2
                                        feature 0  |    0    |    2    |    4    |
                                        feature 1  |    1    |    3    |    5    |

       float img[N][H][W]       is   W x H x N       e.g. 28 x 28 x 60000
       float img[N][C][H][W]    is   W x H x C x N

   So a[i][j] in C is flux_at(t, j, i), and a batch of samples is a matrix with one column a sample.
   flux_dense(in, out) has a weight of out x in that multiplies the batch from the left. If you mean
   a C array m[rows][cols] as the matrix that it looks like on paper, write
   flux_from_rows(&m[0][0], rows, cols).

   TRAPS
   - Dimensions are a C array's, read backwards: PyTorch's 64 x 784 is 784 x 64, and its last dim is
     dim 0. Classes of softmax and losses are in dim 0, and labels count from 0.
   - A plain `for` that computes keeps all that it makes: write flux_times or flux_each. And what
     such an iteration made is gone after it, also where x = flux_exp(x) sets a variable from
     outside: flux_keep and flux_carry take it along.
   - flux_max(x, 1) is over dimension 1; the larger of two tensors is flux_max2. flux_mul is element
     by element; flux_matmul is the matrix product.
   - flux_conv(x, weight) is the operation, flux_conv(FLUX_SHAPE(3, 3), in, out) the layer. Both
     flip the kernel, as Flux does; flux_crosscor does not, as PyTorch's Conv2d.
   - flux_crossentropy and flux_binarycrossentropy want probabilities. For the outputs of a last
     layer without softmax or sigmoid there are flux_logitcrossentropy and
     flux_logitbinarycrossentropy.
   - Layers behave as in training unless they are called inside FLUX_INFER or FLUX_NOGRAD, or
     flux_testmode says so: a prediction elsewhere has Dropout in it.
   - flux_update puts new tensors in the place of parameters and uses up the loss's graph: look
     gradients up before it, and parameters (flux_param) after it.
   - flux_var and flux_std divide by n, PyTorch's by n - 1.
   - The pointer of flux_data is good as long as its tensor lives: flux_floats(flux_add(x, 1)) in a
     loop is gone with the iteration. The memory of flux_borrow must outlive the tensor.
   - Each thread's random numbers begin at seed 0, so that every run draws the same ones:
     flux_seed((uint64_t)time(NULL)) for others.

   THE SAME BITS
   The bits of a value depend on what is computed and on nothing else: not on whether the value was
   looked at, on what is computed beside it, on FLUX_EAGER or on the number of threads. Where an
   element stands in a tensor does not matter either, and the order of a sum follows from its shape.
   With the same seed, two runs of a program agree on all x86 processors that have AVX2 or AVX-512,
   and on all GPUs of one kind; processors and GPUs do not agree with each other. The exceptions:
   - x86 without AVX2 (FLUX_SIMD=base), other processors, and compilers without vectors differ in
     the last bits: they have no fused multiply-add, or they join sums and products in other lanes.
     Random numbers are the same everywhere;
   - products of bf16 differ where the processor has its own instructions for them (AVX512_BF16,
     AMX), and all products differ under FLUX_BLAS;
   - functions of float64 (exp, sin, ...), and normal random numbers of float64, are those of the C
     library or of the GPU's compiler;
   - numbers below the smallest normal one (1.2e-38 in float32): on x86 such a result becomes 0, no
     matter which operation computes it, an update or a formula; other processors and GPUs keep it.
     Numbers that the program itself supplies, as data or as constants, are kept everywhere.
   A sum of float32 has an error of at most 1e-6 of the sum of magnitudes, whatever its length.
   Convolutions of 3 x 3 in float32 with many channels multiply sums and differences of pixels on
   processors with AVX2 (Winograd's way): with up to twice the error of other convolutions, and
   results may be NaN that hold an infinite pixel in their window.

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
                             the scope's file and line; this is also on where the compiler does not
                             optimise (-O0), unless NDEBUG is defined, which spares the smallest
                             steps a sixth of their time there. Without it, the address sanitizer
                             finds such a use.
       FLUX_CUDA, FLUX_HIP   adds NVIDIA's GPUs (flux_cuda.h lies beside this file), AMD's
                             (flux_hip.h), or both; see GPUS
       FLUX_MPI              several processes train together, by MPI, which is opened at run time;
                             see flux_distributed
       FLUX_BLAS             matrix products are done by the CBLAS that your program links, for
                             machines that the library's own kernels do not know: OpenBLAS, MKL,
                             BLIS, Accelerate (`cc -DFLUX_BLAS app.c -lopenblas -lm`). Whether the
                             results are the same for any number of threads is then up to it. Its
                             integers must be 32 bits wide (if they are not, or if you use CBLAS
                             yourself, include its cblas.h before this file)
       FLUX_MALLOC(n), FLUX_REALLOC(p, n), FLUX_FREE(p)      your own allocator; define all three

   COMPILING
   Link libm; older systems also want -lpthread and -ldl. C11 and later and C++11 and later compile
   without a warning. C++ wants the options of a call named all or none, as the standard has it:
   flux_dataloader(.x = x, .y = y, .batchsize = 64); clang, and g++ up to C++17, also take what C
   does. In C, gcc and clang do not warn of a field that is written twice (-Woverride-init) in a
   file that includes this one, because that is how options come by their defaults.
   With gcc, optimisation flags matter little: what counts is compiled for speed whatever you ask
   for, and at -O0 products, elementwise work and training steps run at 0.9 to 1.0 of their speed at
   -O2. clang has no such means: at -O0 training steps take 3 to 14 times as long and elementwise
   work 10 to 50 times, so give it -O2 for the file that has the implementation. tcc, which does not
   optimise, and MSVC, whose code has not been measured, compile plain C without vectors.

   BUILDING QUICKLY
   The implementation takes a compiler seconds (on a slow core gcc 7, with or without -O2; clang 26
   at -O2 and 2.5 without), a file that only includes this one 0.05 s. So give the implementation a
   file of its own, impl.c, which holds those two lines:
       cc -O2 -c impl.c                        once
       cc prog.c impl.o -lm -o prog            prog.c has only #include "flux.h"
   For prototypes, tcc compiles a program with its implementation and runs it, in a tenth of a
   second; what it computes is slower:
       tcc -run prog.c
   C++ in five lines, app.cpp, to which impl.o is linked as C compiled it:
       #include "flux.h"
       int main() {
           auto *model = flux_chain(flux_dense(2, 8, flux_tanh), flux_dense(8, 1));
           flux_print(flux_call(model, flux_ones(2, 3)));
       }

   OTHER LANGUAGES
       cc -O2 -shared -fPIC -DFLUX_IMPLEMENTATION -x c flux.h -o libflux.so -lm
   makes a library for Python's ctypes, Julia, Rust, ...; examples/from_python.py trains a network
   with it. What C writes as a macro NAME is a function NAME_with there, all arguments spelt out:
   - options: flux_dense_with takes a struct by value. It starts as zeros, and a field that is 0 is
     left out. An optimiser is made and set up by flux_setup_named;
   - a shape: flux_reshape_with takes a flux_shape, also by value: an int and 8 int64;
   - any number of arguments: flux_chain_with, flux_gradient_with, flux_call_with, ... take their
     count and an array; names, where they are wanted, are a text, "x, y", or NULL;
   - what takes any kind of object: flux_gpu, flux_cpu and flux_to_tensor take tensors,
     flux_gpu_layer, flux_save_layer, flux_print_layer, ... the others;
   - numbers beside tensors: flux_expr_with("(x .- 1) .* 0.5", 1, "x", xs), which also knows the
     losses, or flux_scalar;
   - flux_times and FLUX_SCOPE: calls between flux_scope_open and flux_scope_close; for inference
     flux_testmode. Only flux_each has no such form: flux_train goes through a loader.
   Arrays are shared without a copy by DLPack (flux_to_dlpack, flux_from_dlpack).

   VERSION
   FLUX_VERSION is major * 10000 + minor * 100 + patch, and FLUX_VERSION_STRING the same as text. A
   patch changes no declaration; a minor version adds some, and what it renames keeps its old name
   for one more; a major version may take names away. Before 1.0.0 a minor version may do so, too.
       #if FLUX_VERSION < 100
       #  error "flux.h 0.1.0 or later is needed"
       #endif
   flux_version() is the FLUX_VERSION that the implementation was compiled with, for those who link
   it or load it as a library.

   GPUS
       cc -O2 -DFLUX_CUDA prog.c -lm           NVIDIA
       cc -O2 -DFLUX_HIP prog.c -lm            AMD

   Nothing of CUDA's or ROCm's is needed to build, and the program runs where there is no GPU. What
   was written with flux_gpu(model) and flux_gpu(loader) uses one if there is one. When a program
   first asks for a GPU, the library opens these, each by the path in a variable of the environment,
   and then no other; or else by its name, in the system's places and in the folders named last:
   - NVIDIA's driver      FLUX_CUDA_LIBRARY; libcuda.so.1
   - NVRTC, its compiler, from 11.2 on; the newest that the driver takes
                          FLUX_NVRTC; libnvrtc.so.13, .12, .11.2, libnvrtc.so; lib64 and lib of
                          CUDA_PATH, CUDA_HOME, /usr/local/cuda
   - AMD's HIP runtime    FLUX_HIP_LIBRARY; libamdhip64.so.7, .6, .5, libamdhip64.so; lib of
                          ROCM_PATH, HIP_PATH, /opt/rocm
   - hiprtc, its compiler FLUX_HIPRTC; libhiprtc.so.7, .6, .5, libhiprtc.so; the same folders, then
                          the runtime itself
   - NCCL, RCCL           FLUX_NCCL_LIBRARY; libnccl.so.2, and FLUX_RCCL_LIBRARY; librccl.so.1, the
                          folders of HIP: for several processes, with FLUX_MPI
   On Windows they are nvcuda.dll, nvrtc64_130_0.dll, amdhip64_7.dll, hiprtc0700.dll and older ones.
   cuDNN and others are opened only if the program asks for them:
   flux_functional_with("CUDA", "cuDNN"). If something is missing, the program goes on with the CPU
   and says so once, and flux_functional_reason("CUDA") gives the reason:

       flux_device best = flux_get_device(.verbose = true);
       flux: get_device: using CPU: CUDA: no NVIDIA driver: libcuda.so.1 is not there; ...

   Each schedule becomes a few kernels. They are written as source for exactly these shapes,
   compiled once, and kept on disk (FLUX_CACHE_DIR) by source, architecture and the compiler's
   version, in a folder that nobody but you may write to, nor to those above it. If all are there,
   the compiler is not even opened; if its file is gone, the program goes on with the CPU and says
   so. flux_prewarm(model, 784, 64) compiles ahead. Launches, copies and the reuse of memory are
   queued on a stream of the library's own, and only a look at a value waits. So what goes wrong on
   the device, an index out of range for instance, is reported at the next look.
   A step that is met for the third time is launched as one CUDA or HIP graph. Its kernels are the
   same and memory comes back at the same addresses; only kernels whose arguments changed, by a step
   count or a learning rate, are told so before the launch. The numbers are those of single
   launches, bit for bit. NCCL's collectives are part of that graph where all ranks can have one.
   Kernels are launched one by one under FLUX_REPLAY=0, under FLUX_TRACE, and by drivers without
   these calls (CUDA before 12, old ROCm).
   The next batch of a loader on a device travels on a second stream while the device works on this
   one, from pinned memory whoever made it: observations that are only picked are picked right into
   that memory, and what workers, transforms or a data set made is copied there.
   Products and convolutions of float16 and bfloat16 use tensor cores (NVIDIA: float16 from sm_75,
   bfloat16 from sm_80 on; sm_90 by warpgroups, with a compiler and a driver of CUDA 12, unless
   FLUX_WGMMA=0) or matrix cores (AMD: gfx908, gfx90a, gfx94x, gfx950, also for float32; RDNA 3 and
   4: gfx110x, gfx115x, gfx120x) and sum in float32. So do large products of float32 by warpgroups, each number as the sum of
   three bfloat16, with errors no larger than those of plain arithmetic units; what these can't
   hold, infinities, NaN and numbers beyond 2^127 or below 2^-108, is multiplied plainly. They take
   memory of 1.5 times their operands meanwhile. flux_allow_tf32(true) lets NVIDIA's multiply
   float32 as TF32, on sm_90 as the sum of two bfloat16; without it float32 is computed to its full
   precision. All else, float64 too, runs on plain arithmetic units.
   A convolution multiplies the windows where they lie in the image, forward and backward; no copy
   of them is made.
   flux_get_device(.backend = "CUDA", .id = 1) names one of several GPUs, flux_to(device, model)
   moves there, and a tensor knows where it is; two tensors on different devices in one call are an
   error that names both. Each device has a lock of its own, which nobody holds while waiting or
   compiling: threads use one device, or several, side by side. The context that your program has
   made current is never changed. A process that is forked after a device was opened can't use it.
   What of this was proved without a GPU, and how, is told in tests/softgpu/README.md.

   ENVIRONMENT
   Everything that the library reads from it; a program with rights that its user lacks, such as a
   setuid one, reads none of it.
       FLUX_NUM_THREADS=n    threads for CPU work, 1 for none but yours (default: the processors
                             there are)
       FLUX_EAGER=1          computes each operation when called, for a debugger: the same bits
       FLUX_ERROR=abort      stops in the debugger at the first error
       FLUX_LOG=level        error, warn, info (default), debug; or "schedule" to list kernels as
                             they are planned, "source" to see their text for the GPU's compiler
       FLUX_TRACE=file.json  writes what ran when, a kernel an event, for ui.perfetto.dev; of several
                             processes rank 3 writes file.json.3. A collective is an event, too,
                             which says how long it took and how much of that kernels hid
       FLUX_PROFILE=1        prints at the end where the time went, by layer, see flux_profile
       FLUX_SIMD=name        uses no better instruction set than base, avx2, avx512 or avx512_bf16,
                             to compare or debug; avx512 leaves out a processor's own products of
                             bf16, avx512_bf16 those of AMX's tiles
       FLUX_GPU_BACKEND      CUDA, AMDGPU, Metal or CPU: overrides the preferences file
       FLUX_PREFERENCES      path of that file, in place of LocalPreferences.toml in the working
                             directory or above it
       FLUX_REPLAY=0         launches a GPU's kernels one by one, never as a graph
       FLUX_WGMMA=0          multiplies and attends on sm_90 as on sm_80
       FLUX_CACHE_DIR        where kernels compiled for GPUs are kept; else flux in XDG_CACHE_HOME,
                             .cache/flux in HOME, or flux in LOCALAPPDATA. Paths begin at the root;
                             a relative one is passed over, and so is a folder that others may write
                             to, or to those above it
       XDG_CACHE_HOME, HOME, LOCALAPPDATA      see FLUX_CACHE_DIR
       FLUX_CUDA_LIBRARY, FLUX_NVRTC, CUDA_PATH, CUDA_HOME      where NVIDIA's libraries are (GPUS)
       FLUX_HIP_LIBRARY, FLUX_HIPRTC, ROCM_PATH, HIP_PATH       where AMD's are
       FLUX_NCCL_LIBRARY, FLUX_RCCL_LIBRARY     the same, of their collectives
       FLUX_MPI_LIBRARY      MPI's library; else the one that the program is linked with, or the
                             launcher's own: libmpi.so.40, libmpich.so.12, libmpi_abi.so.0, ...
       OMPI_COMM_WORLD_SIZE, PMI_SIZE, PMIX_RANK, PALS_SIZE, ALPS_APP_PE_COUNT
       SLURM_STEP_NUM_TASKS  by which launchers tell a program that it is one of several
       CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES, GPU_DEVICE_ORDINAL
                             the drivers' own; if they leave no device, the reason names them
       FLUX_ZLIB_LIBRARY     zlib, which is opened for files that are compressed by gzip and for npz;
                             else libz.so.1, libz.dylib or zlib1.dll
       FLUX_ASCII=1          prints x and s in place of Unicode signs
       COLUMNS, NO_COLOR, TERM, WT_SESSION     the terminal's width; whether to print in colour

   CONTENTS
   What follows the interface is joined from rooms, the files of src/, in this order. Each begins
   with a line that has its name; src/README.md is their map.
     base/      platform threads system object errors backend dtypes text memory sinks listing
                scopes ending workers options ranks
     graph/     table nodes elementwise leaves views reductions picking scans sorting draws
                products einsum windows interpolation attention custom gradients backward
     schedule/  kernel claims key analysis grouping gathers program spelling dispatch order trace
                profile plans looking update
     cpu/       loops float64 float32 vectors casts reductions random gemm_kernels gemm_pack
                gemm_tasks gemm_panels gemm_amx gemm_plan depthwise conv_direct backend transfers blocks
                run products whole padding winograd winograd_gradient rows chains conv_amx
                conv_amx_gradient product_operands windows pooling ready kept_operands product_batches
                thin_products half_products shared_operands attention sorting interpolation calls
     gpu/       kernels devices copies launch vectors fused tiles gemm gemm_fma gemm_wgmma
                gemm_planes gemm_mma sorting whole attention attention_mma attention_wgmma
                program cache compile backend
     device/    registry preferences choosing sharing
     data/      orders loader batch loader_text progress epoch subsets
     nn/        fields walk map functions initialisers activations layers model gradient rules
                state adjust grads moves compile containers variables recurrent dropout transformer attention
                conv norms losses metrics ctc update schedules average train loops
     files/     gzip sources idx npy csv table safetensors tensors npz images folders torch
     text/      dot tensors models summary profile formulas formula_reader own_operations export_words
                export_fused export_whole export_products export
     dist/      mpi_library mpi window nccl_library comm handshakes nccl messages replay collectives
                model optimiser
*/
#ifndef FLUX_H
#define FLUX_H

#include "api/types.h"
#include "api/errors.h"
#include "api/memory.h"
#include "api/devices.h"
#include "api/tensors.h"
#include "api/operations.h"
#include "api/custom.h"
#include "api/models.h"
#include "api/layers.h"
#include "api/losses.h"
#include "api/metrics.h"
#include "api/optimisers.h"
#include "api/data.h"
#include "api/training.h"
#include "api/distributed.h"
#include "api/sharing.h"
#include "api/calls.h"
#include "api/dispatch.h"
#include "api/macros.h"
#include "api/aliases.h"

#endif /* FLUX_H */

/* =================================================================================================
   The interface ends here. What follows is the implementation; you need not read it to use the
   library. It is made from the rooms in src/ by `make flux.h`: change it there.
   ============================================================================================== */
#if defined(FLUX_IMPLEMENTATION) && !defined(FLUX__IMPLEMENTED)
#define FLUX__IMPLEMENTED

/* gcc before 15 loses its place in a C file of this length whenever -Wmisleading-indentation, which
   -Wall asks for, looks at an `if` or a loop without braces, and reads the file again from near its
   beginning: half of a compilation. That warning is not given after a #line, in this file or in
   the one that includes it. The number is the line's own, which src/join.sh writes. */
#if defined(__GNUC__) && __GNUC__ < 15 && !defined(__clang__) && !defined(__cplusplus)
#line __LINE__
#endif

#include "base/platform.h"
#include "base/threads.h"
#include "base/system.h"
#include "base/object.h"
#include "base/errors.h"
#include "base/backend.h"
#include "base/dtypes.h"
#include "base/text.h"
#include "base/memory.h"
#include "base/sinks.h"
#include "base/listing.h"
#include "base/scopes.h"
#include "base/ending.h"
#include "base/workers.h"
#include "base/options.h"
#include "base/ranks.h"
#include "graph/table.h"
#include "graph/nodes.h"
#include "graph/elementwise.h"
#include "graph/leaves.h"
#include "graph/views.h"
#include "graph/reductions.h"
#include "graph/picking.h"
#include "graph/scans.h"
#include "graph/sorting.h"
#include "graph/draws.h"
#include "graph/products.h"
#include "graph/einsum.h"
#include "graph/windows.h"
#include "graph/interpolation.h"
#include "graph/attention.h"
#include "graph/custom.h"
#include "graph/gradients.h"
#include "graph/backward.h"
#include "schedule/kernel.h"
#include "schedule/claims.h"
#include "schedule/key.h"
#include "schedule/analysis.h"
#include "schedule/grouping.h"
#include "schedule/gathers.h"
#include "schedule/program.h"
#include "schedule/spelling.h"
#include "schedule/dispatch.h"
#include "schedule/order.h"
#include "schedule/trace.h"
#include "schedule/profile.h"
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
#include "cpu/gemm_panels.h"
#include "cpu/gemm_amx.h"
#include "cpu/gemm_plan.h"
#include "cpu/depthwise.h"
#include "cpu/conv_direct.h"
#include "cpu/backend.h"
#include "cpu/transfers.h"
#include "cpu/blocks.h"
#include "cpu/run.h"
#include "cpu/products.h"
#include "cpu/whole.h"
#include "cpu/padding.h"
#include "cpu/winograd.h"
#include "cpu/winograd_gradient.h"
#include "cpu/rows.h"
#include "cpu/chains.h"
#include "cpu/conv_amx.h"
#include "cpu/conv_amx_gradient.h"
#include "cpu/product_operands.h"
#include "cpu/windows.h"
#include "cpu/pooling.h"
#include "cpu/ready.h"
#include "cpu/kept_operands.h"
#include "cpu/product_batches.h"
#include "cpu/thin_products.h"
#include "cpu/half_products.h"
#include "cpu/shared_operands.h"
#include "cpu/attention.h"
#include "cpu/sorting.h"
#include "cpu/interpolation.h"
#include "cpu/calls.h"
#if defined(FLUX_CUDA) || defined(FLUX_HIP)
#include "gpu/kernels.h"
#include "gpu/devices.h"
#include "gpu/copies.h"
#include "gpu/launch.h"
#include "gpu/vectors.h"
#include "gpu/fused.h"
#include "gpu/tiles.h"
#include "gpu/gemm.h"
#include "gpu/gemm_fma.h"
#include "gpu/gemm_wgmma.h"
#include "gpu/gemm_planes.h"
#include "gpu/gemm_mma.h"
#include "gpu/sorting.h"
#include "gpu/whole.h"
#include "gpu/attention.h"
#include "gpu/attention_mma.h"
#include "gpu/attention_wgmma.h"
#include "gpu/program.h"
#include "gpu/cache.h"
#include "gpu/compile.h"
#include "gpu/backend.h"
#endif
#include "device/registry.h"
#include "device/preferences.h"
#include "device/choosing.h"
#include "device/sharing.h"
#include "data/orders.h"
#include "data/loader.h"
#include "data/batch.h"
#include "data/loader_text.h"
#include "data/progress.h"
#include "data/epoch.h"
#include "data/subsets.h"
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
#include "nn/grads.h"
#include "nn/moves.h"
#include "nn/compile.h"
#include "nn/containers.h"
#include "nn/variables.h"
#include "nn/recurrent.h"
#include "nn/dropout.h"
#include "nn/transformer.h"
#include "nn/attention.h"
#include "nn/conv.h"
#include "nn/norms.h"
#include "nn/losses.h"
#include "nn/metrics.h"
#include "nn/ctc.h"
#include "nn/update.h"
#include "nn/schedules.h"
#include "nn/average.h"
#include "nn/train.h"
#include "nn/loops.h"
#include "files/gzip.h"
#include "files/sources.h"
#include "files/idx.h"
#include "files/npy.h"
#include "files/csv.h"
#include "files/table.h"
#include "files/safetensors.h"
#include "files/tensors.h"
#include "files/npz.h"
#include "files/images.h"
#include "files/folders.h"
#include "files/torch.h"
#include "text/dot.h"
#include "text/tensors.h"
#include "text/models.h"
#include "text/summary.h"
#include "text/profile.h"
#include "text/formulas.h"
#include "text/formula_reader.h"
#include "text/own_operations.h"
#include "text/export_words.h"
#include "text/export_fused.h"
#include "text/export_whole.h"
#include "text/export_products.h"
#include "text/export.h"
#include "dist/mpi_library.h"
#include "dist/mpi.h"
#include "dist/window.h"
#include "dist/nccl_library.h"
#include "dist/comm.h"
#include "dist/handshakes.h"
#include "dist/nccl.h"
#include "dist/messages.h"
#include "dist/replay.h"
#include "dist/collectives.h"
#include "dist/model.h"
#include "dist/optimiser.h"

#endif /* FLUX_IMPLEMENTATION */
