# What kernels of known shapes are in machine code: compiled by NVRTC and hiprtc without a GPU, and compared with the table that
# is committed, tests/gpu_report.txt (tests/gpu_report.c says what stands there; all of it is an estimate, nothing was measured).
# It fails if a kernel spills, is split into more launches, or has a lower share or estimate than in the table.
#     make gpu-report                             prints the table of now, and what is worse and better
#     make gpu-report WRITE=1                     writes it to tests/gpu_report.txt
# Needs NVRTC, hiprtc, llvm-objdump (OBJDUMP) and nvdisasm (NVDISASM), which is in CUDA's toolkit, in PyPI's nvidia-cuda-nvdisasm
# and, as of old, in triton.
. tests/check.sh
table=tests/gpu_report.txt
have "${NVDISASM:-nvdisasm}" || NVDISASM=$(ls $(python3 -c 'import site; print(*site.getsitepackages(), site.getusersitepackages())' 2>/dev/null |
    sed 's|[^ ]*|&/nvidia/*/bin/nvdisasm &/triton/backends/nvidia/bin/nvdisasm|g') 2>/dev/null | head -n 1)
export NVDISASM="${NVDISASM:-nvdisasm}" OBJDUMP="${OBJDUMP:-llvm-objdump}"
archs=
have "$NVDISASM" && archs="sm_80 sm_90" || skip "report of CUDA's kernels: no nvdisasm; pip install nvidia-cuda-nvdisasm"
have "$OBJDUMP" && archs="$archs gfx90a" || skip "report of AMD's kernels: no llvm-objdump; package: llvm"
unset FLUX_CUDA_LIBRARY FLUX_NVRTC FLUX_HIP_LIBRARY FLUX_HIPRTC
export FLUX_CACHE_DIR="$(realpath "$tmp")/cache" FLUX_CUDA_LIBRARY=none
mkdir -m 700 "$tmp/cache"
inside gpu || finish
[ -z "$archs" ] || check "tests/gpu_report.c compiles" $CC -std=c11 -O0 -w $looks tests/gpu_report.c "$impl" -o "$tmp/gpu_report" -lm || archs=
for arch in $archs; do
    mkdir "$tmp/$arch"
    "$tmp/gpu_report" "$tmp/$arch" "$arch" >"$tmp/$arch.txt" 2>"$tmp/$arch.log"
    rc=$?
    grep '^skipped' "$tmp/$arch.log" >"$tmp/skips" && { skip "$(cut -c 9- "$tmp/skips")"; continue; }
    [ $rc = 0 ] && [ ! -s "$tmp/$arch.log" ] && pass || { fail "the report of $arch"; head -n 5 "$tmp/$arch.log"; }
    [ -s "$tmp/all" ] && sed 1,2d "$tmp/$arch.txt" >>"$tmp/all" || cp "$tmp/$arch.txt" "$tmp/all"
done
[ -s "$tmp/all" ] || finish
[ -z "$SHOW" ] || cat "$tmp/all"
# Per arch and shape: spills and launches, the greatest share, the estimate.
awk '/^#/ { next }
    { k = $1 " " $2; if (!(k in n)) order[++keys] = k; n[k]++; spills[k] += $6; if ($10 > share[k]) share[k] = $10; estimate[k] = $13 }
    END { for (i = 1; i <= keys; i++) { k = order[i]; print k, n[k], spills[k], share[k] + 0, estimate[k] } }' "$tmp/all" >"$tmp/now"
awk '/^#/ { next }
    { k = $1 " " $2; n[k]++; spills[k] += $6; if ($10 > share[k]) share[k] = $10; estimate[k] = $13 }
    END { for (k in n) print k, n[k], spills[k], share[k] + 0, estimate[k] }' "$table" 2>/dev/null >"$tmp/then"
awk -v show="$SHOW" 'NR == FNR { n[$1 " " $2] = $3; share[$1 " " $2] = $5; was[$1 " " $2] = $6; next }
    { k = $1 " " $2; good = 1 }
    $4 > 0 { print "FAILED  " k " spills"; good = 0 }
    k in n && ($6 < was[k] * 0.97 - 0.1 || $5 < share[k] - 3 || $3 > n[k] && $6 <= was[k]) {
        print "FAILED  " k ": estimate " $6 " (it was " was[k] "), share " $5 " (" share[k] "), launches " $3 " (" n[k] ")"; good = 0 }
    show && good && k in n && $6 > was[k] * 1.03 + 0.1 { print "better  " k ": estimate " $6 " (it was " was[k] ")" }
    !(k in n) { print "FAILED  " k " is not in the table: make gpu-report WRITE=1"; good = 0 }
    { passed += good; failed += !good }
    END { print passed + 0 " passed, " failed + 0 " failed, 0 skipped" }' "$tmp/then" "$tmp/now" >"$tmp/verdict"
if [ -n "$WRITE" ]; then cp "$tmp/all" "$table"; else sed '$d' "$tmp/verdict"; add "report" "$tmp/verdict"; fi
finish
