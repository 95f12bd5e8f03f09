#!/usr/bin/env python3
"""PyTorch's products and convolutions in half formats, as bench_halves.c has ours: GFLOP/s, milliseconds (channels last).
Usage: peer_halves.py [threads]"""
import sys
import time

import torch

SHAPES = ((128, 1024, 1024), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048),
          (128, 10, 1024), (256, 1024, 784), (1024, 784, 128), (3136, 64, 576),
          (2, 2048, 2048), (8, 3072, 768), (32, 3072, 768))
IMAGES = ((56, 64, 64, 3, 1), (28, 128, 128, 3, 1), (14, 256, 256, 3, 1), (7, 512, 512, 3, 1), (56, 64, 256, 1, 1), (28, 128, 128, 5, 1),
          (224, 3, 64, 7, 2), (56, 64, 128, 3, 2), (28, 128, 256, 3, 2), (128, 16, 16, 3, 1))


def fastest(f, rounds=15):
    best = 1e9
    for _ in range(rounds):
        start = time.perf_counter()
        f()
        best = min(best, time.perf_counter() - start)
    return best


torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
for name, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16), ("f32", torch.float32)):
    for n, m, k in SHAPES:
        a, b = torch.randn(n, k).to(dtype), torch.randn(k, m).to(dtype)
        b_turned, a_turned = torch.randn(m, k).to(dtype).t(), torch.randn(k, n).to(dtype).t()
        with torch.inference_mode():
            rates = [2 * n * m * k / fastest(lambda: x @ y) / 1e9
                     for x, y in ((a, b), (a, b_turned), (a_turned, b))]
        print(f"{name:<4} {n:4d} x {m:4d} x {k:4d}", *(f"{r:6.0f}" for r in rates), flush=True)
for name, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16), ("f32", torch.float32)):
    for size, into, out, window, by in IMAGES:
        last = dict(dtype=dtype, memory_format=torch.channels_last)
        conv = torch.nn.Conv2d(into, out, window, stride=by, padding=window // 2, bias=False).to(**last)
        x = torch.randn(8, into, size, size).to(**last).requires_grad_()
        g = torch.ones(8, out, (size - 1) // by + 1, (size - 1) // by + 1).to(**last)
        with torch.inference_mode():
            forward = fastest(lambda: conv(x))
        both = fastest(lambda: torch.autograd.grad(conv(x), (x, conv.weight), g))
        print(f"{name:<4} {size:2d} x {size:2d}, {into:3d} to {out:3d} channels, {window} x {window} by {by}:",
              f"{1e3 * forward:7.2f} {1e3 * both:7.2f}", flush=True)
