# No compiler has anything to say: the whole ladder of warnings, the implementation and a user's file, in C and C++.
# Any output at all is a failure.
. tests/check.sh
ladder='-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wdouble-promotion -Wundef'
c_only='-Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition'

# quiet NAME COMMAND...: succeeds without a word
quiet() {
    what=$1; shift
    if "$@" >"$tmp/log" 2>&1 && [ ! -s "$tmp/log" ]; then pass; else fail "$what"; head -n 20 "$tmp/log"; fi
}

printf '#define FLUX_IMPLEMENTATION\n#include "flux.h"\n' >"$tmp/impl.c"
cp "$tmp/impl.c" "$tmp/impl.cpp"
printf '#include "flux.h"\nint main(void);\nint main(void) { return flux_failed(); }\n' >"$tmp/static.c"
for p in tests/programs/*.c tests/programs/*.cpp; do sed '/define FLUX_IMPLEMENTATION/d' "$p" >"$tmp/user_$(basename "$p")"; done

for cc in gcc clang; do
    need $cc "warnings of $cc" || continue
    for std in c11 gnu17; do
        [ $std = c11 ] && level=-O2 || level=-O0               # some warnings need the optimiser's eye
        quiet "$cc $std: implementation" $cc -std=$std $level $ladder $c_only -I. -c "$tmp/impl.c" -o "$tmp/o"
        for p in "$tmp"/user_*.c; do
            quiet "$cc $std: $(basename "$p")" $cc -std=$std -O1 $ladder -Wstrict-prototypes -I. -c "$p" -o "$tmp/o"
        done
    done
    quiet "$cc FLUX_STATIC" $cc -std=c11 -O0 $ladder $c_only -DFLUX_STATIC -DFLUX_IMPLEMENTATION -I. -c "$tmp/static.c" -o "$tmp/o"
    quiet "$cc FLUX_CUDA and FLUX_HIP" $cc -std=c11 -O1 $ladder $c_only -DFLUX_CUDA -DFLUX_HIP -I. -c "$tmp/impl.c" -o "$tmp/o"
    for one in FLUX_CUDA FLUX_HIP; do quiet "$cc $one" $cc -std=c11 -O0 $ladder $c_only -D$one -I. -c "$tmp/impl.c" -o "$tmp/o"; done
    for posix in 199309L 200809L; do
        quiet "$cc, POSIX $posix alone" $cc -std=c11 -D_POSIX_C_SOURCE=$posix -O0 $ladder $c_only -DFLUX_CUDA -I. -c "$tmp/impl.c" -o "$tmp/o"
    done
    quiet "$cc FLUX_NO_THREADS" $cc -std=c11 -O0 $ladder $c_only -DFLUX_NO_THREADS -I. -c "$tmp/impl.c" -o "$tmp/o"
done
for cc in g++ clang++; do
    need $cc "warnings of $cc" || continue
    for std in c++11 gnu++17 c++20; do
        quiet "$cc $std: implementation" $cc -std=$std -O0 $ladder -I. -c "$tmp/impl.cpp" -o "$tmp/o"
        [ $std = c++20 ] || quiet "$cc $std: implementation with GPUs" $cc -std=$std -O0 $ladder -DFLUX_CUDA -DFLUX_HIP -I. -c "$tmp/impl.cpp" -o "$tmp/o"
        quiet "$cc $std: user's file" $cc -std=$std -O1 $ladder -I. -c "$tmp/user_plusplus.cpp" -o "$tmp/o"
    done
done
if need tcc "warnings of tcc"; then
    quiet "tcc: implementation" tcc -Wall -I. -c "$tmp/impl.c" -o "$tmp/o"
    quiet "tcc: implementation with GPUs" tcc -Wall -DFLUX_CUDA -DFLUX_HIP -I. -c "$tmp/impl.c" -o "$tmp/o"
fi
finish
