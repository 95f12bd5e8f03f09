# Every program under tests/programs, built by each compiler at hand, in C and in C++, and run. Each does it once here, in the way
# that takes least: beside the implementation that the tests link, or by compilers that are quick without optimisation.
# check_compilers.sh does the rest.
. tests/check.sh
. tests/programs.sh
implementation && linked "$CC" "$CC -std=c11 -O2" "$impl" $c_programs
need clang "programs with clang" && all "clang -O0" "clang -std=c11 -O0" $c_programs
need tcc "programs with tcc" && { all "tcc" "tcc -std=c11" $c_programs; whole tcc; }
ext=cpp
need g++ "programs with g++" && linked "g++ c++20" "g++ -std=c++20 -O1" "$impl" $both $cpp_programs
need clang++ "programs with clang++" && linked "clang++ c++11" "clang++ -std=c++11 -O1" "$impl" $cpp_programs
finish
