# A program that has another user's rights reads no variable of the one who started it. Takes root, to give such rights.
. tests/check.sh
[ "$(id -u)" = 0 ] && have setpriv || { skip "setuid: takes root and setpriv; package: util-linux"; finish; }
cat >"$tmp/setuid.c" <<'END'
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "flux.h"
const char *flux__env(const char *name);
int main(int argc, char **argv) {         /* 0: the variables are read, 1: they are not, 2: nobody's rights were given */
    if (argc > 1 && geteuid() == getuid()) return (void)argv, 2;
    return !(flux__env("FLUX_CACHE_DIR") && flux__env("HOME") && strcmp(flux_gpu_backend(), "CPU") == 0);
}
END
inside || finish
check "setuid: builds" "$CC" -std=c11 -D_DEFAULT_SOURCE -I. "$tmp/setuid.c" "$impl" -o "$tmp/setuid" -lm || finish
export FLUX_CACHE_DIR="$(realpath "$tmp")/cache" FLUX_GPU_BACKEND=CPU
check "its own user's variables are read" "$tmp/setuid"
# in a folder that the other user may reach
place=$(mktemp -d) && chmod 755 "$place" && cp "$tmp/setuid" "$place/p" && chmod 4755 "$place/p"
setpriv --reuid=65534 --regid=65534 --clear-groups "$place/p" setuid
case $? in
1) pass ;;
2) skip "setuid: files in $place give no rights here" ;;
*) fail "a setuid program read FLUX_GPU_BACKEND" ;;
esac
rm -rf "$place"
finish
