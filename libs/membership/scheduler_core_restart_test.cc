// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>

#include <catch2/catch.hpp>

#include "libs/membership/scheduler_core.h"
#include "libs/membership/scheduler_core_fixture.h"

namespace talweg::membership {
namespace {

TEST_CASE("SchedulerCore: after a restart a quiesce is proposed again, under another id",
          "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(1, 2));
  f.Enter("mnist", 1, 11, Spec(1, 2));
  const QuiesceId first = f.Told<Quiesce>(Id(0, 10)).at(0).id;
  f.Start();
  REQUIRE(f.AttachAggregator(100).ok());
  REQUIRE(f.Attach(job, Id(0, 10), Epoch{1}).ok());
  CHECK(f.Told<Attached>(Id(0, 10)).at(0).quiesce == QuiesceId{0});
  REQUIRE(f.Attach(job, Id(1, 11)).ok());
  REQUIRE(f.Told<Quiesce>(Id(0, 10)).size() == 1);
  const QuiesceId second = f.Told<Quiesce>(Id(0, 10))[0].id;
  CHECK(second != first);
  f.Quiesced(job, Id(0, 10), first);  // This answer is from before the restart.
  CHECK(f.EpochOf(job) == Epoch{1});
  f.Quiesced(job, Id(0, 10), second);
  f.QuiesceAll(job);
  CHECK(f.EpochOf(job) == Epoch{2});
}

TEST_CASE("SchedulerCore: a running job does not notice a restart", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(2, 2));
  f.Enter("mnist", 1, 11, Spec(2, 2));
  const view::View view = *f.core->jobs().at(job).view;
  f.now_ns += 100 * kSecond;
  f.Start();
  CHECK(f.core->start_count() == 2);
  CHECK(f.Renew(job, Id(0, 10), Epoch{1}).ok());
  CHECK(f.Attach(job, Id(0, 10), Epoch{1}).ok());
  CHECK(f.Attach(job, Id(1, 11), Epoch{1}).ok());
  CHECK(f.AttachAggregator(100, {{job, Epoch{1}}}).ok());
  CHECK(f.Told<view::View>(Id(0, 10)) == std::vector<view::View>{view});
  f.Pass(8 * kSecond);
  CHECK(f.StateOf(job) == JobState::kRunning);
  // A member that has not come back yet keeps its place for a lease. Another one asks again.
  f.Start();
  const Answer held = f.Join(Fixture::Request("mnist", 1, 12, Spec(2, 2))).answer;
  CHECK(held.code == Code::kNotYet);
  CHECK(Contains(held.text, "node rank 1 is held by the agent of node 1"));
  CHECK(Contains(held.text, "ask again when its lease has ended"));
  CHECK(f.Attach(job, Id(1, 11), Epoch{1}).ok());
  CHECK(f.Join(Fixture::Request("mnist", 1, 12, Spec(2, 2))).answer.code == Code::kHeld);
  f.Start();
  // A member that does not come back is lost.
  f.Pass(11 * kSecond, job, {Id(0, 10)});
  CHECK(f.StateOf(job) == JobState::kFailed);
}

TEST_CASE("SchedulerCore: a job that forms survives a restart", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(2, 2));
  f.Start();
  CHECK(f.AttachAggregator(100).ok());
  f.Enter("mnist", 1, 11, Spec(2, 2));
  CHECK(f.StateOf(job) == JobState::kForming);
  CHECK(f.Attach(job, Id(0, 10)).ok());
  CHECK(f.StateOf(job) == JobState::kRunning);
  CHECK(f.Enter("other", 0, 1, Spec(1, 1)) == job.Next());
}

TEST_CASE("SchedulerCore: a restart does not let the dead in again", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobSpec spec = Spec(1, 2, LossPolicy::kContinue);
  const JobId job = f.Enter("mnist", 0, 10, spec);
  f.Enter("mnist", 1, 11, spec);
  f.Break(Id(1, 11));
  f.BreakAggregator(100);
  f.Start();
  CHECK(f.Attach(job, Id(1, 11)).code == Code::kRefused);
  CHECK(f.Join(Fixture::Request("mnist", 1, 11, spec)).answer.code == Code::kRefused);
  CHECK(f.Register(Fixture::Named("a0", 100)).code == Code::kRefused);
}

