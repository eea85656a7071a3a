// SPDX-License-Identifier: Apache-2.0
#include "libs/view/slice_hash.h"

#include <string>
#include <string_view>

#include "libs/base/check.h"
#include "libs/base/fingerprint.h"

namespace talweg::view {
namespace {

constexpr uint64_t kSlicesOfANumber = 65536;
constexpr uint64_t kNaiveFactor = 9973;

// h = factor h + c, over all characters.
uint64_t Polynomial(std::string_view text, uint64_t factor, uint64_t begin) {
  uint64_t hash = begin;
  for (const char c : text) hash = factor * hash + static_cast<unsigned char>(c);
  return hash;
}

uint64_t Djb2(uint64_t slice_key) { return Polynomial(std::to_string(slice_key), 33, 5381); }

}  // namespace

uint64_t SliceKey(TensorKey tensor, uint64_t slice) {
  return (tensor.value() & UINT32_MAX) * kSlicesOfANumber + slice;
}

uint64_t HashOf(const Dealing& dealing, uint64_t slice_key) {
  switch (dealing.rule) {
    case DealingRule::kNaive:
      return (slice_key / kSlicesOfANumber + slice_key % kSlicesOfANumber) * kNaiveFactor;
    case DealingRule::kDjb2:
    case DealingRule::kWeighted: return Djb2(slice_key);
    case DealingRule::kSdbm: return Polynomial(std::to_string(slice_key), 65599, 0);
    case DealingRule::kFingerprint:
      return Fingerprint64(std::to_string(slice_key)) * dealing.constant;
    case DealingRule::kStriped: break;
  }
  return 0;
}

size_t OwnerOf(const Dealing& dealing, uint64_t slice_key, std::span<const uint32_t> weights) {
  TALWEG_CHECK(!weights.empty());
  const uint64_t hash = HashOf(dealing, slice_key);
  if (dealing.rule != DealingRule::kWeighted) return hash % weights.size();
  uint64_t weight_total = 0;
  for (const uint32_t weight : weights) weight_total += weight;
  const uint64_t point = hash % dealing.constant;
  uint64_t weight_before = 0;
  for (size_t owner = 0; owner + 1 < weights.size(); ++owner) {
    weight_before += weights[owner];
    const auto end =
        static_cast<unsigned __int128>(dealing.constant) * weight_before / weight_total;
    if (point < end) return owner;
  }
  return weights.size() - 1;
}

}  // namespace talweg::view
