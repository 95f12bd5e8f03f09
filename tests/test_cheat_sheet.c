/* From PyTorch and Flux to flux.h: phrases of the two, and what is written here, which is run as a test. The page of `make docs`
   shows them as a table. uses.h says how the checks are written. */
#include "uses.h"

#ifdef _WIN32
TEST(phrases) { SKIP("its files need a folder made by mkdtemp"); }
#else
/* LIKE(PyTorch, Flux) { flux.h } */
#define LIKE(torch, flux) USE(torch, flux)

static flux_tensor *loss_of(flux_layer *m, flux_tensor *x, flux_tensor *y) { return flux_mse(flux_call(m, x), y); }

TEST(tensors) {
    flux_tensor *x = flux_randn(784, 64), *v = flux_values(1, 2, 3), *mask = flux_gt(x, 0);
    const float array[64][784] = { { 0 } };
    float out[3];
    LIKE("torch.zeros(5, 2)", "zeros(Float32, 2, 5)") { flux_tensor *z = flux_zeros(2, 5); SHAPE(z, 2, 5); }
    LIKE("torch.randn(64, 784)", "randn(Float32, 784, 64)") { flux_tensor *r = flux_randn(784, 64); SHAPE(r, 784, 64); }
    LIKE("torch.tensor([1., 2., 3.])", "[1f0, 2f0, 3f0]") { flux_tensor *t = flux_values(1, 2, 3); VALUES(t, 1, 2, 3); }
    LIKE("torch.from_numpy(array)", "array") { flux_tensor *t = flux_from(&array[0][0], 784, 64); SHAPE(t, 784, 64); }
    LIKE("torch.arange(0, 1, 0.25)", "0:0.25f0:0.75f0") { flux_tensor *r = flux_arange(0, 1, 0.25); SHAPE(r, 4); }
    LIKE("torch.linspace(0, 1, 5)", "range(0f0, 1f0, 5)") { flux_tensor *r = flux_linspace(0, 1, 5); SHAPE(r, 5); }
    LIKE("torch.eye(3)", "Matrix{Float32}(I, 3, 3)") { flux_tensor *i = flux_eye(3); SHAPE(i, 3, 3); }
    LIKE("torch.randint(0, 10, (64,))", "rand(0:9, 64)") { flux_tensor *r = flux_randint(0, 10, 64); SHAPE(r, 64); }
    LIKE("torch.manual_seed(1)", "Random.seed!(1)") { flux_seed(1); }
    LIKE("x.shape, x.ndim, x.numel()", "size(x), ndims(x), length(x)") { flux_shape s = flux_shape_of(x); int n = flux_ndim(x); IS(flux_len(x), 50176); }
    LIKE("x.item()", "x[]") { double value = flux_item(flux_sum(v)); IS(value, 6); }
    LIKE("x[3, 10]", "x[11, 4]") { double value = flux_at(x, 10, 3); }
    LIKE("x.numpy()", "Array(x)") { flux_read(v, out, sizeof out); IS(out[2], 3); }
    LIKE("x[:, 10:20]", "x[11:20, :]") { flux_tensor *part = flux_slice(x, 0, 10, 20); SHAPE(part, 10, 64); }
    LIKE("x[0]", "x[:, 1]") { flux_tensor *first = flux_select(x, 1, 0); SHAPE(first, 784); }
    LIKE("x[:8]", "x[:, 1:8]") { flux_tensor *few = flux_take(x, 8); SHAPE(few, 784, 8); }
    LIKE("x[torch.tensor([3, 1])]", "x[:, [4, 2]]") { flux_tensor *picked = flux_gather(x, 1, flux_to_dtype(flux_values(3, 1), FLUX_I64)); SHAPE(picked, 784, 2); }
    LIKE("x[mask] = 0", "x[mask] .= 0") { flux_tensor *y = flux_masked_fill(x, mask, 0); SHAPE(y, 784, 64); }
    LIKE("x.view(64, 28, 28)", "reshape(x, 28, 28, 64)") { flux_tensor *images = flux_reshape(x, 28, 28, 64); SHAPE(images, 28, 28, 64); }
    LIKE("x.flatten(1)", "Flux.flatten(x)") { flux_tensor *flat = flux_flatten(flux_reshape(x, 28, 28, 64)); SHAPE(flat, 784, 64); }
    LIKE("x.T", "transpose(x)") { flux_tensor *t = flux_transpose(x); SHAPE(t, 64, 784); }
    LIKE("x.permute(2, 0, 1)", "permutedims(x, (2, 3, 1))") { flux_tensor *p = flux_permute(flux_zeros(2, 3, 4), 1, 2, 0); SHAPE(p, 3, 4, 2); }
    LIKE("torch.cat([x, x], 0)", "cat(x, x; dims = 2)") { flux_tensor *both = flux_cat(1, x, x); SHAPE(both, 784, 128); }
    LIKE("torch.stack([v, v])", "stack([v, v])") { flux_tensor *both = flux_stack(1, v, v); SHAPE(both, 3, 2); }
    LIKE("x.unsqueeze(0)", "reshape(x, size(x)..., 1)") { flux_tensor *one = flux_unsqueeze(x, 2); SHAPE(one, 784, 64, 1); }
    LIKE("x.half()", "Float16.(x)") { flux_tensor *half = flux_to_dtype(x, FLUX_F16); SHAPE(half, 784, 64); }
    LIKE("x.detach()", "ignore_derivatives(x)") { flux_tensor *fixed = flux_detach(x); SHAPE(fixed, 784, 64); }
}