TEST_CASE("SchedulerCore: a store that is older than its members raises the epoch above theirs",
          "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobSpec spec = Spec(1, 3, LossPolicy::kContinue);
  const JobId job = f.Enter("mnist", 0, 10, spec);
  const Snapshot backup = f.stored;
  f.Restore(backup);
  CHECK(f.Attach(job, Id(0, 10), Epoch{7}).ok());
  CHECK(f.EpochOf(job) == Epoch{8});
  CHECK(f.Renew(job, Id(0, 10), Epoch{8}).ok());
  CHECK(f.EpochOf(job) == Epoch{8});
  // The epoch that an aggregator names counts as well, and so do ids of jobs that this store never
  // gave.
  CHECK(f.AttachAggregator(100, {{job, Epoch{12}}, {JobId{40}, Epoch{3}}}).ok());
  CHECK(f.EpochOf(job) == Epoch{13});
  CHECK(f.AggregatorTold<JobClosed>(100).at(0).job == JobId{40});
  CHECK(Contains(f.AggregatorTold<JobClosed>(100).at(0).text,
                 "knows no job 40; was it started without the store that has the job"));
  CHECK(f.Enter("other", 0, 1, Spec(1, 1)) == JobId{41});
  CHECK(f.Renew(JobId{50}, Id(0, 10)).code == Code::kUnknown);
}

TEST_CASE("SchedulerCore: numbers that an older store has forgotten are not given again",
          "[membership]") {
  constexpr int64_t kUnixNs = 1'800'000'000'000'000'000;
  Fixture f;
  f.start_unix_ns = kUnixNs;
  f.AddAggregator("a0", 100);
  f.AddAggregator("a1", 101);
  const JobSpec spec = Spec(1, 3, LossPolicy::kContinue);
  const JobId job = f.Enter("mnist", 0, 10, spec);
  CHECK(f.EpochOf(job) == Epoch{1});
  f.Start();
  const Snapshot backup = f.stored;
  std::set<Epoch> epochs;
  std::set<JobId> jobs;
  std::set<QuiesceId> quiesces;
  constexpr int kLives = 3;
  for (int life = 0; life < kLives; ++life) {
    f.start_unix_ns += 2'000'000;
    f.Restore(backup);
    REQUIRE(f.Attach(job, Id(0, 10), Epoch{1}).ok());
    CHECK(f.EpochOf(job) == Epoch{1});  // A start alone needs no view.
    REQUIRE(f.AttachAggregator(100).ok());
    REQUIRE(f.AttachAggregator(101).ok());
    f.BreakAggregator(101);
    epochs.insert(f.EpochOf(job));
    f.Enter("mnist", 1, 20 + life, spec);
    quiesces.insert(f.core->jobs().at(job).quiesce.value().id);
    jobs.insert(f.Enter("other", 0, 30 + life, Spec(1, 1)));
  }
  CHECK(epochs.size() == kLives);
  CHECK(*epochs.begin() > Epoch{1});
  CHECK(jobs.size() == kLives);
  CHECK(quiesces.size() == kLives);
}

