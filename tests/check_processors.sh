# Processors other than x86-64, by cross compilers and qemu: ARM's 64 bits, where loops and products are made of NEON, and the
# plain C of ARM's 32 bits and RISC-V. qemu says whether they compute what they should. How fast, it can't: so it is looked at
# that NEON's instructions are those meant. What is long and the same on every processor has fewer cases there (EMULATED in tests/).
. tests/check.sh
ladder='-std=c11 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wundef'

# tests_on TRIPLE QEMU TEST[:PART]...: the tests hold there, or those whose name has PART in it
tests_on() {
    triple=$1 emulator=$2; shift 2
    opened "$triple: implementation" $triple-gcc $ladder -Werror -O2 || return
    for t in "$@"; do
        part=${t#*:} t=${t%:*}
        [ "$part" != "$t" ] || part=
        check "$triple: test_$t builds" $triple-gcc -std=c11 -O1 $(looks tests/test_$t.c) -I. tests/test_$t.c "$tmp/opened.o" -o "$tmp/test" -lm || continue
        check "$triple: test_$t" env FLUX_NUM_THREADS=2 EMULATED=1 SHORT=1 $emulator -L /usr/$triple "$tmp/test" $part || continue
        grep -q '[1-9][0-9]* passed, 0 failed' "$tmp/log" || fail "$triple: test_$t passed nothing"
    done
}
# ready TRIPLE QEMU: both are here and a program runs
ready() {
    need $1-gcc && need $2 || return 1
    printf '#include <stdio.h>\nint main(void) { return puts("runs") < 0; }\n' >"$tmp/runs.c"
    $1-gcc "$tmp/runs.c" -o "$tmp/runs" >"$tmp/log" 2>&1 && $2 -L /usr/$1 "$tmp/runs" >"$tmp/log" 2>&1 || { skip "$1: its C library is not here; package: libc6-dev-ARCHITECTURE-cross"; return 1; }
}
# instructions FUNCTION: as text
instructions() { aarch64-linux-gnu-objdump -d --no-show-raw-insn --disassemble="$1" "$tmp/opened.o"; }
# uses FUNCTION COUNT PATTERN: that many, to the instruction; or some
uses() {
    n=$(instructions "$1" | grep -cE "$3")
    [ "$n" = "$2" ] || { [ "$2" = some ] && [ "$n" -gt 0 ]; } && pass || fail "$1 has $n of '$3', not $2"
}

if ready aarch64-linux-gnu qemu-aarch64; then
    tests_on aarch64-linux-gnu qemu-aarch64 loops products platform:products_of ops activations layers layers_conv layers_seq losses optim \
        mixed models tensors expr schedule:reductions threads:users data
    printf '#include "tests/inside.h"\nint main(void) { return !flux__test_neon(); }\n' >"$tmp/set.c"
    check "NEON: a program for its set builds" aarch64-linux-gnu-gcc -I. "$tmp/set.c" "$tmp/opened.o" -o "$tmp/set" -lm &&
        check "NEON: its set is in use" qemu-aarch64 -L /usr/aarch64-linux-gnu "$tmp/set"
    if need aarch64-linux-gnu-objdump "NEON: its instructions" && [ -e "$tmp/opened.o" ]; then
        # a step of k: two vectors of A, twelve elements of B, 24 products, and nothing kept in memory
        uses flux__gemm_f32_base_2x12 24 'fmla.*\.4s, v[0-9]+\.s\[0\]'
        uses flux__gemm_f64_base_2x12 24 'fmla.*\.2d, v[0-9]+\.d\[0\]'
        uses flux__gemm_f32_base_2x12 0 'dup|ld1r|str.*q[0-9]+, \[sp'
        uses flux__loop_EXP_x4 9 fmla
        uses flux__loop_EXP_x4 0 '\[sp|fcmgt'
        uses flux__adam_x4 some 'fsqrt.*\.4s'
        uses flux__f16_f32 some 'fcvtl.*\.4s'
        uses flux__f32_f16 some 'fcvtn.*\.4h'
        uses flux__random_x4 some 'umull.*\.2d'
    fi
    if need clang; then                  # not optimised, which takes half a minute: NEON's names are looked at
        clang='clang --target=aarch64-linux-gnu -isystem /usr/aarch64-linux-gnu/include'
        opened "NEON: clang's implementation" $clang $ladder -Werror -O0 || finish
        for t in loops: platform:products_of; do
            name=test_${t%:*}
            check "NEON: $name by clang builds" $clang $ladder -Werror -O1 $(looks tests/$name.c) -I. -c tests/$name.c -o "$tmp/clang.o" &&
                check "NEON: $name by clang is linked" aarch64-linux-gnu-gcc "$tmp/clang.o" "$tmp/opened.o" -o "$tmp/test" -lm &&
                check "NEON: $name by clang" env FLUX_NUM_THREADS=2 EMULATED=1 SHORT=1 qemu-aarch64 -L /usr/aarch64-linux-gnu "$tmp/test" ${t#*:}
        done
    fi
fi
if ready arm-linux-gnueabihf qemu-arm; then tests_on arm-linux-gnueabihf qemu-arm loops platform:products_of products:convolutions ops optim; fi
if ready riscv64-linux-gnu qemu-riscv64; then tests_on riscv64-linux-gnu qemu-riscv64 loops platform:products_of; fi
finish
