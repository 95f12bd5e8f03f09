/* ptx.c - PTX as the real NVRTC makes it becomes C that the host's compiler takes.

   Every register is a 64-bit word R_name; IN_type(word) reads it as a type and OUT_type(value) writes it, so that what
   the registers' own types are is not asked. A parameter, a local array or one of global memory is an array of bytes
   by its name. An address of shared memory is a number, as ldmatrix and cp.async take it: the distance from the start
   of shared memory, 16 being the prelude's bytes; all other addresses are the host's pointers. Blocks, labels and
   branches are C's own. A matrix instruction is a call of the function that an assembler statement calls (prelude.c).

   Approximate instructions are computed by libm and spoilt by a unit in the last place, where the manual permits it.
   An instruction that is not known here fails the compilation: nothing is passed over. */
#define _GNU_SOURCE
#include "softgpu.h"
#include "control.h"
#include "ptx.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PARTS = 12, MOST_OPERANDS = 16, WORD = 160, LIST = 1600 };

typedef struct instruction {
    char part[MOST_PARTS][24];                     /* "ld" "global" "v4" "f32" */
    int parts;
    char operand[MOST_OPERANDS][LIST];             /* as they stand: "%r1", "[%rd1+8]", "{%f1, %f2}" */
    int operands;
    const char *type;                              /* the last part that is a type, or "" */
} instruction;

typedef struct translator {
    const char *at;
    FILE *out, *table;
    char *log;                                     /* what could not be translated */
    size_t log_size;
    int depth;
    bool failed, entry, meets, async;              /* entry: the function at hand is a kernel; async: there are copies of boxes, or wgmma */
} translator;

static void complain(translator *t, const char *what, const char *text) {
    if (!t->failed) snprintf(t->log, t->log_size, "ptx.c: %s: %.*s\n", what, (int)strcspn(text, ";\n"), text);
    t->failed = true;
}

/* ---------------- what the text needs: one 64-bit word is a register */

static const char registers_of_c[] =
"typedef unsigned long long softreg;\n"
"char *softgpu_dynamic_shared(softreg at, int bytes); void softptx_named_barrier(int number, int count);\n"
"void softptx_mbarrier_init(unsigned at, unsigned all), softptx_mbarrier_arrive(unsigned at, unsigned bytes);\n"
"int softptx_mbarrier_try_wait(unsigned at, unsigned parity); void softptx_fence_async(int of_all);\n"
"void softptx_reads(const void *p, int bytes), softptx_writes(const void *p, int bytes);\n"
"void softptx_box(unsigned to, const void *map, int x, int y, int z, unsigned at), softptx_setmaxnreg(int more, int n);\n"
"void softptx_wgmma(int n, int brain, softreg a, softreg b, int adds, int turned_a, int turned_b, softreg **d);\n"
"void softptx_wgmma_loaded(int n, int brain, const unsigned *words, softreg b, int adds, int turned_b, softreg **d);\n"
"void softptx_wgmma_fence(void), softptx_wgmma_commit(void), softptx_wgmma_wait(int left);\n"
"typedef bool TYPE_pred; typedef unsigned char TYPE_b8, TYPE_u8; typedef unsigned short TYPE_b16, TYPE_u16; typedef unsigned TYPE_b32, TYPE_u32;\n"
"typedef softreg TYPE_b64, TYPE_u64; typedef signed char TYPE_s8; typedef short TYPE_s16; typedef int TYPE_s32; typedef long long TYPE_s64;\n"
"typedef float TYPE_f32; typedef double TYPE_f64;\n"
"#define IN_pred(x) ((x) & 1)\n#define OUT_pred(x) ((x) & 1)\n"
"#define IN_b8(x) ((unsigned char)(x))\n#define IN_u8 IN_b8\n#define IN_s8(x) ((signed char)(x))\n"
"#define IN_b16(x) ((unsigned short)(x))\n#define IN_u16 IN_b16\n#define IN_s16(x) ((short)(x))\n"
"#define IN_b32(x) ((unsigned)(x))\n#define IN_u32 IN_b32\n#define IN_s32(x) ((int)(x))\n"
"#define IN_b64(x) ((softreg)(x))\n#define IN_u64 IN_b64\n#define IN_s64(x) ((long long)(x))\n"
"#define OUT_b8(x) ((softreg)(unsigned char)(x))\n#define OUT_u8 OUT_b8\n#define OUT_s8(x) ((softreg)(long long)(signed char)(x))\n"
"#define OUT_b16(x) ((softreg)(unsigned short)(x))\n#define OUT_u16 OUT_b16\n#define OUT_s16 OUT_b16\n"
"#define OUT_b32(x) ((softreg)(unsigned)(x))\n#define OUT_u32 OUT_b32\n#define OUT_s32 OUT_b32\n"
"#define OUT_b64(x) ((softreg)(x))\n#define OUT_u64 OUT_b64\n#define OUT_s64 OUT_b64\n#define OUT_64 OUT_b64\n#define OUT_32(x) ((x) & 0xffffffffu)\n"
"SOFT_FN float IN_f32(softreg x) { union { unsigned u; float f; } w; w.u = (unsigned)x; return w.f; }\n"
"SOFT_FN double IN_f64(softreg x) { union { softreg u; double f; } w; w.u = x; return w.f; }\n"
"SOFT_FN softreg OUT_f32(float x) { union { unsigned u; float f; } w; w.f = x; return w.u; }\n"
"SOFT_FN softreg OUT_f64(double x) { union { softreg u; double f; } w; w.f = x; return w.u; }\n"
"SOFT_FN float IN_f16(softreg x) { float y; softptx_cvt_f32_f16(&y, (unsigned short)x); return y; }\n"
"SOFT_FN softreg OUT_f16(float x) { unsigned short y; softptx_cvt_rn_f16_f32(&y, x); return y; }\n"
"SOFT_FN float IN_bf16(softreg x) { return IN_f32(x << 16); }\n"
"SOFT_FN softreg OUT_bf16(float x) { unsigned y; softptx_cvt_rn_bf16x2_f32(&y, 0.0f, x); return y & 0xffff; }\n"
"SOFT_FN void softreg_fault(void) { *(volatile int *)0 = 1; }\n"
"SOFT_FN char *softreg_at(softreg at, long long offset, int bytes) {\n"
"    if ((at + (softreg)offset) % (unsigned)bytes) softreg_fault();\n"
"    return (char *)(softgpu_size)(at + (softreg)offset); }\n"
"SOFT_FN char *softreg_shared(softreg at, long long offset, int bytes) {\n"
"    char *p = softgpu_module.shared + (long long)at + offset - 16;\n"
"    if (p < softgpu_module.shared || p + bytes > softgpu_module.shared_end) p = softgpu_dynamic_shared(at + (softreg)offset, bytes);\n"
"    if ((softgpu_size)p % (unsigned)bytes) softreg_fault();\n"
"    return p; }\n"
"SOFT_FN unsigned softreg_lane(void) { return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32; }\n";