TEST(arithmetic) {
    flux_tensor *x = flux_randn(784, 64), *W = flux_randn(10, 784), *bias = flux_zeros(10), *v = flux_values(3, 1, 2);
    flux_tensor *a = flux_randn(4, 3, 5), *b = flux_randn(3, 2, 5);
    LIKE("x * 2 + 1", "2x .+ 1") { flux_tensor *y = flux_add(flux_mul(x, 2), 1); SHAPE(y, 784, 64); }
    LIKE("torch.relu(x @ W.T + bias)", "relu.(W * x .+ bias)") { flux_tensor *y = flux_relu(flux_add(flux_matmul(W, x), bias)); SHAPE(y, 10, 64); }
    LIKE("torch.bmm(b, a)", "batched_mul(a, b)") { flux_tensor *y = flux_matmul(a, b); SHAPE(y, 4, 2, 5); }
    LIKE("torch.einsum('bki,bjk->bji', a, b)", "@tullio y[i,j,b] := a[i,k,b] * b[k,j,b]") { flux_tensor *y = flux_einsum("ikb,kjb->ijb", a, b); SHAPE(y, 4, 2, 5); }
    LIKE("((y - W * x) ** 2).sum()", "sum((y .- W .* x).^2)") { flux_tensor *s = flux_expr("sum((v .- 2 .* v).^2)", v); IS(flux_item(s), 14); }
    LIKE("x.mean(dim=0, keepdim=True)", "mean(x; dims = 2)") { flux_tensor *m = flux_mean(x, 1); SHAPE(m, 784, 1); }
    LIKE("x.max(dim=1, keepdim=True).values", "maximum(x; dims = 1)") { flux_tensor *m = flux_max(x, 0); SHAPE(m, 1, 64); }
    LIKE("torch.maximum(x, y)", "max.(x, y)") { flux_tensor *m = flux_max2(x, 0); SHAPE(m, 784, 64); }
    LIKE("x.argmax(dim=1)", "onecold(x)") { flux_tensor *i = flux_onecold(x); SHAPE(i, 64); }
    LIKE("x.softmax(dim=1)", "softmax(x)") { flux_tensor *p = flux_softmax(x); SHAPE(p, 784, 64); }
    LIKE("x.clamp(0, 1)", "clamp.(x, 0, 1)") { flux_tensor *y = flux_clamp(x, 0, 1); SHAPE(y, 784, 64); }
    LIKE("torch.where(x > 0, x, 0)", "ifelse.(x .> 0, x, 0)") { flux_tensor *y = flux_where(flux_gt(x, 0), x, 0); SHAPE(y, 784, 64); }
    LIKE("x.std(unbiased=False)", "std(x; corrected = false)") { flux_tensor *s = flux_std(v); IS(flux_item(s), 0.8165); }
    LIKE("x.sort(descending=True).values", "sort(x; rev = true)") { flux_tensor *s = flux_sort(v, .descending = true); VALUES(s, 3, 2, 1); }
    LIKE("x.topk(2)", "partialsort(x, 1:2; rev = true)") { flux_tensor *best = flux_topk(v, 2, 0); VALUES(flux_nth(best, 0), 3, 2); }
    LIKE("x.cumsum(0)", "cumsum(x)") { flux_tensor *c = flux_cumsum(v); VALUES(c, 3, 4, 6); }
    LIKE("F.one_hot(labels, 10)", "onehotbatch(labels, 0:9)") { flux_tensor *y = flux_onehot(flux_randint(0, 10, 64), 10); SHAPE(y, 10, 64); }
}

