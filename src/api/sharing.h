#ifndef FLUX__API_SHARING_H
#define FLUX__API_SHARING_H
#include "distributed.h"

/* ------------------------------------------------------------------ memory shared with others
   Memory and streams that are shared, without a copy, with the rest of a program: its own CUDA or
   HIP code, PyTorch, NumPy, a camera. Tensors never change, so neither side writes to memory that
   both see.

   On a GPU, who writes and who reads must be put in order. Our work on a device is queued on one
   stream, flux_stream(d). Before the program reads what we compute, it makes its stream wait for an
   event on ours, or calls flux_synchronise_device; before we read what it writes, it makes our
   stream wait for an event on its own. With flux_use_stream both use one stream, and nothing has to
   wait. The contexts are the devices' primary ones, which the CUDA runtime and PyTorch use too. */

/* Where the elements of x lie: host memory, or memory of x's GPU; contiguous, dimension 0 fastest,
   valid as long as x lives. x is computed, which on a GPU means: queued. NULL on error, as for a
   view whose elements do not follow each other (flux_copy makes them). flux_data gives host memory
   in any case. */
FLUX_API const void *flux_pointer(flux_tensor *x);
/* A tensor in memory of a device, which is neither copied nor written. It must not change until
   done(user) is called (done may be NULL), when the last tensor in it is gone and the GPU has done
   all work on it. That may be on any thread, and done makes no call of flux_ but flux_release. ptr
   may be NULL if there are no elements. On error NULL, and done is not called. */
FLUX_API flux_tensor *flux_borrow_on(flux_device d, const void *ptr, flux_dtype t, flux_shape s,
                                     void (*done)(void *user), void *user);
/* The stream of a GPU on which our work is queued: a cudaStream_t (CUstream) or hipStream_t. It
   does not wait for the default stream. NULL, with an error, for a device that has none. */
FLUX_API void *flux_stream(flux_device d);
/* Queues our work on the device on a stream of the program's from now on; NULL: on our own again.
   (CUDA's default stream is cudaStreamLegacy, not NULL.) Waits for what is queued on the stream so
   far. No other thread may use the device meanwhile, and the stream must live until another call of
   this or flux_shutdown. Returns 0, or non-zero on error. */
FLUX_API int flux_use_stream(flux_device d, void *stream);

/* DLPack (https://dmlc.github.io/dlpack), by which NumPy, PyTorch, JAX, CuPy and others share
   arrays. Dimensions are reversed, as these count from the slowest: W x H x N is [N, H, W] there.
   Views keep their strides. Devices are CPU, CUDA (also its pinned and managed memory) and ROCm;
   the dtypes are all of ours. dlpack.h is not needed; where it is included, the pointers are to its
   structs.

   flux_to_dlpack gives x, which is computed, as a struct whose deleter the receiver calls when it
   has done with it; it keeps x alive. A flipped view is copied, because PyTorch takes no negative
   strides. The receiver must not write.
   flux_from_dlpack makes a tensor in the memory of such a struct and calls its deleter as
   flux_borrow_on does `done`. What is written to the memory meanwhile would show. On error NULL,
   and the struct is still the caller's.
   The versioned structs are those of DLPack 1; ours says that it is read-only. */
struct DLManagedTensor;
struct DLManagedTensorVersioned;
/* x as a DLPack struct; NULL on error. */
FLUX_API struct DLManagedTensor *flux_to_dlpack(flux_tensor *x);
/* A tensor in the memory of a DLPack struct; NULL on error. */
FLUX_API flux_tensor *flux_from_dlpack(struct DLManagedTensor *t);
/* x as a struct of DLPack 1. */
FLUX_API struct DLManagedTensorVersioned *flux_to_dlpack_versioned(flux_tensor *x);
/* A tensor in the memory of a struct of DLPack 1. */
FLUX_API flux_tensor *flux_from_dlpack_versioned(struct DLManagedTensorVersioned *t);

#endif /* FLUX__API_SHARING_H */
