// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/job_life.h"

#include <catch2/catch.hpp>

#include "libs/membership/parts_fixture.h"

namespace talweg::membership {
namespace {

struct Living : PartsFixture {
  Living() { job.join_deadline_ns = 100 * kSecond; }

  Turn Advance(int64_t now_ns) {
    Turn turn(now_ns);
    life.Advance(job, turn);
    return turn;
  }
  void Lose(uint32_t node) {
    Turn turn(0);
    life.Remove(job, NodeRank{node}, MemberState::kLost, "is gone", turn);
    CHECK(turn.touched == std::set{job.id});
    CHECK(turn.dirty == std::set{job.id});
  }

  JobTable jobs{{}, {}, Epoch{0}, 0};
  Admission admission{&jobs};
  Numbers numbers{{}, {}, 0};
  JobLife life{JobLife::Parts{
      .pool = &pool, .admission = &admission, .streams = &streams, .numbers = &numbers}};
};

TEST_CASE("JobLife: a forming job begins with max_members, or after gather", "[membership]") {
  Living f;
  f.job.spec.max_members = 2;
  f.job.spec.gather_ns = 10 * f.kSecond;
  f.AddAggregator(5, "a");
  f.AddMember(0, 10);
  f.Advance(f.kSecond);
  CHECK(f.job.state == JobState::kForming);
  CHECK(f.job.gather_end_ns == 11 * f.kSecond);
  SECTION("All members are there") { f.AddMember(1, 11); }
  SECTION("The wait is over") { f.Advance(11 * f.kSecond); }
  const Turn turn = f.Advance(2 * f.kSecond);
  CHECK(f.job.state == JobState::kRunning);
  CHECK(f.job.epoch_floor == Epoch{1});
  if (f.job.members.size() == 2) CHECK(ToldMembers<SharedView>(turn).size() == 2);
}

TEST_CASE("JobLife: a job that has not begun in time fails", "[membership]") {
  Living f;
  f.job.spec.min_members = 2;
  f.AddMember(0, 10);
  f.Advance(99 * f.kSecond);
  CHECK(f.job.state == JobState::kForming);
  const Turn turn = f.Advance(100 * f.kSecond);
  CHECK(f.job.state == JobState::kFailed);
  REQUIRE(ToldMembers<JobFailed>(turn).size() == 1);
  CHECK(ToldMembers<JobFailed>(turn)[0].second.text == f.job.text);
}

TEST_CASE("JobLife: a loss ends the job, or a view without the lost member follows",
          "[membership]") {
  Living f;
  f.AddAggregator(5, "a");
  f.AddMember(0, 10);
  f.AddMember(1, 11);
  f.Run({0, 1});
  f.Lose(1);
  CHECK_FALSE(f.streams.Break(StreamId{101}));
  SECTION("kContinue: a view follows") {
    f.Advance(0);
    CHECK(f.job.state == JobState::kRunning);
    CHECK(f.job.view->epoch == Epoch{2});
    CHECK(f.job.view->members.size() == 1);
  }
  SECTION("kContinue with fewer than min_members: the job ends") {
    f.job.spec.min_members = 2;
    f.Advance(0);
    CHECK(f.job.state == JobState::kFailed);
  }
  SECTION("kFailJob: the job ends") {
    f.job.spec.loss_policy = LossPolicy::kFailJob;
    const Turn turn = f.Advance(0);
    CHECK(f.job.state == JobState::kFailed);
    CHECK(ToldMembers<JobFailed>(turn).size() == 1);
    CHECK(f.job.text.find("agent of node 1 (incarnation b) is gone") != std::string::npos);
  }
}

TEST_CASE("JobLife: a job is finished when all have left", "[membership]") {
  Living f;
  f.AddMember(0, 10);
  f.Run({0});
  Turn turn(7);
  f.life.Remove(f.job, NodeRank{0}, MemberState::kLeft, "has left", turn);
  f.Advance(7);
  CHECK(f.job.state == JobState::kFinished);
  CHECK(f.job.over_at_ns == 7);
}

TEST_CASE("JobLife: after a restart no view is made before all have said what they hold",
          "[membership]") {
  Living f;
  f.AddAggregator(5, "a");
  LiveMember& first = f.AddMember(0, 10);
  LiveMember& second = f.AddMember(1, 11);
  f.Run({0, 1});
  f.job.recovers = true;
  Turn turn(0);
  first.heard_of = true;
  first.epoch_held = Epoch{3};
  JobLife::ObserveEpoch(f.job, Epoch{3}, turn);
  f.Advance(0);
  CHECK(f.job.view->epoch == Epoch{1});
  // The other member may have missed the view of epoch 3.
  second.heard_of = true;
  second.epoch_held = Epoch{1};
  f.Advance(0);
  CHECK_FALSE(f.job.recovers);
  CHECK(f.job.view->epoch == Epoch{4});
  CHECK(f.job.members.size() == 1);
}

TEST_CASE("JobLife: a member of a view that the store does not know is lost", "[membership]") {
  Living f;
  f.AddAggregator(5, "a");
  f.AddMember(0, 10);
  f.Run({0});
  LiveMember& joiner = f.AddMember(1, 11);
  Turn turn(0);
  CHECK_FALSE(f.life.LoseIfInUnknownView(f.job, joiner, Epoch{0}, turn));
  CHECK(f.life.LoseIfInUnknownView(f.job, joiner, Epoch{2}, turn));
  CHECK(f.job.members.size() == 1);
}

}  // namespace
}  // namespace talweg::membership
