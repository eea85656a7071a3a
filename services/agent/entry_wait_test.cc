// SPDX-License-Identifier: Apache-2.0
#include "services/agent/entry_wait.h"

#include <catch2/catch.hpp>

namespace talweg::agent {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST_CASE("EntryWait: a node that waits for its first view says so, each time half as often") {
  EntryWait wait;
  CHECK_FALSE(wait.Notice(100 * kSecond));
  wait.OnJoined(100 * kSecond);
  CHECK_FALSE(wait.Notice(110 * kSecond - 1));
  CHECK(wait.Notice(110 * kSecond) == 10);
  CHECK_FALSE(wait.Notice(119 * kSecond));
  CHECK(wait.Notice(120 * kSecond) == 20);
  CHECK(wait.Notice(199 * kSecond) == 99);
  CHECK_FALSE(wait.Notice(259 * kSecond));
  wait.End();
  CHECK_FALSE(wait.Notice(1'000 * kSecond));
  wait.OnJoined(1'000 * kSecond);
  CHECK(wait.Notice(1'010 * kSecond) == 10);
}

}  // namespace
}  // namespace talweg::agent
