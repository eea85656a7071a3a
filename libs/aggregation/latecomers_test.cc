// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/latecomers.h"

#include <catch2/catch.hpp>

namespace talweg::aggregation {
namespace {

TEST_CASE("Latecomers: they are counted over the newest sums of a view", "[aggregation]") {
  Latecomers latecomers;
  for (size_t i = 0; i < Latecomers::kSumsMax; ++i) latecomers.OnLast(MemberIndex{0}, 1000);
  for (int i = 0; i < 3; ++i) latecomers.OnLast(MemberIndex{2}, 500);
  CHECK(latecomers.sum_count() == Latecomers::kSumsMax);
  const auto members = latecomers.ByMember(3);
  REQUIRE(members.size() == 3);
  CHECK(members[0].last_count == Latecomers::kSumsMax - 3);
  CHECK(members[0].behind_ns == 1000 * static_cast<int64_t>(Latecomers::kSumsMax - 3));
  CHECK(members[1].last_count == 0);
  CHECK(members[2].last_count == 3);
  CHECK(members[2].behind_ns == 1500);

  // Members have other places in the next view.
  latecomers.OnView();
  CHECK(latecomers.sum_count() == 0);
  latecomers.OnLast(MemberIndex{1}, 7);
  CHECK(latecomers.ByMember(2)[1].last_count == 1);
}

}  // namespace
}  // namespace talweg::aggregation
