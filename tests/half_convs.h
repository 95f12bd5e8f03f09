/* Random convolutions of half formats, whose windows the processor reads in place of a copy of them: beside the same in float64,
   on several threads and, where halves themselves are multiplied, beside the product of columns that are stored. */
typedef struct half_conv { flux_conv_opts o; bool flip; flux_dtype dtype; } half_conv;

static uint64_t half_convs_state = 1;
static int64_t half_convs_dice(int64_t n) {
    half_convs_state = half_convs_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)((half_convs_state >> 33) % (uint64_t)n);
}

/* The same elements as a view of others that have two neighbouring dims exchanged. */
static flux_tensor *half_convs_turned(flux_tensor *x, int dim) {
    flux_shape order = { flux_ndim(x), { 0 } };
    for (int i = 0; i < order.ndim; i++) order.dim[i] = i == dim ? dim + 1 : i == dim + 1 ? dim : i;
    return flux_permute_with(flux_eval(flux_copy(flux_permute_with(x, order))), order);
}

/* A convolution over one or two dims, whose windows lie a step apart, mostly, or as many in both dims, mostly; its images and weights
   may be views of larger ones, or permuted. */
static half_conv half_convs_any(flux_dtype dtype) {
    static const int64_t many[] = { 1, 3, 8, 16, 17, 32, 40 }, sizes[] = { 1, 3, 3, 2, 5 };
    /* 3 x 3, as most are; of many channels; of each channel by itself */
    const bool plain = half_convs_dice(2), deep = plain && half_convs_dice(2), depthwise = !deep && !half_convs_dice(3);
    const int64_t nd = 1 + (deep || half_convs_dice(4) > 0), channels = many[half_convs_dice(7)],
                  groups = depthwise ? channels : deep || half_convs_dice(5) ? 1 : 2,
                  in = deep ? 32 + 32 * half_convs_dice(2) : depthwise ? groups : groups * channels,
                  out = depthwise ? groups : groups * many[half_convs_dice(7)];
    half_conv c;
    memset((void *)&c, 0, sizeof c);
    flux_shape x = { 0, { 0 } }, w = { 0, { 0 } }, step = { 0, { 0 } }, pad = { 0, { 0 } }, apart = { 0, { 0 } };
    for (int64_t d = 0; d < nd; d++) {
        w.dim[w.ndim++] = plain ? 3 : sizes[half_convs_dice(5)];
        step.dim[step.ndim++] = d && step.dim[0] > 1 && half_convs_dice(4) ? step.dim[0] : 1 + (!half_convs_dice(4) ? half_convs_dice(3) : 0), apart.dim[apart.ndim++] = 1 + (!plain && !half_convs_dice(5));
        pad.dim[pad.ndim++] = half_convs_dice(2);
        x.dim[x.ndim++] = 9 + half_convs_dice(nd == 1 ? 90 : 14);
    }
    x.dim[x.ndim++] = in, x.dim[x.ndim++] = 1 + half_convs_dice(4);
    w.dim[w.ndim++] = in / groups, w.dim[w.ndim++] = out;
    flux_tensor *image = flux_randn_with(x, FLUX_F32), *weight = flux_randn_with(w, FLUX_F32);
    c.o.x = flux_eval(flux_to_dtype(image, dtype)), c.o.weight = flux_eval(flux_to_dtype(weight, dtype));
    if (!half_convs_dice(4)) c.o.x = flux_slice_step(c.o.x, 0, 0, x.dim[0], 1 + half_convs_dice(2));
    if (!half_convs_dice(4)) c.o.x = flux_flip(c.o.x, (int)nd);
    if (!half_convs_dice(4)) c.o.weight = flux_flip(c.o.weight, 0);
    /* rows that do not lie side by side; channels in and out exchanged, as a gradient has them */
    if (nd == 2 && !half_convs_dice(3)) c.o.x = half_convs_turned(c.o.x, 0);
    if (!half_convs_dice(3)) c.o.weight = half_convs_turned(c.o.weight, (int)nd);
    c.o.stride = step, c.o.pad = pad, c.o.dilation = apart, c.o.groups = (int)groups;
    c.flip = half_convs_dice(2), c.dtype = dtype;
    return c;
}
static flux_tensor *half_convs_call(const half_conv *c, flux_tensor *x, flux_tensor *w) {
    flux_conv_opts o = c->o;
    o.x = x, o.weight = w;
    return c->flip ? flux_conv_with(o) : flux_crosscor_with(o);
}

