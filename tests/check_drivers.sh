# The declarations of drivers' and compilers' calls in flux_cuda.h and flux_hip.h, and the numbers that they pass, are those
# of the vendors' own headers. These are looked for where they are usually installed; what is not there is skipped.
. tests/check.sh
need "$CXX" || finish

# with NAME HEADER PACKAGE DEFINE FOLDER...: compiles tests/drivers.cc with the first folder that has the header
with() {
    name=$1 header=$2 package=$3 define=$4; shift 4
    for folder in "$@"; do
        [ -f "$folder/$header" ] || continue
        check "$name: $folder" "$CXX" -std=c++11 -Wall -Wextra -Werror -Wno-unused -fsyntax-only -D"$define" -I. -isystem "$folder" tests/drivers.cc
        return
    done
    skip "$name: no $header on this machine; package: $package"
}
with "CUDA's declarations" nvrtc.h "NVIDIA's cuda-nvrtc-dev" CHECK_CUDA "$CUDA_PATH/include" "$CUDA_HOME/include" /usr/local/cuda/include /usr/include
with "HIP's declarations" hip/hiprtc.h libamdhip64-dev CHECK_HIP "$ROCM_PATH/include" "$HIP_PATH/include" /opt/rocm/include /usr/include
finish
