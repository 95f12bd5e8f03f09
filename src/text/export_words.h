#ifndef FLUX__TEXT_EXPORT_WORDS_H
#define FLUX__TEXT_EXPORT_WORDS_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/text.h"
#include "../graph/nodes.h"
#include "../schedule/kernel.h"
#include "../schedule/key.h"
#include "../schedule/analysis.h"
#include "../schedule/spelling.h"

/* ---------------------------------------------------------------------- text/export_words.h
   What a file of C that flux_export_c writes (text/export.h) consists of besides
   its kernels: functions that these call (flux__net_helpers), the functions of
   elementwise operations, numbers; and the state of writing one kernel
   (flux__net_kernel).

   Invariant: within all text $ stands for the name of the exported function and @
   for that name in capitals, so that two files can be compiled into one program;
   they are put in at the very end. A helper is written if its name stands in what
   has been written already: helpers are searched from the last to the first, so
   that each uses only those before it. exp, tanh and sigmoid are polynomials
   without a branch, of which compilers make vectors, as libm's calls would take
   longer than a small layer's product. Everything else is libm's. */

FLUX__BEGIN_COLD

typedef struct flux__net_helper { const char *name, *text; } flux__net_helper;

/* A product's tile: @_ROWS rows of a, which lie side by side, with four columns of b. The steps of
   the inner dim in a are all `as`, or at[l]. */
#define FLUX__NET_TILE(name, parameter, at, next)                                                 \
    "static void " name "(float *@_R sums, const float *@_R a, " parameter ",\n"                  \
    "                    const float *@_R b, int b1, int b2, int b3, int bs, int k) {\n"          \
    "    $_vec s0 = { 0 }, s1 = { 0 }, s2 = { 0 }, s3 = { 0 };\n"                                 \
    "    $_vec t0 = { 0 }, t1 = { 0 }, t2 = { 0 }, t3 = { 0 };\n"                                 \
    "    $_vec x, y;\n"                                                                           \
    "    int l;\n"                                                                                \
    "    for (l = 0; l < k; l++" next ", b += bs) {\n"                                            \
    "        memcpy(&x, " at ", sizeof x);\n"                                                     \
    "        memcpy(&y, " at " + @_LANES, sizeof y);\n"                                           \
    "        s0 += x * b[0], t0 += y * b[0];\n"                                                   \
    "        s1 += x * b[b1], t1 += y * b[b1];\n"                                                 \
    "        s2 += x * b[b2], t2 += y * b[b2];\n"                                                 \
    "        s3 += x * b[b3], t3 += y * b[b3];\n"                                                 \
    "    }\n"                                                                                     \
    "    memcpy(sums, &s0, sizeof x), memcpy(sums + @_LANES, &t0, sizeof x);\n"                   \
    "    memcpy(sums + 2 * @_LANES, &s1, sizeof x), memcpy(sums + 3 * @_LANES, &t1, sizeof x);\n" \
    "    memcpy(sums + 4 * @_LANES, &s2, sizeof x), memcpy(sums + 5 * @_LANES, &t2, sizeof x);\n" \
    "    memcpy(sums + 6 * @_LANES, &s3, sizeof x), memcpy(sums + 7 * @_LANES, &t3, sizeof x);\n" \
    "}\n"

