# on_device.sh DEVICE PROGRAM...: runs a test program with its tensors on a device: cuda or hip, the machine's own, or one of
# software: soft-cuda1, soft-cuda3, soft-hip2 (so many devices). The software ones are built by `make softgpu`.
device=$1; shift
cd "$(dirname "$0")/.." || exit 1
soft=$PWD/build/softgpu
# kernels that are compiled otherwise, watched or from a real compiler's PTX, are others
export FLUX_CACHE_DIR="${FLUX_CACHE_DIR:-$PWD/build/cache-$device${SOFTGPU_RACES:+-watched}${SOFTGPU_PTX:+-ptx}}"
case $device in
soft-*) export SOFTGPU="$soft" SOFTGPU_DEVICES="${device##*[a-z]}" FLUX_CUDA_LIBRARY="$soft/libcuda.so.1" FLUX_NVRTC="$soft/libnvrtc.so.13" \
               FLUX_HIP_LIBRARY="$soft/libamdhip64.so.6" FLUX_HIPRTC="$soft/libhiprtc.so.6" ;;
esac
case $device in
*cuda*) export FLUX_TEST_DEVICE=CUDA ;;
*hip*) export FLUX_TEST_DEVICE=AMDGPU ;;
*) echo "on_device.sh: no device $device" >&2; exit 2 ;;
esac
exec "$@"
