#!/bin/sh
# flux.h as a shared library for Python's ctypes: examples/from_python.py learns what it says, and arrays go to NumPy and PyTorch
# and come from them by DLPack (check_ctypes.py; skipped where they are not there).
. tests/check.sh
need python3 || finish
cc=$CC
! have clang || cc=clang                         # a fifth of gcc's time for the same functions
check "the library" $cc -O0 -shared -fPIC -DFLUX_IMPLEMENTATION -x c flux.h -o "$tmp/libflux.so" -lm || finish
lib=$(cd "$tmp" && pwd)/libflux.so
if check "examples/from_python.py runs" sh -c "python3 examples/from_python.py '$lib' >'$tmp/out'"; then
    tail -n 1 "$tmp/out" | awk '$1 == "step" && $2 == 1000 && $4 < 0.001 { good = 1 } END { exit !good }' && pass ||
        { fail "examples/from_python.py did not learn the sine:"; cat "$tmp/out"; }
fi
[ "$(grep -c '[^ ]' examples/from_python.py)" -le 34 ] && pass || fail "examples/from_python.py has more than 30 lines below its heading"
python3 tests/check_ctypes.py "$lib" >"$tmp/result" 2>&1
sed '$d' "$tmp/result"
add check_ctypes.py "$tmp/result"
finish
