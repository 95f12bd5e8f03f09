# What `make test` says of a program that hangs, crashes, fails or has no count, and of a tool that is missing.
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
if have timeout; then says "one that hangs" "FAILED  one that hangs: timed out after 1 s" sleep 20; else skip "one that hangs: no timeout on this machine; package: coreutils"; fi
says "one that crashes" "FAILED  one that crashes: ended with status 139" sh -c 'echo "1 passed, 0 failed, 0 skipped"; exit 139'
says "one without a count" "FAILED  one without a count: ended with status 0 and no count" true
[ "$(tail -n 1 "$tmp/said")" = "0 passed, 1 failed, 0 skipped" ] && pass || fail "what does not count itself is one failure"
( need no_such_tool "a check" ) | grep -q '^skipped a check: no no_such_tool on this machine; package: no_such_tool$' && pass || fail "a skip names the package"
finish
