# Laws of the implementation that can be seen in its text.
. tests/check.sh

sed '1,/interface ends here/d' flux.h | cat - flux_cuda.h flux_hip.h >"$tmp/inside"
[ "$(wc -l <"$tmp/inside")" -ge 32000 ] && pass || fail "the implementation was not found"

# A call judges itself, by flux__failed_since: what was pending before it is asked for only where a NULL handle is explained,
# where flux_each begins, and where a rank leaves the others, which are told.
grep -n 'flux_failed()' "$tmp/inside" | grep -vE 'flux__null_explained\(void\) \{ return flux_failed\(\); \}|return flux_failed\(\) \? none : flux__each_begin|kind == FLUX__LEAVE && flux_failed\(\)' >"$tmp/asks"
if [ -s "$tmp/asks" ]; then fail "calls that ask what failed before them"; cat "$tmp/asks"; else pass; fi

# A shape's dims are worked out by flux__times and flux__plus, which do not overflow: a user may have given what they are made
# of. (Numbers of dims, which are small, are called nd and ndim.)
sed 's/\[[^][]*\]//g; s/\[[^][]*\]//g' "$tmp/inside" | grep -nE '\.dim *([*+]=|= [^;,]* [*+] )|flux__shape\([^;]* \* ' | grep -vE 'flux__times|flux__plus|= nd \+ 1|flux__shape\(NULL|[123] \* nd' >"$tmp/raw"
grep -nE 'int64_t [^;]*\[[0-9]\] = \{[^}]* \* [^}]*\}' "$tmp/inside" | grep -v flux__times >>"$tmp/raw"
if [ -s "$tmp/raw" ]; then fail "sizes that are multiplied or added as they are"; cat "$tmp/raw"; else pass; fi

# Threads call all of it, the software GPU's compilers too: nothing is called that keeps something between its calls.
grep -nE '\b(strtok|s?rand|localtime|gmtime|ctime|asctime|setlocale|strsignal|tmpnam|getpwuid|getpwnam|gethostbyname) *\(' src/*/*.h flux_*.h tests/softgpu/*.c >"$tmp/keeps"
if [ -s "$tmp/keeps" ]; then fail "functions of libc that keep something between calls"; cat "$tmp/keeps"; else pass; fi

# Kernels have no atomic operations, but for the report of a bad index: results would depend on the order of blocks, in which the
# software GPU does not mix them.
grep -nE '\batomic[A-Z]|\b(atom|red)\.' src/gpu/*.h | grep -v 'if (atomicCAS((u32 \*)p%d, 0u, 1u) == 0) p%d\[3\]' >"$tmp/atomic"
if [ -s "$tmp/atomic" ]; then fail "atomic operations in kernels"; cat "$tmp/atomic"; else pass; fi

# A function of 20 lines or more says what it is for; a public one does where it is declared.
awk 'FNR == 1 { said = 0 }
     /^(static|FLUX__[A-Z]+ static).*[(]/ && !/;$/ { first = FNR; known = said; name = $0; body = /\{$/ && !/=/ }
     first && FNR > first && !body { if (/=.*\{$|;$|^$/) first = 0; else body = /\{$/ }
     first && body && /^}/ {
         if (FNR - first >= 19 && !known) print FILENAME ":" first ": " name
         first = 0
     }
     { said = /\*\/$/ || (said && /^(#|enum)/) }' src/*/*.h >"$tmp/silent"
if [ -s "$tmp/silent" ]; then fail "functions of 20 lines that do not say what for"; cat "$tmp/silent"; else pass; fi
finish