TEST(models) {
    flux_tensor *x = flux_randn(784, 64), *images = flux_randn(28, 28, 1, 8), *text = flux_randint(0, 100, 7, 2);
    flux_layer *model = flux_chain(flux_dense(784, 10)), *other = flux_copy_layer(model);
    LIKE("nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))", "Chain(Dense(784 => 64, relu), Dense(64 => 10))") { flux_layer *m = flux_chain(flux_dense(784, 64, flux_relu), flux_dense(64, 10)); SHAPE(flux_call(m, x), 10, 64); }
    LIKE("nn.Conv2d(1, 8, 3, padding='same')", "Conv((3, 3), 1 => 8; pad = SamePad())") { flux_layer *m = flux_conv_layer(FLUX_SHAPE(3, 3), 1, 8, .pad = FLUX_SAMEPAD); SHAPE(flux_call(m, images), 28, 28, 8, 8); }
    LIKE("nn.MaxPool2d(2)", "MaxPool((2, 2))") { flux_layer *m = flux_maxpool_layer(FLUX_SHAPE(2, 2)); SHAPE(flux_call(m, images), 14, 14, 1, 8); }
    LIKE("nn.BatchNorm2d(8)", "BatchNorm(8)") { flux_layer *m = flux_batchnorm(8); }
    LIKE("nn.LayerNorm(64)", "LayerNorm(64)") { flux_layer *m = flux_layernorm(FLUX_SHAPE(64)); }
    LIKE("nn.Dropout(0.5)", "Dropout(0.5)") { flux_layer *m = flux_dropout(0.5); }
    LIKE("nn.Embedding(100, 16)", "Embedding(100 => 16)") { flux_layer *m = flux_embedding(100, 16); SHAPE(flux_call(m, text), 16, 7, 2); }
    LIKE("nn.LSTM(16, 32, batch_first=True)", "LSTM(16 => 32)") { flux_layer *m = flux_lstm(16, 32); SHAPE(flux_call(m, flux_zeros(16, 7, 2)), 32, 7, 2); }
    LIKE("nn.MultiheadAttention(16, 4, bias=False, batch_first=True)", "MultiHeadAttention(16; nheads = 4)") { flux_layer *m = flux_multiheadattention(16, 4); }
    LIKE("model(x)", "model(x)") { flux_tensor *y = flux_call(model, x); SHAPE(y, 10, 64); }
    LIKE("model[0].weight", "model[1].weight") { flux_tensor *w = flux_param(model, "layers.0.weight"); SHAPE(w, 10, 784); }
    LIKE("sum(p.numel() for p in model.parameters())", "sum(length, Flux.trainables(model))") { IS(flux_num_params(model), 7850); int64_t n = flux_num_params(model); }
    LIKE("model.to(\"cuda\")", "model = gpu(model)") { flux_layer *there = flux_gpu(model); }
    LIKE("copy.deepcopy(model).half()", "f16(model)") { flux_layer *half = flux_f16(model); }
    LIKE("model.eval()", "testmode!(model)") { flux_testmode(model, true); }
    LIKE("with torch.no_grad(): print(model(x))", "println(model(x))") { FLUX_INFER { flux_print(flux_call(model, x)); } }
    LIKE("for p in model.parameters(): p.requires_grad = False", "Flux.freeze!(opt)") { flux_freeze(flux_child(other, 0)); }
    LIKE("copy.deepcopy(model)", "deepcopy(model)") { flux_layer *copy = flux_copy_layer(model); }
    LIKE("torchinfo.summary(model, (64, 784))", "model") { flux_summary(model, 784, 64); }
    LIKE("torch.save(model.state_dict(), \"m.pt\")", "jldsave(\"m.jld2\"; state = Flux.state(model))") { flux_save(model, "m.safetensors"); }
    LIKE("model.load_state_dict(torch.load(\"m.pt\"))", "Flux.loadmodel!(model, load(\"m.jld2\", \"state\"))") { flux_load(model, "m.safetensors"); }
    LIKE("safetensors.torch.save_file(model.state_dict(), \"t.safetensors\")", "") { flux_save_torch(model, "t.safetensors", NULL); flux_load_torch(model, "t.safetensors", NULL); }
}

