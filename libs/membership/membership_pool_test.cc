// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <catch2/catch.hpp>

#include "libs/membership/membership.h"
#include "libs/membership/membership_fixture.h"

namespace talweg::membership {
namespace {

TEST_CASE("Membership: the loss of an aggregator", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  f.AddAggregator("a1", 101);
  const LossPolicy policy = GENERATE(LossPolicy::kFailJob, LossPolicy::kContinue);
  const JobId job = f.Enter("mnist", 0, 10, Spec(2, 2, policy));
  f.Enter("mnist", 1, 11, Spec(2, 2, policy));
  f.BreakAggregator(101);
  if (policy == LossPolicy::kFailJob) {
    CHECK(Contains(f.Told<JobFailed>(Id(0, 10)).at(0).text,
                   "aggregator a1 (incarnation 65) closed its connection"));
    return;
  }
  CHECK(f.EpochOf(job) == Epoch{2});
  CHECK(f.Told<View>(Id(0, 10)).back().aggregators.size() == 1);
  CHECK(f.Register(Fixture::Named("a1", 101)).code == Code::kRefused);
  f.BreakAggregator(100);
  CHECK(f.StateOf(job) == JobState::kFailed);
  CHECK(Contains(f.Told<JobFailed>(Id(0, 10)).at(0).text, "no aggregator is left"));
}

TEST_CASE("Membership: an aggregator's silence costs its lease", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(1, 1));
  f.keep_aggregators = false;
  f.Pass(11 * kSecond, job, {Id(0, 10)});
  CHECK(f.StateOf(job) == JobState::kFailed);
  CHECK(Contains(f.core->jobs().at(job).text, "aggregator a0 (incarnation 64) was silent"));
  // Its connection may well live on; it is told.
  REQUIRE(f.AggregatorClosed(100).has_value());
  CHECK(f.AggregatorClosed(100)->code == Code::kRefused);
}

TEST_CASE("Membership: names in the pool are held by one live incarnation", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  CHECK(f.Register(Fixture::Named("a0", 100)).ok());
  CHECK(f.Register(Fixture::Named("a0", 200)).code == Code::kHeld);
  f.BreakAggregator(100);
  CHECK(f.Register(Fixture::Named("a0", 200)).ok());
}

TEST_CASE("Membership: an aggregator drains before it leaves", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  f.AddAggregator("a1", 101);
  const JobId fixed = f.Enter("fixed", 0, 10, Spec(1, 1));
  const JobId moving = f.Enter("moving", 0, 20, Spec(1, 1, LossPolicy::kContinue));
  CHECK(f.Deregister(101, false).job_count == 2);
  CHECK(f.EpochOf(fixed) == Epoch{1});
  CHECK(f.EpochOf(moving) == Epoch{2});
  CHECK(f.Deregister(101, false).job_count == 1);
  const JobId late = f.Enter("late", 0, 30, Spec(1, 1));
  CHECK(f.core->jobs().at(late).view->aggregators.size() == 1);
  CHECK(f.Deregister(101, true).job_count == 1);
  CHECK(f.Deregister(101, true).answer.ok());
  CHECK(f.StateOf(fixed) == JobState::kFailed);
  CHECK(Contains(f.core->jobs().at(fixed).text, "was stopped: SIGTERM"));
  CHECK(f.StateOf(moving) == JobState::kRunning);
}

TEST_CASE("Membership: a view weighs aggregators by the links they share", "[membership]") {
  Fixture f;
  for (const uint32_t host : {0, 1, 2}) {
    ViewAggregator aggregator = Fixture::Named("a" + std::to_string(host), 100 + host);
    aggregator.host_id = "host-" + std::to_string(host);
    REQUIRE(f.Register(aggregator).ok());
    REQUIRE(f.AttachAggregator(100 + host).ok());
  }
  for (const uint32_t node : {0, 1}) {
    JoinRequest request = Fixture::Request("mnist", node, 10 + node, Spec(2, 2));
    request.host_id = "host-" + std::to_string(node);
    const JoinAnswer joined = f.Join(request);
    REQUIRE(f.Attach(joined.job, Id(node, 10 + node)).ok());
  }
  std::vector<uint32_t> weights;
  // A name for it: a loop over a temporary's member outlives the temporary.
  const View view = f.Told<View>(Id(0, 10)).at(0);
  for (const auto& each : view.aggregators) weights.push_back(each.weight);
  CHECK(weights == std::vector<uint32_t>{1, 1, 2});
}

}  // namespace
}  // namespace talweg::membership
