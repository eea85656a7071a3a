// SPDX-License-Identifier: Apache-2.0
#include "libs/encoding/rounding.h"

#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include "libs/base/check.h"
#include "libs/base/random.h"

// Measures f32 bytes a second that are rounded, or taken back, for one slice in cache.
namespace talweg::encoding {
namespace {

constexpr size_t kSliceBytes = 256 << 10;

struct Slice {
  std::vector<std::byte> plain = std::vector<std::byte>(kSliceBytes);
  std::vector<std::byte> encoded = std::vector<std::byte>(kSliceBytes);

  Slice() {
    Random random(1);
    std::vector<float> floats(kSliceBytes / sizeof(float));
    for (float& each : floats) each = static_cast<float>(random.Below(1 << 20)) - (1 << 19);
    std::copy_n(std::as_bytes(std::span(floats)).begin(), kSliceBytes, plain.begin());
  }
};

template <class Work>
void Measure(benchmark::State& state, const Work& work) {
  for (auto _ : state) work();
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kSliceBytes));
}

void Register(const std::string& name, const auto& work) {
  benchmark::RegisterBenchmark(name.c_str(), work);
}

[[maybe_unused]] const bool registered = [] {
  for (const reduce::Isa isa : reduce::kAllIsas) {
    if (!reduce::IsSupported(isa)) continue;
    const std::string prefix(reduce::IsaName(isa));
    Register(prefix + "/int8/encode", [isa](benchmark::State& state) {
      Slice slice;
      Measure(state,
              [&] { benchmark::DoNotOptimize(EncodeInt8(slice.plain, 1, slice.encoded, isa)); });
    });
    Register(prefix + "/int8/decode", [isa](benchmark::State& state) {
      Slice slice;
      slice.encoded.resize(EncodeInt8(slice.plain, 1, slice.encoded, isa));
      Measure(state, [&] { TALWEG_CHECK(DecodeInt8(slice.encoded, slice.plain, isa)); });
    });
    Register(prefix + "/bf16/encode", [isa](benchmark::State& state) {
      Slice slice;
      Measure(state,
              [&] { benchmark::DoNotOptimize(EncodeBf16(slice.plain, slice.encoded, isa)); });
    });
    Register(prefix + "/bf16/decode", [isa](benchmark::State& state) {
      Slice slice;
      slice.encoded.resize(EncodeBf16(slice.plain, slice.encoded, isa));
      Measure(state, [&] { TALWEG_CHECK(DecodeBf16(slice.encoded, slice.plain, isa)); });
    });
  }
  return true;
}();

}  // namespace
}  // namespace talweg::encoding
