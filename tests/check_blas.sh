# FLUX_BLAS: products by a CBLAS that the program links. First by a plain one of ours, which counts its calls and looks at its
# arguments, then by OpenBLAS where it is installed: the tests of products, operations, layers and optimisers must hold with both.
. tests/check.sh
flags="-std=c11 -O1 -DFLUX_BLAS -I."
tests="platform ops optim layers_conv"

cat >"$tmp/plain.c" <<'END'
#include <stdio.h>
#include <stdlib.h>
static int calls;
static void tell(void) { fprintf(stderr, "plain CBLAS: %d calls\n", calls); }
static void look(int order, int ta, int tb, int m, int n, int k, int lda, int ldb, int ldc) {
    if (__atomic_fetch_add(&calls, 1, __ATOMIC_SEQ_CST) == 0) atexit(tell);
    if (order == 102 && (ta == 111 || ta == 112) && (tb == 111 || tb == 112) && m > 0 && n > 0 && k > 0 &&
        lda >= (ta == 111 ? m : k) && ldb >= (tb == 111 ? k : n) && ldc >= m) return;
    fprintf(stderr, "plain CBLAS: bad arguments: %d %d %d, %dx%dx%d, %d %d %d\n", order, ta, tb, m, n, k, lda, ldb, ldc);
    abort();
}
#define GEMM(name, T)                                                                                                     \
    void name(int order, int ta, int tb, int m, int n, int k, T alpha, const T *a, int lda, const T *b, int ldb, T beta, T *c, int ldc) { \
        look(order, ta, tb, m, n, k, lda, ldb, ldc);                                                                      \
        for (long j = 0; j < n; j++)                                                                                      \
            for (long i = 0; i < m; i++) {                                                                                \
                double sum = 0;                                                                                           \
                for (long q = 0; q < k; q++) sum += (double)(ta == 111 ? a[i + q * lda] : a[q + i * lda]) * (tb == 111 ? b[q + j * ldb] : b[j + q * ldb]); \
                c[i + j * ldc] = (T)(alpha * sum + (beta != 0 ? beta * c[i + j * ldc] : 0));                              \
            }                                                                                                             \
    }
GEMM(cblas_sgemm, float)
GEMM(cblas_dgemm, double)
END

# with NAME LIBRARY: the tests, linked to it
with() {
    for t in $tests; do
        check "$1: test_$t is linked" $CC "$tmp/test_$t.o" "$tmp/opened.o" -o "$tmp/test" $2 -lm || continue
        [ $t = platform ] && only=products_of || only=
        check "$1: test_$t" "$tmp/test" $only || continue
        [ "$1" != "plain CBLAS" ] || grep -q 'plain CBLAS: [1-9][0-9]* calls' "$tmp/log" || fail "$1: test_$t did not call it"
    done
}
opened "the implementation" $CC $flags || finish
for t in $tests; do check "test_$t builds" $CC $flags $(looks tests/test_$t.c) -c tests/test_$t.c -o "$tmp/test_$t.o"; done
check "plain CBLAS builds" $CC -O1 -c "$tmp/plain.c" -o "$tmp/plain.o" && with "plain CBLAS" "$tmp/plain.o"

blas=$(pkg-config --cflags --libs openblas 2>/dev/null) || blas=-lopenblas
printf '#include <cblas.h>\nint main(void) { return cblas_isamax(0, 0, 1) != 0; }\n' >"$tmp/have.c"
if $CC "$tmp/have.c" -o "$tmp/have" $blas 2>/dev/null; then
    with OpenBLAS "$blas"
    printf '#include <cblas.h>\n#define FLUX_IMPLEMENTATION\n#include "flux.h"\n' >"$tmp/both.c"
    cp "$tmp/both.c" "$tmp/both.cpp"
    check "with cblas.h included, C" $CC $flags -Wall -Wextra -Werror $blas -c "$tmp/both.c" -o "$tmp/both.o"
    have "$CXX" && check "with cblas.h included, C++" $CXX -std=c++11 -DFLUX_BLAS -I. $blas -c "$tmp/both.cpp" -o "$tmp/both.o"
else
    skip "FLUX_BLAS with OpenBLAS: no cblas.h that links; package: libopenblas-dev"
fi
finish
