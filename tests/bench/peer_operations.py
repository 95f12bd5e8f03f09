"""The operations of bench_operations.c with PyTorch on the processor, one thread, in the same layout (nchw) and, for images, in
channels_last; the same names, the faster layout's time."""
import os
import sys
import time

import torch
from torch.nn import functional as F

torch.set_num_threads(1)
budget = 0.02 if os.environ.get("SHORT") else 0.5

big, wide, high = (8, 64, 112, 112), (8, 256, 56, 56), (16, 16, 128, 128)
weight, bias, mean, var = torch.ones(64), torch.zeros(64), torch.zeros(64), torch.ones(64)


def norm(training):
    return lambda x, _: F.relu(F.batch_norm(x, mean, var, weight.requires_grad_(), bias.requires_grad_(), training))


taps, many, few = torch.rand(64, 1, 3, 3), torch.ones(768), torch.zeros(768)


def depthwise(stride):
    return lambda x, _: F.relu6(F.conv2d(x, taps.requires_grad_(), bias.requires_grad_(), stride, 1, 1, 64))


def grouped(channels, groups):
    w, b = torch.rand(channels, channels // groups, 3, 3), torch.zeros(channels)
    return lambda x, _: F.relu(F.conv2d(x, w.requires_grad_(), b.requires_grad_(), 1, 1, 1, groups))


operations = [
    ("maxpool 3x3 by 2", big, lambda x, _: F.max_pool2d(x, 3, 2, 1)),
    ("maxpool 2x2", big, lambda x, _: F.max_pool2d(x, 2)),
    ("meanpool 3x3 by 2", big, lambda x, _: F.avg_pool2d(x, 3, 2, 1)),
    ("meanpool 2x2", big, lambda x, _: F.avg_pool2d(x, 2)),
    ("global mean", (32, 1024, 14, 14), lambda x, _: F.adaptive_avg_pool2d(x, 1)),
    ("batchnorm, train", big, norm(True)),
    ("batchnorm 14", (128, 64, 14, 14), norm(True)),
    ("batchnorm, test", big, norm(False)),
    ("residual, relu", wide, lambda x, b: F.relu(x + b)),
    ("concatenation", high, lambda x, b: torch.cat((x, b), 1)),
    ("upsample nearest", (8, 64, 56, 56), lambda x, _: F.interpolate(x, scale_factor=2)),
    ("upsample bilinear", (8, 64, 56, 56), lambda x, _: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)),
    ("pad", big, lambda x, _: F.pad(x, (1, 1, 1, 1))),
    ("embedding", (50257, 768), lambda x, i: F.embedding(i, x)),
    ("softmax", (256, 50257), lambda x, _: F.softmax(x, 1)),
    ("logsoftmax", (256, 50257), lambda x, _: F.log_softmax(x, 1)),
    ("softmax 64", (65536, 64), lambda x, _: F.softmax(x, 1)),
    ("layernorm 768", (4096, 768), lambda x, _: F.layer_norm(x, (768,), many.requires_grad_(), few.requires_grad_())),
    ("groupnorm", (8, 64, 56, 56), lambda x, _: F.group_norm(x, 8, weight.requires_grad_(), bias.requires_grad_())),
    ("depthwise, relu6", (8, 64, 56, 56), depthwise(1)),
    ("depthwise by 2", (8, 64, 56, 56), depthwise(2)),
    ("grouped, 4 x 16", (8, 64, 28, 28), grouped(64, 4)),
    ("grouped, 32 x 4", (8, 128, 28, 28), grouped(128, 32)),
    ("sort 1000", (1000, 1000), lambda x, _: x.sort(dim=1, stable=True)[0]),
]


def fastest(run):
    best, start = 1e9, time.process_time()
    run()
    while time.process_time() - start < budget:
        t = time.process_time()
        run()
        best = min(best, time.process_time() - t)
    return best


for name, shape, f in operations:
    if len(sys.argv) > 1 and sys.argv[1] not in name:
        continue
    best = [1e9, 1e9]
    for layout in (torch.contiguous_format, torch.channels_last)[:2 if len(shape) == 4 else 1]:
        x = torch.rand(shape).contiguous(memory_format=layout)
        b = torch.randint(0, 50257, (256,)) if name == "embedding" else torch.rand(shape).contiguous(memory_format=layout)
        with torch.no_grad():
            best[0] = min(best[0], fastest(lambda: f(x, b)))
        x.requires_grad_()
        y = f(x, b)
        g = torch.rand_like(y)
        best[1] = min(best[1], fastest(lambda: torch.autograd.grad(y, x, g, retain_graph=True)))
    for what, t in zip(("forward", "gradient"), best):
        print(f"operation {name:<20} {what:<8} {t * 1e3:9.3f} ms", flush=True)
