// SPDX-License-Identifier: Apache-2.0
#include "libs/view/numbers.h"

#include <algorithm>

namespace talweg::view {
namespace {

// 2025-01-01. Counted from here, kEpochMax is more than a century away.
constexpr int64_t kNumbersFromUnixNs = 1'735'689'600'000'000'000;

// How far the clock of a scheduler may run ahead of one's own.
constexpr uint64_t kNumbersAheadMax = uint64_t{24} * 3600 * 1'000'000'000;

}  // namespace

uint64_t NumbersFrom(int64_t start_unix_ns) {
  if (start_unix_ns <= kNumbersFromUnixNs) return 0;
  const auto since = static_cast<uint64_t>(start_unix_ns - kNumbersFromUnixNs);
  return (std::min(since, kEpochMax.value() / 2) >> 20) << 20;
}

uint64_t BelievedTo(uint64_t known, int64_t unix_ns) {
  const uint64_t largest = std::min(std::max(NumbersFrom(unix_ns), known), kEpochMax.value());
  return std::min(largest + kNumbersAheadMax, kEpochMax.value());
}

}  // namespace talweg::view
