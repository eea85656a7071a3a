// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/reductions.h"

#include <catch2/catch.hpp>

namespace talweg::pipeline {
namespace {

Reduction Of(uint32_t slice, uint32_t owner, uint32_t length_bytes) {
  return {
      .slice = SliceIndex{slice}, .owner = AggregatorIndex{owner}, .length_bytes = length_bytes};
}

TEST_CASE("Reductions: a ticket is given back once", "[pipeline]") {
  Reductions reductions;
  const uint64_t first = reductions.Begin(Of(0, 0, 100));
  const uint64_t second = reductions.Begin(Of(1, 0, 20));
  CHECK(first != second);
  CHECK(reductions.bytes() == 120);
  REQUIRE(reductions.End(first).has_value());
  CHECK_FALSE(reductions.IsWanted(first));
  CHECK_FALSE(reductions.End(first).has_value());
  CHECK(reductions.bytes() == 20);
  CHECK(reductions.End(second)->slice == SliceIndex{1});
  CHECK(reductions.is_idle());
}

TEST_CASE("Reductions: the reductions of a broken connection are not wanted", "[pipeline]") {
  Reductions reductions;
  const uint64_t lost = reductions.Begin(Of(0, 0, 100));
  const uint64_t kept = reductions.Begin(Of(1, 1, 20));
  reductions.AddReady(Of(2, 0, 1));
  reductions.AddReady(Of(3, 1, 1));
  reductions.Forget(AggregatorIndex{0});
  reductions.CheckInvariants();
  CHECK_FALSE(reductions.IsWanted(lost));
  CHECK(reductions.IsWanted(kept));
  CHECK(reductions.bytes() == 20);
  const std::vector<Reduction> ready = reductions.TakeReady();
  REQUIRE(ready.size() == 1);
  CHECK(ready.front().slice == SliceIndex{3});
  CHECK(reductions.TakeReady().empty());
}

TEST_CASE("Reductions: a ticket is never given twice", "[pipeline]") {
  Reductions reductions;
  const uint64_t before = reductions.Begin(Of(0, 0, 100));
  reductions.Clear();
  CHECK(reductions.is_idle());
  CHECK(reductions.bytes() == 0);
  CHECK(reductions.Begin(Of(0, 0, 100)) != before);
}

}  // namespace
}  // namespace talweg::pipeline
