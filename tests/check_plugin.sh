# A library that has flux.h in it is loaded, used by two threads and unloaded while they live, three times.
# (Not one by tcc, whose libraries run nothing when they are unloaded.)
. tests/check.sh
need ldd "a plugin: dlclose is not known to unload here" || finish
for cc in "$CC" clang; do
    need $cc "a plugin by $cc" || continue
    check "plugin by $cc: builds" $cc -std=c11 -O0 -fPIC -shared -I. tests/plugin/plugin.c -o "$tmp/plugin.so" -lm &&
        check "its host builds" "$CC" -std=c11 -O1 tests/plugin/host.c -o "$tmp/host" -lpthread -ldl &&
        check "plugin by $cc: unloaded while a thread lives" timeout 60 "$tmp/host" "$(cd "$tmp" && pwd)/plugin.so"
done
finish