static const flux__net_helper flux__net_helpers[] = {
    { "@_LANES",
      "#if defined(__GNUC__) && !defined(__TINYC__) && (defined(__SSE__) || defined(__ARM_NEON))\n"
      "#  if defined(__AVX512F__)\n#    define @_LANES 16\n"
      "#  elif defined(__AVX__)\n#    define @_LANES 8\n"
      "#  else\n#    define @_LANES 4\n#  endif\n"
      "typedef float $_vec __attribute__((vector_size(4 * @_LANES)));\n"
      "#else\n#  define @_LANES 1\ntypedef float $_vec;\n#endif\n"
      "#define @_ROWS (2 * @_LANES)\n" },
    { "@_IF", "#define @_IF(condition, x, y) ((condition) ? (x) : (y))\n" },
    { "$_abs_f(", "static float $_abs_f(float x) { return fabsf(x); }\n" },
    { "$_sqrt_f(", "static float $_sqrt_f(float x) { return sqrtf(x); }\n" },
    /* x, brought between -104 and 89, is n ln 2 + r; the power of two is put in by halves, so that
       it can be 0 or infinite. The bounds are compared as integers, since gcc makes branches of
       two comparisons of floats, and then no vectors; what is no number comes out as 0 or
       infinity. */
    { "$_exp_f(",
      "static float $_exp_f(float x) {\n"
      "    float t, r, y, h;\n"
      "    unsigned u;\n"
      "    int n, m;\n"
      "    memcpy(&u, &x, sizeof u);\n"
      "    u = u > 0xc2d00000u ? 0xc2d00000u : u;\n"
      "    n = (int)u;\n"
      "    n = n > 0x42b20000 ? 0x42b20000 : n;\n"
      "    memcpy(&x, &n, sizeof x);\n"
      "    t = x * 1.44269504f + 12582912.0f;\n"
      "    memcpy(&n, &t, sizeof n);\n"
      "    n -= 0x4b400000;\n"
      "    t -= 12582912.0f;\n"
      "    r = x - t * 0.693359375f + t * 2.12194440e-4f;\n"
      "    y = 1.98756915e-4f;\n"
      "    y = y * r + 1.39819995e-3f;\n"
      "    y = y * r + 8.33345191e-3f;\n"
      "    y = y * r + 4.16657959e-2f;\n"
      "    y = y * r + 0.166666657f;\n"
      "    y = y * r + 0.5f;\n"
      "    y = y * r * r + r + 1.0f;\n"
      "    m = n / 2;\n"
      "    n = (n - m + 127) * 0x800000;\n"
      "    m = (m + 127) * 0x800000;\n"
      "    memcpy(&t, &n, sizeof t);\n"
      "    memcpy(&h, &m, sizeof h);\n"
      "    return y * t * h;\n}\n" },
    { "$_log_f(", "static float $_log_f(float x) { return logf(x); }\n" },
    { "$_log1p_f(", "static float $_log1p_f(float x) { return log1pf(x); }\n" },
    { "$_expm1_f(", "static float $_expm1_f(float x) { return expm1f(x); }\n" },
    { "$_sin_f(", "static float $_sin_f(float x) { return sinf(x); }\n" },
    { "$_cos_f(", "static float $_cos_f(float x) { return cosf(x); }\n" },
    { "$_sinh_f(", "static float $_sinh_f(float x) { return sinhf(x); }\n" },
    { "$_cosh_f(", "static float $_cosh_f(float x) { return coshf(x); }\n" },
    { "$_atan2_f(", "static float $_atan2_f(float y, float x) { return atan2f(y, x); }\n" },
    { "$_tanh_f(",
      "static float $_tanh_f(float x) {\n"
      "    const float a = fabsf(x), z = x * x, e = $_exp_f(-2.0f * a);\n"
      "    const float far = copysignf((1.0f - e) / (1.0f + e), x);\n"
      "    float y = -5.70498872745e-3f;\n"
      "    y = y * z + 2.06390887954e-2f;\n"
      "    y = y * z - 5.37397155531e-2f;\n"
      "    y = y * z + 1.33314422036e-1f;\n"
      "    y = y * z - 3.33332819422e-1f;\n"
      "    y = y * z * x + x;\n"
      "    return a < 0.625f ? y : far;\n}\n" },
    { "$_erf_f(", "static float $_erf_f(float x) { return erff(x); }\n" },
    { "$_floor_f(", "static float $_floor_f(float x) { return floorf(x); }\n" },
    { "$_ceil_f(", "static float $_ceil_f(float x) { return ceilf(x); }\n" },
    { "$_round_f(", "static float $_round_f(float x) { return rintf(x); }\n" },
    { "$_pow_f(", "static float $_pow_f(float x, float y) { return powf(x, y); }\n" },
    { "$_mod_f(",
      "static float $_mod_f(float a, float b) {\n"
      "    const float r = fmodf(a, b);\n"
      "    return r == 0.0f ? copysignf(r, b) : (r < 0.0f) != (b < 0.0f) ? r + b : r;\n}\n" },
    { "$_fmax_f(",
      "static float $_fmax_f(float a, float b) { return a != a ? a : a > b ? a : b; }\n" },
    { "$_fmin_f(",
      "static float $_fmin_f(float a, float b) { return a != a ? a : a < b ? a : b; }\n" },
    { "$_sign_f(",
      "static float $_sign_f(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x; }\n" },
    { "$_sigmoid_f(",
      "static float $_sigmoid_f(float x) { return 1.0f / (1.0f + $_exp_f(-x)); }\n" },
    { "$_softplus_f(",
      "static float $_softplus_f(float x) {\n"
      "    return (x > 0.0f ? x : 0.0f) + log1pf(expf(-fabsf(x)));\n}\n" },
    { "$_gelu_f(",
      "static float $_gelu_f(float x) {\n"
      "    return x / (1.0f + $_exp_f(x * (-1.59576912f - 0.0713548163f * x * x)));\n}\n" },
    { "$_abs_w(", "static long long $_abs_w(long long x) { return x < 0 ? -x : x; }\n" },
    { "$_sign_w(", "static long long $_sign_w(long long x) { return (x > 0) - (x < 0); }\n" },
    { "$_floor_w(", "static long long $_floor_w(long long x) { return x; }\n" },
    { "$_ceil_w(", "static long long $_ceil_w(long long x) { return x; }\n" },
    { "$_round_w(", "static long long $_round_w(long long x) { return x; }\n" },
    { "$_fmax_w(", "static long long $_fmax_w(long long a, long long b) {\n"
      "    return a > b ? a : b;\n}\n" },
    { "$_fmin_w(", "static long long $_fmin_w(long long a, long long b) {\n"
      "    return a < b ? a : b;\n}\n" },
    { "$_pow_w(",
      "static long long $_pow_w(long long a, long long b) {\n"
      "    unsigned long long x = (unsigned long long)a, y = 1;\n"
      "    if (b < 0) return a == 1 ? 1 : a == -1 ? ((b & 1) != 0 ? -1 : 1) : 0;\n"
      "    for (; b; b /= 2, x *= x)\n        if ((b & 1) != 0) y *= x;\n"
      "    return (long long)y;\n}\n" },
    { "$_mod_w(",
      "static long long $_mod_w(long long a, long long b) {\n"
      "    const long long r = b == 0 || b == -1 ? 0 : a % b;\n"
      "    return r != 0 && (r < 0) != (b < 0) ? r + b : r;\n}\n" },
    /* a float as an integer: rounded towards zero, clamped to the range, 0 for NaN */
    { "$_f32_i32(",
      "static int $_f32_i32(float v) {\n"
      "    return v >= 2147483648.0f ? 2147483647 : v > -2147483648.0f ? (int)v\n"
      "           : v <= -2147483648.0f ? -2147483647 - 1 : 0;\n}\n" },
    { "$_f32_i64(",
      "static long long $_f32_i64(float v) {\n"
      "    return v >= 9223372036854775808.0f ? 9223372036854775807LL\n"
      "           : v > -9223372036854775808.0f ? (long long)v\n"
      "           : v <= -9223372036854775808.0f ? -9223372036854775807LL - 1 : 0;\n}\n" },
    { "$_f32_u8(",
      "static unsigned char $_f32_u8(float v) {\n"
      "    return (unsigned char)(v >= 255.0f ? 255 : v > 0.0f ? (int)v : 0);\n}\n" },
    /* argmax (most) and argmin: a NaN comes before all others */
    { "$_beats_f32(",
      "static int $_beats_f32(float x, float best, int most) {\n"
      "    return best == best && (x != x || (most ? x > best : x < best));\n}\n" },
    { "$_beats_i32(",
      "static int $_beats_i32(int x, int best, int most) {\n"
      "    return most ? x > best : x < best;\n}\n" },
    { "$_beats_i64(",
      "static int $_beats_i64(long long x, long long best, int most) {\n"
      "    return most ? x > best : x < best;\n}\n" },
    { "$_tile(", FLUX__NET_TILE("$_tile", "int as", "a", ", a += as") },
    { "$_tile_at(", FLUX__NET_TILE("$_tile_at", "const int *@_R at", "a + at[l]", "") },
    /* y = a b for m rows that lie side by side and one column */
    { "$_matvec(",
      "static void $_matvec(float *@_R y, const float *@_R a, int as, const float *@_R b, int bs,\n"
      "                     int m, int k) {\n"
      "    int i = 0, l;\n"
      "    for (; i + 4 * @_LANES <= m; i += 4 * @_LANES) {\n"
      "        $_vec s0 = { 0 }, s1 = { 0 }, s2 = { 0 }, s3 = { 0 }, x;\n"
      "        const float *p = a + i;\n"
      "        for (l = 0; l < k; l++, p += as) {\n"
      "            const float z = b[l * bs];\n"
      "            memcpy(&x, p, sizeof x), s0 += x * z;\n"
      "            memcpy(&x, p + @_LANES, sizeof x), s1 += x * z;\n"
      "            memcpy(&x, p + 2 * @_LANES, sizeof x), s2 += x * z;\n"
      "            memcpy(&x, p + 3 * @_LANES, sizeof x), s3 += x * z;\n"
      "        }\n"
      "        memcpy(y + i, &s0, sizeof x), memcpy(y + i + @_LANES, &s1, sizeof x);\n"
      "        memcpy(y + i + 2 * @_LANES, &s2, sizeof x);\n"
      "        memcpy(y + i + 3 * @_LANES, &s3, sizeof x);\n"
      "    }\n"
      "    while (i < m && m >= @_LANES) {       /* the last vector may overlap the one before */\n"
      "        $_vec s0 = { 0 }, s1 = { 0 }, x;\n"
      "        const int at = i + @_LANES <= m ? i : m - @_LANES;\n"
      "        const float *p = a + at;\n"
      "        for (l = 0; l + 1 < k; l += 2, p += 2 * as) {\n"
      "            memcpy(&x, p, sizeof x), s0 += x * b[l * bs];\n"
      "            memcpy(&x, p + as, sizeof x), s1 += x * b[(l + 1) * bs];\n"
      "        }\n"
      "        if (l < k) memcpy(&x, p, sizeof x), s0 += x * b[l * bs];\n"
      "        s0 += s1;\n"
      "        memcpy(y + at, &s0, sizeof x);\n"
      "        i = at + @_LANES;\n"
      "    }\n"
      "    if (i >= m) return;\n"
      "    for (i = 0; i < m; i++) y[i] = 0;\n"
      "    for (l = 0; l < k; l++, a += as)\n"
      "        for (i = 0; i < m; i++) y[i] += a[i] * b[l * bs];\n"
      "}\n" },
    { "$_dot(",
      "static float $_dot(const float *@_R a, const float *@_R b, int k) {\n"
      "    $_vec s0 = { 0 }, s1 = { 0 }, x, y;\n"
      "    float lane[@_LANES], sum = 0;\n"
      "    int l = 0, i;\n"
      "    for (; l + 2 * @_LANES <= k; l += 2 * @_LANES) {\n"
      "        memcpy(&x, a + l, sizeof x), memcpy(&y, b + l, sizeof y), s0 += x * y;\n"
      "        memcpy(&x, a + l + @_LANES, sizeof x), memcpy(&y, b + l + @_LANES, sizeof y);\n"
      "        s1 += x * y;\n"
      "    }\n"
      "    s0 += s1;\n"
      "    memcpy(lane, &s0, sizeof lane);\n"
      "    for (i = 0; i < @_LANES; i++) sum += lane[i];\n"
      "    for (; l < k; l++) sum += a[l] * b[l];\n"
      "    return sum;\n}\n" }
};
enum { FLUX__NET_HELPERS = (int)(sizeof flux__net_helpers / sizeof *flux__net_helpers) };

