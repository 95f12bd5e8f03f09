# Nothing is read that was not written: tests again under clang's memory sanitizer, which follows each bit. A number that is not
# set shows in no result where memory happens to hold zeros, or what it held the last time.
. tests/check.sh
need clang || finish
memory="clang -std=c11 -O0 -g1 -w -fsanitize=memory -fno-sanitize-recover=all -I."
printf 'int main(void) { return 0; }\n' >"$tmp/empty.c"
$memory "$tmp/empty.c" -o "$tmp/empty" 2>"$tmp/log" || {
    skip "memory that is not set: clang has no -fsanitize=memory here; package: libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"; finish; }
check "the implementation" $memory -c tests/impl.c -o "$tmp/impl.o" || finish
for name in uses use_faults optim training_loops losses tables; do
    check "test_$name compiles" $memory tests/test_$name.c "$tmp/impl.o" -o "$tmp/test_$name" -lm || continue
    FLUX_NUM_THREADS=2 "$tmp/test_$name" >"$tmp/out" 2>&1 || { grep -A12 -e '^FAILED' -e 'WARNING: Mem' "$tmp/out" | head -n 30; fail "test_$name"; continue; }
    add "test_$name" "$tmp/out"
done
finish
