# opened.awk - flux.h as tests see it that look inside.
#     awk -v what=defined -f tests/opened.awk flux.h
# (or flux_cuda.h, flux_hip.h) prints it with its own functions and variables no longer static, for tests/impl.c; what=declared,
# without the bodies of these functions and the values of these variables, for the tests that this
# is linked to. So the implementation is compiled once for all of them. Inline functions, constants
# and what macros define stay static in both: they hold nothing that changes, so two are as one.

# The text without its comments; the first of = ; { in it; how many braces it opens.
function plain(s) { gsub(/\/\*([^*]|\*+[^*\/])*(\*+\/|$)/, "", s); return s }
function mark_of(s) { return match(s, /[=;{]/) ? substr(s, RSTART, 1) : "" }
function braces(s) { s = plain(s); return gsub(/\{/, "", s) - gsub(/\}/, "", s) }
# Without the words that make it private, or a function that is printed without its body.
function opened(s) { sub(/static /, "", s); return s }
function declared(s) { sub(/^FLUX_DEF /, "", s); return opened(s) ";" }
function name_of(s) { return match(s, /flux_[a-z_0-9]+\(/) ? substr(s, RSTART, RLENGTH) : "-" }
function stays(s) {
    if (name_of(s) != "-" && name_of(s) in within) return 1
    return s ~ /inline|INLINE/ || s ~ /\*const [a-z_]+\[/ || s ~ /static const struct/ ||
           (s ~ /static const [^*]*=$/)
}

BEGIN { bare = what == "declared"; ARGV[ARGC++] = ARGV[1] }                # it is read twice
# inline functions, which a prototype that does not say so may precede
NR == FNR { if (/^static .*(inline|INLINE)/) within[name_of($0)]; next }
# messages and gcov name flux.h and its lines
function line_of(n) { print "#line " n " \"" FILENAME "\"" }
FNR == 1 { if (bare) print "#pragma GCC system_header"; line_of(1); inside = FILENAME != "flux.h" }
/^# *include "flux_(cuda|hip)\.h"/ { sub(/"/, "\"" what "/") }           # made of those by this, too
/^#if defined\(FLUX_IMPLEMENTATION\)/ { inside = 1 }
!inside { print; next }
# public functions that macros define: nothing is made of such a definition
bare && /^#  define FLUX_DEF$/ { $0 = $0 " extern inline __attribute__((gnu_inline))" }
macro || /^#/ { if (!dropped) print; macro = /\\$/; next }
dropped {
    if (/^\}/ || (dropped == "value" && /;$/)) { dropped = ""; line_of(FNR + 1) }
    next
}
record {                                  # the struct of a variable
    record = !/^\}/
    if (bare && !record && mark_of(plain($0)) == "=") {
        dropped = plain($0) ~ /;$/ ? "" : "value"
        sub(/ = .*/, ";")
    }
    print
    next
}
head == "" && !/^(static|FLUX_DEF|FLUX__UNUSED static|FLUX__FAST static) / { print; next }
{
    head = head == "" ? $0 : head "\n" $0
    text = plain(head)
    if ((mark = mark_of(text)) == "") next
    whole = head; head = ""
    start = substr(text, 1, index(text, mark))
    struct = start ~ /static struct [a-z_]* ?\{/
    if (stays(start)) print whole
    else if (!struct && mark != "=" && start ~ /\)/ && start !~ /\(\*flux__/) {      # a function
        if (!bare || mark == ";") print opened(whole)
        else {
            if (braces(whole) > 0) dropped = "body"
            print declared(substr(start, 1, length(start) - 1))
        }
    } else {
        if (struct) record = braces(whole) > 0
        else if (bare && mark == "=") {
            if (text !~ /;[ \t]*$/) dropped = "value"
            whole = substr(start, 1, length(start) - 1) ";"
        }
        print (bare ? "extern " : "") opened(whole)
    }
}
