"""Python's half of check_python.sh: python3 check_python.py PROGRAM FOLDER. What flux.h writes is read by NumPy and by
safetensors, what these write is read by flux.h, and every bit is compared. Ends with "N passed, N failed, N skipped"."""
import os, subprocess, sys
import numpy as np
import safetensors.numpy
from safetensors import safe_open

program, folder = sys.argv[1], sys.argv[2]
NUMPY = {"f32": "f4", "f64": "f8", "f16": "f2", "i32": "i4", "i64": "i8", "u8": "u1", "bool": "b1"}
NAMES = {"f32": "F32", "f64": "F64", "f16": "F16", "bf16": "BF16", "i32": "I32", "i64": "I64", "u8": "U8", "bool": "BOOL"}
SIZES = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2, "i32": 4, "i64": 8, "u8": 1, "bool": 1}
passed = failed = skipped = 0


def check(good, what):
    global passed, failed
    if good:
        passed += 1
    else:
        failed += 1
        print("FAILED ", what)


def run(*args):
    return subprocess.run([program] + list(args), capture_output=True, text=True, timeout=60)


def path(name):
    return os.path.join(folder, name)


def pattern(dtype, shape):
    """The bytes of python_files.c's pattern, in its element order (the first dimension fastest)."""
    k = np.arange(int(np.prod(shape, dtype=np.int64)))
    if dtype == "bool":
        return (k % 2 == 0).astype(np.uint8).tobytes()
    return ((37 * k[:, None] + 11 * np.arange(SIZES[dtype])[None, :] + 5) % 256).astype(np.uint8).tobytes()


def ranks(i):
    s = [3, 2, 1, 2, 1, 3, 1, 2][: i % 9]
    if i > 8:
        s[i % len(s)] = 0
    return s


# ours, read by Python
r = run("write", folder)
check(r.returncode == 0, "python_files write: " + r.stderr)
names = ["%s_%d" % (t, i) for t in NAMES for i in range(18) if i != 9]
with open(path("all.safetensors"), "rb") as f:
    raw = f.read()
start = 8 + int.from_bytes(raw[:8], "little")
check(start % 64 == 0, "the data begin at a multiple of 64")
everything = dict(safetensors.deserialize(raw))           # dtype, shape and bytes of each, checked by the library
check(sorted(everything) == sorted(names), "the names are those that were given")
for name in names:
    t, i = name.split("_")
    e, want = everything.get(name), ranks(int(i))
    check(e is not None and e["dtype"] == NAMES[t] and list(e["shape"]) == want[::-1], name + ": dtype and shape, in reverse")
    check(e is not None and bytes(e["data"]) == pattern(t, want), name + ": bytes")
    if os.path.exists(path(name + ".npy")):
        x = np.load(path(name + ".npy"))
        check(x.dtype == np.dtype(NUMPY[t]) and list(x.shape) == want and x.tobytes(order="F") == pattern(t, want), name + ".npy")
with safe_open(path("all.safetensors"), "numpy") as f:
    check(f.metadata() == {"flux.h": "1"}, "metadata")
    check(f.get_tensor("i32_3").shape == (1, 2, 3), "safe_open reads a tensor")
with safe_open(path("tied.safetensors"), "numpy") as f:
    odd = 'layers."odd\\ name\u00e9'
    check(sorted(f.keys()) == sorted(["layers.0.bias", "layers.0.weight", odd + ".bias"]), "a tied tensor is there once; names are escaped")
    check(f.metadata().get("tie:" + odd + ".weight") == "layers.0.weight", "the tie is in the metadata")

# Python's, read by us and written again
rng = np.random.default_rng(1)
shapes = [(), (1,), (5,), (2, 3), (3, 2, 4), (0,), (2, 0, 3), (1, 2, 1, 2, 1, 2, 1, 2), (300, 41)]
made = {}
for t, code in NUMPY.items():
    for i, shape in enumerate(shapes):
        n = int(np.prod(shape, dtype=np.int64))
        if t == "bool":
            x = rng.integers(0, 2, n).astype(np.bool_)
        else:
            x = np.frombuffer(rng.bytes(n * SIZES[t]), dtype=code).copy()      # any bits: denormals, NaNs
            if t == "f16":                                 # (a signalling one may come out quiet when data are put in order)
                x.view(np.uint16)[np.isnan(x)] |= 0x200
        made["%s-%d" % (t, i)] = np.ascontiguousarray(x.reshape(shape))
safetensors.numpy.save_file(made, path("made.safetensors"), metadata={"any": "thing"})
r = run("copy", path("made.safetensors"), path("copied.safetensors"), *made)
check(r.returncode == 0, "python_files copy: " + r.stderr)
back = safetensors.numpy.load_file(path("copied.safetensors")) if r.returncode == 0 else {}
for name, x in made.items():
    y = back.get(name)
    check(y is not None and y.dtype == x.dtype and y.shape == x.shape and y.tobytes() == x.tobytes(), "copy of " + name)
