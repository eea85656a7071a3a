// SPDX-License-Identifier: Apache-2.0
#include "services/agent/core_runner.h"

#include <vector>

#include <catch2/catch.hpp>

#include "libs/runtime/manual_clock.h"

namespace talweg::agent {
namespace {

struct RunnerFixture {
  RunnerFixture() { runner.Begin({.job_name = "j"}); }

  std::vector<int> order;
  std::function<void(pipeline::Effects&)> perform = [](pipeline::Effects&) {};
  runtime::ManualClock clock;
  CoreRunner runner{&clock, [this](pipeline::Effects& effects) { perform(effects); }};
};

TEST_CASE_METHOD(RunnerFixture,
                 "CoreRunner: an event that comes while it performs effects waits for its turn") {
  perform = [this](pipeline::Effects&) {
    CHECK(runner.performing());
    if (order.size() > 1) return;
    runner.Deliver([this](pipeline::Effects&) { order.push_back(2); });
    order.push_back(1);
  };
  runner.Deliver([this](pipeline::Effects&) { order.push_back(0); });
  CHECK(order == std::vector<int>{0, 1, 2});
  CHECK_FALSE(runner.performing());
}

TEST_CASE_METHOD(RunnerFixture, "CoreRunner: it flushes once after events") {
  CHECK_FALSE(runner.Flush());
  runner.Deliver([](pipeline::Effects&) {});
  CHECK(runner.dirty());
  CHECK(runner.Flush());
  CHECK_FALSE(runner.dirty());
  CHECK_FALSE(runner.Flush());
}

TEST_CASE_METHOD(RunnerFixture,
                 "CoreRunner: a failed job is reported, and a new member is not failed") {
  runner.FailJob("node 1 has died");
  CHECK(runner.core().views().phase() == pipeline::Phase::kFailed);
  CHECK(runner.core().views().failed_text() == "node 1 has died");
  runner.Begin({.job_name = "j"});
  CHECK(runner.core().views().phase() == pipeline::Phase::kForming);
}

}  // namespace
}  // namespace talweg::agent