TEST(training) {
    flux_tensor *x = flux_randn(8, 20), *y = flux_randn(1, 20), *labels = flux_randint(0, 3, 20), *first, *rest;
    flux_layer *model = flux_chain(flux_dense(8, 1)), *classes = flux_dense(8, 3);
    flux_state *opt = flux_setup(flux_adam(), model);
    flux_grads *g = flux_gradient(flux_mse(flux_call(model, x), y), model);
    LIKE("opt = torch.optim.Adam(model.parameters(), 1e-3)", "opt = Flux.setup(Adam(1e-3), model)") { flux_state *s = flux_setup(flux_adam(1e-3), model); }
    LIKE("torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)", "Flux.setup(Momentum(0.01, 0.9), model)") { flux_state *s = flux_setup(flux_momentum(0.01, .rho = 0.9), model); }
    LIKE("DataLoader(TensorDataset(x, y), 32, shuffle=True)", "DataLoader((x, y); batchsize = 32, shuffle = true)") { flux_loader *data = flux_dataloader(x, y, .batchsize = 32, .shuffle = true); }
    LIKE("for bx, by in data: ...", "for (bx, by) in data ... end") { flux_each (b, flux_dataloader(x, y, .batchsize = 4)) { flux_eval(flux_mse(flux_call(model, b.x), b.y)); } }
    LIKE("random_split(data, [0.8, 0.2])", "splitobs((x, y); at = 0.8, shuffle = true)") { flux_splitobs(0.8, flux_shuffleobs(flux_tuple(x, y), 1), &first, &rest); SHAPE(flux_nth(first, 0), 8, 16); }
    LIKE("F.cross_entropy(logits, labels)", "logitcrossentropy(logits, y)") { flux_tensor *loss = flux_logitcrossentropy(flux_call(classes, x), labels); IS(flux_ndim(loss), 0); }
    LIKE("F.mse_loss(model(x), y)", "mse(model(x), y)") { flux_tensor *loss = flux_mse(flux_call(model, x), y); IS(flux_ndim(loss), 0); }
    LIKE("F.binary_cross_entropy_with_logits(z, y)", "logitbinarycrossentropy(z, y)") { flux_tensor *loss = flux_logitbinarycrossentropy(flux_call(model, x), flux_gt(y, 0)); IS(flux_ndim(loss), 0); }
    LIKE("p.grad", "grads.layers[1].weight") { flux_tensor *dw = flux_grad_param(g, model, "layers.0.weight"); SHAPE(dw, 1, 8); }
    LIKE("loss.backward(); opt.step(); opt.zero_grad()", "Flux.update!(opt, model, gradient(loss, model)[1])") { flux_tensor *loss = flux_mse(flux_call(model, x), y); IS(flux_update(opt, model, flux_gradient(loss, model)), 0); }
    LIKE("clip_grad_norm_(model.parameters(), 1.0)", "OptimiserChain(ClipNorm(1.0), Adam())") { flux_clip_global(g, 1.0); }
    LIKE("lr_scheduler.CosineAnnealingLR(opt, 1000)", "CosAnneal(1e-3, 0, 1000)") { flux_state *s = flux_setup(flux_scheduled(flux_adam(), flux_schedule_cosine(1e-3, 0, 1000)), model); }
    LIKE("for group in opt.param_groups: group[\"lr\"] = 1e-4", "Flux.adjust!(opt, 1e-4)") { flux_adjust(opt, .eta = 1e-4); }
    LIKE("lightning.Trainer(max_epochs=2).fit(model, data)", "Flux.train!(loss, model, data, opt)") { flux_train(loss_of, model, flux_dataloader(x, y), opt, .epochs = 2); }
    LIKE("(z.argmax(1) == labels).float().mean()", "mean(onecold(z) .== onecold(y))") { flux_tensor *share = flux_accuracy(flux_call(classes, x), labels); IS(flux_ndim(share), 0); }
    LIKE("torch.cuda.synchronize()", "CUDA.synchronize()") { flux_synchronise_device(flux_device_of(x)); }
}

#endif
TEST_MAIN()
