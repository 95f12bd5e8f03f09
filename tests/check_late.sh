# A handle, and memory of a tensor's, that is used after its scope: the address sanitizer tells of it.
. tests/check.sh
cat >"$tmp/late.c" <<'END'
#define FLUX_IMPLEMENTATION
#include "flux.h"
int main(int argc, char **argv) {
    flux_tensor *x = NULL, *fine = flux_ones(1000);
    flux_layer *m = NULL;
    const float *v = NULL;
    flux_times (i, 2) {
        x = flux_add(fine, 1);
        m = flux_dense(2, 2);
        v = flux_floats(flux_eval(flux_add(fine, 2)));
    }
    for (int i = 0; i < 10000; i++) flux_add(fine, i);
    if (argc < 2) printf("%g\n", flux_item(flux_sum(fine)));
    else if (*argv[1] == 't') flux_print(x);
    else if (*argv[1] == 'l') flux_print(m);
    else printf("%g\n", (double)v[0]);
    return 0;
}
END
# detect_leaks needs ptrace, which containers may forbid
export ASAN_OPTIONS=detect_leaks=0
if $CC -std=c11 -O0 -g1 -fsanitize=address -I. "$tmp/late.c" -o "$tmp/late" -lm >"$tmp/log" 2>&1; then
    check "the address sanitizer: nothing is wrong" "$tmp/late"
    for kind in tensor layer; do refused "the address sanitizer: a $kind after its scope" heap-use-after-free "$tmp/late" $kind; done
    refused "the address sanitizer: a tensor's memory after its scope" use-after-poison "$tmp/late" memory
else
    skip "uses after a scope: $CC has no address sanitizer here"
fi
finish
