// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/quiesce_follower.h"

#include <catch2/catch.hpp>

namespace talweg::membership {
namespace {

constexpr QuiesceId kNone{0};
constexpr QuiesceId kFirst{5};
constexpr QuiesceId kSecond{6};

TEST_CASE("QuiesceFollower: a quiesce is told once, also by another stream", "[membership]") {
  QuiesceFollower follower;
  follower.OnAttached(kNone);
  CHECK(follower.OnView(true) == kNone);
  CHECK(follower.OnQuiesce(kFirst));
  follower.OnAttached(kFirst);
  CHECK(follower.OnView(false) == kNone);
  CHECK_FALSE(follower.OnQuiesce(kFirst));
  CHECK(follower.OnQuiesce(kSecond));
  CHECK_FALSE(follower.OnCancelled(kFirst));
  CHECK(follower.OnCancelled(kSecond));
  CHECK_FALSE(follower.OnCancelled(kSecond));
}

TEST_CASE("QuiesceFollower: one that a new stream knows nothing of is over after the same view",
          "[membership]") {
  QuiesceFollower follower;
  follower.OnQuiesce(kFirst);
  follower.OnAttached(kNone);
  SECTION("the view that the member has: it goes on") {
    CHECK(follower.OnView(false) == kFirst);
    CHECK(follower.OnView(false) == kNone);
  }
  SECTION("a newer one, which ends it: nothing may go on in front of it") {
    CHECK(follower.OnView(true) == kNone);
    CHECK(follower.OnView(false) == kNone);
  }
  CHECK(follower.OnQuiesce(kFirst));  // A member that is asked again has to answer again.
}

}  // namespace
}  // namespace talweg::membership