/* ---------------- the state of writing */

/* A kernel's function while it is written. A parameter is declared when it is first named, a<i>
   for operand i and y<i> for what value i stores (y-1: what a whole-tensor kernel stores), and the
   call's argument with it. */
typedef struct flux__net_kernel {
    const flux__plan *plan;
    const flux__graph *g;
    const flux__kernel *k;
    flux__sink s, params, args;           /* the body, declarations, arguments of the call */
    const char *const *place;             /* by slot: how net() names the first element */
    uint8_t *ops;                         /* by row: bit ctype is set if its function is called */
    int64_t packed, panel;                /* the most floats of a row in $_pack, in $_panel */
    int64_t scratch;                      /* floats of scratch memory in $_scratch */
    char named[4096];                     /* ",a0,y3," */
    int loops;                            /* variables of loops that were opened so far */
    bool ok;
} flux__net_kernel;

/* Puts x so that it reads back exactly, with a dot in any locale: 0.5f, 3.0f, 1e-20f. */
static void flux__put_c_float(flux__sink *s, float x) {
    char text[40];
    bool plain = true;
    if (x != x || x - x != 0) {
        flux__put(s, x != x ? "NAN" : x > 0 ? "INFINITY" : "-INFINITY");
        return;
    }
    int n = snprintf(text, sizeof text, "%.9g", (double)x), at = 0;
    for (int i = 0; i < n; i++) {         /* the locale's point may be several bytes */
        if (flux__is_digit(text[i]) || strchr("+-e", text[i])) text[at++] = text[i];
        else if (at == 0 || text[at - 1] != '.') text[at++] = '.';
        plain = plain && (flux__is_digit(text[i]) || text[i] == '-');
    }
    flux__put_bytes(s, text, (size_t)at);
    flux__put(s, plain ? ".0f" : "f");
}