static const char conversions[] =
"#define softreg_rni(x) rint(x)\n#define softreg_rzi(x) trunc(x)\n#define softreg_rmi(x) floor(x)\n#define softreg_rpi(x) ceil(x)\n"
"#define SOFT_TO(T, name, low, high) SOFT_FN T softreg_to_##name(double x) { \\\n"
"    return x != x ? 0 : x <= (double)(low) ? (low) : x >= (double)(high) ? (high) : (T)x; }\n"
"SOFT_TO(unsigned short, u16, 0, 65535) SOFT_TO(short, s16, -32768, 32767) SOFT_TO(unsigned, u32, 0, 4294967295u)\n"
"SOFT_TO(int, s32, -2147483647 - 1, 2147483647) SOFT_TO(softreg, u64, 0, ~0ull)\n"
"SOFT_TO(long long, s64, -9223372036854775807ll - 1, 9223372036854775807ll)\n"
"SOFT_FN float softreg_saturated(float x) { return x != x || x < 0 ? 0.0f : x > 1 ? 1.0f : x; }\n"
/* What a sum in double leaves out; a float of it that is nearer to 0, or lower, than the exact sum's. */
"SOFT_FN double softreg_rest(double a, double b, double sum) { double c = sum - a; return (a - (sum - c)) + (b - c); }\n"
"SOFT_FN float softreg_to_zero(double sum, double rest) {\n"
"    float f = (float)sum;\n"
"    int beyond = sum > 0 ? (double)f > sum || ((double)f == sum && rest < 0) : (double)f < sum || ((double)f == sum && rest > 0);\n"
"    return beyond ? nextafterf(f, 0.0f) : f; }\n"
"SOFT_FN float softreg_add_to_zero(float a, float b) {\n"
"    double sum = (double)a + (double)b; return softreg_to_zero(sum, softreg_rest(a, b, sum)); }\n"
"SOFT_FN float softreg_fma_to_zero(float a, float b, float c) {\n"
"    double product = (double)a * (double)b, sum = product + (double)c; return softreg_to_zero(sum, softreg_rest(product, c, sum)); }\n"
"SOFT_FN float softreg_fma_down(float a, float b, float c) {\n"
"    double product = (double)a * (double)b, sum = product + (double)c, rest = softreg_rest(product, c, sum); float f = (float)sum;\n"
"    return (double)f > sum || ((double)f == sum && rest < 0) ? nextafterf(f, -1.0f / 0.0f) : f; }\n"
"SOFT_FN double softreg_reciprocal(double x) {\n"
"    softreg u = OUT_f64(x), y = OUT_f64(1.0 / x);\n"
"    if (!(u >> 52 & 2047)) return IN_f64((u & 1ull << 63) | 2047ull << 52);\n"
"    if (!(y >> 52 & 2047)) return IN_f64(y & 1ull << 63);\n"
"    return IN_f64(y & ~0xffffffffull); }\n"
"SOFT_FN float softreg_off(float x) { return (OUT_f32(x) & 0x7f800000) == 0x7f800000 || x == 0 ? x : IN_f32(OUT_f32(x) ^ 1); }\n"
"SOFT_FN float softreg_rcp(float x) { float y; softptx_rcp_approx_ftz_f32(&y, x); return y; }\n"
"SOFT_FN float softreg_ex2(float x) { float y; softptx_ex2_approx_ftz_f32(&y, x); return y; }\n";

static const char arithmetic[] =
"SOFT_FN unsigned softreg_add(unsigned *carry, unsigned a, unsigned b, unsigned in) {\n"
"    softreg sum = (softreg)a + b + in; *carry = (unsigned)(sum >> 32); return (unsigned)sum; }\n"
"SOFT_FN unsigned softreg_sub(unsigned *carry, unsigned a, unsigned b, unsigned in) {\n"
"    softreg sum = (softreg)b + in; *carry = (softreg)a < sum; return a - (unsigned)sum; }\n"
"SOFT_FN unsigned softreg_prmt(unsigned a, unsigned b, unsigned select) {\n"
"    softreg all = (softreg)b << 32 | a; unsigned out = 0;\n"
"    for (int i = 0; i < 4; i++) {\n"
"        unsigned s = select >> 4 * i & 15, byte = (unsigned)(all >> 8 * (s & 7)) & 255;\n"
"        if (s & 8) byte = byte >> 7 ? 255 : 0;\n"
"        out |= byte << 8 * i; }\n"
"    return out; }\n"
"SOFT_FN unsigned softreg_lop3(unsigned a, unsigned b, unsigned c, unsigned table) {\n"
"    unsigned out = 0;\n"
"    for (int i = 0; i < 8; i++)\n"
"        if (table >> i & 1) out |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);\n"
"    return out; }\n"
"SOFT_FN softreg softreg_bits(softreg a, softgpu_size width, unsigned at, unsigned n) {\n"
"    at &= 255, n &= 255;\n"
"    return at >= width ? 0 : a >> at & (n >= 64 ? ~0ull : (1ull << n) - 1); }\n"
"SOFT_FN softreg softreg_insert(softreg part, softreg whole, unsigned at, unsigned n) {\n"
"    at &= 255, n &= 255;\n"
"    softreg mask = at >= 64 ? 0 : (n >= 64 ? ~0ull : (1ull << n) - 1) << at;\n"
"    return (whole & ~mask) | (at >= 64 ? 0 : part << at & mask); }\n";

/* ---------------- operands */

/* A PTX name as C has it: "%r1" is R_r1, "$L__BB0_1" is L__BB0_1. */
static const char *plain(char *to, const char *name) {
    size_t n = 0;
    if (*name == '%') n = (size_t)sprintf(to, "R_"), name++;
    for (; *name && n < WORD - 1; name++)
        if (*name != '$') to[n++] = isalnum((unsigned char)*name) ? *name : '_';
    to[n] = 0;
    return to;
}

static bool is_one_of(const char *word, const char *list) {
    const size_t n = strlen(word);
    for (const char *p = list; n && (p = strstr(p, word)) != NULL; p += n)
        if ((p == list || p[-1] == ' ') && (p[n] == ' ' || !p[n])) return true;
    return false;
}

/* The word that an operand stands for: a register, a number's bits, a special register, or the address of a name. */
static const char *value(char *to, const char *operand) {
    static const struct { const char *name, *c; } special[] = {
        { "%tid", "threadIdx" }, { "%ntid", "blockDim" }, { "%ctaid", "blockIdx" }, { "%nctaid", "gridDim" },
    };
    const char *dot = strchr(operand, '.');
    if (*operand == '%' && dot) {
        for (size_t i = 0; i < sizeof special / sizeof *special; i++)
            if (strlen(special[i].name) == (size_t)(dot - operand) && !strncmp(special[i].name, operand, (size_t)(dot - operand)))
                return sprintf(to, "(softreg)%s%s", special[i].c, dot), to;
    }
    if (!strcmp(operand, "%laneid")) return strcpy(to, "(softreg)softreg_lane()");
    if (!strcmp(operand, "%clock64")) return strcpy(to, "(softreg)softgpu_clock()");
    if (!strncmp(operand, "0f", 2) || !strncmp(operand, "0d", 2) || !strncmp(operand, "0F", 2) || !strncmp(operand, "0D", 2))
        return sprintf(to, "0x%sull", operand + 2), to;
    if (isdigit((unsigned char)*operand) || *operand == '-') {
        if (operand[strlen(operand) - 1] == 'U') return sprintf(to, "(softreg)%.*sull", (int)strlen(operand) - 1, operand), to;
        return sprintf(to, "(softreg)%sll", operand), to;
    }
    if (*operand == '%') return plain(to, operand);
    char name[WORD];
    return sprintf(to, "ADDRESS_%s", plain(name, operand)), to;
}

