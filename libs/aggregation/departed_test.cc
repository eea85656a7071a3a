// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/departed.h"

#include <cstdint>
#include <vector>

#include <catch2/catch.hpp>

namespace talweg::aggregation {
namespace {

view::MemberIdentity IdOf(uint32_t node) { return {NodeRank{node}, Incarnation{100 + node}}; }

std::vector<view::ViewMember> Members(uint32_t first, uint32_t count) {
  std::vector<view::ViewMember> members;
  for (uint32_t node = first; node < first + count; ++node) {
    members.push_back({.id = IdOf(node), .rank_count = 1});
  }
  return members;
}

TEST_CASE("Departed: it knows who was here, and nobody else", "[aggregation]") {
  Departed departed;
  CHECK_FALSE(departed.Has(IdOf(1)));
  departed.Add(Members(1, 2));
  departed.Add(Members(0, 2));
  CHECK(departed.size() == 3);
  for (uint32_t node = 0; node < 3; ++node) CHECK(departed.Has(IdOf(node)));
  CHECK_FALSE(departed.Has(IdOf(3)));
  CHECK_FALSE(departed.Has({NodeRank{1}, Incarnation{7}}));
  departed.Remove(Members(1, 1));
  CHECK_FALSE(departed.Has(IdOf(1)));
  CHECK(departed.Has(IdOf(2)));
}

TEST_CASE("Departed: after too many, everybody counts as departed", "[aggregation]") {
  Departed departed;
  departed.Add(Members(0, Departed::kMembersMax));
  CHECK_FALSE(departed.Has(IdOf(Departed::kMembersMax)));
  CHECK_FALSE(departed.is_everybody());
  departed.Add(Members(Departed::kMembersMax, 1));
  CHECK(departed.is_everybody());
  CHECK(departed.Has(IdOf(Departed::kMembersMax + 1)));
  CHECK(departed.size() == 0);
  departed.Remove(Members(0, 1));
  CHECK(departed.Has(IdOf(0)));
}

}  // namespace
}  // namespace talweg::aggregation
