"""The models of bench_models.c with PyTorch on the processor, as its users best run them: images in channels_last, inference_mode,
AdamW fused. The same command line and lines; tests/bench/models.sh runs the two in turn. With -c also a line `compiled` where
torch.compile can run (it is no part of the ratio). -b: inference in bf16, training steps by autocast."""
import os
import resource
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(int(os.environ.get("FLUX_NUM_THREADS", "1")))
# what others do meanwhile counts only where it must
seconds = time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def conv(kernel, i, o, stride=1, groups=1):
    return nn.Conv2d(i, o, kernel, stride, kernel // 2, groups=groups, bias=False)


class Residual(nn.Module):
    def __init__(self, i, width, stride, bottleneck):
        super().__init__()
        o = 4 * width if bottleneck else width
        relu = nn.ReLU(inplace=True)
        if bottleneck:
            self.body = nn.Sequential(conv(1, i, width), nn.BatchNorm2d(width), relu, conv(3, width, width, stride),
                                      nn.BatchNorm2d(width), relu, conv(1, width, o), nn.BatchNorm2d(o))
        else:
            self.body = nn.Sequential(conv(3, i, width, stride), nn.BatchNorm2d(width), relu, conv(3, width, width), nn.BatchNorm2d(o))
        self.short = nn.Sequential() if i == o and stride == 1 else nn.Sequential(conv(1, i, o, stride), nn.BatchNorm2d(o))
        self.relu = relu

    def forward(self, x):
        return self.relu(self.body(x) + self.short(x))


def resnet(blocks, bottleneck):
    layers = [conv(7, 3, 64, 2), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    i, width = 64, 64
    for s, count in enumerate(blocks):
        for b in range(count):
            layers.append(Residual(i, width, 2 if b == 0 and s > 0 else 1, bottleneck))
            i = 4 * width if bottleneck else width
        width *= 2
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(i, 1000))


class Inverted(nn.Module):
    def __init__(self, i, o, stride, expand):
        super().__init__()
        wide = i * expand
        layers = [conv(1, i, wide), nn.BatchNorm2d(wide), nn.ReLU6(inplace=True)] if expand > 1 else []
        self.body = nn.Sequential(*layers, conv(3, wide, wide, stride, wide), nn.BatchNorm2d(wide), nn.ReLU6(inplace=True),
                                  conv(1, wide, o), nn.BatchNorm2d(o))
        self.skip = i == o and stride == 1

    def forward(self, x):
        return x + self.body(x) if self.skip else self.body(x)


def mobilenet():
    layers, i = [conv(3, 3, 32, 2), nn.BatchNorm2d(32), nn.ReLU6(inplace=True)], 32
    for expand, o, count, stride in (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1):
        for b in range(count):
            layers.append(Inverted(i, o, 1 if b else stride, expand))
            i = o
    return nn.Sequential(*layers, conv(1, i, 1280), nn.BatchNorm2d(1280), nn.ReLU6(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(1280, 1000))


def vgg11():
    layers, i = [], 3
    for o in 64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0:
        layers += [nn.Conv2d(i, o, 3, padding=1), nn.ReLU(inplace=True)] if o else [nn.MaxPool2d(2)]
        i = o or i
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Linear(4096, 4096),
                         nn.ReLU(inplace=True), nn.Linear(4096, 1000))


def twice(i, o):
    return nn.Sequential(conv(3, i, o), nn.BatchNorm2d(o), nn.ReLU(inplace=True), conv(3, o, o), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class Level(nn.Module):
    def __init__(self, i, width, below):
        super().__init__()
        self.first, self.last = twice(i, width), twice(2 * width, width)
        self.down = nn.Sequential(nn.MaxPool2d(2), Level(width, 2 * width, below - 1) if below > 1 else twice(width, 2 * width),
                                  nn.ConvTranspose2d(2 * width, width, 2, 2))

    def forward(self, x):
        x = self.first(x)
        return self.last(torch.cat([self.down(x), x], 1))


class Block(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = (y.view(n, t, self.heads, c // self.heads).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, c))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(50257, 768), nn.Embedding(1024, 768)
        nn.init.normal_(self.words.weight, 0, 0.02), nn.init.normal_(self.places.weight, 0, 0.02)
        self.blocks = nn.Sequential(*(Block(768, 12, True) for _ in range(12)), nn.LayerNorm(768))

    def forward(self, x):
        return F.linear(self.blocks(self.words(x) + self.places(torch.arange(x.shape[1]))), self.words.weight)


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, 192, 16, 16), nn.Linear(192, 1000)
        self.blocks = nn.Sequential(*(Block(192, 3, False) for _ in range(12)), nn.LayerNorm(192))
        self.token, self.places = nn.Parameter(torch.randn(1, 1, 192) * 0.02), nn.Parameter(torch.randn(1, 197, 192) * 0.02)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.blocks(x)[:, 0])


class LSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(512, 512, 2, batch_first=True), nn.Linear(512, 64)

    def forward(self, x):
        return self.out(self.lstm(x)[0])


class Temporal(nn.Module):
    def __init__(self, dilation):
        super().__init__()
        self.pad = (2 * dilation, 0)
        self.a, self.b = nn.Conv1d(64, 64, 3, dilation=dilation), nn.Conv1d(64, 64, 3, dilation=dilation)

    def forward(self, x):
        y = F.relu(self.a(F.pad(x, self.pad)))
        return F.relu(F.relu(self.b(F.pad(y, self.pad))) + x)


def tcn():
    return nn.Sequential(*(Temporal(1 << i) for i in range(8)), nn.Conv1d(64, 10, 1))


def autoencoder():
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 1024), nn.ReLU(),
                         nn.Linear(1024, 784), nn.Sigmoid())


def image(n):
    return torch.rand(n, 3, 224, 224)


def classes(below, *shape):
    return lambda n: torch.randint(below, (n, *shape))


def numbers(*shape):
    return lambda n: torch.rand(n, *shape)


def class_loss(y, t):
    return F.cross_entropy(y.reshape(-1, y.shape[-1]), t.reshape(-1))


photo, of_1000 = numbers(1, 128, 128), classes(1000)
MODELS = {
    "resnet18": (lambda: resnet((2, 2, 2, 2), False), image, of_1000, class_loss, 8),
    "resnet50": (lambda: resnet((3, 4, 6, 3), True), image, of_1000, class_loss, 4),
    "mobilenet": (mobilenet, image, of_1000, class_loss, 8),
    "unet": (lambda: nn.Sequential(Level(1, 16, 3), nn.Conv2d(16, 1, 1)), photo, photo, F.binary_cross_entropy_with_logits, 8),
    "vgg11": (vgg11, image, of_1000, class_loss, 4),
    "gpt2": (GPT, classes(50257, 64), classes(50257, 64), class_loss, 4),
    "vit": (ViT, image, of_1000, class_loss, 8),
    "lstm": (LSTM, numbers(128, 512), classes(64, 128), class_loss, 8),
    "tcn": (tcn, numbers(64, 1024), numbers(10, 1024), F.mse_loss, 8),
    "autoencoder": (autoencoder, numbers(784), numbers(784), F.mse_loss, 128),
}


def bench(name, train, batch, budget, compiled, half):
    make, xs, ys, loss, _ = MODELS[name]
    torch.manual_seed(1)
    m, x, y = make(), xs(batch), ys(batch)
    if x.dim() == 4:
        m, x = m.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    m.train(train)
    if half and not train:                # a training step is cast where PyTorch casts it
        m, x = m.bfloat16(), x.bfloat16() if x.is_floating_point() else x
    run = torch.compile(m) if compiled else m
    opt = torch.optim.AdamW(m.parameters(), lr=1e-4, fused=True) if train else None
    fastest, start, n = 1e9, seconds(), 0
    while n < 6 or seconds() - start < budget:
        t = seconds()
        if train:
            opt.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, half):
                off = loss(run(x), y)
            off.backward()
            opt.step()
        else:
            with torch.inference_mode():
                run(x)
        t = seconds() - t
        if n > 0:
            fastest = min(fastest, t)
        n += 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    kind = "compiled" if compiled else "model"
    print(f"{kind} {name:<12} {'train' if train else 'infer'}{batch:<4d} {fastest * 1e3:10.3f} ms  {peak:8.1f} MB", flush=True)


def main(args):
    budget, compiled, half = 0.1 if os.environ.get("SHORT") else 2.0, False, False
    while args and args[0] in ("-s", "-c", "-b"):
        option = args.pop(0)
        if option == "-s":
            budget = float(args.pop(0))
        compiled, half = compiled or option == "-c", half or option == "-b"
    names = args[0].split(",") if args and args[0] != "all" else list(MODELS)
    for name in names:
        for what in args[1].split(",") if len(args) > 1 else ["infer1", "infer8", f"train{MODELS[name][4]}"]:
            for c in (False, True) if compiled else (False,):
                child = os.fork()
                if child == 0:
                    bench(name, what.startswith("train"), int(what[5:]), budget, c, half)
                    os._exit(0)
                os.waitpid(child, 0)


main(sys.argv[1:])
