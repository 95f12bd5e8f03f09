# Every program under tests/programs, as users would write them, built by each compiler at hand with and without
# optimisation, in C and in C++, and run: it must end well and print what its "expect:" lines say. Each compiler's
# implementation is compiled once and linked; one program a compiler is built as it stands, with its own.
. tests/check.sh
tmp=$(cd "$tmp" && pwd)
user='/define FLUX_IMPLEMENTATION/d'

# run NAME PROGRAM SOURCE: in a folder of its own, for files that it writes
run() {
    rm -rf "$tmp/run" && mkdir "$tmp/run"
    ( cd "$tmp/run" && exec "$2" ) >"$tmp/out" 2>&1 </dev/null
    status=$? bad=
    [ $status = 0 ] || bad="ended with status $status"
    sed -n 's/^.*expect: //; t found; b; :found; s|  *\*/$||; p' "$3" >"$tmp/expect"
    while IFS= read -r line; do
        grep -qF -- "$line" "$tmp/out" || bad="$bad; did not print \"$line\""
    done <"$tmp/expect"
    [ -z "$bad" ] && pass || { fail "$1: ${bad#; }"; tail -n 30 "$tmp/out"; }
}

# build NAME SOURCE COMMAND...: the command's output is shown when it fails, and counts as a failure
build() {
    name=$1; shift
    "$@" >"$tmp/log" 2>&1 && return 0
    fail "$name: does not build"; grep -m 5 -E 'error|warning' "$tmp/log" | cut -c 1-200; return 1
}

# all LABEL COMPILER SOURCES...: links the programs to one implementation
all() {
    label=$1 with=$2; shift 2
    build "$label: implementation" $with -I. -c "$tmp/impl.$ext" -o "$tmp/impl.o" || return
    for source in "$@"; do
        what="$label: $(basename "$source")"
        sed "$user" "$source" >"$tmp/user.$ext"
        build "$what" $with -I. "$tmp/user.$ext" "$tmp/impl.o" -o "$tmp/program" $libs && run "$what" "$tmp/program" "$source"
    done
}

libs='-lm'
ext=c
printf '#define FLUX_IMPLEMENTATION\n#include "flux.h"\n' >"$tmp/impl.c"
cp "$tmp/impl.c" "$tmp/impl.cpp"
for cc in gcc clang tcc; do
    need $cc "programs with $cc" || continue
    for level in -O0 -O2; do
        all "$cc $level" "$cc -std=c11 $level" tests/programs/*.c
    done
    build "$cc, whole" $cc -std=c11 -O1 -I. tests/programs/basics.c -o "$tmp/program" $libs &&
        run "$cc, whole" "$tmp/program" tests/programs/basics.c
done
ext=cpp
for cc in g++ clang++; do
    need $cc "programs with $cc" || continue
    all "$cc c++20" "$cc -std=c++20 -O1" $(grep -L 'C only' tests/programs/*.c) tests/programs/*.cpp
    all "$cc c++11" "$cc -std=c++11 -O1" tests/programs/*.cpp
done
finish
