# The page of `make docs`: each public name is in its index with a sentence, and has a line of use (which tests/test_uses.c runs);
# the cheat sheet is there; no link is dead, nothing comes from elsewhere, and no id stands twice.
. tests/check.sh
need python3 || finish
page=$tmp/docs.html
check "make docs" sh -c "python3 src/docs/page.py >'$page'" || finish
# Functions as check_calls.sh finds them, losses, and macros, but for those that a program defines itself.
sed '/interface ends here/q' flux.h >"$tmp/public.h"
{
    sed -n 's/^FLUX_API [^(]*[ *]\(flux_[a-z0-9_]*\)(.*/\1/p' "$tmp/public.h"
    sed -n '/define FLUX__LOSSES/,/define FLUX__DECLARE_LOSS/s/^    X(\([a-z0-9_]*\), .*/flux_\1\nflux_\1_with/p' "$tmp/public.h"
    grep -v FLUX__NOW "$tmp/public.h" | sed -n 's/^ *# *define \([Ff][Ll][Uu][Xx]_[A-Za-z0-9][A-Za-z0-9_]*\).*/\1/p' | grep -vx -e FLUX_H -e FLUX_API -e FLUX_IMPLEMENTATION
} | grep -v '^flux__' | sort -u >"$tmp/names"
[ "$(wc -l <"$tmp/names")" -ge 600 ] && pass || fail "only $(wc -l <"$tmp/names") public names were found"
python3 src/docs/page.py --names | sort >"$tmp/said"
cut -d' ' -f1 "$tmp/said" >"$tmp/known"
# none LIST WHAT: a list that should be empty
none() { if [ -s "$1" ]; then fail "$2: $(tr '\n' ' ' <"$1" | cut -c 1-400)"; else pass; fi; }
comm -23 "$tmp/names" "$tmp/known" >"$tmp/list"
none "$tmp/list" "not on the page"
awk '$2 != "sentence" { print $1 }' "$tmp/said" >"$tmp/list"
none "$tmp/list" "without a sentence"
awk '$3 != "use" { print $1 }' "$tmp/said" >"$tmp/list"
none "$tmp/list" "without a block USE(name) in tests/test_uses.c"
awk '$4 != "hover" { print $1 }' "$tmp/said" >"$tmp/list"
none "$tmp/list" "without a comment where an editor shows it: directly before the function, inside the macro"
grep -oE '<li><a href="#[A-Za-z0-9_]+">[A-Za-z0-9_]+</a> <span>.' "$page" | sed 's/.*">\(.*\)<\/a>.*/\1/' | sort >"$tmp/index"
comm -23 "$tmp/names" "$tmp/index" >"$tmp/list"
none "$tmp/list" "not in the index with a sentence"
grep -oE 'href="#[^"]*"' "$page" | sed 's/href="#//; s/"$//' | sort -u >"$tmp/links"
grep -oE '<[^>]* id="?[A-Za-z0-9_-]+' "$page" | sed 's/.* id="\{0,1\}//' | sort >"$tmp/ids"
sort -u "$tmp/ids" | comm -23 "$tmp/links" - >"$tmp/list"
none "$tmp/list" "links that lead nowhere"
uniq -d "$tmp/ids" >"$tmp/list"
none "$tmp/list" "ids that stand twice"
grep -oE '(src|href)="?(https?:|//)[^" >]*|@import|url\(' "$page" >"$tmp/list"
none "$tmp/list" "taken from elsewhere"
rows=$(grep -c '^<tr><td>' "$page")
[ "$rows" -ge 60 ] && pass || fail "the cheat sheet has $rows rows, not 60"
# The manual's ways to build, as they stand: impl.c, tcc -run, C++ in five lines.
sed -n '/^   BUILDING QUICKLY$/,/^   OTHER LANGUAGES$/p' flux.h | sed -n '/#include "flux.h"$/,/^       }$/s/^       //p' | sed -n '/^#include/,$p' >"$tmp/app.cpp"
[ "$(wc -l <"$tmp/app.cpp")" = 5 ] && pass || fail "C++ in five lines has $(wc -l <"$tmp/app.cpp")"
implementation
if need "$CXX" "C++ in five lines"; then
    check "C++ in five lines" sh -c "$CXX -I. '$tmp/app.cpp' $impl -lm -o '$tmp/app' && '$tmp/app'"
fi
sed -n '/A first program/,/^   HOW IT WORKS/p' flux.h | sed -n '/#define FLUX_IMPLEMENTATION/,/^       }$/p' | sed 's/^       //' >"$tmp/prog.c"
if need tcc "tcc -run"; then check "tcc -run" tcc -I. -run "$tmp/prog.c"; fi
finish
