# Each room of src/ compiles by itself, with the rooms that it includes and no others.
. tests/check.sh
for room in src/flux.h src/*/*.h; do
    check "$room by itself" $CC -std=c11 -fsyntax-only -Werror=implicit-function-declaration -I. -x c "$room"
done
finish
