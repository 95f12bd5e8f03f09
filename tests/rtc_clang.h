/* rtc_clang.h - what hiprtc gives a kernel before its first line, for a clang that has no ROCm beside it: the words of HIP that flux.h's
   kernels use. Mathematics, and __global__ and its like, are clang's own header's. ISA_VERSION: 11000 for gfx1100, which Debian's
   device libraries are too old to tell themselves. */
#define __HIPCC_RTC__ 1
#include <__clang_hip_runtime_wrapper.h>

#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(n) __attribute__((amdgpu_flat_work_group_size(1, n)))
#define HERE static __device__ __forceinline__

extern "C" __device__ __attribute__((address_space(4))) const int __oclc_ISA_version = ISA_VERSION;

struct rtc_dim { unsigned x, y, z; };
#define RTC_DIM(call) rtc_dim { call##_x(), call##_y(), call##_z() }
#define threadIdx (RTC_DIM(__builtin_amdgcn_workitem_id))
#define blockIdx (RTC_DIM(__builtin_amdgcn_workgroup_id))
#define gridDim (rtc_grid())
extern "C" __device__ __attribute__((const)) size_t __ockl_get_num_groups(unsigned);
HERE rtc_dim rtc_grid() { return rtc_dim { (unsigned)__ockl_get_num_groups(0), (unsigned)__ockl_get_num_groups(1), (unsigned)__ockl_get_num_groups(2) }; }

HERE void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

template <class to, class from> HERE to rtc_bits(from x) {
    to y;
    static_assert(sizeof x == sizeof y, "bits of one size");
    __builtin_memcpy(&y, &x, sizeof y);
    return y;
}
HERE float __uint_as_float(unsigned u) { return rtc_bits<float>(u); }
HERE unsigned __float_as_uint(float x) { return rtc_bits<unsigned>(x); }
HERE double __longlong_as_double(long long u) { return rtc_bits<double>(u); }
HERE long long __double_as_longlong(double x) { return rtc_bits<long long>(x); }

HERE unsigned atomicCAS(unsigned *at, unsigned from, unsigned to) {
    __hip_atomic_compare_exchange_strong(at, &from, to, __ATOMIC_RELAXED, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    return from;
}

/* A lane asks the one whose number it computes, by four bytes at a time. */
template <class T> HERE T __shfl_xor(T v, int with) {
    const int lane = (int)__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)), asked = lane ^ with,
              from = asked < __AMDGCN_WAVEFRONT_SIZE__ ? asked : lane;
    int word[sizeof v / 4];
    __builtin_memcpy(word, &v, sizeof v);
    for (unsigned i = 0; i < sizeof v / 4; i++) word[i] = __builtin_amdgcn_ds_bpermute(from * 4, word[i]);
    __builtin_memcpy(&v, word, sizeof v);
    return v;
}
#undef HERE
