# The examples: each is short, says at its head how it is compiled, includes what it uses, and compiles without a warning beside
# the header's declarations; classify.c also as C++ and as a library. `make examples` runs them: each returns non-zero
# if what it claims does not come true, in its short form too.
. tests/check.sh

for source in examples/*.c; do
    name=$(basename "$source" .c)
    [ "$(wc -l <"$source")" -lt 120 ] && pass || fail "$source has $(wc -l <"$source") lines"
    head -n 10 "$source" | grep -q "^       cc -O2 .*-I\. examples/$name.c -lm .*-o $name " && pass || fail "$source: no compile line"
    [ "$(grep -c '^ *# *include "flux.h"$' "$source")" = 1 ] && pass || fail "$source does not include \"flux.h\" as the others do"
    grep -q "\`$name.c\`\|examples/$name.c" README.md && pass || fail "README.md does not name $source"
    # without the implementation, whose own includes would hide that one is missing
    sed '/define FLUX_IMPLEMENTATION/d' "$source" >"$tmp/$name.c"
    for cc in gcc clang; do
        need $cc "$source with $cc" || continue
        check "$cc: $source" $cc -std=c11 -D_POSIX_C_SOURCE=199309L -Wall -Wextra -Wpedantic -Werror -I. -Iexamples -c "$tmp/$name.c" -o "$tmp/$name.o"
    done
done
for cc in g++ clang++; do
    need $cc "classify.c with $cc" || continue
    check "$cc: classify.c" $cc -x c++ -std=c++11 -Wall -Wextra -Wpedantic -Werror -I. -c "$tmp/classify.c" -o "$tmp/classify.o"
done
check "classify.c as a library" $CC -std=c11 -O1 -fPIC -shared -DLIBRARY -I. examples/classify.c -lm -o "$tmp/libclassify.so"
if need nm; then
    for call in classifier_open classify classifier_close; do
        nm -D "$tmp/libclassify.so" | grep -q " T $call$" && pass || fail "libclassify.so has no $call"
    done
fi

# As C++ it runs, too: beside the implementation that the tests link.
implementation && need c++ && if check "classify.c as C++" $CXX -x c++ -std=c++11 -O1 -I. "$tmp/classify.c" -x none "$impl" -lm -lpthread -o "$tmp/classify"; then
    root=$PWD
    ln -s "$root/examples" "$tmp/examples"
    check "classify.c as C++ runs" sh -c "cd '$tmp' && SHORT=1 ./classify"
fi
finish