for name, x in made.items():
    if name[:3] != "f32" and name[-1] not in "38":         # each save waits for the disk
        continue
    for layout, y in (("C", x), ("F", np.asfortranarray(x)), (">", x.astype(x.dtype.newbyteorder(">")))):
        np.save(path("in.npy"), y)
        r = run("npy", path("in.npy"), path("out.npy"))
        z = np.load(path("out.npy")) if r.returncode == 0 else None
        check(z is not None and z.dtype == x.dtype and z.shape == x.shape and z.tobytes() == x.tobytes(), "npy %s %s %s" % (name, layout, r.stderr))

# archives: stored and compressed, each array of them
for save in np.savez, np.savez_compressed:
    save(path("in.npz"), **made)
    for name in ["f32-4", "f64-3", "i64-8", "bool-2", "u8-0", "f16-5"]:
        r = run("npz", path("in.npz"), name, path("out.npz"))
        x = made[name]
        z = np.load(path("out.npz"))["x"] if r.returncode == 0 else None
        check(z is not None and z.dtype == x.dtype and z.shape == x.shape and z.tobytes() == x.tobytes(), "npz %s %s" % (name, r.stderr))

# which element is where: NumPy's [i][j] is our (i, j); in safetensors it is [j][i]
x = (np.arange(24).reshape(2, 3, 4) * 1.5).astype(np.float32)
for layout, y in (("C", x), ("F", np.asfortranarray(x))):
    np.save(path("in.npy"), y)
    lines = [l.split() for l in run("elements", path("in.npy")).stdout.splitlines()]
    check(len(lines) == 24 and all(x[tuple(map(int, l[:-1]))] == float(l[-1]) for l in lines), "elements of .npy, order " + layout)
safetensors.numpy.save_file({"x": x}, path("in.safetensors"))
lines = [l.split() for l in run("elements", path("in.safetensors"), "x").stdout.splitlines()]
check(len(lines) == 24 and all(x[tuple(map(int, l[-2::-1]))] == float(l[-1]) for l in lines), "elements of safetensors")

try:
    import safetensors.torch, torch
except ImportError:
    skipped += 1
    print("skipped PyTorch's half formats and its models: it is not installed; pip install torch")
else:
    w = torch.arange(6, dtype=torch.float32).reshape(2, 3).to(torch.bfloat16) / 3
    safetensors.torch.save_file({"w": w, "h": w.to(torch.float16)}, path("made.safetensors"))
    r = run("copy", path("made.safetensors"), path("copied.safetensors"), "w", "h")
    back = safetensors.torch.load_file(path("copied.safetensors")) if r.returncode == 0 else {}
    check("w" in back and back["w"].dtype == torch.bfloat16 and torch.equal(back["w"], w), "bf16 " + r.stderr)
    check("h" in back and back["h"].dtype == torch.float16 and torch.equal(back["h"], w.to(torch.float16)), "f16")

    # models that flux_save_torch wrote: load_state_dict takes them strictly, and they answer as ours do
    nn = torch.nn

    class Sequences(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(7, 4)
            self.rnn = nn.RNN(4, 4, batch_first=True)
            self.lstm = nn.LSTM(4, 4, num_layers=2, batch_first=True)
            self.gru, self.gru1 = nn.GRU(4, 4, batch_first=True), nn.GRU(4, 4, batch_first=True)
            self.attn = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x):
            x = self.gru1(self.gru(self.lstm(self.rnn(self.words(x))[0])[0])[0])[0]
            return self.attn(x, x, x)[0]

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.bilinear = nn.Bilinear(4, 4, 3)

        def forward(self, x):
            return self.bilinear(x, x)

    tied = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    tied[2].weight = tied[0].weight
    models = {
        "cnn": nn.Sequential(nn.Conv2d(2, 4, (2, 3), padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, (3, 2), bias=False),
                             nn.InstanceNorm2d(4, affine=True, track_running_stats=True), nn.GroupNorm(2, 4),
                             nn.ConvTranspose2d(4, 3, (2, 3), stride=2), nn.LayerNorm([3, 12, 15]), nn.Flatten(), nn.Linear(540, 5)),
        "seq": Sequences(), "tied": tied, "pair": Pair()}
    torch.manual_seed(0)
    r = run("torch", folder)
    check(r.returncode == 0, "python_files torch: " + r.stderr)
    for name, model in models.items() if r.returncode == 0 else ():
        try:
            model.load_state_dict(safetensors.torch.load_file(path(name + ".safetensors")), strict=True)
            io = safetensors.torch.load_file(path(name + ".io"))
            model.eval()
            with torch.no_grad():
                y = model(io["x"])
            far = (y - io["y"]).abs().max() / io["y"].abs().max() if y.shape == io["y"].shape else y.shape
            check(y.shape == io["y"].shape and far < 1e-5, "%s: PyTorch's answer is off by %s" % (name, far))
        except RuntimeError as e:
            check(False, "%s: %s" % (name, e))

print("%d passed, %d failed, %d skipped" % (passed, failed, skipped))
sys.exit(failed > 0)