/* Puts a number as a constant of a compute type. */
static void flux__put_c_number(flux__sink *s, int ctype, double x) {
    char at[8];
    int32_t i;
    int64_t l;
    float f;
    flux__set_number(ctype, at, x);
    if (ctype == FLUX__F32C) memcpy(&f, at, sizeof f), flux__put_c_float(s, f);
    else if (ctype == FLUX__I32C) memcpy(&i, at, sizeof i), flux__putf(s, "%ld", (long)i);
    else memcpy(&l, at, sizeof l), flux__putf(s, "%lldLL", (long long)l);
}

/* Declares a parameter once: `const` for what is read. */
static void flux__net_declare(flux__net_kernel *c, char kind, int number, int dtype, int slot,
                            int64_t offset) {
    char name[24];
    size_t used = strlen(c->named);
    snprintf(name, sizeof name, ",%c%d,", kind, number);
    if (strstr(c->named, name)) return;
    if (used + strlen(name) >= sizeof c->named) {
        flux__fail("export_c: a kernel has too many operands");
        c->ok = false;
        return;
    }
    memcpy(c->named + used, name, strlen(name) + 1);
    flux__putf(&c->params, "%s%s%s *@_R %c%d", c->params.len ? ", " : "",
               kind == 'a' ? "const " : "", flux__dtype_types[dtype], kind,
               number < 0 ? 0 : number);
    flux__put(&c->args, c->args.len ? ", " : "");
    flux__put(&c->args, c->place[slot]);
    if (offset) flux__putf(&c->args, " + %lld", (long long)offset);
}

