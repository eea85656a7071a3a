// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <catch2/catch.hpp>

#include "libs/membership/scheduler_core.h"
#include "libs/membership/scheduler_core_fixture.h"

namespace talweg::membership {
namespace {

TEST_CASE("SchedulerCore: the loss of an aggregator fails the job, or a view without it follows",
          "[membership]") {
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
  CHECK(f.Told<view::View>(Id(0, 10)).back().aggregators.size() == 1);
  CHECK(f.Register(Fixture::Named("a1", 101)).code == Code::kRefused);
  f.BreakAggregator(100);
  CHECK(f.StateOf(job) == JobState::kFailed);
  CHECK(Contains(f.Told<JobFailed>(Id(0, 10)).at(0).text, "no aggregator is left"));
}

TEST_CASE("SchedulerCore: an aggregator's silence costs its lease", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(1, 1));
  f.keep_aggregators = false;
  f.Pass(11 * kSecond, job, {Id(0, 10)});
  CHECK(f.StateOf(job) == JobState::kFailed);
  CHECK(Contains(f.core->jobs().at(job).text, "aggregator a0 (incarnation 64) was silent"));
  // Its connection may still be open; it is told.
  REQUIRE(f.AggregatorClosed(100).has_value());
  CHECK(f.AggregatorClosed(100)->code == Code::kRefused);
}

TEST_CASE("SchedulerCore: one live incarnation holds a name in the pool", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  CHECK(f.Register(Fixture::Named("a0", 100)).ok());
  CHECK(f.Register(Fixture::Named("a0", 200)).code == Code::kHeld);
  f.BreakAggregator(100);
  CHECK(f.Register(Fixture::Named("a0", 200)).ok());
}

TEST_CASE("SchedulerCore: an aggregator drains before it leaves", "[membership]") {
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

TEST_CASE("SchedulerCore: members hear of an aggregator that came late, and it waits for a view",
          "[membership]") {
  Fixture f;
  const auto noted = [&f] {
    return std::any_of(f.notes.begin(), f.notes.end(), [](const std::string& note) {
      return Contains(note, "aggregator a1 (incarnation 65) is not used by job 'one'");
    });
  };
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("one", 0, 10, Spec(1, 2, LossPolicy::kContinue));
  CHECK(f.core->SparesOf(f.core->jobs().at(job)).empty());
  f.AddAggregator("a1", 101);
  CHECK(noted());
  f.notes.clear();
  const auto spares = f.core->SparesOf(f.core->jobs().at(job));
  REQUIRE(spares.size() == 1);
  CHECK(spares[0].name == "a1");
  CHECK(spares[0].enters_next_view);
  REQUIRE(f.AttachAggregator(101).ok());  // A new connection alone is no news.
  CHECK_FALSE(noted());
  // The next view includes it, whatever that view is made for.
  f.BreakAggregator(100);
  CHECK(f.EpochOf(job) == Epoch{2});
  CHECK(f.Told<view::View>(Id(0, 10)).back().aggregators.at(0).name == "a1");
  CHECK(f.core->SparesOf(f.core->jobs().at(job)).empty());
}

TEST_CASE("SchedulerCore: aggregators that are left out because of their links are not called late",
          "[membership]") {
  Fixture f;
  for (const uint32_t host : {0, 1, 2, 3}) {
    view::ViewAggregator aggregator = Fixture::Named("a" + std::to_string(host), 100 + host);
    aggregator.host_id = "host-" + std::to_string(host);
    REQUIRE(f.Register(aggregator).ok());
    REQUIRE(f.AttachAggregator(100 + host).ok());
  }
  JobId job;
  for (const uint32_t node : {0, 1}) {
    JoinRequest request = Fixture::Request("mnist", node, 10 + node, Spec(2, 2));
    request.member.host_id = "host-" + std::to_string(node);
    job = f.Join(request).job;
    REQUIRE(f.Attach(job, Id(node, 10 + node)).ok());
  }
  const auto spares = f.core->SparesOf(f.core->jobs().at(job));
  REQUIRE(spares.size() == 2);
  CHECK(spares[0].name == "a0");
  CHECK(spares[1].name == "a1");
  CHECK_FALSE(spares[0].enters_next_view);
}

TEST_CASE("SchedulerCore: a view weighs aggregators by the links they share", "[membership]") {
  Fixture f;
  for (const uint32_t host : {0, 1, 2}) {
    view::ViewAggregator aggregator = Fixture::Named("a" + std::to_string(host), 100 + host);
    aggregator.host_id = "host-" + std::to_string(host);
    REQUIRE(f.Register(aggregator).ok());
    REQUIRE(f.AttachAggregator(100 + host).ok());
  }
  for (const uint32_t node : {0, 1}) {
    JoinRequest request = Fixture::Request("mnist", node, 10 + node, Spec(2, 2));
    request.member.host_id = "host-" + std::to_string(node);
    const JoinAnswer joined = f.Join(request);
    REQUIRE(f.Attach(joined.job, Id(node, 10 + node)).ok());
  }
  std::vector<uint32_t> weights;
  // A variable holds the view, because a loop over a temporary's member would outlive the
  // temporary.
  const view::View view = f.Told<view::View>(Id(0, 10)).at(0);
  for (const auto& each : view.aggregators) weights.push_back(each.weight);
  CHECK(weights == std::vector<uint32_t>{1, 1, 2});
}

}  // namespace
}  // namespace talweg::membership
