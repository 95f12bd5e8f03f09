# The rooms of src/: flux.h is what they join to; a room stands on rooms of its own floor and of lower ones, never in a circle;
# it uses what it includes and includes what it uses. That each compiles by itself is check_rooms_alone.sh. Prints the plan of the
# house, floor by floor.
. tests/check.sh

sh src/join.sh src/flux.h >"$tmp/joined.h"
check "flux.h is what \`make flux.h\` makes of src/" cmp "$tmp/joined.h" flux.h
sh src/macros.sh >"$tmp/macros.h"
check "src/api/macros.h is what src/macros.sh makes" cmp "$tmp/macros.h" src/api/macros.h

awk -v root=src/ -f tests/rooms.awk src/*/*.h >"$tmp/facts"
[ "$(grep -c '^define' "$tmp/facts")" -ge 3200 ] && pass || fail "the rooms' names were not found"

# The floors, from the ground up. api stands apart: base/platform.h includes it, and so everybody has it.
floors='api base graph schedule cpu=gpu device data nn files text dist'
awk -v floors="$floors" '
BEGIN {
    n = split(floors, level, " ")
    for (i = 1; i <= n; i++) { m = split(level[i], name, "="); for (j = 1; j <= m; j++) floor_of[name[j]] = i }
}
function floor_at(room) { sub(/\/.*/, "", room); return floor_of[room] }
function wrong(text) { print text }
# a hook serves the room in which it stands and those that include that room
function hooked(room, name, where,    list, n, i) {
    if (hook[name] != where) return 0
    n = split(at[name], list, " ")
    for (i = 1; i <= n; i++) if (list[i] == room || (room, list[i]) in includes) return 1
    return 0
}
# a circle is found by walking down from each room
function walk(room,    list, n, i) {
    if (state[room] == 2) return
    if (state[room] == 1) { wrong("a circle of includes goes through " room); return }
    state[room] = 1
    n = split(below[room], list, " ")
    for (i = 1; i <= n; i++) walk(list[i])
    state[room] = 2
}
FNR == NR && $1 == "define" { if ($2 in homes) homes[$2] = homes[$2] " " $3; else homes[$2] = $3; home[$2, $3] = 1; next }
FNR == NR && $1 == "hook" { hook[$2] = $3; at[$2] = at[$2] " " $4; next }
FNR == NR { next }
$1 == "size" {
    if (!floor_at($2)) wrong($2 ": its folder is no floor")
    if ($3 > 800) wrong($2 ": " $3 " lines, 800 are the most")
    rooms[$2] = $3
}
$1 == "include" {
    includes[$2, $3] = 1
    below[$2] = below[$2] " " $3
    named[$2, $3] = NF > 3
    if (floor_at($3) > floor_at($2)) wrong($2 " includes " $3 ", which is of a higher floor")
}
$1 == "use" && $2 in homes && homes[$2] !~ / / && !(($2, $3) in home) { used[$3, homes[$2]] = $2; need[++needs] = $3 " " homes[$2] " " $2 }
END {
    for (h in hook) if (!((h, hook[h]) in home)) wrong("hook " h ": " hook[h] " does not define it")
    for (i = 1; i <= needs; i++) {
        split(need[i], part, " ")
        n = split(at[part[3]], list, " ")
        for (j = 1; j <= n; j++) used[part[1], list[j]] = part[3]
        if (part[1] ~ /^api\// || part[2] ~ /^api\// || part[1] == "graph/table") continue
        if (!((part[1], part[2]) in includes) && !hooked(part[1], part[3], part[2])) wrong(part[1] " uses " part[3] " of " part[2] " and does not include it")
    }
    for (pair in includes) {
        split(pair, part, SUBSEP)
        if (part[2] !~ /^api\// && !((part[1], part[2]) in used) && !named[part[1], part[2]]) wrong(part[1] " includes " part[2] " and uses nothing of it")
    }
    for (room in rooms) walk(room)
}' "$tmp/facts" "$tmp/facts" | sort >"$tmp/wrong"
if [ -s "$tmp/wrong" ]; then fail "rooms that stand wrongly"; head -n 40 "$tmp/wrong"; else pass; fi

# A room's optimisation mode begins before its first function and ends with the room.
for room in $(ls src/*/*.h | grep -v -e ^src/api/ -e ^src/graph/table.h); do
    awk '/^(static|FLUX_DEF) .*\) \{/ && !mode { early = 1 }
         /^FLUX__BEGIN_/ { mode = substr($0, 13); begun++ }
         /^FLUX__END_/ { ended = substr($0, 11) } NF && !/^#endif/ { last = $0 }
         END { if (early || begun != 1 || ended != mode || last != "FLUX__END_" mode) print FILENAME }' "$room" >>"$tmp/modes"
done
if [ -s "$tmp/modes" ]; then fail "rooms whose mode does not begin and end with them:"; cat "$tmp/modes"; else pass; fi

awk '$1 == "size" { folder = $2; sub(/\/.*/, "", folder); sub(/.*\//, "", $2); plan[folder] = plan[folder] " " $2; lines[folder] += $3 }
     $1 == "include" { a = $2; b = $3; sub(/\/.*/, "", a); sub(/\/.*/, "", b); if (a != b) arrows[a] += !((a, b) in seen); if (a != b && !((a, b) in seen)) to[a] = to[a] " " b; seen[a, b] = 1 }
     END { for (f in plan) printf "%s (%d lines; stands on%s):%s\n", f, lines[f], to[f] ? to[f] : " libc", plan[f] }' "$tmp/facts"
finish
