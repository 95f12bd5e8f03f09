# rooms.awk - what a room defines, uses and includes, one fact a line, for check_rooms.sh:
#     include ROOM ROOM [NAMES]    size ROOM LINES    hook NAME ROOM HERE    define NAME ROOM    use NAME ROOM
# A room is the path below src/ without .h. Only names that begin with flux_ or FLUX_ count. A prototype defines and uses
# nothing. Names that macros make by pasting are not seen: an #include that is there for such names says which, in a comment.

function plain(path) {
    while (match(path, /[^\/.]+\/\.\.\//)) path = substr(path, 1, RSTART - 1) substr(path, RSTART + RLENGTH)
    return path
}

# The line without comments and without what stands in quotes.
function code_of(line,    out, c, i, n, quote) {
    n = length(line)
    for (i = 1; i <= n; i++) {
        c = substr(line, i, 1)
        if (comment) {
            if (c == "*" && substr(line, i + 1, 1) == "/") { comment = 0; i++; out = out " " }
        } else if (c == "/" && substr(line, i + 1, 1) == "*") { comment = 1; i++ }
        else if (c == "\"" || c == "\047") {
            for (i++; i <= n && substr(line, i, 1) != c; i++) if (substr(line, i, 1) == "\\") i++
            out = out c c
        } else out = out c
    }
    return out
}

function each_name(text, what,    name) {
    while (match(text, /[A-Za-z_][A-Za-z_0-9]*/)) {
        name = substr(text, RSTART, RLENGTH)
        text = substr(text, RSTART + RLENGTH)
        if (name ~ /^(flux_|FLUX_)/ && !((what, name) in said)) {
            said[what, name] = 1
            print what, name, room
        }
    }
}

function define(name) { if (name != "") each_name(name, "define") }

# The name that a declaration declares: what stands before its first parenthesis, bracket, = or ;
function declared(head) {
    gsub(/(__attribute__|FLUX__PRINTF|FLUX__TARGET)[ ]*\([^)]*\)+/, " ", head)
    if (match(head, /^[^(]*\([ ]*\*[ ]*[A-Za-z_0-9]+/)) head = substr(head, RSTART, RLENGTH)    # a pointer to a function
    else sub(/[[(=;{].*/, "", head)
    return match(head, /[A-Za-z_][A-Za-z_0-9]*[ ]*$/) ? substr(head, RSTART, RLENGTH) : ""
}

function enumerators(body,    part, n, i) {
    gsub(/[A-Za-z_0-9]+\([A-Za-z_0-9]*\)/, "", body)
    n = split(body, part, ",")
    for (i = 1; i <= n; i++) if (match(part[i], /[A-Za-z_][A-Za-z_0-9]*/)) define(substr(part[i], RSTART, RLENGTH))
}

# A whole declaration of the top level: `head` up to its first brace, `body` within its braces, `tail` after them.
function statement(head, body, tail,    tag, list, n, i) {
    sub(/^[ ]+/, "", head)
    if (head ~ /^(typedef )?enum/ && body != "") enumerators(body)
    if (match(head, /(struct|union|enum) [A-Za-z_0-9]+ *$/) && body != "") {
        tag = substr(head, RSTART, RLENGTH); sub(/^[a-z]+ /, "", tag); define(tag)
    }
    if (head ~ /^typedef/) {
        if (body != "") { sub(/;.*/, "", tail); define(declared(tail ";")) }
        else if (head ~ /\([ ]*\*/) define(declared(head))
        else { sub(/(\[[^]]*\])*[ ]*;.*/, "", head); define(declared(head ";")) }
    } else if (body == "" && head ~ /\(/ && head !~ /=/ && head !~ /^[^(]*\([ ]*\*/) return
    else if (head ~ /^(static|FLUX|const|extern|inline)/ && head !~ /^FLUX[A-Z_0-9]*[ ]*\(/) {
        define(declared(head))
        if (body == "" && head ~ /,/ && head !~ /\(/) { n = split(head, list, ","); for (i = 2; i <= n; i++) define(declared(list[i] ";")) }
    }
    head = head " " body " " tail
    gsub(/(struct|union) [A-Za-z_0-9]+ *(\*|;)/, " ", head)               # nothing need be known of it
    each_name(head, "use")
}

FNR == 1 {
    room = FILENAME
    sub(root, "", room); sub(/\.h$/, "", room)
    comment = depth = 0
    head = body = tail = ""
    split("", said)
}
{ lines[room] = FNR }
/^#include "/ {
    split($0, part, "\"")
    target = room; sub(/[^\/]*$/, "", target)
    target = plain(target part[2]); sub(/\.h$/, "", target)
    names = ""
    if (match($0, /\/\* .* \*\//)) names = substr($0, RSTART + 3, RLENGTH - 6)
    if (target !~ /^flux_/) print "include", room, target, names
    next
}
/\/\* hook: / {
    split(substr($0, index($0, "/* hook: ") + 9), part, /[ ,*]+/)
    sub(/\.h$/, "", part[2])
    print "hook", part[1], part[2], room
}
{
    line = code_of($0)
    if (directive || (line ~ /^ *#/)) {
        if (!directive && match(line, /^ *# *define +[A-Za-z_0-9]+/)) {
            name = substr(line, RSTART, RLENGTH); sub(/.* /, "", name); define(name)
        }
        directive = line ~ /\\$/
        each_name(line, "use")
        next
    }
    if (line ~ /^extern "" *\{/ || (depth == 0 && line ~ /^\} *$/ && !inside)) next            # extern "C" { }
    if (depth == 0 && head ~ /^ *$/ && line ~ /^FLUX__(BEGIN|END)_[A-Z]+ *$/) { each_name(line, "use"); next }
    n = length(line)
    for (i = 1; i <= n; i++) {
        c = substr(line, i, 1)
        if (c == "{") depth++
        else if (c == "}") {
            if (--depth == 0) {
                if (head ~ /\)[^=]*$/ && head !~ /=/) { statement(head, body " ", ""); head = body = tail = "" }
                else inside = 1
                continue
            }
        } else if (c == ";" && depth == 0) {
            statement(inside ? head : head ";", inside ? body " " : "", tail ";")
            head = body = tail = ""; inside = 0
            continue
        }
        if (depth > 0) body = body c
        else if (inside) tail = tail c
        else head = head c
    }
    if (depth > 0) body = body " "; else if (inside) tail = tail " "; else head = head " "
    if (depth == 0 && !inside && head ~ /^ *(FLUX_[A-Z_0-9]+ +)*FLUX_[A-Z_0-9]+ *\(.*\) *$/) { each_name(head, "use"); head = "" }
}
END { for (room in lines) print "size", room, lines[room] }
