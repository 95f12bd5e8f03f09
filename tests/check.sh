# check.sh - what the tests/check_*.sh scripts have in common. A script sources it, calls pass, fail and skip, and ends
# with `finish`, which prints "N passed, N failed, N skipped". It runs in the project's root; $tmp is a folder of its own.
#     . tests/check.sh
#     need tcc || finish                          # a tool that is missing is skipped, not failed
#     check "compiles with tcc" tcc -c x.c        # passes if the command succeeds; its output is shown if not
#     finish
. tests/verdict.sh
CC=${CC:-cc} CXX=${CXX:-c++} passed=0 failed=0 skipped=0
tmp=${BUILD:-build}/$(basename "$0" .sh).tmp
rm -rf "$tmp" && mkdir -p "$tmp" || exit 1
pass() { passed=$((passed + 1)); }
fail() { failed=$((failed + 1)); echo "FAILED  $*"; }
skip() { skipped=$((skipped + 1)); echo "skipped $*"; }
have() { command -v "$1" >/dev/null 2>&1; }
# package TOOL: which one of Debian's has it
package() {
    case $1 in
    nm | size) echo binutils ;; ldd) echo libc-bin ;; c++) echo g++ ;; clang++) echo clang ;; musl-gcc) echo musl-tools ;; qemu-*) echo qemu-user ;;
    arm-none-eabi-*) echo gcc-arm-none-eabi ;; *-w64-mingw32-gcc) echo gcc-mingw-w64-x86-64 ;; *-w64-mingw32-g++) echo g++-mingw-w64-x86-64 ;;
    *-linux-gnu*-gcc) echo "gcc-${1%-gcc}" ;; *-linux-gnu*-objdump) echo "binutils-${1%-objdump}" ;; *) echo "${1##*/}" ;;
    esac
}
# need TOOL [WHAT]: WHAT (the script) is skipped where there is none
need() { have "$1" || { skip "${2:-$(basename "$0")}: no $1 on this machine; package: $(package "$1")"; return 1; }; }
check() {
    what=$1; shift
    if "$@" >"$tmp/log" 2>&1; then pass; else fail "$what"; head -n 30 "$tmp/log" | cut -c 1-300; return 1; fi
}
# refused WHAT MESSAGE COMMAND...: must fail, saying so
refused() {
    what=$1 message=$2; shift 2
    if "$@" >"$tmp/log" 2>&1; then fail "$what compiles"
    elif grep -q "$message" "$tmp/log"; then pass
    else fail "$what: not a word of \"$message\""; head -n 10 "$tmp/log" | cut -c 1-200; fi
}
# implementation: the one that tests link, $(BUILD)/impl.o, in $impl; a script that is run by itself makes it
implementation() {
    impl=${BUILD:-build/release}/impl.o
    check "the implementation" env MAKEFLAGS= make -s CC="$CC" BUILD="${BUILD:-build/release}" "$impl"
}
# sanitizing KINDS: in $sanitizer a compiler whose sanitizers of these kinds work here; clang takes a third of gcc's time for them
sanitizing() {
    echo 'int main(void) { return 0; }' >"$tmp/empty.c"
    for sanitizer in clang "$CC"; do
        "$sanitizer" -fsanitize=$1 "$tmp/empty.c" -o "$tmp/empty" >/dev/null 2>&1 && "$tmp/empty" && return
    done
    return 1
}
# inside [gpu]: in $impl the one that tests link which look inside, or look inside what has GPUs; their programs are compiled with $looks
inside() {
    impl=${BUILD:-build/release}/${1:+gpu/}opened.o looks="-DTEST_OPENED -Ibuild -I.${1:+ -DFLUX_CUDA -DFLUX_HIP}"
    check "the implementation" env MAKEFLAGS= make -s CC="$CC" BUILD="${BUILD:-build/release}" "$impl" build/opened/declared.h
}
# opened WHAT COMPILER...: one that any test can be linked to, $tmp/opened.o; a test that looks inside (tests/opened.mk) is
# compiled as `looks TEST` says
opened() {
    what=$1; shift
    mkdir -p "$tmp/opened"
    for text in defined declared; do awk -v what=$text -f tests/opened.awk flux.h >"$tmp/opened/$text.h"; done
    check "$what" "$@" -DTEST_OPENED -I"$tmp" -I. -c tests/impl.c -o "$tmp/opened.o"
}
looks() { ! grep -q '^ *# *define FLUX_IMPLEMENTATION' "$1" || echo "-DTEST_OPENED -I$tmp"; }
# add WHAT FILE: the counts with which a program's output ends; one failure if there are none
add() {
    what=$1
    set -- $(tail -n 1 "$2" | counted)
    [ $# = 3 ] || { fail "$what: ended without a count"; return; }
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
}
finish() { rm -rf "$tmp"; verdict $passed $failed $skipped; exit; }
