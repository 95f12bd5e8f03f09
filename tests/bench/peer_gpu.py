"""The figures of gpu_figures.c with PyTorch on a GPU: the same names and sizes, medians of loops of some 20 ms that end in one wait.
Steps are measured as they are written and, `graph`, as one CUDA graph. tests/gpu_day.sh runs it; SMALL=1 is for trying it without a GPU."""
import os
import sys
import time

import torch
import torch.nn.functional as F

SMALL = "SMALL" in os.environ
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WAYS = "NN", "TN", "NT", "TT"
torch.manual_seed(1)


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def turns(run, n):
    start = time.perf_counter()
    for _ in range(n):
        run()
    wait()
    return (time.perf_counter() - start) / n


def figure(name, run):
    turns(run, 4)
    once = turns(run, 1)
    n = 1 if SMALL or once > 0.02 else min(1000, max(1, int(0.02 / once)))
    print(f"{name}\t{sorted(turns(run, n) for _ in range(5))[2] * 1e6:.2f}", flush=True)


def numbers(dtype, *shape):
    return torch.randn(*shape, device=DEVICE).to(dtype)


def products():
    for m, n, k in ((64, 64, 64),) if SMALL else ((1024, 1024, 1024), (4096, 4096, 4096), (256, 64, 784), (512, 8192, 512)):
        for name, dtype, tf32 in ("f32", torch.float32, False), ("tf32", torch.float32, True), ("bf16", torch.bfloat16, False):
            torch.backends.cuda.matmul.allow_tf32 = tf32
            for way in range(4):              # ours are columns: c' = b' a'
                a = numbers(dtype, m, k).t() if way & 1 else numbers(dtype, k, m)
                b = numbers(dtype, k, n).t() if way & 2 else numbers(dtype, n, k)
                figure(f"product {name} {m} x {n} x {k} {WAYS[way]}", lambda: torch.mm(b, a))
            torch.backends.cuda.matmul.allow_tf32 = False


def rows():
    return numbers(torch.float32, *((32, 64) if SMALL else (16384, 4096)))


def add():
    x, y = rows(), rows()
    figure("add f32, 16384 rows of 4096", lambda: x + y)
    figure("sum of all", lambda: x.sum())


def softmax():
    x = rows()
    figure("softmax f32, 16384 rows of 4096", lambda: torch.softmax(x, 1))


def convolution():
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, False
    for side, into, out, batch in ((8, 4, 4, 2),) if SMALL else ((56, 64, 64, 64), (14, 256, 256, 64)):
        for name, dtype in ("f32", torch.float32), ("bf16", torch.bfloat16):
            x, w = numbers(dtype, batch, into, side, side).requires_grad_(), numbers(dtype, out, into, 3, 3).requires_grad_()
            g = numbers(dtype, batch, out, side, side)
            title = f"convolution {name} 3 x 3, {into} -> {out}, side {side}, batch {batch}"
            with torch.no_grad():
                figure(title, lambda: F.conv2d(x, w, padding=1))
            figure(title + ", gradients", lambda: torch.autograd.grad(F.conv2d(x, w, padding=1), (x, w), g))


def attention():
    width, length, batch, heads = (16, 16, 2, 2) if SMALL else (1024, 1024, 8, 16)
    for name, dtype in ("f32", torch.float32), ("bf16", torch.bfloat16):
        q, k, v, g = (numbers(dtype, batch, heads, length, width // heads).requires_grad_() for _ in range(4))
        title = f"attention {name}, causal, width {width}, length {length}, batch {batch}"
        run = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
        with torch.no_grad():
            figure(title, run)
        figure(title + ", gradients", lambda: torch.autograd.grad(run(), (q, k, v), g))


def embedding():
    width, words, length, batch = (16, 50, 16, 2) if SMALL else (512, 50000, 1024, 32)
    table, x = numbers(torch.float32, words, width).requires_grad_(), torch.randint(words, (batch, length), device=DEVICE)
    g = numbers(torch.float32, batch, length, width)
    title = f"embedding f32, {words} of {width}, {length * batch} indices"
    with torch.no_grad():
        figure(title, lambda: F.embedding(x, table))
    figure(title + ", gradient", lambda: torch.autograd.grad(F.embedding(x, table), table, g))


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.projections = torch.nn.ModuleList(torch.nn.Linear(width, width, bias=False) for _ in range(4))
        self.mlp = torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(approximate="tanh"), torch.nn.Linear(4 * width, width))

    def forward(self, x):
        h, (batch, length, width) = self.norm1(x), x.shape
        q, k, v = (p(h).view(batch, length, 4, width // 4).transpose(1, 2) for p in self.projections[:3])
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.projections[3](y)
        return x + self.mlp(self.norm2(x))


def train(net, x, y):
    net, x, y = net.to(DEVICE), x.to(DEVICE), y.to(DEVICE)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, **({"fused": True, "capturable": True} if DEVICE == "cuda" else {}))

    def step():
        opt.zero_grad(set_to_none=True)
        out = net(x)
        F.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1)).backward()
        opt.step()

    return step


def training(title, net, x, y):
    step = train(net, x, y)
    figure(title, step)
    if DEVICE != "cuda":
        return
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    figure(title + " graph", graph.replay)


def mlp(*sizes):
    layers = []
    for i, o in zip(sizes, sizes[1:]):
        layers += [torch.nn.Linear(i, o), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def digits():
    return mlp(784, 256, 10), torch.randn(64, 784), torch.randint(10, (64,))


def steps():
    training("step 784-256-10, batch 64", *digits())
    if SMALL:
        return
    training("step 784-1024-1024-10, batch 128", mlp(784, 1024, 1024, 10), torch.randn(128, 784), torch.randint(10, (128,)))
    layers = []
    for i, o in (1, 8), (8, 16):
        layers += [torch.nn.Conv2d(i, o, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    cnn = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(7 * 7 * 16, 10))
    training("step CNN 1-8-16 3x3, pool, Dense, batch 64", cnn, torch.randn(64, 1, 28, 28), torch.randint(10, (64,)))
    training("step transformer, 2 layers of 64, length 64, batch 32",
             torch.nn.Sequential(torch.nn.Embedding(64, 64), Block(64), Block(64), torch.nn.Linear(64, 64)),
             torch.randint(64, (32, 64)), torch.randint(64, (32, 64)))


def transfers():
    for mb in (1,) if SMALL else (1, 16, 256):
        x, y = torch.randn(mb << 18), torch.empty(mb << 18)                   # pageable, both
        there = x.to(DEVICE)
        figure(f"{mb} MB to the device", lambda: x.to(DEVICE))
        figure(f"{mb} MB to the host", lambda: y.copy_(there))


def start():
    train(*digits())()
    wait()


for section in sys.argv[1:]:
    try:
        globals()[section]()
    except (AttributeError, RuntimeError) as error:       # what this PyTorch does not have, or has no memory for
        print(f"{section}: {error}", file=sys.stderr)