/* The greatest error of y in units of what rounding may do: f32's in sums of `size`, and the format's of the result, or, where
   `parts` are rounded and added up, of all of them. */
static double half_convs_error(flux_tensor *y, flux_tensor *want, flux_tensor *size, bool parts) {
    const double unit = flux_dtype_of(y) == FLUX_BF16 ? 1 / 256.0 : 1 / 2048.0;
    flux_tensor *most = flux_add(flux_mul(size, parts ? 1.01 * unit : 4e-6), flux_mul(flux_abs(want), unit));
    flux_tensor *error = flux_abs(flux_sub(flux_to_dtype(y, FLUX_F64), want));
    return flux_item(flux_max(flux_div(error, flux_add(most, 1e-6))));
}
static bool half_convs_same(flux_tensor *a, flux_tensor *b) {
    return flux_len(a) == flux_len(b) && !memcmp(flux_data(flux_eval(a)), flux_data(flux_eval(b)), (size_t)flux_len(a) * 2);
}

/* The same as a product of columns that are stored. NULL: it is computed in f32, where the order of sums depends on that. */
static flux_tensor *half_convs_stored(const half_conv *c) {
    flux_conv_opts o = c->o;
    flux__window w;
    if (!flux__conv_window("conv", &o, &w, false) || !flux__window_out("conv", o.x, &w)) return NULL;
    w.flipped = c->flip;
    const int64_t g = o.groups, out = o.weight->dim[w.nd + 1];
    flux_tensor *columns = flux_eval(flux_copy(flux__conv_columns(o.x, &w, g))),
                *weight = flux_reshape(o.weight, columns->dim[1], out / g, g), *y = flux_matmul(columns, weight);
    if (w.nd == 2 && g == 1) flux__mark_windows(y, &w, true);
    const int64_t m = columns->dim[0], n = out / g, k = columns->dim[1];
    const bool pairs = flux__simd() > 2 && (y->arg.i[3] >> 2 & 255) != (3 | 1 << 4) && m > 1 && n > 1 && k > 1;
    return c->dtype == FLUX_BF16 && (flux__amx_wants(m, n, k) || pairs) ? flux_eval(y) : NULL;
}

/* Whether all of that agrees for one convolution. */
static bool half_convs_agree(const half_conv *c) {
    flux_tensor *x = c->o.x, *w = c->o.weight, *x64 = flux_eval(flux_to_dtype(x, FLUX_F64)), *w64 = flux_eval(flux_to_dtype(w, FLUX_F64));
    flux_tensor *y = half_convs_call(c, x, w), *g = flux_eval(flux_to_dtype(flux_randn_with(flux_shape_of(y), FLUX_F32), c->dtype));
    flux_tensor *g64 = flux_to_dtype(g, FLUX_F64), *ax = flux_eval(flux_abs(x64)), *aw = flux_eval(flux_abs(w64));
    flux_grads *d = flux_gradient(flux_sum(flux_mul(y, g)), x, w),
               *want = flux_gradient(flux_sum(flux_mul(half_convs_call(c, x64, w64), g64)), x64, w64),
               *size = flux_gradient(flux_sum(flux_mul(half_convs_call(c, ax, aw), flux_abs(g64))), ax, aw);
    flux_tensor *dx = flux_eval(flux_grad(d, x)), *dw = flux_eval(flux_grad(d, w)), *again[3], *stored = half_convs_stored(c);
    bool ok = CHECK(half_convs_error(y, half_convs_call(c, x64, w64), half_convs_call(c, ax, aw), false) <= 1);
    ok = CHECK(half_convs_error(dx, flux_grad(want, x64), flux_grad(size, ax), true) <= 1) && ok;
    ok = CHECK(half_convs_error(dw, flux_grad(want, w64), flux_grad(size, aw), true) <= 1) && ok;
    ok = CHECK(!stored || half_convs_same(y, stored)) && ok;
    flux_threads(3);
    again[0] = half_convs_call(c, x, w), d = flux_gradient(flux_sum(flux_mul(again[0], g)), x, w);
    again[1] = flux_grad(d, x), again[2] = flux_grad(d, w);
    ok = CHECK(half_convs_same(again[0], y) && half_convs_same(again[1], dx) && half_convs_same(again[2], dw)) && ok;
    flux_threads(1);
    return ok;
}
