# Every program under tests/programs beside an implementation by the same compiler, with and without optimisation, in C and in
# C++; one program a compiler is built as it stands, with its own. What check_programs.sh does is not done again.
# And what including flux.h costs, in counts that are the same on any machine: bytes of declarations that each file reads,
# system headers included; bytes of code and constants of these implementations. A bound is a fifth above what is measured, as
# compilers' versions differ. Times are in tests/bench/compile_time.sh.
. tests/check.sh
. tests/programs.sh

# within NAME NUMBER BOUND
within() {
    printf '%-34s %8s\n' "$1" "$2"
    [ "${2:-0}" -gt 0 ] && [ "$2" -le "$3" ] && pass || fail "$1: $2 bytes, the bound is $3"
}
# code OBJECT: bytes of code and constants, and of data that is not zero
code() { size "$1" 2>/dev/null | awk 'NR == 2 { print $1 + $2 }'; }
printf '#include "flux.h"\nint main(void) { return 0; }\n' >"$tmp/only.c"
printf 'int main(void) { return 0; }\n' >"$tmp/empty.c"
# declarations COMPILER BOUND
declarations() {
    within "$1: declarations" "$("$1" -I. -E -P "$tmp/only.c" | wc -c)" "$2"
    "$1" -I. -c "$tmp/only.c" -o "$tmp/only.o" && "$1" -c "$tmp/empty.c" -o "$tmp/empty.o"
    [ "$(code "$tmp/only.o")" = "$(code "$tmp/empty.o")" ] && pass || fail "$1: declarations alone leave code in the object"
}
# built COMPILER OPTION BOUND: the programs, and the bytes of their implementation
built() {
    all "$1 $2" "$1 -std=c11 $2" $c_programs
    within "$1: implementation, $2" "$(code "$tmp/impl.o")" "$3"
}
need size || finish
need gcc "programs with gcc" && declarations gcc 78000 && built gcc -O0 1450000 && built gcc -O2 1440000 && whole gcc
need clang "programs with clang" && declarations clang 87000 && built clang -O0 2160000 && built clang -O2 1690000 && whole clang
need tcc "programs with tcc" && declarations tcc 75000 && built tcc -O2 1620000
ext=cpp
# clang++'s optimiser is clang's, and takes a minute
for cc in "g++ -O1" "clang++ -O0"; do
    need ${cc% *} "programs with ${cc% *}" || continue
    all "$cc c++20" "$cc -std=c++20" $both $cpp_programs
    all "$cc c++11" "$cc -std=c++11" $cpp_programs
done
finish
