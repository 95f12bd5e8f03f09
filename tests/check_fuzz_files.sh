#!/bin/sh
# Runs fuzz_files.c, under the address and undefined-behaviour sanitizers where a compiler has
# them: thousands of broken variants of the fixtures, each of which must give a tensor or an error;
# and the corpus that `make fuzz` has found worth keeping, as it is and changed, with the reader
# that its folder is named after. ROUNDS=n sets how many a fixture.
. tests/check.sh
checks=
! sanitizing address,undefined || checks="-fsanitize=address,undefined -fno-sanitize-recover=all"
check "fuzz_files.c compiles" $sanitizer -std=c11 -g1 -O0 $checks tests/fuzz_files.c -o "$tmp/fuzz" -lm
[ "$failed" = 0 ] || finish
check "the readers stand ${ROUNDS:-2000} changes of each fixture" "$tmp/fuzz" "${ROUNDS:-2000}"
for reader in tests/fixtures/fuzz/*; do
    check "the corpus of ${reader##*/}" "$tmp/fuzz" 0 "$reader"/*
done
finish
