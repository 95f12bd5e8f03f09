# build.sh LIBRARY - builds one part of the software GPU, which stands in for the drivers, run-time
# compilers and collectives of CUDA and HIP: what it is made of is told by its name. `make softgpu` builds all.
library=$1
case ${1##*/} in
libcuda.so.1) set -- -DSOFT_CUDA driver.c cuda.c control.c ;;
libamdhip64.so.6) set -- -DSOFT_HIP driver.c hip.c control.c ;;
libnccl.so.2) set -- -DSOFT_CUDA nccl.c control.c ;;
librccl.so.1) set -- -DSOFT_HIP nccl.c control.c ;;
libnvrtc.so.13) set -- -DSOFT_CUDA compiler.c prelude.c control.c ptx.c ;;
libhiprtc.so.6) set -- -DSOFT_HIP compiler.c prelude.c control.c ;;
softgpu-device) set -- -rdynamic device.c matrices.c async.c race.c ;;
softgpu-cc.so) set -- -fPIC -shared server.c ;;
esac
case $library in *.so.*) set -- -fPIC -shared -fvisibility=hidden "$@" ;; esac
mkdir -p "$(dirname "$library")" && library=$(cd "$(dirname "$library")" && pwd)/${library##*/}
cd "$(dirname "$0")" || exit 1
exec ${CC:-cc} -std=c11 -O2 -Wall -Wextra -Wpedantic "$@" -o "$library" -lpthread -ldl -lm