/* The host's pointer for an address "[%rd1+8]" in a space. */
static const char *pointer(char *to, const char *operand, const char *space, int bytes) {
    char inner[WORD], word[4 * WORD];
    snprintf(inner, sizeof inner, "%.*s", (int)strlen(operand) - 2, operand + 1);
    char *plus = strchr(inner + 1, '+');
    long long offset = plus ? strtoll(plus + 1, NULL, 10) : 0;
    if (plus) *plus = 0;
    if (!strcmp(space, "param") && *inner != '%') sprintf(to, "(%s + %lld)", plain(word, inner), offset);
    else sprintf(to, "%s(%s, %lldll, %d)", !strcmp(space, "shared") ? "softreg_shared" : "softreg_at", value(word, inner), offset, bytes);
    return to;
}

/* The members of "{a, b}", or the operand itself. */
static int members(char (*to)[WORD], int most, const char *operand) {
    int n = 0;
    if (*operand != '{') return snprintf(to[0], WORD, "%s", operand), 1;
    for (const char *p = operand + 1; *p && *p != '}' && n < most; p += *p == ',') {
        p += strspn(p, " \t\n");
        size_t k = strcspn(p, ",}");
        size_t bare = k;
        while (bare && isspace((unsigned char)p[bare - 1])) bare--;
        snprintf(to[n++], WORD, "%.*s", (int)bare, p);
        p += k;
    }
    return n;
}

static const char types[] = "pred b8 b16 b32 b64 u8 u16 u32 u64 s8 s16 s32 s64 f16 bf16 f32 f64 f16x2 bf16x2";
static int bytes_of(const char *type) {
    if (!strcmp(type, "pred")) return 1;
    if (strstr(type, "x2")) return 4;
    return atoi(type + strcspn(type, "0123456789")) / 8;
}
static bool has(const instruction *i, const char *part) {
    for (int k = 1; k < i->parts; k++)
        if (!strcmp(i->part[k], part)) return true;
    return false;
}
/* The part that is in a list, or "" */
static const char *which(const instruction *i, const char *list) {
    for (int k = 1; k < i->parts; k++)
        if (is_one_of(i->part[k], list)) return i->part[k];
    return "";
}

/* ---------------- instructions */

/* d = OUT_type(text), where $0, $1 ... in the text are the operands behind the first, read as the type, #1 as 32 bits
   without a sign, and @2 as a predicate. */
static void assign(translator *t, const instruction *i, const char *text) {
    char word[4 * WORD];
    fprintf(t->out, "%s = OUT_%s(", value(word, i->operand[0]), i->type);
    for (const char *p = text; *p; p++) {
        if (!strchr("$#@", *p)) fputc(*p, t->out);
        else {
            const char *type = *p == '$' ? i->type : *p == '#' ? "u32" : "pred";
            fprintf(t->out, "IN_%s(%s)", type, value(word, i->operand[*++p - '0' + 1]));
        }
    }
    fprintf(t->out, ");");
}

/* Those whose meaning is an expression of their operands. `when`: a part that must be there, or NULL; a row before
   others of its name is for that part alone. add.f32 without .rn has none: ptxas may contract it with a product. */
#define INTEGERS "u16 s16 u32 s32 u64 s64"
static const struct { const char *op, *when, *types, *text; } rows[] = {
    { "add", "cc", "u32 s32", "softreg_add(&carry, #0, #1, 0)" },
    { "addc", NULL, "u32 s32", "softreg_add(&carry, #0, #1, carry)" },
    { "sub", "cc", "u32 s32", "softreg_sub(&carry, #0, #1, 0)" },
    { "subc", NULL, "u32 s32", "softreg_sub(&carry, #0, #1, carry)" },
    { "mad", "cc", "u32", "softreg_add(&carry, $0 * $1, $2, 0)" },
    { "madc", "hi", "u32", "softreg_add(&carry, (unsigned)((softreg)$0 * $1 >> 32), $2, carry)" },
    { "madc", "lo", "u32", "softreg_add(&carry, $0 * $1, $2, carry)" },
    { "add", NULL, INTEGERS, "(softreg)$0 + (softreg)$1" },
    { "sub", NULL, INTEGERS, "(softreg)$0 - (softreg)$1" },
    { "mul", "lo", INTEGERS, "(softreg)$0 * (softreg)$1" },
    { "mul", "hi", "u32", "(softreg)$0 * $1 >> 32" },
    { "mul", "hi", "s32", "(long long)$0 * $1 >> 32" },
    { "mul", "hi", "u64", "__umul64hi($0, $1)" },
    { "mul", "hi", "s64", "__mul64hi($0, $1)" },
    { "mad", "lo", INTEGERS, "(softreg)$0 * (softreg)$1 + (softreg)$2" },
    { "mad", "hi", "u32", "((softreg)$0 * $1 >> 32) + $2" },
    { "mad", "hi", "s32", "((long long)$0 * $1 >> 32) + $2" },
    { "div", NULL, "u16 u32 u64", "$1 ? $0 / $1 : ~0ull" },
    { "rem", NULL, "u16 u32 u64", "$1 ? $0 % $1 : $0" },
    { "div", NULL, "s16 s32 s64", "$1 == 0 ? -1 : $1 == -1 ? (long long)(0 - (softreg)$0) : (long long)($0 / $1)" },
    { "rem", NULL, "s16 s32 s64", "$1 == 0 ? (long long)$0 : $1 == -1 ? 0 : (long long)($0 % $1)" },
    { "neg", NULL, "s16 s32 s64", "0 - (softreg)$0" },
    { "abs", NULL, "s16 s32 s64", "$0 < 0 ? 0 - (softreg)$0 : (softreg)$0" },
    { "min", NULL, INTEGERS, "$0 < $1 ? $0 : $1" },
    { "max", NULL, INTEGERS, "$0 > $1 ? $0 : $1" },
    { "and", NULL, "pred b16 b32 b64", "$0 & $1" },
    { "or", NULL, "pred b16 b32 b64", "$0 | $1" },
    { "xor", NULL, "pred b16 b32 b64", "$0 ^ $1" },
    { "not", NULL, "pred", "!$0" },
    { "not", NULL, "b16 b32 b64", "~$0" },
    { "shl", NULL, "b16 b32 b64", "#1 >= 8 * sizeof $0 ? 0 : (softreg)$0 << #1" },
    { "shr", NULL, "b16 b32 b64 u16 u32 u64", "#1 >= 8 * sizeof $0 ? 0 : $0 >> #1" },
    { "shr", NULL, "s16 s32 s64", "$0 >> (#1 >= 8 * sizeof $0 ? 8 * sizeof $0 - 1 : #1)" },
    { "shf", "l", "b32", "((softreg)$1 << 32 | $0) << (#2 & 31) >> 32" },
    { "shf", "r", "b32", "((softreg)$1 << 32 | $0) >> (#2 & 31)" },
    { "popc", NULL, "b32", "__popc($0)" },
    { "clz", NULL, "b32", "__clz((int)$0)" },
    { "clz", NULL, "b64", "__clzll((long long)$0)" },
    { "brev", NULL, "b32", "__brev($0)" },
    { "prmt", NULL, "b32", "softreg_prmt($0, $1, $2)" },
    { "lop3", NULL, "b32", "softreg_lop3($0, $1, $2, #3)" },
    { "bfe", NULL, "u32 u64", "softreg_bits($0, 8 * sizeof $0, #1, #2)" },
    { "bfi", NULL, "b32 b64", "softreg_insert($0, $1, #2, #3)" },
    { "selp", NULL, "b16 u16 s16 b32 u32 s32 b64 u64 s64 f32 f64", "@2 ? $0 : $1" },
    { "add", "rn", "f32 f64", "$0 + $1" },
    { "add", "rz", "f32", "softreg_add_to_zero($0, $1)" },
    { "sub", "rn", "f32 f64", "$0 - $1" },
    { "mul", "rn", "f32 f64", "$0 * $1" },
    { "div", "rn", "f32 f64", "$0 / $1" },
    { "div", "approx", "f32", "softreg_off($0 / $1)" },
    { "fma", "rm", "f32", "softreg_fma_down($0, $1, $2)" },
    { "fma", "rz", "f32", "softreg_fma_to_zero($0, $1, $2)" },
    { "fma", "rn", "f32", "fmaf($0, $1, $2)" },
    { "fma", "rn", "f64", "fma($0, $1, $2)" },
    { "sqrt", "rn", "f32", "sqrtf($0)" },
    { "sqrt", "rn", "f64", "sqrt($0)" },
    { "rcp", "rn", "f32 f64", "1 / $0" },
    { "rcp", "ftz", "f64", "softreg_reciprocal($0)" },
    { "rcp", "ftz", "f32", "softreg_rcp($0)" },
    { "ex2", "ftz", "f32", "softreg_ex2($0)" },
    { "ex2", "approx", "f32", "$0 < -126 ? exp2f($0) : softreg_ex2($0)" },
    { "neg", NULL, "f32 f64", "-$0" },
    { "abs", NULL, "f32", "fabsf($0)" },
    { "abs", NULL, "f64", "fabs($0)" },
    { "min", NULL, "f32 f64", "fmin($0, $1)" },
    { "max", NULL, "f32 f64", "fmax($0, $1)" },
    { "copysign", NULL, "f32 f64", "copysign($1, $0)" },
};

