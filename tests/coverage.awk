# coverage.awk - the table of coverage.sh. It reads flux.h, for its rooms, then what `gcov -t -b
# -c` says of each build: a source file's lines, and after each one its branches and how often they
# were taken, or that the line never ran. A branch of a function that is always inlined is one,
# however many copies of it there are.
function room_of(file, line) { return file == "flux.h" ? at[line] : file }
function row(name, n, hit) { printf "%-40s %8d %8d %6.1f %%\n", name, n, hit, n ? 100 * hit / n : 100 }
# How many branches a line has that its text says: two for each condition.
function written(text, n, joined) {
    joined = gsub(/&&|\|\|/, "", text)
    n = gsub(/\?|if \(|while \(|for \(/, "", text)
    return 2 * (joined + (n > 0 ? n : 1))
}
BEGIN { room = "the interface"; order[++rooms] = room }
FNR == 1 { input++ }
input == 1 {
    if (/^\/\* -+ [a-z]+\/[a-z0-9_]+\.h$/) {
        room = $NF
        order[++rooms] = room
    }
    at[FNR] = room
    text[FNR] = $0
    if (/FLUX__INLINE/) inlined = 1       # up to its end a function's lines stand wherever it is called
    copies[FNR] = inlined
    if (/^}/ || (/FLUX__INLINE/ && /}$/) || /^$/) inlined = 0
    next
}
/^ +-: +0:Source:/ {
    file = $0
    sub(/.*[:\/]/, "", file)
    wanted = file ~ /^flux(_[a-z]+)?\.h$/
    if (wanted && file != "flux.h" && !(file in known)) { known[file] = 1; order[++rooms] = file }
    next
}
!wanted { next }
/^ *[^ ]+: *[0-9]+:/ { split($0, part, ":"); line = part[2] + 0; number = 0; next }
/^branch / {
    number++
    key = file SUBSEP line SUBSEP number
    if (file == "flux.h" && copies[line]) key = file SUBSEP line SUBSEP number % written(text[line])
    if (!(key in seen)) seen[key] = 0
    if ($3 == "taken" && $4 + 0 > 0) seen[key] = 1
}
END {
    for (key in seen) {
        split(key, part, SUBSEP)
        s = room_of(part[1], part[2])
        branches[s]++
        taken[s] += seen[key]
        if (!seen[key] && part[1] == "flux.h") never[part[2]]++
    }
    printf "%-40s %8s %8s %8s\n", "room", "branches", "taken", ""
    for (i = 1; i <= rooms; i++) {
        s = order[i]
        if (!branches[s]) continue
        row(s, branches[s], taken[s])
        all += branches[s]
        all_taken += taken[s]
    }
    row("all", all, all_taken)
    for (i = 1; missed != "" && i in text; i++)
        if (never[i] && index(at[i], missed)) printf "%6d: %2d %s\n", i, never[i], text[i]
}
