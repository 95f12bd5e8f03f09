# Every program under tests/programs beside an implementation by the same compiler, in the ways that check_programs.sh leaves out:
# gcc without optimisation, clang with it, musl, and C++ throughout; one program is built as it stands by clang, with its own (by tcc it
# is there, by gcc tests are).
# And what including flux.h costs, in counts that are the same on any machine: bytes of declarations that each file reads,
# system headers included; bytes of code and constants of these implementations and of the tests'. A bound is a fifth above what is
# measured, as compilers' versions differ. Times are in tests/bench/compile_time.sh.
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
# bytes COMPILER OPTION BOUND: of the implementation alone
bytes() {
    check "$1 $2: implementation" "$1" -std=c11 "$2" -I. -c "$tmp/impl.c" -o "$tmp/impl.o" &&
        within "$1: implementation, $2" "$(code "$tmp/impl.o")" "$3"
}
need size || finish
implementation && within "tests' implementation, $CC" "$(code "$impl")" 1440000
need gcc "programs with gcc" && declarations gcc 78000 && built gcc -O0 1450000
need clang "programs with clang" && declarations clang 87000 && built clang -O2 1420000 && whole clang
need clang-19 "programs with a newer clang" && built clang-19 -O2 1420000
need musl-gcc "programs with musl, another C library" && built musl-gcc "-O0 -Werror" 1450000
need tcc "size by tcc" && declarations tcc 75000 && bytes tcc -O2 1620000
ext=cpp
# clang++'s optimiser is clang's, and takes a minute. Here g++ is asked for its warnings of the whole (check_warnings.sh has
# it read the implementation alone).
ladder='-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wdouble-promotion -Wundef -Werror'
for cc in "g++ -O1" "clang++ -O0"; do
    need ${cc% *} "programs with ${cc% *}" || continue
    build "$cc c++20: implementation" $cc -std=c++20 $ladder -I. -c "$tmp/impl.cpp" -o "$tmp/impl.o" || continue
    linked "$cc c++20" "$cc -std=c++20" "$tmp/impl.o" $both $cpp_programs
    linked "$cc c++11" "$cc -std=c++11" "$tmp/impl.o" $cpp_programs
done
finish
