// drivers.cc - flux_cuda.h's and flux_hip.h's own declarations against the vendors' headers; tests/check_drivers.sh compiles
// it, which is the test. Ours name handles void *, and codes and other enumerations int; all else must be the same.
#if defined CHECK_CUDA
#include <cuda.h>
#include <nvrtc.h>
#define FLUX_CUDA
#else
#define __HIP_PLATFORM_AMD__ 1
#define __HIP_DISABLE_CPP_FUNCTIONS__   // overloads for C++, beside which a call has no type of its own
#include <hip/hip_runtime_api.h>
#include <hip/hiprtc.h>
#define FLUX_HIP
#endif
#include <type_traits>
#define FLUX_IMPLEMENTATION
#include "../flux.h"

// Ours, theirs: alike as arguments of a call. Numbers are, of one size; what is behind a pointer to void is a handle or memory.
template <class T> struct number { static const bool value = std::is_integral<T>::value || std::is_enum<T>::value; };
template <class A, class B, bool numbers> struct alike_values { static const bool value = std::is_same<A, B>::value; };
template <class A, class B> struct alike_values<A, B, true> { static const bool value = sizeof(A) == sizeof(B); };
template <class A, class B> struct alike : alike_values<A, B, number<A>::value && number<B>::value> {};
template <class B> struct alike<void, B> { static const bool value = !number<B>::value && !std::is_floating_point<B>::value; };
template <class A, class B> struct alike<A *, B *> {
    typedef typename std::remove_cv<A>::type a;
    typedef typename std::remove_cv<B>::type b;
    static const bool value = alike<a, b>::value;
};
template <class F, class G> struct same { static const bool value = false; };
template <class R, class S> struct same<R (*)(), S (*)()> { static const bool value = alike<R, S>::value; };
template <class R, class A, class... As, class S, class B, class... Bs> struct same<R (*)(A, As...), S (*)(B, Bs...)> {
    static const bool value = alike<A, B>::value && same<R (*)(As...), S (*)(Bs...)>::value;
};
#define SAME(table, call, theirs) static_assert(same<decltype(table::call), decltype(&theirs)>::value, "declared otherwise: " #theirs);
#define IS(number, name) static_assert((int)(name) == (number), "not " #number ": " #name);

// The comparison itself: what differs is told apart.
enum some_code : int { SOME_CODE };
static_assert(same<int (*)(void **, int), some_code (*)(struct some_handle **, int)>::value, "");
static_assert(!same<int (*)(void *, int), int (*)(void *)>::value && !same<int (*)(int), int (*)(size_t)>::value, "");
static_assert(!same<int (*)(int *), int (*)(size_t *)>::value && !same<int (*)(void *), int (*)(int)>::value, "");

#if defined CHECK_CUDA
#define CU(call, symbol) SAME(flux__cu_calls, call, symbol)
#define RTC(call) SAME(flux__nvrtc_calls, call, nvrtc##call)
FLUX__CU_CALLS(CU)
FLUX__NVRTC_CALLS(RTC)
#if CUDA_VERSION >= 12000
FLUX__CU_GRAPH_CALLS(CU)
#define THERE(a, b) (offsetof(flux__cu_node, a) == offsetof(CUDA_KERNEL_NODE_PARAMS, b))
static_assert(sizeof(flux__cu_node) == sizeof(CUDA_KERNEL_NODE_PARAMS) && THERE(function, func) && THERE(grid, gridDimX) && THERE(block, blockDimX), "");
static_assert(THERE(shared, sharedMemBytes) && THERE(args, kernelParams) && THERE(extra, extra) && THERE(kernel, kern) && THERE(context, ctx), "");
#endif
static_assert(sizeof(CUdeviceptr) == sizeof(unsigned long long) && sizeof(CUdevice) == sizeof(int), "");
IS(75, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) IS(76, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
IS(16, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) IS(1, CU_STREAM_NON_BLOCKING) IS(2, CU_EVENT_DISABLE_TIMING)
IS(8, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) IS(6, CU_TENSOR_MAP_DATA_TYPE_FLOAT16) IS(9, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16)
IS(0, CU_TENSOR_MAP_INTERLEAVE_NONE) IS(3, CU_TENSOR_MAP_SWIZZLE_128B) IS(3, CU_TENSOR_MAP_L2_PROMOTION_L2_256B) IS(0, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
static_assert(sizeof(CUtensorMap) == 128 && 128 % alignof(CUtensorMap) == 0, "");
IS(1, CU_MEMHOSTALLOC_PORTABLE) IS(0, CUDA_SUCCESS) IS(2, CUDA_ERROR_OUT_OF_MEMORY) IS(0, NVRTC_SUCCESS)
IS(214, CUDA_ERROR_ECC_UNCORRECTABLE) IS(220, CUDA_ERROR_NVLINK_UNCORRECTABLE) IS(700, CUDA_ERROR_ILLEGAL_ADDRESS)
IS(702, CUDA_ERROR_LAUNCH_TIMEOUT) IS(710, CUDA_ERROR_ASSERT) IS(714, CUDA_ERROR_HARDWARE_STACK_ERROR)
IS(715, CUDA_ERROR_ILLEGAL_INSTRUCTION) IS(716, CUDA_ERROR_MISALIGNED_ADDRESS) IS(717, CUDA_ERROR_INVALID_ADDRESS_SPACE)
IS(718, CUDA_ERROR_INVALID_PC) IS(719, CUDA_ERROR_LAUNCH_FAILED) IS(4, CUDA_ERROR_DEINITIALIZED) IS(709, CUDA_ERROR_CONTEXT_IS_DESTROYED)
#if CUDA_VERSION >= 13000
IS(226, CUDA_ERROR_CONTAINED) IS(721, CUDA_ERROR_TENSOR_MEMORY_LEAK)
#endif
#else
#define ROC(call) SAME(flux__roc_calls, call, hip##call)
#define RTC(call) SAME(flux__hiprtc_calls, call, hiprtc##call)
FLUX__ROC_CALLS(ROC)
FLUX__ROC_GRAPH_CALLS(ROC)
FLUX__HIPRTC_CALLS(RTC)
#define THERE(a, b) (offsetof(flux__roc_node, a) == offsetof(hipKernelNodeParams, b))
static_assert(sizeof(flux__roc_node) == sizeof(hipKernelNodeParams) && THERE(block, blockDim) && THERE(extra, extra) && THERE(function, func), "");
static_assert(THERE(grid, gridDim) && THERE(args, kernelParams) && THERE(shared, sharedMemBytes) && sizeof(dim3) == 12, "");
static_assert(sizeof(hipDeviceProp_t) <= 16384 && sizeof(hipDevice_t) == sizeof(int), "");
IS(63, hipDeviceAttributeMultiprocessorCount) IS(1, hipStreamNonBlocking) IS(2, hipEventDisableTiming) IS(1, hipHostMallocPortable)
IS(0, hipSuccess) IS(2, hipErrorOutOfMemory) IS(0, HIPRTC_SUCCESS) IS(214, hipErrorECCNotCorrectable) IS(700, hipErrorIllegalAddress)
IS(702, hipErrorLaunchTimeOut) IS(710, hipErrorAssert) IS(719, hipErrorLaunchFailure)
IS(4, hipErrorDeinitialized) IS(709, hipErrorContextIsDestroyed)
#endif
