# flux.h for Windows: read by MinGW in C and C++, alone and with both GPU back ends, without a
# warning, and compiled in C both ways, which shows functions that are not used; and tests of files,
# names, threads and tensors, run by Wine where there is one.
. tests/check.sh
mingw=x86_64-w64-mingw32
need $mingw-gcc "code for Windows" || finish
warnings="-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wundef -Werror"
check "C for Windows, GPUs" $mingw-gcc -std=c11 -O0 $warnings -DFLUX_IMPLEMENTATION -DFLUX_CUDA -DFLUX_HIP -x c -c flux.h -o "$tmp/flux.o"
for gpus in '' '-DFLUX_CUDA -DFLUX_HIP'; do
    need $mingw-g++ "C++ for Windows" &&
        check "C++ for Windows $gpus" $mingw-g++ -std=c++11 -fsyntax-only $warnings -DFLUX_IMPLEMENTATION $gpus -x c++ flux.h
done
opened "C for Windows" $mingw-gcc -std=c11 -O1 $warnings || finish
# what it runs has folders of its own: nothing of the user's is read or made
need wine "tests on Windows" || finish
export WINEPREFIX=$(realpath "$tmp")/wine WINEDEBUG=-all WINEDLLOVERRIDES=mscoree,mshtml= FLUX_NUM_THREADS=2
case $tmp in /*) WINEPREFIX=$tmp/wine ;; esac
for t in bits errors files platform tensors threads trace; do
    check "test_$t for Windows" $mingw-gcc -std=c11 -O1 -Wall -Wextra -Werror $(looks tests/test_$t.c) -I. \
        tests/test_$t.c "$tmp/opened.o" -static -o "$tmp/test_$t.exe" -lm || continue
    check "test_$t on Windows" timeout 300 wine "$tmp/test_$t.exe"
done
wineserver -k >"$tmp/log" 2>&1
finish
