# Every function of the interface is in the table of tests/test_calls.c, or named at its top with the reason why it is not called.
. tests/check.sh
sed -n '/interface ends here/q; s/^FLUX_API [^(]*[ *]\(flux_[a-z0-9_]*\)(.*/\1/p' flux.h | sort -u >"$tmp/declared"
sed -n '/define FLUX__LOSSES/,/define FLUX__DECLARE_LOSS/s/^    X(\([a-z0-9_]*\), .*/flux_\1\nflux_\1_with/p' flux.h | sort -u >"$tmp/losses"
grep -oE 'flux_[a-z0-9_]*' tests/test_calls.c | sort -u >"$tmp/named"
[ "$(wc -l <"$tmp/declared")" -ge 380 ] && pass || fail "only $(wc -l <"$tmp/declared") declarations were found"
[ "$(wc -l <"$tmp/losses")" -ge 34 ] && pass || fail "the losses were not found"
# the table walks the losses and the public rows of graph/table.h; LOSS(X, f) in it stands for f and f_with
grep -q 'FLUX__LOSSES(X##_LOSS)' tests/test_calls.c && cat "$tmp/losses" >>"$tmp/named"
grep -q 'FLUX__ELEMENTWISE(X##_ROW)' tests/test_calls.c &&
    sed -n 's/^X([A-Z0-9_]*, *\([a-z0-9_]*\), *[12], [A-Z], [RO][OW][WN], .*/flux_\1/p' src/graph/table.h >>"$tmp/named"
grep -oE 'LOSS\(X, flux_[a-z_]*\)' tests/test_calls.c | sed 's/.*X, \(.*\))/\1_with/' >>"$tmp/named"
sort -u "$tmp/named" -o "$tmp/named"
sort -u "$tmp/declared" "$tmp/losses" | comm -23 - "$tmp/named" >"$tmp/missing"
if [ -s "$tmp/missing" ]; then fail "not in the table of tests/test_calls.c:"; cat "$tmp/missing"; else pass; fi
finish
