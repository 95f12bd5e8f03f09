# Kernels as the real NVRTC makes them: its PTX becomes C (tests/softgpu/ptx.c), so that the software GPU runs what a card's
# assembler would get, optimised and with NVRTC's own mathematics, in place of the source. test_softgpu has each instruction. Five tests
# of the suite and attention; PTX="picking ops layers_conv ..." names others (convolutions alone take NVRTC two minutes).
. tests/check.sh
check "software GPU" env MAKEFLAGS= make -s CC="$CC" softgpu || finish
unset FLUX_CUDA_LIBRARY FLUX_NVRTC
inside gpu || finish
check "tests/rtc.c compiles" "$CC" -std=c11 -O0 -w $looks tests/rtc.c "$impl" -o "$tmp/rtc" -lm || finish
SOFTGPU_PTX=$("$tmp/rtc" where 2>"$tmp/log") || {
    skip "kernels by NVRTC's PTX: no NVRTC here; package: nvidia-cuda-toolkit, or PyPI's nvidia-cuda-nvrtc with FLUX_NVRTC"; finish; }
export SOFTGPU_PTX FLUX_CACHE_DIR="$(realpath "$tmp")/cache" SOFTGPU_SOURCES="$(realpath "$tmp")/sources" SHORT=1
mkdir -p "$SOFTGPU_SOURCES"
for name in ${PTX:-products planes activations losses transformer}; do
    [ "$name" != attention ] || continue
    mkdir -m 700 "$FLUX_CACHE_DIR"
    check "test_$name compiles" env MAKEFLAGS= make -s CC="$CC" BUILD="$BUILD" "$BUILD/gpu/test_$name" || continue
    sh tests/on_device.sh soft-cuda1 "$BUILD/gpu/test_$name" >"$tmp/out" 2>&1 || { grep -v '^flux:' "$tmp/out" | head -n 30; fail "test_$name by PTX"; }
    add "test_$name by PTX" "$tmp/out"
    rm -rf "$FLUX_CACHE_DIR"
done
# Attention by warpgroups; the rest of its test is compiled for minutes.
case " ${PTX:-attention} " in *" attention "*)
    mkdir -m 700 "$FLUX_CACHE_DIR"
    check "test_layers_seq compiles" env MAKEFLAGS= make -s CC="$CC" BUILD="$BUILD" "$BUILD/gpu/test_layers_seq"
    sh tests/on_device.sh soft-cuda1 "$BUILD/gpu/test_layers_seq" attention_of_warpgroups >"$tmp/out" 2>&1 && grep -q x1_lines "$SOFTGPU_SOURCES"/* ||
        { grep -v '^flux:' "$tmp/out" | head -n 30; fail "attention by warpgroups"; }
    add "attention by warpgroups" "$tmp/out"
    rm -rf "$FLUX_CACHE_DIR" ;;
esac
# Products by warpgroups were among them; where the driver refuses these, others replace them.
case " ${PTX:-products} " in *" products "*)
    grep -q wgmma.mma_async "$SOFTGPU_SOURCES"/* && pass || fail "no product by warpgroups"
    mkdir -m 700 "$FLUX_CACHE_DIR"
    SOFTGPU_FAIL=cuFuncSetAttribute:1=1 sh tests/on_device.sh soft-cuda1 "$BUILD/gpu/test_products" products_of_warpgroups_again >"$tmp/out" 2>&1 &&
        grep -q "products can't use warpgroups" "$tmp/out" && pass || { grep -v '^flux:' "$tmp/out" | head -n 30; fail "products by warpgroups, refused"; } ;;
esac
finish
