# flux.h for Windows: compiled by MinGW in C and C++, alone and with both GPU back ends, without a
# warning; and tests of files, names, threads and tensors, run by Wine where there is one.
. tests/check.sh
mingw=x86_64-w64-mingw32
need $mingw-gcc "code for Windows" || finish
warnings="-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wundef -Werror"
# compiles WHAT COMPILER...: the implementation, with and without GPUs
compiles() {
    what=$1; shift
    check "$what for Windows" "$@" $warnings -DFLUX_IMPLEMENTATION -c flux.h -o "$tmp/flux.o"
    check "$what for Windows, GPUs" "$@" $warnings -DFLUX_IMPLEMENTATION -DFLUX_CUDA -DFLUX_HIP \
        -c flux.h -o "$tmp/flux.o"
}
compiles C $mingw-gcc -std=c11 -O0 -x c
need $mingw-g++ "C++ for Windows" && compiles C++ $mingw-g++ -std=c++11 -O0 -x c++
# what it runs has folders of its own: nothing of the user's is read or made
need wine "tests on Windows" || finish
export WINEPREFIX=$PWD/$tmp/wine WINEDEBUG=-all WINEDLLOVERRIDES=mscoree,mshtml= FLUX_NUM_THREADS=2
case $tmp in /*) WINEPREFIX=$tmp/wine ;; esac
opened "the implementation for Windows" $mingw-gcc -std=c11 -O1 || finish
for t in bits errors files platform tensors threads trace; do
    check "test_$t for Windows" $mingw-gcc -std=c11 -O1 -Wall -Wextra -Werror $(looks tests/test_$t.c) -I. \
        tests/test_$t.c "$tmp/opened.o" -static -o "$tmp/test_$t.exe" -lm || continue
    check "test_$t on Windows" timeout 300 wine "$tmp/test_$t.exe"
done
wineserver -k >"$tmp/log" 2>&1
finish
