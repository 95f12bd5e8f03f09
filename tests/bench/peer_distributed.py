"""The step of bench_distributed.c with PyTorch's DistributedDataParallel on gloo, on two processes of one thread:
    mpirun -np 2 python3 tests/bench/peer_distributed.py      or without a launcher: it starts the second process itself"""
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist

rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", os.environ.get("RANK", -1))))
other = None
if rank < 0:
    rank = 0
    other = subprocess.Popen([sys.executable, __file__], env=dict(os.environ, RANK="1"))
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29517")
torch.set_num_threads(1)
dist.init_process_group("gloo", rank=rank, world_size=2)
torch.manual_seed(1)


def step(parallel, batch=128):
    net = torch.nn.Sequential(torch.nn.Linear(784, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10))
    net = torch.nn.parallel.DistributedDataParallel(net) if parallel else net
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    x, y = torch.rand(batch, 784), torch.randint(0, 10, (batch,))
    best = 1e9
    for _ in range(60):
        dist.barrier()
        start = time.perf_counter()
        opt.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        opt.step()
        best = min(best, time.perf_counter() - start)
    return best


together, apart = step(True), step(False)
if rank == 0:
    print(f"step 784-1024-1024-10, batch 128 a rank: {1e3 * together:.2f} ms together, {1e3 * apart:.2f} ms apart: "
          f"{apart / together:.2f} of its speed")
dist.destroy_process_group()
if other:
    other.wait()
