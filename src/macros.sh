# macros.sh - writes src/api/macros.h, the call macros that follow from lists elsewhere, since no macro can define another:
# sh src/macros.sh >src/api/macros.h
# The operations of two operands whose rows in src/graph/table.h have a public function take numbers (those on bools do not),
# and the losses of src/api/losses.h take options. Each has inside what src/api says of it, for editors that show a macro.
awk '
# #define NAME, SAID and its body, on one line if they fit
function macro(head, said, body) {
    if (said == "") print head " " body
    else if (length(head said body) <= 92) print head " /* " said " */ " body
    else print head " \\\n    /* " said " */ \\\n    " body
}
function trimmed(text) { gsub(/^[ ]+|[ ]+$/, "", text); return text }
FILENAME ~ /table/ && /^X\(/ {
    split($0, part, ",")
    if (part[3] == 2 && trimmed(part[4]) != "B" && trimmed(part[5]) != "INNER") two[++twos] = "flux_" trimmed(part[2])
}
# the comment of one line before a declaration
FILENAME ~ /operations/ {
    if (match($0, /flux_[a-z0-9_]*\(/) && /^FLUX_API/) say[substr($0, RSTART, RLENGTH - 1)] = comment
    comment = /^\/\* .* \*\/$/ ? substr($0, 4, length($0) - 6) : ""
}
FILENAME ~ /losses/ && /^    X\(/ {
    split(substr($0, 7), part, ",")
    loss[++losses] = "flux_" part[1]
    match($0, /\/\* .* \*\//)
    say[loss[losses]] = substr($0, RSTART + 3, RLENGTH - 6)
}
END {
    print "#ifndef FLUX__API_MACROS_H\n#define FLUX__API_MACROS_H\n#include \"dispatch.h\"\n"
    print "/* ------------------------------------------------------------------ call macros made from lists"
    print "   Written by src/macros.sh: the operands of the rows of graph/table.h, which may be numbers, and\n   the options of the losses of api/losses.h. */\n"
    print "#ifdef __cplusplus"
    for (i = 1; i <= twos; i++) print "FLUX__NUMBERS(" two[i] ")"
    print "#else"
    for (i = 1; i <= twos; i++) macro("#define " two[i] "(a, b)", say[two[i]], "FLUX__OF_TWO(" two[i] ", a, b)")
    print "#endif\n"
    for (i = 1; i <= losses; i++) macro("#define " loss[i] "(...)", say[loss[i]], "FLUX__LOSS(" loss[i] "_with, __VA_ARGS__)")
    print "\n#endif /* FLUX__API_MACROS_H */"
}' src/graph/table.h src/api/operations.h src/api/losses.h
