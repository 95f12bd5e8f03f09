# join.sh - joins the rooms to one header: sh src/join.sh src/flux.h >flux.h
# A file's `#include "room.h"` becomes that room's text where the room is first included, and nothing where it is included
# again. A room's guard, which has the room's name, and its blank first and last lines go. A file that is not there, such as
# flux_cuda.h, stays an #include. `#line __LINE__` becomes the number that the next line has anyway.
awk '
function folder(path) { return match(path, /.*\//) ? substr(path, 1, RLENGTH) : "" }

# a/b/../c is a/c
function plain(path) {
    while (match(path, /[^\/.]+\/\.\.\//)) path = substr(path, 1, RSTART - 1) substr(path, RSTART + RLENGTH)
    return path
}

function guard_of(path) {
    sub(root, "", path)
    gsub(/[^A-Za-z0-9]/, "_", path)
    return "FLUX__" toupper(path)
}

function there(path,    line, got) {
    if (path in joined) return 1
    got = (getline line < path)
    close(path)
    return got > 0
}

function say(line) { said++; print line }

function join_file(path,    line, part, target, guard) {
    joined[path] = 1
    guard = guard_of(path)
    while ((getline line < path) > 0) {
        if (line == "#ifndef " guard || line == "#define " guard || line == "#endif /* " guard " */") continue
        split(line, part, "\"")
        target = plain(folder(path) part[2])
        if (line ~ /^#include "/ && there(target)) {
            if (!(target in joined)) {
                blank = 1
                join_file(target)
                blank = 1
            }
        } else if (line == "") blank = 1
        else {
            if (blank && begun) say("")
            blank = 0
            begun = 1
            say(line == "#line __LINE__" ? "#line " said + 2 : line)
        }
    }
    close(path)
}

BEGIN { root = folder(ARGV[1]); join_file(ARGV[1]) }
' "$1"