/* For the test that has a case for every one. */
SOFT_EXPORT const char *softgpu_ptx_row(int k, const char **when, const char **row_types);
const char *softgpu_ptx_row(int k, const char **when, const char **row_types) {
    if (k < 0 || (size_t)k >= sizeof rows / sizeof *rows) return NULL;
    *when = rows[k].when ? rows[k].when : "", *row_types = rows[k].types;
    return rows[k].op;
}

static bool by_row(translator *t, const instruction *i) {
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        if (strcmp(rows[k].op, i->part[0]) || !is_one_of(i->type, rows[k].types)) continue;
        if (rows[k].when && !has(i, rows[k].when)) continue;
        return assign(t, i, rows[k].text), true;
    }
    return false;
}

/* mul.wide and mad.wide: the result has twice the operands' width. */
static bool wide(translator *t, const instruction *i) {
    char d[4 * WORD], a[4 * WORD], b[4 * WORD], c[4 * WORD] = "0";
    if (!has(i, "wide")) return false;
    const char *type = i->type, *out = !strcmp(type, "u16") ? "u32" : !strcmp(type, "s16") ? "s32" : "u64";
    if (i->operands == 4) value(c, i->operand[3]);
    fprintf(t->out, "%s = OUT_%s((softreg)((%s)IN_%s(%s) * IN_%s(%s)) + %s);", value(d, i->operand[0]), out,
            *type == 'u' ? "softreg" : "long long", type, value(a, i->operand[1]), type, value(b, i->operand[2]), c);
    return true;
}

/* setp.lt.f32 p, a, b, or with .and p, a, b, c */
static bool setp(translator *t, const instruction *i) {
    static const struct { const char *name, *text; } compare[] = {
        { "eq", "a == b" }, { "ne", "a != b && a == a && b == b" }, { "lt", "a < b" }, { "le", "a <= b" }, { "gt", "a > b" },
        { "ge", "a >= b" }, { "lo", "a < b" }, { "ls", "a <= b" }, { "hi", "a > b" }, { "hs", "a >= b" },
        { "equ", "!(a < b) && !(a > b)" }, { "neu", "a != b" }, { "ltu", "!(a >= b)" }, { "leu", "!(a > b)" }, { "gtu", "!(a <= b)" },
        { "geu", "!(a < b)" }, { "num", "a == a && b == b" }, { "nan", "a != a || b != b" },
    };
    char p[4 * WORD], a[4 * WORD], b[4 * WORD], c[4 * WORD];
    const char *join = which(i, "and or xor");
    for (size_t k = 0; k < sizeof compare / sizeof *compare; k++) {
        if (strcmp(compare[k].name, i->part[1])) continue;
        if (strchr(i->operand[0], '|')) return false;
        fprintf(t->out, "{ TYPE_%s a = IN_%s(%s), b = IN_%s(%s); %s = (%s)", i->type, i->type, value(a, i->operand[1]), i->type,
                value(b, i->operand[2]), value(p, i->operand[0]), compare[k].text);
        if (*join) fprintf(t->out, " %s IN_pred(%s)", *join == 'a' ? "&" : *join == 'o' ? "|" : "^", value(c, i->operand[3]));
        fprintf(t->out, "; }");
        return true;
    }
    return false;
}

/* mov of a word, of parts into a word, of a word into parts */
static bool mov(translator *t, const instruction *i) {
    char part[8][WORD], word[4 * WORD], other[4 * WORD];
    const bool apart = *i->operand[0] == '{', joins = *i->operand[1] == '{';
    const int n = members(part, 8, i->operand[apart ? 0 : 1]), bits = apart || joins ? bytes_of(i->type) * 8 / n : 0;
    if (apart) {
        fprintf(t->out, "{ softreg whole = %s;", value(word, i->operand[1]));
        for (int k = 0; k < n; k++)
            if (strcmp(part[k], "_")) fprintf(t->out, " %s = whole >> %d & (~0ull >> %d);", value(word, part[k]), k * bits, 64 - bits);
        return fprintf(t->out, " }"), true;
    }
    if (!joins) {
        fprintf(t->out, "%s = OUT_%s(", value(word, i->operand[0]), *i->type == 'f' ? i->type + strlen(i->type) - 2 : "64");
        return fprintf(t->out, "%s);", value(other, i->operand[1])), true;
    }
    fprintf(t->out, "%s = 0", value(word, i->operand[0]));
    for (int k = 0; k < n; k++) fprintf(t->out, " | (%s & (~0ull >> %d)) << %d", value(word, part[k]), 64 - bits, k * bits);
    return fprintf(t->out, ";"), true;
}

/* ld.global.v4.f32 {a, b, c, d}, [p] and st */
static bool load_or_store(translator *t, const instruction *i) {
    char part[4][WORD], word[4 * WORD], at[6 * WORD];
    const bool loads = *i->part[0] == 'l';
    const char *space = which(i, "global shared local param const"), *memory = i->type;
    const int n = members(part, 4, i->operand[loads ? 0 : 1]), bytes = bytes_of(memory);
    char raw[8];
    snprintf(raw, sizeof raw, "%s%d", *memory == 's' ? "s" : "b", bytes * 8);
    fprintf(t->out, "{ volatile TYPE_%s *softreg_p = (volatile TYPE_%s *)%s;", raw, raw, pointer(at, i->operand[loads ? 1 : 0], space, n * bytes));
    if (t->async && !strcmp(space, "shared")) fprintf(t->out, " softptx_%s((const void *)softreg_p, %d);", loads ? "reads" : "writes", n * bytes);
    for (int k = 0; k < n; k++) {
        value(word, part[k]);
        if (loads) fprintf(t->out, " softreg w%d = (softreg)%ssoftreg_p[%d];", k, *memory == 's' ? "(long long)" : "", k);
        else fprintf(t->out, " softreg_p[%d] = (TYPE_%s)%s;", k, raw, word);
    }
    for (int k = 0; loads && k < n; k++) fprintf(t->out, " %s = w%d;", value(word, part[k]), k);
    return fprintf(t->out, " }"), true;
}

