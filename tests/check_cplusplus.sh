# C and C++ are one library: an implementation compiled in one language serves a program in the other. Every public struct
# has the same layout in both; tests/both.c, which fills every option struct, prints the same; README.md's programs compile
# without a warning in each version of both languages, by gcc and clang.
. tests/check.sh
tmp=$(cd "$tmp" && pwd)
ladder='-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror'
versions='c++11 c++14 c++17 c++20'
need $CXX || finish

# The programs of README.md, and in C++ with the options of a call named, as README.md shows it.
awk -v dir="$tmp" '/^```c$/ { file = dir "/readme" ++n ".c"; next } /^```/ { file = "" } file { print > file }' README.md
named='.x = x, .y = y, .batchsize'
grep -qF "$named" README.md && pass || fail "README.md shows no line for C++"
programs=$(grep -l 'int main' "$tmp"/readme*.c)
[ -n "$programs" ] && pass || fail "README.md shows no program"
for program in $programs; do
    name=$(basename "$program" .c)
    sed "s/x, y, .batchsize/$named/" "$program" >"$tmp/$name.as.cpp"
    cmp -s "$program" "$tmp/$name.as.cpp" && fail "README.md's line for C++ is none of $name's"
    sed -i '/define FLUX_IMPLEMENTATION/d' "$program" "$tmp/$name.as.cpp"
    for cc in gcc clang; do
        have $cc && check "$name, $cc c11" $cc -std=c11 $ladder -I. -c "$program" -o "$tmp/o"
    done
    for cc in g++ clang++; do
        need $cc "$name with $cc" || continue
        for std in $versions; do
            check "$name, $cc $std" $cc -std=$std $ladder -I. -c "$tmp/$name.as.cpp" -o "$tmp/o"
            case "$cc $std" in "g++ c++20") ;; *) check "$name as it stands, $cc $std" $cc -std=$std $ladder -I. -x c++ -c "$program" -o "$tmp/o" ;; esac
        done
    done
done

# Layouts: a program that prints the size of each public struct and where its fields are, from the declarations themselves.
# Of a field that was renamed (FLUX__RENAMED), a union in C, its new name, which both languages have.
printf '#include "flux.h"\n' >"$tmp/interface.c"
$CC -std=c11 -E -P -I. "$tmp/interface.c" | tr '\n' ' ' | sed 's/;/;\n/g' | awk '
    /typedef struct flux_[a-z_0-9]+ \{|^ *struct flux_layer \{/ { match($0, /flux_[a-z_0-9]+/); name = substr($0, RSTART, RLENGTH); sub(/.*\{/, "") }
    left { left--; next }
    /^ *union \{/ { left = 2 }
    name && /^ *\}/ { print name, "."; name = ""; next }
    name {
        gsub(/\[[^]]*\]/, "");
        if (match($0, /\(\*[a-z_0-9]+\)/)) { print name, substr($0, RSTART + 2, RLENGTH - 3); next }
        n = split($0, part, ",");
        for (i = 1; i <= n; i++) { match(part[i], /[A-Za-z_0-9]+[ ;]*$/); f = substr(part[i], RSTART); gsub(/[ ;]/, "", f); if (f != "_") print name, f }
    }' >"$tmp/fields"
[ "$(grep -c '\.$' "$tmp/fields")" -ge 42 ] && [ "$(wc -l <"$tmp/fields")" -ge 290 ] && pass || fail "only $(wc -l <"$tmp/fields") fields were found"
{
    printf '#include "flux.h"\n#include <stddef.h>\nint main(void) {\n'
    awk '$2 == "." { printf "    printf(\"%s %%d\\n\", (int)sizeof(%s));\n", $1, $1; next }
         { printf "    printf(\"%s.%s %%d %%d\\n\", (int)offsetof(%s, %s), (int)sizeof(((%s *)0)->%s));\n", $1, $2, $1, $2, $1, $2 }' "$tmp/fields"
    printf '    return 0;\n}\n'
} >"$tmp/layout.c"
cp "$tmp/layout.c" "$tmp/layout.cpp"
check "layouts in C" $CC -std=c11 -I. "$tmp/layout.c" -o "$tmp/layout" && "$tmp/layout" >"$tmp/layout.expected"
for cc in tcc clang g++ clang++; do
    have $cc || continue
    case $cc in *++) stds=$versions ext=cpp ;; *) stds=c11 ext=c ;; esac
    for std in $stds; do
        check "layouts, $cc $std: program" $cc -std=$std -w -I. "$tmp/layout.$ext" -o "$tmp/layout" || continue
        "$tmp/layout" >"$tmp/layout.out"
        check "layouts, $cc $std" diff "$tmp/layout.expected" "$tmp/layout.out"
    done
done

# The program that uses all of it, in each language with the other's implementation.
implementation && cp "$impl" "$tmp/impl_c.o" || finish
check "implementation in C++" $CXX -std=c++11 -O1 -x c++ -I. -c tests/impl.c -o "$tmp/impl_cpp.o" || finish
check "both.c in C" $CC -std=c11 $ladder -I. tests/both.c "$tmp/impl_c.o" -o "$tmp/both" -lm
check "both.c in C runs" sh -c "'$tmp/both' >'$tmp/expected'"
grep -q 'evaluated once: yes' "$tmp/expected" && ! grep -q 'evaluations of' "$tmp/expected" && pass ||
    { fail "both.c in C"; grep evaluat "$tmp/expected"; }
# same NAME: both.c, compiled to an object and linked, prints what it does in C throughout
same() {
    "$tmp/both" >"$tmp/out" 2>"$tmp/log" || { fail "$1: ended with an error"; cat "$tmp/log"; return; }
    check "$1" diff "$tmp/expected" "$tmp/out"
}
for cc in g++ clang++; do
    have $cc || continue
    for std in $versions; do
        check "both.c, $cc $std" $cc -std=$std $ladder -x c++ -I. -c tests/both.c -o "$tmp/both.o" || continue
        for impl in c cpp; do
            check "both.c, $cc $std, links" $cc "$tmp/both.o" "$tmp/impl_$impl.o" -o "$tmp/both" -lm && same "both.c, $cc $std, implementation in $impl"
        done
    done
done
check "both.c in C with an implementation in C++" $CC -std=c11 -I. -c tests/both.c -o "$tmp/both.o" &&
    check "it links" $CXX "$tmp/both.o" "$tmp/impl_cpp.o" -o "$tmp/both" -lm && same "both.c in C, implementation in C++"
finish
