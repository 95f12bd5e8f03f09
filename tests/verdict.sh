# verdict.sh - the line that ends every check, every run of tests and all of CI is formed here:
# "N passed, N failed, N skipped". (A test program's own is formed by TEST_MAIN in test.h.)
#     sh tests/verdict.sh RESULT...     the sum of what results of run.sh say; fails if any failed
#     . tests/verdict.sh                verdict and counted, for a script

# verdict PASSED FAILED SKIPPED: prints the line, and fails if any failed
verdict() { echo "$1 passed, $2 failed, $3 skipped"; [ "$2" = 0 ]; }

# counted <FILE: "PASSED FAILED SKIPPED" of the last such line in it, or nothing
counted() {
    sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' | tail -n 1
}

case $0 in *verdict.sh) ;; *) return 0 ;; esac
[ $# != 1 ] || exec >/dev/null                   # run.sh has just shown that one's line
passed=0 failed=0 skipped=0
for result; do
    sed -n "s|^FAILED|$result: &|p" "$result"
    set -- $(counted <"$result")
    passed=$((passed + ${1:-0})) failed=$((failed + ${2:-1})) skipped=$((skipped + ${3:-0}))
done
verdict $passed $failed $skipped
