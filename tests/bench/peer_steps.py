"""The training steps of bench_steps.c with PyTorch on the processor; tests/bench/peers.sh runs it beside ours."""
import os
import statistics
import time

import torch

torch.set_num_threads(int(os.environ.get("FLUX_NUM_THREADS", "1")))
torch.manual_seed(1)


def bench(name, sizes, batch, runs=200):
    layers = []
    for i, o in zip(sizes, sizes[1:]):
        layers += [torch.nn.Linear(i, o), torch.nn.ReLU()]
    net = torch.nn.Sequential(*layers[:-1])
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    x, y = torch.rand(batch, sizes[0]), torch.randint(sizes[-1], (batch,))
    times, start = [], time.perf_counter()
    while len(times) < runs and (len(times) < 20 or time.perf_counter() - start < 3):
        t = time.perf_counter()
        opt.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        opt.step()
        times.append(time.perf_counter() - t)
    print(f"step {name:<32} {statistics.median(times) * 1e6:9.1f} us   (fastest {min(times) * 1e6:.1f})")


bench("784-256-10, batch 64", (784, 256, 10), 64)
bench("784-1024-1024-10, batch 128", (784, 1024, 1024, 10), 128)
