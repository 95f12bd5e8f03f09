# What `make test` says of a program that hangs, crashes, fails or has no count, and of a tool that is
# missing; that it runs every test, and `make check-NAME` one; that the Makefile stays one page; and that git keeps
# nothing but the sources.
. tests/check.sh
# says NAME TEXT COMMAND...: run.sh prints the text of a command
says() {
    what=$1 text=$2; shift 2
    TIMEOUT=1 sh tests/run.sh "$tmp/progress" 5 "$what" "$tmp/result" "$@" >"$tmp/said" 2>&1
    grep -qF -- "$text" "$tmp/said" && pass || { fail "$what: not \"$text\""; cat "$tmp/said"; }
}
says "one that passes" "== one that passes (1 of 5" echo "3 passed, 0 failed, 0 skipped"
[ "$(tail -n 1 "$tmp/said")" = "3 passed, 0 failed, 0 skipped" ] && pass || fail "a count is the last line"
says "one that fails" "1 passed, 2 failed, 0 skipped" sh -c 'echo "1 passed, 2 failed, 0 skipped"; exit 1'
if need timeout "one that hangs"; then
    says "one that hangs" "FAILED  one that hangs: timed out after 1 s" sleep 20
fi
says "one that crashes" "FAILED  one that crashes: ended with status 139" \
    sh -c 'echo "1 passed, 0 failed, 0 skipped"; exit 139'
says "one without a count" "FAILED  one without a count: ended with status 0 and no count" true
[ "$(tail -n 1 "$tmp/said")" = "0 passed, 1 failed, 0 skipped" ] && pass ||
    fail "what does not count itself is one failure"
( need no_such_tool "a check" ) |
    grep -q '^skipped a check: no no_such_tool on this machine; package: no_such_tool$' && pass ||
    fail "a skip names the package"

# The sum of results: of each its last line, which may follow a count that does not hold.
printf '2 passed, 0 failed, 1 skipped\n' >"$tmp/one"
printf '7 passed, 0 failed, 0 skipped\nFAILED  it crashed\n0 passed, 1 failed, 0 skipped\n' >"$tmp/two"
printf 'no count\n' >"$tmp/three"
sh tests/verdict.sh "$tmp/one" "$tmp/two" "$tmp/three" >"$tmp/said" && fail "two fail, the sum passes"
[ "$(tail -n 1 "$tmp/said")" = "2 passed, 2 failed, 1 skipped" ] && pass || fail "the sum of three results"
[ "$(head -n 1 "$tmp/said")" = "$tmp/two: FAILED  it crashed" ] && pass || fail "the sum names what failed"
sh tests/verdict.sh "$tmp/one" "$tmp/one" >"$tmp/said" && pass || fail "two pass, the sum fails"

# Every test and check is run by `make test-all`, once on the processor and again on a device.
plan() {
    BUILD=b TESTS=$(echo tests/test_*.c) CHECKS=$(echo tests/check_*.sh) \
        ON_DEVICES=$(echo tests/test_[a-f]*.c) sh tests/plan.sh "$@"
}
ls tests/test_*.c tests/check_*.sh | sed 's/\.[a-z]*$//' | sort >"$tmp/files"
DEVICES='' plan test-all | sed -n 's/^RESULTS := //p' | tr ' ' '\n' | sed 's/^b.//; s/.result$//' | sort >"$tmp/runs"
check "test-all on a processor" diff "$tmp/files" "$tmp/runs"
on_device=$(DEVICES=soft-cuda1 plan test-all | sed -n 's/^RESULTS := //p' | tr ' ' '\n' | grep -c soft-cuda1)
[ "$on_device" = "$(ls tests/test_[a-f]*.c | wc -l)" ] && pass || fail "test-all on a device: $on_device tests"

# Without tcc `make test` leaves out a part of a test, or all of it; `make test-all` then runs it.
part_of() { SOFTGPU_CC=no_such_tcc DEVICES=soft-cuda1 plan "$@" | sed -n 's|^b/short/soft-cuda1/test_bits.result: private PROGRAM := b/gpu/test_bits *||p'; }
[ "$(part_of test)" = - ] && [ -z "$(part_of test test-all)" ] && pass || fail "what is left out without tcc"
partly() { sh tests/partly.sh "a test" "$@" >"$tmp/said" 2>&1; }
left='^skipped a test: without tcc .*; package: tcc$'
partly - false && grep -q "$left" "$tmp/said" && [ "$(tail -n 1 "$tmp/said")" = "0 passed, 0 failed, 1 skipped" ] && pass || fail "a test that is left out"
partly this sh -c 'echo "$1 1"; echo "2 passed, 0 failed, 1 skipped"' - && [ "$(head -n 1 "$tmp/said")" = "this 1" ] &&
    [ "$(tail -n 1 "$tmp/said")" = "2 passed, 0 failed, 2 skipped" ] && pass || fail "a part of a test"
partly this sh -c 'echo "1 passed, 2 failed, 0 skipped"; exit 1' && fail "a part that fails passes"
[ "$(tail -n 1 "$tmp/said")" = "1 passed, 2 failed, 1 skipped" ] && pass || fail "a part that fails"
partly this sh -c 'echo "0 passed, 0 failed, 0 skipped"' && fail "no test has this part, and it passes" || pass
partly this sh -c 'exit 3'; [ $? = 3 ] && pass || fail "a part that crashes"

# One by its name, in a build folder of its own.
MAKEFLAGS='' make -s BUILD="$tmp/build" check-calls >"$tmp/said" 2>&1 && pass || fail "make check-calls"
grep -q '^== tests/check_calls (1 of 1, ' "$tmp/said" && pass || { fail "one check"; cat "$tmp/said"; }
refused "make test-nothing" 'there is no tests/test_nothing.c' \
    env MAKEFLAGS= make -s BUILD="$tmp/build" test-nothing
# Two tests that are linked to one object must not both build it, so it comes before them.
refused "test_bits without its implementation" 'build/opened.o' \
    env MAKEFLAGS= make -s BUILD="$tmp/build" CC=false test-bits

[ "$(wc -l <Makefile)" -lt 100 ] && pass || fail "the Makefile has $(wc -l <Makefile) lines"
awk 'length($0) > 100 { print FILENAME ":" FNR; bad = 1 } END { exit !bad }' Makefile &&
    fail "lines of the Makefile that are over 100 columns" || pass

# What is built, or tells where on a machine something lies, is none of them.
need git "what git keeps" || finish
if [ -n "$(git ls-files Makefile 2>/dev/null)" ]; then
    git ls-files | sed 's|/.*||' | sort -u | grep -vxE 'flux(_cuda|_hip)?\.h|src|tests|examples|Makefile|README\.md|LICENSE|\.[a-z-]+' >"$tmp/list"
    [ -s "$tmp/list" ] && { fail "at the top level beside the sources:"; cat "$tmp/list"; } || pass
    git grep -nIE '(^|[" =(])/(home|root|tmp|work|Users)/[a-z]+/' >"$tmp/list"
    [ -s "$tmp/list" ] && { fail "paths of one machine:"; head -n 5 "$tmp/list"; } || pass
else skip "what git keeps: this is no checkout"; fi
finish
