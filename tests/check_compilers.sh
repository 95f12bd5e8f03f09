# Every program under tests/programs beside an implementation by the same compiler, with and without optimisation, in C and in
# C++; one program a compiler is built as it stands, with its own. What check_programs.sh does is not done again.
. tests/check.sh
. tests/programs.sh
for cc in gcc clang; do
    need $cc "programs with $cc" || continue
    all "$cc -O0" "$cc -std=c11 -O0" $c_programs
    all "$cc -O2" "$cc -std=c11 -O2" $c_programs
    whole $cc
done
need tcc "programs with tcc" && all "tcc -O2" "tcc -std=c11 -O2" $c_programs
ext=cpp
for cc in g++ clang++; do
    need $cc "programs with $cc" || continue
    all "$cc c++20" "$cc -std=c++20 -O1" $both $cpp_programs
    all "$cc c++11" "$cc -std=c++11 -O1" $cpp_programs
done
finish
