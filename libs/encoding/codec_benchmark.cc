// SPDX-License-Identifier: Apache-2.0
#include "libs/encoding/codec.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "libs/base/check.h"
#include "libs/base/random.h"

// Measures bytes of data a second that gaps and few encode and decode, for one slice in cache.
namespace talweg::encoding {
namespace {

constexpr size_t kSliceBytes = 256 << 10;

using Buffer = std::vector<std::byte>;

// Numbers of which so many in 1000 are not 0, by chance.
Buffer Sparse(uint32_t of_thousand) {
  Random random(1);
  std::vector<float> floats(kSliceBytes / sizeof(float));
  for (float& each : floats) {
    if (random.Below(1000) < of_thousand) each = static_cast<float>(1 + random.Below(1 << 20));
  }
  Buffer bytes(kSliceBytes);
  std::copy_n(std::as_bytes(std::span(floats)).begin(), kSliceBytes, bytes.begin());
  return bytes;
}

// So many distinct numbers, in no order.
Buffer Levels(uint32_t count) {
  Random random(1);
  std::vector<float> floats(kSliceBytes / sizeof(float));
  for (float& each : floats) {
    each = (static_cast<float>(random.Below(count)) - static_cast<float>(count) / 2) * 0.37f;
  }
  Buffer bytes(kSliceBytes);
  std::copy_n(std::as_bytes(std::span(floats)).begin(), kSliceBytes, bytes.begin());
  return bytes;
}

template <class Work>
void Measure(benchmark::State& state, const Work& work) {
  for (auto _ : state) work();
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kSliceBytes));
}

void Register(Encoding encoding, const std::string& data, const Buffer& plain) {
  const std::string name = std::string(EncodingName(encoding)) + "/" + data;
  Buffer encoded(TravelBytesMax(encoding, kSliceBytes));
  benchmark::RegisterBenchmark((name + "/encode").c_str(), [=](benchmark::State& state) mutable {
    size_t bytes = 0;
    Measure(state, [&] { bytes = Codecs().Encode(encoding, 1, plain, encoded); });
    state.counters["part"] = static_cast<double>(bytes) / kSliceBytes;
  });
  encoded.resize(Codecs().Encode(encoding, 1, plain, encoded));
  benchmark::RegisterBenchmark((name + "/decode").c_str(), [=](benchmark::State& state) mutable {
    Buffer back(kSliceBytes);
    Measure(state, [&] { TALWEG_CHECK(Codecs().Decode(encoding, encoded, back)); });
  });
}

[[maybe_unused]] const bool registered = [] {
  for (const auto& [data, of_thousand] :
       {std::pair{"0.1%", 1}, {"1%", 10}, {"10%", 100}, {"50%", 500}, {"100%", 1000}}) {
    Register(Encoding::kGaps, data, Sparse(of_thousand));
  }
  for (const uint32_t count : {2, 3, 16, 256, 10'000}) {
    Register(Encoding::kFew, std::to_string(count), Levels(count));
  }
  return true;
}();

}  // namespace
}  // namespace talweg::encoding