/* atom.global.cas.b64 d, [p], a, b: of threads that take turns at known places */
static bool compare_and_swap(translator *t, const instruction *i) {
    char d[4 * WORD], a[4 * WORD], b[4 * WORD], at[6 * WORD];
    if (!has(i, "cas") || (strcmp(i->type, "b32") && strcmp(i->type, "b64"))) return false;
    const char *space = which(i, "global shared local param const");
    fprintf(t->out, "{ volatile TYPE_%s *softreg_p = (volatile TYPE_%s *)%s; softreg old = *softreg_p; ", i->type, i->type,
            pointer(at, i->operand[1], space, bytes_of(i->type)));
    fprintf(t->out, "if (old == IN_%s(%s)) *softreg_p = IN_%s(%s); %s = old; }", i->type, value(a, i->operand[2]), i->type,
            value(b, i->operand[3]), value(d, i->operand[0]));
    return true;
}

/* cvt.rounding.to.from d, a */
static bool cvt(translator *t, const instruction *i) {
    char d[4 * WORD], a[4 * WORD], b[4 * WORD];
    const char *from = i->type, *to = i->part[i->parts - 2], *how = which(i, "rn rz rm rp rni rzi rmi rpi rna");
    value(d, i->operand[0]), value(a, i->operand[1]);
    if (strstr(to, "x2") || !strcmp(to, "tf32")) {
        const bool two = i->operands == 3;
        fprintf(t->out, "{ unsigned to; softptx_cvt_%s_%s_f32(&to, IN_f32(%s)%s", how, to, a, two ? ", " : "");
        if (two) fprintf(t->out, "IN_f32(%s)", value(b, i->operand[2]));
        return fprintf(t->out, "); %s = to; }", d), true;
    }
    if (!is_one_of(to, types) || !is_one_of(from, types)) return false;
    const bool float_to = strchr("fb", *to) != NULL, float_from = strchr("fb", *from) != NULL, whole = strlen(how) == 3;
    if (has(i, "sat") && strcmp(to, "f32")) return false;
    if (!float_to && float_from) fprintf(t->out, "%s = OUT_%s(softreg_to_%s(softreg_%s(IN_%s(%s))));", d, to, to, how, from, a);
    else if (float_to && float_from && has(i, "sat")) fprintf(t->out, "%s = OUT_%s(softreg_saturated(IN_%s(%s)));", d, to, from, a);
    else if (float_to && float_from && whole) fprintf(t->out, "%s = OUT_%s(softreg_%s(IN_%s(%s)));", d, to, how, from, a);
    else if (*how && strcmp(how, "rn")) return false;
    else if (!strcmp(to, "f16") || !strcmp(to, "bf16")) fprintf(t->out, "%s = OUT_%s((float)IN_%s(%s));", d, to, from, a);
    else fprintf(t->out, "%s = OUT_%s((TYPE_%s)IN_%s(%s));", d, to, to, from, a);
    return true;
}

/* shfl.sync.bfly.b32 d|p, a, b, c, mask */
static bool shfl(translator *t, const instruction *i) {
    static const char *const kinds[] = { "idx", "up", "down", "bfly" };
    char d[4 * WORD], a[4 * WORD], b[4 * WORD], c[4 * WORD], m[4 * WORD], bar[WORD];
    snprintf(bar, sizeof bar, "%.*s", (int)strcspn(i->operand[0], "|"), i->operand[0]);
    for (int k = 0; k < 4; k++) {
        if (!has(i, kinds[k])) continue;
        fprintf(t->out, "%s = OUT_b32(softgpu_shuffle(%d, IN_u32(%s), IN_u32(%s), (int)IN_u32(%s), 32 - (int)(IN_u32(%s) >> 8 & 31)));",
                value(d, bar), k, value(m, i->operand[4]), value(a, i->operand[1]), value(b, i->operand[2]), value(c, i->operand[3]));
        return true;
    }
    return false;
}

static bool vote(translator *t, const instruction *i) {
    char d[4 * WORD], a[4 * WORD], m[4 * WORD];
    const char *kind = which(i, "ballot any all");
    fprintf(t->out, "%s = %ssoftgpu_shuffle(4, IN_u32(%s), %sIN_pred(%s), 0, 32)%s;", value(d, i->operand[0]), *kind == 'b' ? "" : "(",
            value(m, i->operand[2]), !strcmp(kind, "all") ? "!" : "", value(a, i->operand[1]),
            *kind == 'b' ? "" : !strcmp(kind, "all") ? " == 0)" : " != 0)");
    return *kind != 0;
}

/* What is a call of a function of matrices.c: its name is the instruction's, results by their addresses. */
static bool matrix(translator *t, const instruction *i) {
    char part[4][WORD], word[4 * WORD], name[200] = "softptx";
    const bool mma = !strcmp(i->part[0], "mma"), loads = !strcmp(i->part[0], "ldmatrix");
    int results = mma || loads ? members(part, 4, i->operand[0]) : 0;
    for (int k = 0; k < i->parts; k++) snprintf(name + strlen(name), sizeof name - strlen(name), "_%s", i->part[k]);
    fprintf(t->out, "{ %s d[4];", mma ? "float" : "unsigned");
    for (int o = 1; o < i->operands && mma; o++) {
        const int n = members(part, 4, i->operand[o]);
        fprintf(t->out, o == 3 ? " float c[4] = { " : " unsigned %c[4] = { ", 'a' + o - 1);
        for (int k = 0; k < n; k++) fprintf(t->out, "IN_%s(%s), ", o == 3 ? "f32" : "u32", value(word, part[k]));
        fprintf(t->out, "};");
    }
    fprintf(t->out, " %s(", name);
    for (int k = 0; k < results; k++) fprintf(t->out, "%s&d[%d]", k ? ", " : "", k);
    for (int o = 1; o < i->operands && mma; o++)
        for (int k = 0, n = members(part, 4, i->operand[o]); k < n; k++) fprintf(t->out, ", %s%c[%d]", o == 3 ? "&" : "", 'a' + o - 1, k);
    for (int o = results != 0; o < i->operands && !mma; o++) {
        char inner[WORD];
        const char *text = i->operand[o];
        if (*text == '[') snprintf(inner, sizeof inner, "%.*s", (int)strlen(text) - 2, text + 1), text = inner;
        if (strchr(text + 1, '+')) return false;
        fprintf(t->out, "%s%s(%s)", o ? ", " : "", o == 1 && !loads ? "(const void *)(softgpu_size)" : "IN_u32", value(word, text));
    }
    fprintf(t->out, ");");
    members(part, 4, i->operand[0]);
    for (int k = 0; k < results; k++) fprintf(t->out, " %s = OUT_%s(d[%d]);", value(word, part[k]), mma ? "f32" : "b32", k);
    return fprintf(t->out, " }"), true;
}

/* call (retval0), name, (param0, param1) */
static bool call(translator *t, const instruction *i) {
    char part[MOST_OPERANDS][WORD], list[4 * WORD], word[4 * WORD];
    const bool result = *i->operand[0] == '(';
    const char *to = i->operand[result ? 1 : 0];
    fprintf(t->out, "%s(", plain(word, to));
    for (int o = 0, first = 1; o < i->operands; o++) {
        if (*i->operand[o] != '(') continue;
        snprintf(list, sizeof list, "{%.*s}", (int)strlen(i->operand[o]) - 2, i->operand[o] + 1);
        const int n = members(part, MOST_OPERANDS, list);
        for (int k = 0; k < n; k++, first = 0) fprintf(t->out, "%s(unsigned char *)%s", first ? "" : ", ", plain(word, part[k]));
    }
    return fprintf(t->out, ");"), true;
}

