// Whether the calls and numbers of src/dist/nccl_library.h are those of the nccl.h or rccl.h that is included. Compiled by
// tests/check_nccl.sh, which is the test. Ours has numbers for enumerations, and pointers to void for streams and communicators.
#if defined FLUX_HIP
#define __HIP_PLATFORM_AMD__ 1
#include <rccl/rccl.h>
#else
#include <nccl.h>
#endif
#include <cstddef>
#include <type_traits>
#define FLUX_IMPLEMENTATION
#include "flux.h"

template <class T, bool number> struct PlainValue { typedef T type; };
template <class T> struct PlainValue<T, true> { typedef int type; };
template <class T> struct Plain : PlainValue<T, std::is_enum<T>::value> {};
template <> struct Plain<ncclUniqueId> { typedef flux__nccl_id type; };
template <> struct Plain<ncclConfig_t> { typedef flux__nccl_config type; };
template <> struct Plain<std::remove_pointer<ncclComm_t>::type> { typedef void type; };
#if defined FLUX_HIP
template <> struct Plain<std::remove_pointer<hipStream_t>::type> { typedef void type; };
#else
template <> struct Plain<std::remove_pointer<cudaStream_t>::type> { typedef void type; };
#endif
template <class T> struct Plain<T *> { typedef typename Plain<T>::type *type; };
template <class T> struct Plain<const T *> { typedef const typename Plain<T>::type *type; };
template <class F> struct Call;
template <class R, class... P> struct Call<R(P...)> { typedef typename Plain<R>::type (*type)(typename Plain<P>::type...); };
#define SAME(name, parameters) \
    static_assert(std::is_same<Call<decltype(nccl##name)>::type, decltype(flux__nccl_calls::name)>::value, "nccl" #name " differs");
FLUX__NCCL_CALLS(SAME)
FLUX__NCCL_SPARE_CALLS(SAME)
SAME(GetErrorString, )
#define IS(number, name) static_assert((int)(name) == (number), "not " #number ": " #name);
IS(0, ncclSuccess) IS(FLUX__NCCL_IN_PROGRESS, ncclInProgress)
IS(FLUX__NCCL_UINT8, ncclUint8) IS(FLUX__NCCL_INT32, ncclInt32) IS(FLUX__NCCL_INT64, ncclInt64) IS(FLUX__NCCL_FLOAT16, ncclFloat16)
IS(FLUX__NCCL_FLOAT32, ncclFloat32) IS(FLUX__NCCL_FLOAT64, ncclFloat64) IS(FLUX__NCCL_BFLOAT16, ncclBfloat16)
IS(FLUX__NCCL_SUM, ncclSum) IS(FLUX__NCCL_PROD, ncclProd) IS(FLUX__NCCL_MAX, ncclMax) IS(FLUX__NCCL_MIN, ncclMin)
static_assert(sizeof(ncclUniqueId) == sizeof(flux__nccl_id), "");
#define THERE(field) static_assert(offsetof(ncclConfig_t, field) == offsetof(flux__nccl_config, field), #field);
THERE(size) THERE(magic) THERE(version) THERE(blocking)
static_assert(sizeof(flux__nccl_config) <= sizeof(ncclConfig_t) && NCCL_VERSION(2, 14, 0) == FLUX__NCCL_VERSION, "");
static const ncclConfig_t initialised = NCCL_CONFIG_INITIALIZER;
int main() { return initialised.magic != (unsigned)FLUX__NCCL_MAGIC; }
