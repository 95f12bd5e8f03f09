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

# What clang and g++ warn of they find as they read. gcc needs to see the whole for functions that are not
# used, and its optimiser's eye for numbers that are not set: once here; with GPUs and MPI where
# check_nccl.sh compiles that, with FLUX_STATIC in check_symbols.sh, in C++ in check_compilers.sh.
whole() { case $1 in gcc | g++) echo "$2 -c -o $tmp/o" ;; *) echo -fsyntax-only ;; esac; }
for cc in gcc clang; do
    need $cc "warnings of $cc" || continue
    read_only="$cc -std=c11 -fsyntax-only $ladder $c_only -I."
    for std in c11 gnu17; do
        [ $std = c11 ] && how=$(whole $cc -O2) user=$(whole $cc -O1) || how=-fsyntax-only user=-fsyntax-only
        quiet "$cc $std: implementation" $cc -std=$std $how $ladder $c_only -I. "$tmp/impl.c"
        for p in "$tmp"/user_*.c; do
            quiet "$cc $std: $(basename "$p")" $cc -std=$std $user $ladder -Wstrict-prototypes -I. "$p"
        done
    done
    quiet "$cc FLUX_STATIC" $read_only -DFLUX_STATIC -DFLUX_IMPLEMENTATION "$tmp/static.c"
    quiet "$cc FLUX_CUDA, FLUX_HIP and FLUX_MPI" $read_only -DFLUX_CUDA -DFLUX_HIP -DFLUX_MPI "$tmp/impl.c"
    for one in FLUX_CUDA FLUX_HIP FLUX_MPI FLUX_NO_THREADS; do quiet "$cc $one" $read_only -D$one "$tmp/impl.c"; done
    for posix in 199309L 200809L; do
        quiet "$cc, POSIX $posix alone" $read_only -D_POSIX_C_SOURCE=$posix -DFLUX_CUDA "$tmp/impl.c"
    done
done
for cc in g++ clang++; do
    need $cc "warnings of $cc" || continue
    for std in c++11 gnu++17 c++20; do
        quiet "$cc $std: implementation" $cc -std=$std -fsyntax-only $ladder -I. "$tmp/impl.cpp"
        quiet "$cc $std: implementation with GPUs and MPI" $cc -std=$std -fsyntax-only $ladder -DFLUX_CUDA -DFLUX_HIP -DFLUX_MPI -I. "$tmp/impl.cpp"
        quiet "$cc $std: user's file" $cc -std=$std $(whole $cc -O1) $ladder -I. "$tmp/user_plusplus.cpp"
    done
done
if need tcc "warnings of tcc"; then
    quiet "tcc: implementation" tcc -Wall -I. -c "$tmp/impl.c" -o "$tmp/o"
    quiet "tcc: implementation with GPUs" tcc -Wall -DFLUX_CUDA -DFLUX_HIP -I. -c "$tmp/impl.c" -o "$tmp/o"
fi
finish