/* dp2a.lo.u32.u32 d, a, b, c: two halves of a times two bytes of b, to c; dp4a: four bytes of both. */
static bool dot(translator *t, const instruction *i) {
    char d[4 * WORD], a[4 * WORD], b[4 * WORD], c[4 * WORD];
    const int n = i->part[0][2] - '0', each = 32 / n;
    if (i->parts < 3 || strcmp(i->part[i->parts - 2], "u32") || strcmp(i->type, "u32")) return false;
    value(a, i->operand[1]), value(b, i->operand[2]);
    fprintf(t->out, "%s = OUT_u32(IN_u32(%s)", value(d, i->operand[0]), value(c, i->operand[3]));
    for (int k = 0; k < n; k++)
        fprintf(t->out, " + (%s >> %d & (1u << %d) - 1) * (%s >> %d & 255)", a, k * each, each, b, 8 * k + (has(i, "hi") ? 16 : 0));
    return fprintf(t->out, ");"), true;
}

static bool branch(translator *t, const instruction *i) {
    char word[4 * WORD];
    return fprintf(t->out, "goto %s;", plain(word, i->operand[0])), true;
}
static bool leave(translator *t, const instruction *i) { return (void)i, fprintf(t->out, "return;"), true; }
static bool barrier(translator *t, const instruction *i) {
    char word[4 * WORD];
    if (has(i, "warp")) return fprintf(t->out, "softgpu_shuffle(5, IN_u32(%s), 0, 0, 32);", value(word, i->operand[0])), true;
    if (i->operands == 2 && has(i, "sync") && strcmp(i->operand[0], "0"))
        return fprintf(t->out, "softptx_named_barrier(%d, %d);", atoi(i->operand[0]), atoi(i->operand[1])), true;
    if (i->operands > 1 || strcmp(i->operand[0], "0")) return false;
    return fprintf(t->out, "softgpu_barrier();"), true;
}
static bool fence(translator *t, const instruction *i) {
    const bool all = has(i, "proxy") && has(i, "async"), begun = has(i, "mbarrier_init");
    if (has(i, "proxy") && !all) return false;
    return all || begun ? fprintf(t->out, "softptx_fence_async(%d);", all) : fprintf(t->out, ";"), true;
}
/* The word within "[...]" */
static const char *address(char *to, const char *operand) {
    char inner[WORD];
    const char *plus = strchr(operand + 1, '+');
    snprintf(inner, sizeof inner, "%.*s", (int)strcspn(operand + 1, "+],"), operand + 1);
    value(to, inner);
    if (plus) sprintf(to + strlen(to), " + %ld", strtol(plus + 1, NULL, 10));
    return to;
}
/* mbarrier.init [p], n; mbarrier.arrive _, [p]; mbarrier.arrive.expect_tx _, [p], bytes; mbarrier.try_wait.parity done, [p], parity */
static bool mbarrier(translator *t, const instruction *i) {
    char d[4 * WORD], p[4 * WORD], n[4 * WORD] = "0";
    const bool init = has(i, "init"), expects = has(i, "expect_tx");
    if (init) return fprintf(t->out, "softptx_mbarrier_init((unsigned)(%s), IN_u32(%s));", address(p, i->operand[0]), value(n, i->operand[1])), true;
    address(p, i->operand[1]);
    if (has(i, "arrive")) {
        if (strcmp(i->operand[0], "_") || i->operands != 2 + expects) return false;
        if (expects) value(n, i->operand[2]);
        return fprintf(t->out, "softptx_mbarrier_arrive((unsigned)(%s), IN_u32(%s));", p, n), true;
    }
    if (!has(i, "try_wait") || !has(i, "parity") || i->operands != 3) return false;
    return fprintf(t->out, "%s = (softreg)softptx_mbarrier_try_wait((unsigned)(%s), IN_u32(%s));", value(d, i->operand[0]), p, value(n, i->operand[2])), true;
}
/* cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [to], [map, {x, y, z}], [phase] */
static bool box(translator *t, const instruction *i) {
    char part[4][WORD], to[4 * WORD], map[4 * WORD], p[4 * WORD], at[3][4 * WORD];
    const char *list = strchr(i->operand[1], '{');
    if (!has(i, "tensor") || !has(i, "3d") || !has(i, "global") || i->operands != 3 || !list || members(part, 4, list) != 3) return false;
    for (int k = 0; k < 3; k++) value(at[k], part[k]);
    fprintf(t->out, "softptx_box((unsigned)(%s), (const void *)(softgpu_size)(%s), IN_s32(%s), IN_s32(%s), IN_s32(%s), (unsigned)(%s));",
            address(to, i->operand[0]), address(map, i->operand[1]), at[0], at[1], at[2], address(p, i->operand[2]));
    return true;
}
/* wgmma.fence, .commit_group, .wait_group n, and .mma_async {sums}, a, b, adds, 1, 1, turned a, turned b, of half floats; a may be
   four registers, and is not turned then */
static bool warpgroup(translator *t, const instruction *i) {
    static char part[128][WORD], left[4][WORD];
    char a[4 * WORD], b[4 * WORD], p[4 * WORD];
    const bool loaded = *i->operand[1] == '{';
    int n = 0;
    if (has(i, "fence")) return fprintf(t->out, "softptx_wgmma_fence();"), true;
    if (has(i, "commit_group")) return fprintf(t->out, "softptx_wgmma_commit();"), true;
    if (has(i, "wait_group")) return fprintf(t->out, "softptx_wgmma_wait(%d);", atoi(i->operand[0])), true;
    if (i->parts != 8 || sscanf(i->part[4], "m64n%dk16", &n) != 1 || n % 8 || n < 8 || n > 256 || strcmp(i->part[5], "f32")) return false;
    if (strcmp(i->part[6], i->part[7]) || !is_one_of(i->part[6], "f16 bf16") || i->operands != 8 - loaded) return false;
    if (strcmp(i->operand[4], "1") || strcmp(i->operand[5], "1") || members(part, 128, i->operand[0]) != n / 2) return false;
    if (loaded && members(left, 4, i->operand[1]) != 4) return false;
    fprintf(t->out, "{ softreg *d[%d] = { ", n / 2);
    for (int k = 0; k < n / 2; k++) fprintf(t->out, "&%s, ", plain(p, part[k]));
    if (loaded) {
        fprintf(t->out, "}; unsigned a[4] = { ");
        for (int k = 0; k < 4; k++) fprintf(t->out, "IN_u32(%s), ", value(a, left[k]));
        fprintf(t->out, "}; softptx_wgmma_loaded(%d, %d, a, %s, IN_pred(%s), %s, d); }", n, *i->part[6] == 'b', value(b, i->operand[2]),
                value(p, i->operand[3]), i->operand[6]);
        return true;
    }
    fprintf(t->out, "}; softptx_wgmma(%d, %d, %s, %s, IN_pred(%s), %s, %s, d); }", n, *i->part[6] == 'b', value(a, i->operand[1]),
            value(b, i->operand[2]), value(p, i->operand[3]), i->operand[6], i->operand[7]);
    return true;
}
static bool registers_of_warps(translator *t, const instruction *i) {
    return fprintf(t->out, "softptx_setmaxnreg(%d, %d);", has(i, "inc"), atoi(i->operand[0])), true;
}
/* elect.sync lane|p, mask: the first of the mask's */
static bool elect(translator *t, const instruction *i) {
    char d[WORD], p[WORD], m[4 * WORD], word[4 * WORD], other[4 * WORD];
    const char *bar = strchr(i->operand[0], '|');
    if (!bar) return false;
    snprintf(d, sizeof d, "%.*s", (int)(bar - i->operand[0]), i->operand[0]), snprintf(p, sizeof p, "%s", bar + 1);
    fprintf(t->out, "{ unsigned m = IN_u32(%s), first = 0; while (!(m >> first & 1)) first++; softgpu_shuffle(5, m, 0, 0, 32);", value(m, i->operand[1]));
    if (strcmp(d, "_")) fprintf(t->out, " %s = first;", value(word, d));
    return fprintf(t->out, " %s = softreg_lane() == first; }", value(other, p)), true;
}
/* Pointers of all spaces but shared memory's are the same. */
static bool cvta(translator *t, const instruction *i) {
    char d[4 * WORD], a[4 * WORD];
    value(d, i->operand[0]), value(a, i->operand[1]);
    if (!has(i, "shared")) fprintf(t->out, "%s = %s;", d, a);
    else if (has(i, "to")) fprintf(t->out, "%s = softgpu_shared_address((const void *)(softgpu_size)%s);", d, a);
    else fprintf(t->out, "%s = (softreg)softreg_shared(%s, 0, 1);", d, a);
    return true;
}

