"""What bench_files.c reads, by NumPy, pandas and Python's safetensors, best of five: see there. Files it kept are removed."""
import os, time
import numpy as np

folder = os.environ.get("TMPDIR", "/tmp")


def path(kind):
    return os.path.join(folder, "flux_bench." + kind)


def timed(what, f, size):
    best, busy, first = 1e30, 1e30, 0
    for i in range(6):
        start, begun = time.perf_counter(), time.process_time()
        f()
        t, used = time.perf_counter() - start, time.process_time() - begun
        busy = min(busy, used) if i else busy
        if i == 0:
            first = t
        elif t < best:
            best = t
    print("%-40s %8.1f ms %6.2f GB/s   of the processor's time %6.2f GB/s   the first time %.1f ms" % (
        what, 1e3 * best, size / best / 1e9, size / busy / 1e9, 1e3 * first), flush=True)


def size(kind):
    return os.path.getsize(path(kind))


try:
    import pandas

    timed("pandas.read_csv", lambda: pandas.read_csv(path("csv")), size("csv"))
    timed("pandas.read_csv, float32", lambda: pandas.read_csv(path("csv"), dtype=np.float32), size("csv"))
except ImportError:
    print("pandas is not installed")
timed("numpy.load", lambda: np.load(path("npy")), size("npy"))
try:
    import safetensors.numpy

    timed("safetensors.numpy.load_file", lambda: safetensors.numpy.load_file(path("safetensors")), size("safetensors"))
    w = {k: np.zeros_like(v) for k, v in safetensors.numpy.load_file(path("safetensors")).items()}

    def into():
        for k, v in safetensors.numpy.load_file(path("safetensors")).items():
            w[k][...] = v

    timed("... and copied into arrays that are there", into, size("safetensors"))
except ImportError:
    print("safetensors is not installed")
for kind in "csv", "npy", "safetensors":
    os.remove(path(kind))
