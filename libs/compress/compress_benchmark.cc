// SPDX-License-Identifier: Apache-2.0
#include "libs/compress/compress.h"

#include <benchmark/benchmark.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "libs/base/random.h"

// Measures bytes of gradient per second. The argument is that number of bytes.
namespace talweg::compress {
namespace {

// About normally distributed, as gradients are.
std::vector<float> Gradient(size_t count) {
  Random random(1);
  std::vector<float> values(count);
  for (float& value : values) {
    double sum = 0;
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(random.Below(1 << 20)) / (1 << 20);
    value = static_cast<float>(sum - 6);
  }
  return values;
}

void Run(benchmark::State& state, const Spec& spec) {
  const auto count = static_cast<size_t>(state.range(0)) / sizeof(float);
  const std::vector<float> gradient = Gradient(count);
  std::vector<float> values = gradient;
  std::vector<float> error(count, 0.0F);
  for (auto _ : state) {
    // Backward writes each gradient anew. So does this, and its time counts.
    std::memcpy(values.data(), gradient.data(), count * sizeof(float));
    Compress(spec, values.data(), count, {.error = error.data()});
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void BM_TopK(benchmark::State& state) { Run(state, {.kind = Kind::kTopK, .k = 0.01}); }
void BM_RandomK(benchmark::State& state) { Run(state, {.kind = Kind::kRandomK, .k = 0.01}); }
void BM_OneBit(benchmark::State& state) { Run(state, {.kind = Kind::kOneBit, .scaling = true}); }
void BM_DitheringLinear(benchmark::State& state) { Run(state, {.kind = Kind::kDithering, .k = 4}); }
void BM_DitheringNatural(benchmark::State& state) {
  Run(state, {.kind = Kind::kDithering, .k = 4, .natural = true, .l2 = true});
}

constexpr int64_t kSmall = 64 << 10, kMiddle = 4 << 20, kLarge = 128 << 20;
BENCHMARK(BM_TopK)->Arg(kSmall)->Arg(kMiddle)->Arg(kLarge);
BENCHMARK(BM_RandomK)->Arg(kSmall)->Arg(kMiddle)->Arg(kLarge);
BENCHMARK(BM_OneBit)->Arg(kSmall)->Arg(kMiddle)->Arg(kLarge);
BENCHMARK(BM_DitheringLinear)->Arg(kSmall)->Arg(kMiddle)->Arg(kLarge);
BENCHMARK(BM_DitheringNatural)->Arg(kSmall)->Arg(kMiddle)->Arg(kLarge);

}  // namespace
}  // namespace talweg::compress
