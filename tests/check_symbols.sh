# What the header puts into a program is called flux_, flux__ or FLUX: symbols of the object, and macros. With FLUX_STATIC it
# puts none there, and compiles without a warning of functions that are not used.
. tests/check.sh
printf '#define FLUX_IMPLEMENTATION\n#include "flux.h"\n' >"$tmp/impl.c"       # for its macros
printf '#define FLUX_STATIC\n#define FLUX_IMPLEMENTATION\n#include "flux.h"\nint main(void) { return 0; }\n' >"$tmp/static.c"

# none NAME FILE: the file, a list of what should not be there, is empty
none() { if [ -s "$2" ]; then fail "$1"; head -n 20 "$2"; else pass; fi; }

if need nm && implementation; then
    nm -g --defined-only "$impl" | awk '{ print $NF }' >"$tmp/global"
    grep -v '^flux_' "$tmp/global" >"$tmp/foreign"
    none "global symbols that are not flux_" "$tmp/foreign"
    [ "$(wc -l <"$tmp/global")" -ge 410 ] && pass || fail "there are $(wc -l <"$tmp/global") global symbols: is this the library?"
    nm -g --undefined-only "$impl" | grep -E ' flux_' >"$tmp/missing"
    none "declared, called and not there" "$tmp/missing"
    # each function of the interface is there
    sed -n '/interface ends here/q; s/^FLUX_API [^(]*[ *]\(flux_[a-z0-9_]*\)(.*/\1/p' flux.h | sort -u >"$tmp/declared"
    [ "$(wc -l <"$tmp/declared")" -ge 380 ] && pass || fail "only $(wc -l <"$tmp/declared") declarations were found"
    sort -u "$tmp/global" >"$tmp/defined"
    comm -23 "$tmp/declared" "$tmp/defined" >"$tmp/undefined"
    none "declared in the interface, defined nowhere" "$tmp/undefined"
    if check "compiles with FLUX_STATIC" $CC -std=c11 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wdouble-promotion -Wundef -Werror -I. -c "$tmp/static.c" -o "$tmp/static.o"; then
        nm -g --defined-only "$tmp/static.o" | awk '$NF != "main" { print $NF }' >"$tmp/foreign"
        none "global symbols with FLUX_STATIC" "$tmp/foreign"
    fi
fi

# Macros: those that are there with flux.h and not with the headers that it includes.
macros() { $CC -std=c11 $2 -I. -dM -E -x c "$1" | awk '{ sub(/\(.*/, "", $2); print $2 }' | sort -u; }
grep -oE '^ *# *include *<[a-z0-9_/]+\.h>' flux.h | sed 's/^ *# *include *//' | sort -u >"$tmp/includes"
for way in '' -DFLUX_IMPLEMENTATION; do
    : >"$tmp/without.c"
    while read -r header; do
        if [ -z "$way" ]; then case $header in *std[bid]*|*stdio*) ;; *) continue ;; esac; fi
        printf '#if __has_include(%s)\n#include %s\n#endif\n' "$header" "$header"
    done <"$tmp/includes" >"$tmp/without.c"
    printf '#include "flux.h"\n' >"$tmp/with.c"
    macros "$tmp/without.c" "$way" >"$tmp/before"
    macros "$tmp/with.c" "$way" >"$tmp/after"
    comm -13 "$tmp/before" "$tmp/after" | grep -vE '^(flux_|FLUX)' >"$tmp/foreign"
    none "macros that leak (${way:-declarations only})" "$tmp/foreign"
    grep -qx FLUX_H "$tmp/after" && pass || fail "FLUX_H is not there: was flux.h read?"
done
finish