static const struct { const char *op; bool (*translate)(translator *t, const instruction *i); bool meets; } special[] = {
    { "mul", wide, false }, { "mad", wide, false }, { "setp", setp, false }, { "mov", mov, false }, { "ld", load_or_store, false },
    { "st", load_or_store, false }, { "atom", compare_and_swap, false }, { "cvt", cvt, false }, { "cvta", cvta, false }, { "shfl", shfl, true }, { "vote", vote, true },
    { "dp2a", dot, false }, { "dp4a", dot, false }, { "mma", matrix, true }, { "ldmatrix", matrix, true }, { "cp", box, true }, { "cp", matrix, true }, { "mbarrier", mbarrier, true },
    { "wgmma", warpgroup, true }, { "setmaxnreg", registers_of_warps, true }, { "elect", elect, true }, { "call", call, false }, { "bra", branch, false },
    { "ret", leave, false }, { "exit", leave, false }, { "bar", barrier, true }, { "barrier", barrier, true }, { "membar", fence, false },
    { "fence", fence, false },
};

static bool by_function(translator *t, const instruction *i) {
    for (size_t k = 0; k < sizeof special / sizeof *special; k++) {
        if (strcmp(special[k].op, i->part[0]) || !special[k].translate(t, i)) continue;
        t->meets = t->meets || special[k].meets;
        return true;
    }
    return false;
}

/* ---------------- statements */

/* Where a statement's part ends: at a mark outside all brackets. */
static const char *until(const char *p, const char *end, char mark) {
    for (int depth = 0; p < end; p++) {
        if (!depth && *p == mark) return p;
        depth += (*p && strchr("({[", *p) != NULL) - (*p && strchr(")}]", *p) != NULL);
    }
    return end;
}
static const char *skip_space(const char *p) { return p + strspn(p, " \t\r\n"); }

static void parse(instruction *i, const char *p, const char *end) {
    memset(i, 0, sizeof *i);
    i->type = "";
    while (p < end && !isspace((unsigned char)*p) && i->parts < MOST_PARTS) {
        size_t n = strcspn(p, ". \t\r\n;");
        snprintf(i->part[i->parts++], sizeof i->part[0], "%.*s", (int)n, p);
        p += n, p += *p == '.';
    }
    while ((p = skip_space(p)) < end && i->operands < MOST_OPERANDS) {
        const char *stop = until(p, end, ','), *last = stop;
        while (last > p && isspace((unsigned char)last[-1])) last--;
        snprintf(i->operand[i->operands++], sizeof i->operand[0], "%.*s", (int)(last - p), p);
        p = stop + (stop < end);
    }
    for (int k = 1; k < i->parts; k++)
        if (is_one_of(i->part[k], types)) i->type = i->part[k];
}

/* What stands before a declared name: "align 8", the type and "[24]"; p is set behind the name. */
typedef struct declared { char name[WORD], type[8]; int align; long long size; } declared;
static bool declaration(declared *d, const char **at, const char *end) {
    const char *p = *at;
    memset(d, 0, sizeof *d);
    for (p = skip_space(p); p < end && *p == '.'; p = skip_space(p)) {
        const char *word = p + 1;
        size_t n = strcspn(word, " \t\r\n");
        p = word + n;
        if (n < sizeof d->type) snprintf(d->type, sizeof d->type, "%.*s", (int)n, word);
        if (!strncmp(word, "align", 5)) d->align = (int)strtol(word + 5, (char **)(uintptr_t)&p, 10);
    }
    size_t n = strcspn(p, "[=<,;) \t\r\n");
    if (n == 0 || n >= WORD || !is_one_of(d->type, types)) return false;
    snprintf(d->name, sizeof d->name, "%.*s", (int)n, p);
    d->size = bytes_of(d->type);
    p = skip_space(p + n);
    if (*p == '[') d->size *= strtoll(p + 1, (char **)(uintptr_t)&p, 10), p++;
    *at = p;
    return true;
}

/* .reg .b32 %r<9>, %a; */
static void registers(translator *t, const char *p, const char *end) {
    char clean[WORD], name[WORD];
    declared d;
    bool good = declaration(&d, &p, end);
    snprintf(name, sizeof name, "%s", d.name);
    while (good) {
        long n = *p == '<' ? strtol(p + 1, (char **)(uintptr_t)&p, 10) : 0;
        plain(clean, name);
        fprintf(t->out, "softreg %s", clean);
        if (n) fprintf(t->out, "0");
        for (long r = 1; r < n; r++) fprintf(t->out, ", %s%ld", clean, r);
        fprintf(t->out, "; ");
        p = skip_space(p + (*p == '>'));
        if (*p != ',' || p >= end) return;
        p = skip_space(p + 1);
        size_t k = strcspn(p, "<,; \t\r\n");
        good = k > 0 && k < sizeof name;
        if (good) snprintf(name, sizeof name, "%.*s", (int)k, p);
        p = skip_space(p + k);
    }
    complain(t, "registers", p);
}

/* .param .b64 param0; and .shared, .local and .global arrays */
static void array(translator *t, const char *p, const char *end) {
    char clean[WORD];
    const char *start = p, *values;
    const bool shared = !strncmp(p, ".shared", 7), lasts = !strncmp(p, ".global", 7) || !strncmp(p, ".const", 6);
    declared d;
    if (!declaration(&d, &p, end)) { complain(t, "declaration", start); return; }
    const int each = bytes_of(d.type);
    values = memchr(p, '{', (size_t)(end - p));
    fprintf(t->out, "%sTYPE_b%d %s[%lld] __attribute__((aligned(16)))", shared ? "__shared__ " : lasts ? "static " : "", each * 8,
            plain(clean, d.name), d.size / each);
    if (lasts && values) fprintf(t->out, " = %.*s", (int)(end - values), values);
    fprintf(t->out, ";\n#define ADDRESS_%s %s(%s)\n", clean, shared ? "(softreg)softgpu_shared_address" : "(softreg)(softgpu_size)", clean);
}

