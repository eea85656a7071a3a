// SPDX-License-Identifier: Apache-2.0
#include "libs/view/slice_hash.h"

#include <array>
#include <cstdint>
#include <vector>

#include <catch2/catch.hpp>

namespace talweg::view {
namespace {

Dealing Rule(const char* text) { return ParseDealing(text).value(); }

TEST_CASE("SliceKey: it is the tensor's number, then the slice's place", "[view]") {
  CHECK(SliceKey(TensorKey{3}, 2) == 196610);
  CHECK(SliceKey(TensorKey{(uint64_t{77} << 32) + 3}, 2) == 196610);
  CHECK(SliceKey(TensorKey{~uint64_t{0}}, 65535) == 281474976710655);
}

TEST_CASE("HashOf: every hash gives what its definition gives", "[view]") {
  // Computed outside this code from the definitions in docs/protocol.md. Key 196610 is slice 2 of
  // tensor 3: naive gives (3 + 2) x 9973.
  CHECK(HashOf(Rule("naive"), 0) == 0);
  CHECK(HashOf(Rule("naive"), 196610) == 49865);
  CHECK(HashOf(Rule("naive"), 281474976710655) == 42834362413590);
  CHECK(HashOf(Rule("djb2"), 0) == 177621);  // 33 x 5381 + '0'
  CHECK(HashOf(Rule("djb2"), 196610) == 6951376374012);
  CHECK(HashOf(Rule("djb2"), 281474976710655) == 11733028619576267485u);
  CHECK(HashOf(Rule("sdbm"), 0) == 48);
  CHECK(HashOf(Rule("sdbm"), 196610) == 17050440749492477447u);
  CHECK(HashOf(Rule("sdbm"), 281474976710655) == 6168420539356657138);
  CHECK(HashOf(Rule("fingerprint"), 196610) == 9329693487604584337u);
  CHECK(HashOf(Rule("fingerprint:7"), 196610) == 9967622192103435511u);
  CHECK(HashOf(Rule("weighted"), 196610) == HashOf(Rule("djb2"), 196610));
}

TEST_CASE("OwnerOf: a hash counts owners, whatever their weights", "[view]") {
  const std::vector<uint32_t> weights = {1, 50, 7};
  CHECK(OwnerOf(Rule("naive"), 196610, weights) == 49865 % 3);
  CHECK(OwnerOf(Rule("djb2"), 196610, weights) == 6951376374012 % 3);
  CHECK(OwnerOf(Rule("sdbm"), 196610, weights) == 17050440749492477447u % 3);
  CHECK(OwnerOf(Rule("fingerprint:7"), 196610, weights) == 9967622192103435511u % 3);
  CHECK(OwnerOf(Rule("djb2"), 196610, std::array<uint32_t, 1>{9}) == 0);
}

TEST_CASE("OwnerOf: naive deals a tensor's slices to the owners in turn", "[view]") {
  const std::vector<uint32_t> weights = {1, 1, 1};
  std::vector<size_t> owners;
  for (uint64_t i = 0; i < 6; ++i) {
    owners.push_back(OwnerOf(Rule("naive"), SliceKey(TensorKey{0}, i), weights));
  }
  CHECK(owners == std::vector<size_t>{0, 1, 2, 0, 1, 2});  // 9973 mod 3 is 1.
}

TEST_CASE("OwnerOf: weighted owners share the points by their weights", "[view]") {
  // Key 196610 has point 59 of 101, key 0 has 63.
  CHECK(OwnerOf(Rule("weighted"), 196610, std::array<uint32_t, 2>{59, 42}) == 1);
  CHECK(OwnerOf(Rule("weighted"), 196610, std::array<uint32_t, 2>{60, 41}) == 0);
  CHECK(OwnerOf(Rule("weighted"), 0, std::array<uint32_t, 2>{63, 38}) == 1);
  CHECK(OwnerOf(Rule("weighted"), 0, std::array<uint32_t, 2>{64, 37}) == 0);
  // Each owner gets its share of many keys, within a hundredth.
  const std::vector<uint32_t> weights = {1, 2, 5};
  std::vector<int> counts(3);
  constexpr int kKeys = 80'000;
  for (uint64_t i = 0; i < kKeys; ++i) ++counts[OwnerOf(Rule("weighted:1000"), i * 65536, weights)];
  for (size_t i = 0; i < weights.size(); ++i) {
    CHECK(counts[i] / static_cast<double>(kKeys) == Approx(weights[i] / 8.0).margin(0.01));
  }
  // A single point belongs to the last owner whose run is not empty.
  CHECK(OwnerOf(Rule("weighted:1"), 0, weights) == 2);
}

}  // namespace
}  // namespace talweg::view
