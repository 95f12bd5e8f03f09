"""The training steps of bench_steps.c, bench_sequence.c and bench_cnn.c with PyTorch on the processor; tests/bench/peers.sh runs it beside ours."""
import os
import statistics
import time

import torch

torch.set_num_threads(int(os.environ.get("FLUX_NUM_THREADS", "1")))
torch.manual_seed(1)


def bench(name, net, x, y, runs=200):
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    times, start = [], time.perf_counter()
    while len(times) < runs and (len(times) < 20 or time.perf_counter() - start < 3):
        t = time.perf_counter()
        opt.zero_grad()
        out = net(x)
        torch.nn.functional.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1)).backward()
        opt.step()
        times.append(time.perf_counter() - t)
    print(f"step {name:<48} {statistics.median(times) * 1e6:9.1f} us   (fastest {min(times) * 1e6:.1f})", flush=True)


def mlp(*sizes):
    layers = []
    for i, o in zip(sizes, sizes[1:]):
        layers += [torch.nn.Linear(i, o), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


class Steps(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = torch.nn.LSTM(64, 64, batch_first=True), torch.nn.Linear(64, 32)

    def forward(self, x):
        return self.out(self.lstm(x)[0])


class Block(torch.nn.Module):
    def __init__(self, width, steps):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.attention = torch.nn.MultiheadAttention(width, 4, bias=False, batch_first=True)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(approximate="tanh"), torch.nn.Linear(4 * width, width))
        self.mask = torch.ones(steps, steps, dtype=torch.bool).triu(1)

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.attention(h, h, h, attn_mask=self.mask, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


def cnn(norm):
    layers = []
    for i, o in (1, 8), (8, 16):
        layers += [torch.nn.Conv2d(i, o, 3, padding=1)] + ([torch.nn.BatchNorm2d(o)] if norm else []) + [torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(7 * 7 * 16, 10))


def tokens(*shape):
    return torch.randint(64, shape)


bench("784-256-10, batch 64", mlp(784, 256, 10), torch.rand(64, 784), torch.randint(10, (64,)))
bench("784-1024-1024-10, batch 128", mlp(784, 1024, 1024, 10), torch.rand(128, 784), torch.randint(10, (128,)))
bench("LSTM, 64 hidden, length 32, batch 64", Steps(), torch.randn(64, 32, 64), torch.randint(32, (64, 32)))
bench("transformer, 2 layers of 64, length 64, batch 32",
      torch.nn.Sequential(torch.nn.Embedding(64, 64), Block(64, 64), Block(64, 64), torch.nn.Linear(64, 64)), tokens(32, 64), tokens(32, 64))
bench("CNN 1-8-16 3x3, pool, Dense, batch 64", cnn(False), torch.rand(64, 1, 28, 28), torch.randint(10, (64,)))
bench("CNN with BatchNorm, batch 64", cnn(True), torch.rand(64, 1, 28, 28), torch.randint(10, (64,)))
