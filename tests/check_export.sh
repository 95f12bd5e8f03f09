# Files of C that flux_export_c writes, digits' CNN and a GRU of one step: compiled without a warning by gcc, clang, tcc,
# g++ and for a Cortex-M, and what each computes is what flux_call does, to 1e-5.
. tests/check.sh
cat >"$tmp/write.c" <<'END'
#include "flux.h"
static void numbers(FILE *f, const char *name, flux_tensor *x) {
    const float *v = flux_floats(x);
    fprintf(f, "static const double %s[] = {", name);
    for (int64_t i = 0; v && i < flux_len(x); i++) fprintf(f, "%s%.9g", i ? ", " : "", (double)v[i]);
    fprintf(f, "};\n");
}
int main(int argc, char **argv) {
    char path[1000];
    if (argc < 2) return 1;
    flux_seed(5);
    flux_layer *cnn = flux_chain(
        flux_conv_layer(FLUX_SHAPE(3, 3), 1, 16, .pad = FLUX_SAMEPAD), flux_batchnorm(16, flux_relu),
        flux_maxpool_layer(FLUX_SHAPE(2, 2)), flux_conv_layer(FLUX_SHAPE(3, 3), 16, 32, flux_relu), flux_flatten,
        flux_dense(128, 10), flux_softmax);
    flux_layer *gru = flux_chain(flux_gru(12, 40), flux_dense(40, 5));
    flux_tensor *image = flux_randn(8, 8, 1, 2), *steps = flux_randn(12, 3, 1);
    snprintf(path, sizeof path, "%s/cnn.c", argv[1]);
    if (flux_export_c(cnn, FLUX_SHAPE(8, 8, 1, 2), path)) return 1;
    snprintf(path, sizeof path, "%s/gru.c", argv[1]);
    if (flux_export_c(gru, FLUX_SHAPE(12, 1, 1), path)) return 1;
    snprintf(path, sizeof path, "%s/numbers.h", argv[1]);
    FILE *f = fopen(path, "w");
    if (!f) return 1;
    FLUX_INFER {
        numbers(f, "image", image), numbers(f, "chances", flux_call(cnn, image));
        numbers(f, "steps", steps), numbers(f, "outputs", flux_call(gru, steps));
    }
    return fclose(f) || flux_failed();
}
END
cat >"$tmp/use.c" <<'END'
#define cnn_DECLARE
#define gru_DECLARE
#include "cnn.c"
#include "gru.c"
#include "numbers.h"
#include <stdio.h>
static int bad;
static void compare(const float *got, const double *want, int n) {
    for (int i = 0; i < n; i++) {
        const double d = (double)got[i] - want[i];
        bad += !(d < 1e-5 && d > -1e-5);
    }
}
int main(void) {
    static float in[128], out[20];
    static gru_state state;
    for (int i = 0; i < 128; i++) in[i] = (float)image[i];
    cnn(in, out);
    compare(out, chances, 20);
    gru_reset(&state);
    for (int t = 0; t < 3; t++) {
        for (int i = 0; i < 12; i++) in[i] = (float)steps[12 * t + i];
        gru(&state, in, out);
        compare(out, outputs + 5 * t, 5);
    }
    printf("%d wrong\n", bad);
    return bad != 0;
}
END
implementation || finish
check "the program that writes them" $CC -std=c11 -O1 -I. "$tmp/write.c" "$impl" -o "$tmp/write" -lm || finish
check "writing them" "$tmp/write" "$tmp" || finish
warn='-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wdouble-promotion -Werror'
# compiles NAME COMMAND...: both files and their use, then runs it
compiles() {
    what=$1; shift
    need "$1" "a file of C, $what" || return 0
    if check "$what compiles them" "$@" "$tmp/cnn.c" "$tmp/gru.c" "$tmp/use.c" -o "$tmp/use" -lm; then
        check "$what: the numbers" "$tmp/use"
    fi
}
compiles gcc gcc -std=c99 -O2 $warn
compiles "gcc -O3 -march=native" gcc -O3 -march=native $warn
compiles clang clang -std=c99 -O2 $warn
compiles "clang -march=native" clang -O3 -march=native $warn
compiles tcc tcc -Wall -Werror
compiles g++ g++ -x c++ -std=c++11 -O2 $warn
compiles clang++ clang++ -x c++ -std=c++11 -O2 $warn
if need arm-none-eabi-gcc "a file of C, Cortex-M"; then
    for core in cortex-m0 cortex-m4; do
        for file in cnn gru; do
            check "$core: $file.c" arm-none-eabi-gcc -mcpu=$core -mthumb -O2 $warn -c "$tmp/$file.c" -o "$tmp/$file.o"
        done
    done
    # weights are in .text or .rodata, nothing is copied to RAM at the start, and no library but libm is called
    arm-none-eabi-size "$tmp/cnn.o" "$tmp/gru.o" | awk 'NR > 1 { bad += $2 != 0 || $1 < 8000 } END { exit bad }' && pass ||
        fail "Cortex-M: weights are not constant"
    if arm-none-eabi-nm -u "$tmp/cnn.o" "$tmp/gru.o" | grep -E 'malloc|free|printf|flux'; then
        fail "Cortex-M: it calls what it may not"
    else pass; fi
fi
finish