/* .extern .shared .align 16 .b8 name[]: memory of a launch, the same for all such names */
static void dynamic_array(translator *t, const char *p, const char *end) {
    char clean[WORD];
    declared d;
    if (!declaration(&d, &p, end)) { complain(t, "declaration", p); return; }
    fprintf(t->out, "#define ADDRESS_%s (softreg)softgpu_shared_address(softgpu_extern)\n", plain(clean, d.name));
}

/* The parameters in "(...)": "unsigned char *a, unsigned char *b" as a function of C has them, or for a kernel the
   variables that point to the launch's arguments. Gives what follows the ")". */
static const char *parameters(translator *t, const char *p, int *count, FILE *sizes) {
    const char *end = until(p + 1, p + strlen(p), ')');
    declared d;
    char clean[WORD];
    for (p = skip_space(p + 1); p < end; p = skip_space(p), p += *p == ',', p = skip_space(p)) {
        if (!declaration(&d, &p, end)) { complain(t, "parameter", p); return end + 1; }
        plain(clean, d.name);
        if (t->entry) fprintf(t->out, "\n#define ADDRESS_%s ((softreg)(softgpu_size)%s)\nunsigned char *%s = (unsigned char *)softgpu_a[%d];", clean, clean, clean, *count);
        else fprintf(t->out, "%sunsigned char *%s", *count ? ", " : "", clean);
        if (t->entry) fprintf(sizes, "%lld, ", d.size);
        ++*count;
    }
    return end + 1;
}

/* .visible .entry name(parameters) and .func (result) name(parameters), with what stands before the body */
static void function(translator *t, const char *p) {
    char name[256], clean[WORD];
    const char *open = strchr(p, '('), *word = strstr(p, ".func");
    int n = 0;
    t->entry = !word || word > open;
    if (t->entry) word = strstr(p, ".entry") + 1;
    p = skip_space(word + 5);
    const char *result = *p == '(' ? p : NULL;
    if (result) p = skip_space(until(p + 1, p + strlen(p), ')') + 1);
    size_t k = strcspn(p, "( \t\r\n;{");
    if (k >= WORD) { complain(t, "a name is too long", p); t->at = p + strlen(p); return; }
    snprintf(name, sizeof name, "%.*s", (int)k, p);
    plain(clean, name);
    p = skip_space(p + k);
    char *sizes_text = NULL;
    size_t sizes_length;
    FILE *sizes = open_memstream(&sizes_text, &sizes_length);
    if (t->entry) fprintf(t->out, "static void softgpu_run_%s(void **softgpu_a) {", clean);
    else fprintf(t->out, "static void %s(", clean);
    if (result) parameters(t, result, &n, sizes);
    if (*p == '(') p = parameters(t, p, &n, sizes);
    fclose(sizes);
    if (t->entry) fprintf(t->table, "{ \"%s\", (const unsigned[]){ %s0 }, %d, softgpu_run_%s },\n", name, sizes_text, n, clean);
    else fprintf(t->out, "%s)", n ? "" : "void");
    free(sizes_text);
    p += strcspn(p, ";{");
    fprintf(t->out, *p == ';' ? ";\n" : t->entry ? " unsigned carry = 0;\n" : " { unsigned carry = 0;\n");
    t->at = p + (*p == ';');
}

static void statement(translator *t, const char *p, const char *end) {
    static const char *const passed[] = { ".pragma", ".loc ", ".file " };
    instruction i;
    char word[4 * WORD];
    const char *start = p;
    if (*p == '.') {
        for (size_t k = 0; k < sizeof passed / sizeof *passed; k++)
            if (!strncmp(p, passed[k], strlen(passed[k]))) return;
        if (!strncmp(p, ".reg", 4)) registers(t, p, end);
        else array(t, p, end);
        return;
    }
    if (*p == '@') {
        size_t n = strcspn(p, " \t\r\n");
        char guard[WORD];
        snprintf(guard, sizeof guard, "%.*s", (int)n - (p[1] == '!') - 1, p + 1 + (p[1] == '!'));
        fprintf(t->out, "if (%sIN_pred(%s)) ", p[1] == '!' ? "!" : "", value(word, guard));
        p = skip_space(p + n);
    }
    parse(&i, p, end);
    fputs("{ ", t->out);
    if (!strcmp(i.part[0], "madc") || !strcmp(i.part[0], "addc") || !strcmp(i.part[0], "subc")) {
        fputs(has(&i, "cc") ? "" : "const unsigned before = carry; ", t->out);
        if (!by_row(t, &i)) complain(t, "instruction", start);
        fputs(has(&i, "cc") ? "" : " carry = before;", t->out);
    } else if (!by_function(t, &i) && !by_row(t, &i)) complain(t, "instruction", start);
    fputs(" }\n", t->out);
}

static const char *label_end(const char *p) {
    const char *q = p;
    while (*q == '$' || *q == '_' || isalnum((unsigned char)*q)) q++;
    return q > p && *q == ':' ? q : NULL;
}

static void translate(translator *t) {
    while (*(t->at = skip_space(t->at)) && !t->failed) {
        const char *p = t->at, *colon = label_end(p), *end = until(p, p + strlen(p), ';');
        char clean[WORD], name[WORD];
        if (!strncmp(p, ".version", 8) || !strncmp(p, ".target", 7) || !strncmp(p, ".address_size", 13)) t->at += strcspn(p, "\n");
        else if (*p == '{') fputs("{\n", t->out), t->depth++, t->at++;
        else if (*p == '}') fputs(--t->depth ? "}\n" : "} }\n", t->out), t->at++;
        else if (colon) {
            snprintf(name, sizeof name, "%.*s", (int)(colon - p), p);
            fprintf(t->out, "%s:;\n", plain(clean, name)), t->at = colon + 1;
        } else if (!t->depth && *p == '.' && (strstr(p, ".entry") || strstr(p, ".func")) && strcspn(p, "(") < strcspn(p, ";{")) function(t, p);
        else if (!t->depth && !strncmp(p, ".extern .shared", 15)) dynamic_array(t, p + 8, end), t->at = end + (*end == ';');
        else if (!strncmp(p, ".extern", 7)) complain(t, "declaration", p);
        else statement(t, p, end), t->at = end + (*end == ';');
    }
}

static char *without_comments(const char *ptx) {
    char *text = strdup(ptx);
    for (char *p = text; text && (p = strstr(p, "//")) != NULL;)
        while (*p && *p != '\n') *p++ = ' ';
    return text;
}

bool soft_ptx_to_c(const char *ptx, FILE *out, bool *meets, char *log, size_t log_size) {
    char *text = without_comments(ptx), *table = NULL;
    size_t n = 0;
    translator t = { .at = text, .out = out, .log = log, .log_size = log_size };
    if (!text || !(t.table = open_memstream(&table, &n))) return free(text), false;
    t.async = strstr(text, "wgmma.") || strstr(text, "cp.async.bulk");
    fprintf(out, "%s%s%s", registers_of_c, conversions, arithmetic);
    if (strstr(text, ".extern .shared")) fprintf(out, "__attribute__((aligned(1024))) char softgpu_extern[%d];\n", SOFT_MOST_SHARED + 4096);
    translate(&t);
    fclose(t.table);
    fprintf(out, "static const struct softgpu_kernel softgpu_kernels[] = {\n%s{ 0 } };\n", table);
    free(table), free(text);
    *meets = t.meets;
    return !t.failed;
}
