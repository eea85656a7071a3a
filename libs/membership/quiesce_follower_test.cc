// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/quiesce_follower.h"

#include <catch2/catch.hpp>

namespace talweg::membership {
namespace {

constexpr QuiesceId kNone{0};
constexpr QuiesceId kFirst{5};
constexpr QuiesceId kSecond{6};

TEST_CASE("QuiesceFollower: a quiesce is announced once, even over another stream",
          "[membership]") {
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

TEST_CASE(
    "QuiesceFollower: a quiesce that a new stream does not know is over after the stream's view",
    "[membership]") {
  QuiesceFollower follower;
  follower.OnQuiesce(kFirst);
  follower.OnAttached(kNone);
  SECTION("The view is the one that the member has: its ranks go on") {
    CHECK(follower.OnView(false) == kFirst);
    CHECK(follower.OnView(false) == kNone);
  }
  SECTION("The view is newer and ends the quiesce: nothing goes on before it") {
    CHECK(follower.OnView(true) == kNone);
    CHECK(follower.OnView(false) == kNone);
  }
  CHECK(follower.OnQuiesce(kFirst));  // A member that is asked again has to answer again.
}

}  // namespace
}  // namespace talweg::membership