/* Declares operand number i as a<i>, from its first element on. */
static void flux__net_operand(flux__net_kernel *c, int i) {
    const flux__operand *o = &c->k->operand[i];
    flux__net_declare(c, 'a', i, o->dtype, o->src, o->offset);
}

static const char *const flux__net_suffixes[] = { "f", "d", "w", "w" };

/* Puts the function of an operation in a compute type, made from its formula: FLUX__F(exp)(a)
   becomes $_exp_f(a). Integers are computed in 64 bits and cut. */
static void flux__put_c_formula(flux__sink *s, int op, int ctype) {
    const bool whole = ctype >= FLUX__I32C;
    const char *type = flux__class_types[ctype], *inner = whole ? "long long" : type,
               *p = flux__formulas[op];
    flux__putf(s, "static %s $_%s_%s(%s a", type, flux__op_names[op], flux__class_names[ctype],
               inner);
    for (int i = 1; i < flux__arity[op]; i++) flux__putf(s, ", %s %c", inner, 'a' + i);
    flux__putf(s, ") {\n    return (%s)(", type);
    while (*p) {
        const char *end = strstr(p + 1, "FLUX__");
        if (strncmp(p, "FLUX__F(", 8) == 0) {
            end = strchr(p, ')');
            flux__putf(s, "$_%.*s_%s", (int)(end - p - 8), p + 8, flux__net_suffixes[ctype]);
            p = end + 1;
        } else if (strncmp(p, "FLUX__K", 7) == 0) flux__putf(s, "(%s)", inner), p += 7;
        else if (strncmp(p, "FLUX__IF", 8) == 0) flux__put(s, "@_IF"), p += 8;
        else {
            size_t n = end ? (size_t)(end - p) : strlen(p);
            flux__put_bytes(s, p, n);
            p += n;
        }
    }
    flux__put(s, ");\n}\n");
}

/* Puts the helpers that the text calls, or that called helpers call, in their order; false: no
   memory. */
static bool flux__put_c_helpers(flux__sink *s, const char *text) {
    bool used[FLUX__NET_HELPERS];
    for (int i = FLUX__NET_HELPERS - 1; i >= 0; i--) {
        used[i] = strstr(text, flux__net_helpers[i].name) != NULL;
        for (int j = i + 1; j < FLUX__NET_HELPERS && !used[i]; j++)
            used[i] = used[j] && strstr(flux__net_helpers[j].text, flux__net_helpers[i].name);
    }
    for (int i = 0; i < FLUX__NET_HELPERS; i++)
        if (used[i]) flux__put(s, flux__net_helpers[i].text);
    return !s->failed;
}

FLUX__END_COLD

#endif /* FLUX__TEXT_EXPORT_WORDS_H */