TEST_CASE("SchedulerCore: an older store's members say what they hold before a view is made",
          "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  f.AddAggregator("a1", 101);
  const JobSpec spec = Spec(1, 3, LossPolicy::kContinue);
  const JobId job = f.Enter("mnist", 0, 10, spec);
  f.Enter("mnist", 1, 11, spec);
  f.QuiesceAll(job);
  const Epoch both = f.EpochOf(job);
  const Snapshot backup = f.stored;
  f.Break(Id(1, 11));
  const Epoch without = f.EpochOf(job);
  REQUIRE(without > both);
  f.Restore(backup);
  // Node 1 has not heard that it is out of the view.
  REQUIRE(f.Attach(job, Id(1, 11), both).ok());
  REQUIRE(f.AttachAggregator(100).ok());
  REQUIRE(f.AttachAggregator(101).ok());
  f.BreakAggregator(101);
  CHECK(f.EpochOf(job) == both);
  SECTION("One holds a newer view that the other may have missed") {
    REQUIRE(f.Attach(job, Id(0, 10), without).ok());
    CHECK(f.EpochOf(job) > without);
    const view::View view = f.Told<view::View>(Id(0, 10)).back();
    REQUIRE(view.members.size() == 1);
    CHECK(view.members[0].id == Id(0, 10));
    CHECK(f.Renew(job, Id(1, 11), both).code == Code::kRefused);
  }
  SECTION("All hold the same view") {
    REQUIRE(f.Attach(job, Id(0, 10), both).ok());
    CHECK(f.EpochOf(job) > both);
    CHECK(f.Told<view::View>(Id(1, 11)).back().members.size() == 2);
  }
  SECTION("One does not come back") {
    f.Pass(11 * kSecond, job, {Id(1, 11)});
    CHECK(f.EpochOf(job) > both);
    CHECK(f.Told<view::View>(Id(1, 11)).back().members.size() == 1);
  }
}

TEST_CASE("SchedulerCore: a member of a view that the store does not know is no joiner",
          "[membership]") {
  const LossPolicy policy = GENERATE(LossPolicy::kContinue, LossPolicy::kFailJob);
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobSpec spec = Spec(1, 3, policy);
  const JobId job = f.Enter("mnist", 0, 10, spec);
  f.Enter("mnist", 1, 11, spec);
  const Snapshot backup = f.stored;
  f.QuiesceAll(job);
  const Epoch both = f.EpochOf(job);
  REQUIRE(f.Told<view::View>(Id(1, 11)).back().members.size() == 2);
  f.Restore(backup);
  REQUIRE(f.AttachAggregator(100).ok());
  const Answer answer = f.Attach(job, Id(1, 11), both);
  CHECK(answer.code == Code::kRefused);
  CHECK(Contains(answer.text, "that the scheduler's store does not know"));
  if (policy == LossPolicy::kFailJob) {
    CHECK(f.StateOf(job) == JobState::kFailed);
    return;
  }
  CHECK(f.StateOf(job) == JobState::kRunning);
  REQUIRE(f.Attach(job, Id(0, 10), both).ok());
  CHECK(f.EpochOf(job) > both);
  CHECK(f.Told<view::View>(Id(0, 10)).back().members.size() == 1);
  CHECK(f.Join(Fixture::Request("mnist", 1, 11, spec)).answer.code == Code::kRefused);
}

TEST_CASE("SchedulerCore: a gap in time starts all leases afresh", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(2, 2));
  f.Enter("mnist", 1, 11, Spec(2, 2));
  f.now_ns += 3600 * kSecond;
  f.Tick();
  CHECK(f.StateOf(job) == JobState::kRunning);
  // Peers gave up on the paused scheduler and opened new streams. The old streams' ends may come
  // first.
  f.Break(Id(1, 11));
  CHECK(f.StateOf(job) == JobState::kRunning);
  CHECK(f.Attach(job, Id(1, 11), Epoch{1}).ok());
  f.Pass(9 * kSecond, job, {Id(0, 10), Id(1, 11)});
  CHECK(f.StateOf(job) == JobState::kRunning);
  f.Pass(2 * kSecond, job, {Id(0, 10), Id(1, 11)});
  f.Break(Id(1, 11));
  CHECK(f.StateOf(job) == JobState::kFailed);
}

TEST_CASE("SchedulerCore: a newer stream replaces the older one, whose end is no loss",
          "[membership]") {
  Fixture f;
  const JobId job = f.Enter("mnist", 0, 10, Spec(1, 1));
  REQUIRE(f.Attach(job, Id(0, 10), Epoch{1}).ok());  // This is stream 2.
  f.BreakStream(StreamId{1});
  f.BreakStream(StreamId{77});
  CHECK(f.StateOf(job) == JobState::kRunning);
}

}  // namespace
}  // namespace talweg::membership
