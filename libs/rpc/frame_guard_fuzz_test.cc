// SPDX-License-Identifier: Apache-2.0
// Whoever reaches a gRPC port may send frames.
#include "libs/rpc/frame_guard.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

using talweg::rpc::FrameGuard;
using talweg::rpc::FrameLimits;
using talweg::rpc::HalfBytes;

namespace {

// The verdict on bytes that come in pieces of one size, and how much the guard would keep.
struct Outcome {
  FrameGuard::Verdict verdict = FrameGuard::Verdict::kGood;
  uint64_t half_bytes = 0;
};

Outcome Read(std::span<const uint8_t> bytes, size_t piece) {
  static constexpr FrameLimits kLimits = {.half_bytes_max = 1 << 20, .half_bytes_scarce = 1 << 19};
  HalfBytes of_all = 0;
  Outcome outcome;
  {
    FrameGuard guard(&kLimits, &of_all);
    while (!bytes.empty() && outcome.verdict == FrameGuard::Verdict::kGood) {
      const size_t count = std::min(piece, bytes.size());
      outcome.verdict = guard.OnBytes(bytes.first(count), 0);
      bytes = bytes.subspan(count);
    }
    outcome.half_bytes = guard.half_bytes();
    if (of_all != outcome.half_bytes) std::abort();
    if (outcome.verdict == FrameGuard::Verdict::kGood &&
        outcome.half_bytes > kLimits.half_bytes_max) {
      std::abort();
    }
  }
  if (of_all != 0) std::abort();
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Outcome whole = Read({data, size}, size + 1);
  const Outcome cut = Read({data, size}, 3);
  if (whole.verdict != cut.verdict || whole.half_bytes != cut.half_bytes) std::abort();
  return 0;
}
