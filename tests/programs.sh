# programs.sh - what builds and runs the programs under tests/programs, as users would write them: each must end well and print
# what its "expect:" lines say. check_programs.sh and check_compilers.sh source it, after check.sh.
tmp=$(cd "$tmp" && pwd)
user='/define FLUX_IMPLEMENTATION/d'
libs='-lm'
ext=c
printf '#define FLUX_IMPLEMENTATION\n#include "flux.h"\n' >"$tmp/impl.c"
cp "$tmp/impl.c" "$tmp/impl.cpp"
c_programs=$(ls tests/programs/*.c) cpp_programs=$(ls tests/programs/*.cpp) both=$(grep -L 'C only' tests/programs/*.c)

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

# linked LABEL COMPILER OBJECT SOURCES...: the programs' own code with an implementation that is there
linked() {
    label=$1 with=$2 object=$3; shift 3
    for source in "$@"; do
        what="$label: $(basename "$source")"
        sed "$user" "$source" >"$tmp/user.$ext"
        build "$what" $with -I. "$tmp/user.$ext" "$object" -o "$tmp/program" $libs && run "$what" "$tmp/program" "$source"
    done
}

# all LABEL COMPILER SOURCES...: with one by the same compiler
all() {
    label=$1 with=$2; shift 2
    build "$label: implementation" $with -I. -c "$tmp/impl.$ext" -o "$tmp/impl.o" && linked "$label" "$with" "$tmp/impl.o" "$@"
}

# whole COMPILER: a program as it stands, with its own
whole() {
    build "$1, whole" $1 -std=c11 -O0 -I. tests/programs/basics.c -o "$tmp/program" $libs &&
        run "$1, whole" "$tmp/program" tests/programs/basics.c
}
