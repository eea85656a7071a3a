// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/agent_watch.h"

#include <catch2/catch.hpp>

namespace talweg::shm {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST_CASE("An agent whose count stands still for the limit is silent") {
  AgentWatch watch;
  watch.Begin(6'000);
  int64_t now_ns = 100 * kSecond;
  CHECK_FALSE(watch.IsSilent(7, now_ns));
  for (int second = 1; second < 6; ++second) {
    CHECK_FALSE(watch.IsSilent(7, now_ns += kSecond));
  }
  CHECK(watch.IsSilent(7, now_ns += kSecond));
}

TEST_CASE("The limit begins anew each time that the agent counts") {
  AgentWatch watch;
  watch.Begin(6'000);
  int64_t now_ns = 0;
  for (uint32_t second = 0; second < 60; ++second) {
    CHECK_FALSE(watch.IsSilent(second / 5, now_ns += kSecond));
  }
}

TEST_CASE("Time in which the rank was not awake does not count as silence") {
  AgentWatch watch;
  watch.Begin(6'000);
  int64_t now_ns = 0;
  CHECK_FALSE(watch.IsSilent(1, now_ns));
  CHECK_FALSE(watch.IsSilent(1, now_ns += 3600 * kSecond));
  CHECK_FALSE(watch.IsSilent(1, now_ns += 3600 * kSecond));
  CHECK(watch.IsSilent(1, now_ns += 3600 * kSecond));
}

TEST_CASE("An agent that does not count is not watched") {
  AgentWatch watch;
  watch.Begin(0);
  CHECK_FALSE(watch.watches());
  int64_t now_ns = 0;
  for (int second = 0; second < 60; ++second) {
    CHECK_FALSE(watch.IsSilent(0, now_ns += kSecond));
  }
}

}  // namespace
}  // namespace talweg::shm
