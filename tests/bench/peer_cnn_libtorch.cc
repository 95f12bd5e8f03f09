// The CNN of bench_cnn.c with PyTorch's C++ interface, its memory reused from step to step; tests/bench/peers.sh runs it beside ours.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <malloc.h>

static double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

static void bench(const char *name, bool norm, int64_t batch) {
    torch::nn::Sequential net;
    for (int64_t in : {1, 8}) {
        net->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(in, in == 1 ? 8 : 16, 3).padding(1)));
        if (norm) net->push_back(torch::nn::BatchNorm2d(in == 1 ? 8 : 16));
        net->push_back(torch::nn::ReLU());
        net->push_back(torch::nn::MaxPool2d(torch::nn::MaxPool2dOptions(2)));
    }
    net->push_back(torch::nn::Flatten());
    net->push_back(torch::nn::Linear(7 * 7 * 16, 10));
    torch::optim::Adam opt(net->parameters(), torch::optim::AdamOptions(1e-3));
    torch::Tensor x = torch::rand({batch, 1, 28, 28}), y = torch::randint(10, {batch});
    std::vector<double> times;
    for (double start = seconds(); times.size() < 300 && (times.size() < 10 || seconds() - start < 3);) {
        double t = seconds();
        opt.zero_grad();
        torch::nn::functional::cross_entropy(net->forward(x), y).backward();
        opt.step();
        times.push_back(seconds() - t);
    }
    std::sort(times.begin(), times.end());
    std::printf("step %-48s %9.1f us   (fastest %.1f)\n", name, times[times.size() / 2] * 1e6, times[0] * 1e6);
}

int main() {
    mallopt(M_MMAP_THRESHOLD, 1 << 30);   // what is freed stays with the process
    mallopt(M_TRIM_THRESHOLD, 2000 << 20);
    const char *threads = std::getenv("FLUX_NUM_THREADS");
    torch::set_num_threads(threads ? std::atoi(threads) : 1);
    torch::manual_seed(1);
    bench("CNN 1-8-16 3x3, pool, Dense, batch 64", false, 64);
    bench("CNN with BatchNorm, batch 64", true, 64);
}
